"""State files: the state of one subtask in one file, written by any process."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from sluiceway.checkpoint.files import StoredFiles, join
from sluiceway.checkpoint.metadata import (
    GroupEntry,
    InFlightEntry,
    KeyedEntry,
    ListEntry,
    NativeEntry,
    NativeFileEntry,
    OperatorEntry,
    Section,
    SharedFileEntry,
    SharedRowsEntry,
    SubtaskEntry,
    TableEntry,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import SerializationError
from sluiceway.network.channel_state import InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.serializers import MsgspecSerializer, encode_rows
from sluiceway.state import IncrementalRows, KeyedSnapshot, NativeState, SharedRows, StateMeta

__all__ = [
    "SHARED",
    "SectionWriter",
    "decode_subtask",
    "encode_subtask",
    "shared_files",
    "write_rows",
    "write_subtask",
]

SHARED: Final = "shared"
"""The directory, beside those of the checkpoints, of the files that several of them may refer to."""

_MAGIC: Final = b"sluiceway state 1\n"
# Bytes that are gathered before they are given to the storage.
_ENOUGH: Final = 1 << 18
_PLAIN: Final = MsgspecSerializer()
_encode: Final = msgspec.msgpack.Encoder().encode


class SectionWriter:
    """Writer of one file of a checkpoint, made of sections.

    Args:
        storage: storage of the checkpoint.
        directory: directory of the checkpoint.
        file: name of the file in it.
    """

    def __init__(self, storage: CheckpointStorage, directory: str, file: str) -> None:
        self._storage = storage
        self._directory = directory
        self.file = file
        self._offset = 0
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, content: Callable[[], Iterator[None]]) -> int:
        """Write the file and return its size, 0 if there was nothing to write.

        Args:
            content: calls :meth:`add` and :meth:`add_values`, and yields often: what was added is written then.
        """
        steps = content()
        # The file is begun with the first bytes: subtasks without state have none.
        for _ in steps:
            if self._offset:
                break
        else:
            return 0
        return self._storage.write(join(self._directory, self.file), self._parts(steps))

    def _parts(self, steps: Iterator[None]) -> Iterator[bytes]:
        for _ in steps:
            if self._size >= _ENOUGH:
                yield b"".join(self._waiting)
                self._waiting.clear()
                self._size = 0
        yield b"".join(self._waiting)

    def add(self, data: bytes, count: int = 0) -> Section:
        """Add a section."""
        if not self._offset:
            self._append(_MAGIC)
        section = Section(file=self.file, offset=self._offset, size=len(data), crc32=crc32(data), count=count)
        self._append(data)
        return section

    def add_values(self, values: Sequence[Any]) -> Section | None:
        """Add values of any type as a section: a msgpack array of one bin for each; None if there are none."""
        return self.add(_encode([_PLAIN.dumps(value) for value in values]), len(values)) if values else None

    def _append(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        self._offset += len(data)


def write_subtask(
    storage: CheckpointStorage,
    directory: str,
    name: str,
    index: int,
    snapshots: Iterable[OperatorSnapshot],
    *,
    attachments: Mapping[str, bytes] | None = None,
    in_flight: Iterable[InFlight] = (),
    finished: bool = False,
    canonical: bool = False,
    known: Mapping[str, SharedFileEntry] | None = None,
) -> SubtaskEntry:
    """Write the state of a subtask. Blocks; for a helper thread.

    The snapshots are released, whether it succeeds or not. Until the metadata that refers to them is written,
    the files belong to no checkpoint, and the collection of orphans finds them.

    Args:
        storage: storage of the checkpoint.
        directory: directory of the checkpoint, relative to the storage's location; ``"run-7/chk-12"``.
        name: name of the subtask's file, without a directory; unique in the checkpoint, for each attempt.
        index: index of the subtask.
        snapshots: snapshots of its steps.
        attachments: other bytes to store, by name.
        in_flight: in-flight records.
        finished: True if the subtask has finished.
        canonical: as a savepoint is: with nothing outside the directory, and as rows by key group, independent of
            the backend (except what was read from a checkpoint as files of a backend, which it stays).
        known: files that never change and that are stored already, by identity
            (:func:`sluiceway.checkpoint.shared_files` of the subtask's entry in a *completed* checkpoint of the
            same directory). They are referred to instead of being written again.

    Raises:
        CheckpointError: it cannot be written.
        SerializationError: a value cannot be serialized; names state and key.
        StateError: from a lazy snapshot.
    """
    # A list, as the iterable may be a generator: all of them are released in any case.
    kept = list(snapshots)
    try:
        writer = SectionWriter(storage, directory, name)
        operators: list[OperatorEntry] = []
        attached: dict[str, Section] = {}
        overtaken: list[InFlightEntry] = []
        files = _FilesWriter(storage, directory, name, known or {})

        # A generator, so that the storage takes the file in parts while the state is read.
        def content() -> Iterator[None]:
            for snapshot in kept:
                entry = yield from _write_operator(writer, files, snapshot, canonical)
                operators.append(entry)
            for attachment, data in (attachments or {}).items():
                attached[attachment] = writer.add(data)
                yield
            for part in in_flight:
                overtaken.append(_write_in_flight(writer, part))
                yield

        written = writer.write(content)
        return SubtaskEntry(
            index=index,
            operators=tuple(operators),
            attachments=attached,
            in_flight=tuple(overtaken),
            finished=finished,
            size=written + files.size,
            written=written + files.written,
        )
    finally:
        for snapshot in kept:
            if snapshot.keyed is not None:
                snapshot.keyed.release()


def encode_subtask(entry: SubtaskEntry) -> bytes:
    """Return an entry in the form of a message to the job manager."""
    return _encode(entry)


def decode_subtask(data: bytes) -> SubtaskEntry:
    """Return the entry that :func:`encode_subtask` was given. Raises SerializationError."""
    try:
        return msgspec.msgpack.decode(data, type=SubtaskEntry)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SerializationError(f"{len(data)} bytes are no entry of a subtask: {error}") from error


def _write_operator(
    writer: SectionWriter, files: _FilesWriter, snapshot: OperatorSnapshot, canonical: bool
) -> Generator[None, None, OperatorEntry]:
    keyed = None
    if snapshot.keyed is not None:
        native, rows = snapshot.keyed.native, snapshot.keyed.groups
        # Read from an earlier checkpoint, as the state of a finished task is.
        if isinstance(native, StoredFiles):
            keyed = files.copy(snapshot.keyed, native, alone=canonical)
        elif native is not None and not canonical:
            keyed = files.write(snapshot.keyed, native)
        elif isinstance(rows, IncrementalRows) and not canonical:
            keyed = yield from _write_incrementally(writer, files, snapshot.keyed, rows)
        else:
            keyed = yield from write_rows(writer, snapshot.keyed)
    splits = writer.add_values(snapshot.splits)
    yield
    lists = []
    for kept in snapshot.lists:
        elements = writer.add(_encode(kept.elements), len(kept.elements)) if kept.elements else None
        lists.append(
            ListEntry(
                name=kept.name,
                mode=kept.mode.value,
                serializer=kept.serializer,
                version=kept.version,
                type=kept.type_name,
                subtask=kept.subtask,
                parallelism=kept.parallelism,
                elements=elements,
                schema=kept.schema,
            )
        )
        yield
    broadcast = None
    if snapshot.broadcast is not None:
        dumps = _PLAIN.dumps
        states = [
            (name, [(dumps(key), dumps(value)) for key, value in entries.items()])
            for name, entries in snapshot.broadcast.items()
        ]
        broadcast = writer.add(_encode(states), len(states))
        yield
    pending = None
    if snapshot.pending:
        pending = writer.add(
            _encode([(_PLAIN.dumps(value), timestamp) for value, timestamp in snapshot.pending]),
            len(snapshot.pending),
        )
        yield
    committables = writer.add_values(snapshot.committables)
    yield
    return OperatorEntry(
        uid=snapshot.uid,
        keyed=keyed,
        splits=splits,
        lists=tuple(lists),
        broadcast=broadcast,
        pending=pending,
        committables=committables,
    )


def _write_in_flight(writer: SectionWriter, part: InFlight) -> InFlightEntry:
    return InFlightEntry(
        source=part.edge.source,
        target=part.edge.target,
        elements=writer.add(_encode(list(part.frames)), len(part.frames)),
        port=part.edge.port,
        tag=part.edge.tag,
        number=part.edge.number,
        partitioner=part.partitioner,
        producer=part.producer,
        consumer=part.consumer,
        consumers=part.consumers,
        max_parallelism=part.max_parallelism,
        stage=part.stage,
        serializer=part.serializer,
        version=part.version,
    )


def write_rows(writer: SectionWriter, snapshot: KeyedSnapshot) -> Generator[None, None, KeyedEntry]:
    """Write keyed state as rows; yields often."""
    groups = []
    for group in sorted(snapshot.groups):
        groups.append(_write_group(writer, group, snapshot.groups[group]))
        yield
    return KeyedEntry(
        tables=tuple(map(_table_entry, snapshot.tables)),
        file=writer.file if groups else None,
        groups=tuple(groups),
    )


def _write_incrementally(
    writer: SectionWriter, files: _FilesWriter, snapshot: KeyedSnapshot, rows: IncrementalRows
) -> Generator[None, None, KeyedEntry]:
    """Write the rows that no file has yet; yields often."""
    shared = []
    for part in rows.shared:
        shared.append(files.share(part))
        yield
    private, none = rows.private, encode_rows(())
    groups = []
    for group in sorted({*private, *(group for part in rows.shared for group in part.key_groups)}):
        groups.append(_write_group(writer, group, private.get(group, none)))
        yield
    return KeyedEntry(
        tables=tuple(map(_table_entry, snapshot.tables)),
        file=writer.file,
        groups=tuple(groups),
        shared=tuple(shared),
    )


def _write_group(writer: SectionWriter, group: int, rows: bytes) -> GroupEntry:
    section = writer.add(rows)
    return GroupEntry(group=group, offset=section.offset, size=section.size, crc32=section.crc32)


def _table_entry(meta: StateMeta) -> TableEntry:
    return TableEntry(
        name=meta.name,
        table=meta.kind.value,
        serializer=meta.serializer,
        version=meta.version,
        type=meta.type_name,
        expires=meta.expires,
        kind=meta.declared,
        ttl_ms=meta.ttl_ms,
        schema=meta.schema,
    )


class _FilesWriter:
    """Writer of the other files of a subtask: those that never change go into the directory for shared ones."""

    def __init__(
        self, storage: CheckpointStorage, directory: str, name: str, known: Mapping[str, SharedFileEntry]
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._name = name
        self._known = known
        self._count = 0
        self.size = 0
        self.written = 0

    def write(self, snapshot: KeyedSnapshot, native: NativeState) -> KeyedEntry:
        files = []
        for file in native.files:
            entry = self._known.get(file.identity) if file.identity else None
            if not isinstance(entry, NativeFileEntry):
                path = native.local_path(file.name)
                stored = f"../{SHARED}/{_safe(file.identity)}" if file.identity else f"{self._name}.{self._count}"
                self._count += 1
                checksum = _checksum(path)
                size = self._storage.put_file(join(self._directory, stored), path)
                entry = NativeFileEntry(
                    name=file.name, file=stored, size=size, crc32=checksum, shared=bool(file.identity)
                )
                self.written += size
            self.size += entry.size
            files.append(entry)
        return _native_entry(snapshot, native, files)

    def share(self, rows: SharedRows) -> SharedRowsEntry:
        """Refer to rows, which are written first if they are in no complete checkpoint."""
        entry = self._known.get(rows.identity)
        if not isinstance(entry, SharedRowsEntry):
            writer = SectionWriter(self._storage, self._directory, f"../{SHARED}/{_safe(rows.identity)}")
            index: list[Section] = []

            def content() -> Iterator[None]:
                groups = []
                for group in sorted(rows.key_groups):
                    section = writer.add(rows.rows(group))
                    groups.append((group, section.offset, section.size, section.crc32))
                    yield
                index.append(writer.add(_encode(groups), len(groups)))
                yield

            size = writer.write(content)
            entry = SharedRowsEntry(file=writer.file, size=size, index=index[0])
            self.written += size
        self.size += entry.size
        return entry

    def copy(self, snapshot: KeyedSnapshot, native: StoredFiles, *, alone: bool) -> KeyedEntry:
        """Copy what is stored already; with ``alone``, without references outside of the own directory."""
        files = []
        for entry in native.entries:
            # A shared file is referred to where it is; a savepoint must not refer to anything outside.
            if not entry.shared or alone:
                stored = f"{self._name}.{self._count}"
                self._count += 1
                self._storage.write(join(self._directory, stored), native.parts(entry))
                entry = msgspec.structs.replace(entry, file=stored, shared=False)
                self.written += entry.size
            self.size += entry.size
            files.append(entry)
        return _native_entry(snapshot, native, files)


def _native_entry(snapshot: KeyedSnapshot, native: NativeState, files: list[NativeFileEntry]) -> KeyedEntry:
    return KeyedEntry(
        tables=tuple(map(_table_entry, snapshot.tables)),
        native=NativeEntry(
            format=native.format,
            start=native.key_groups.start,
            end=native.key_groups.end,
            files=tuple(files),
            properties=dict(native.properties),
        ),
    )


def _safe(identity: str) -> str:
    # It becomes a name in the storage, and must not leave the directory.
    if not re.fullmatch(r"[\w.-]+", identity, re.ASCII) or identity.startswith("."):
        raise ValueError(f"a backend's file has the identity {identity!r}, which is no name of a file")
    return identity


def _checksum(path: str) -> int:
    found = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found = crc32(part, found)
    return found


def shared_files(entry: SubtaskEntry) -> dict[str, SharedFileEntry]:
    """Return the files of a subtask's entry that never change, by identity, for the next checkpoint to refer to.

    Only of a checkpoint that is known to be complete: the files of others may be deleted.
    """
    found: dict[str, SharedFileEntry] = {}
    for keyed in (operator.keyed for operator in entry.operators):
        if keyed is not None:
            files = () if keyed.native is None else keyed.native.files
            shared: Iterable[SharedFileEntry] = (*(file for file in files if file.shared), *keyed.shared)
            found.update((file.file.rpartition("/")[2], file) for file in shared)
    return found
