"""Reader of a checkpoint's state as the operators' snapshots that it was written from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from sluiceway.checkpoint.files import StoredFiles, join
from sluiceway.checkpoint.metadata import (
    CheckpointMetadata,
    GroupEntry,
    InFlightEntry,
    KeyedEntry,
    ListEntry,
    OperatorEntry,
    Section,
    SharedRowsEntry,
    SubtaskEntry,
    TableEntry,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, SerializationError, StateError
from sluiceway.network.channel_state import EdgeName, InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.serializers import MsgspecSerializer, merge_rows
from sluiceway.state import KeyedSnapshot, NativeState, StateMeta, TableKind

__all__ = ["StateReader", "read_enumerators", "read_in_flight", "read_operators"]

_PLAIN: Final = MsgspecSerializer()
_T = TypeVar("_T")
_BINS: Final = msgspec.msgpack.Decoder(list[bytes])
_BROADCAST: Final = msgspec.msgpack.Decoder(list[tuple[str, list[tuple[bytes, bytes]]]])
_INDEX: Final = msgspec.msgpack.Decoder(list[GroupEntry])
_AHEAD: Final = 1 << 26
"""Bytes that are read ahead of all shared files of a snapshot together: key groups are read in their order, and
each by itself would take a request to an object store."""
_PENDING: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int | None]])


class StateReader:
    """Reader of the files of one checkpoint, with a check of their checksums.

    Args:
        storage: storage of the checkpoint.
        directory: directory of the checkpoint, relative to the storage's location.
    """

    def __init__(self, storage: CheckpointStorage, directory: str) -> None:
        self.storage = storage
        self.directory = directory

    def shown(self, file: str) -> str:
        """Return the name of a file in messages."""
        return self.storage.shown(join(self.directory, file))

    def bytes_of(self, section: Section) -> bytes:
        """Return the bytes of a section.

        Raises:
            CheckpointError: it cannot be read, or is damaged; names the file.
        """
        return self.checked(section.file, section.offset, section.size, section.crc32)

    def checked(self, file: str, offset: int, size: int, checksum: int) -> bytes:
        """Return bytes of a file after a check of their checksum."""
        name = join(self.directory, file)
        data = self.storage.read(name, offset, size)
        # A local copy may be damaged where the storage is not. Once it is distrusted, the storage itself is read.
        if (len(data) != size or crc32(data) != checksum) and self.storage.distrust(name):
            data = self.storage.read(name, offset, size)
        if len(data) != size:
            raise CheckpointError(
                f"{self.shown(file)} is damaged: it ends after {len(data)} of the {size} bytes at {offset}"
            )
        if (found := crc32(data)) != checksum:
            raise CheckpointError(
                f"{self.shown(file)} is damaged: the checksum of the {size} bytes at {offset} is {found:08x}, "
                f"{checksum:08x} was written"
            )
        return data

    def ranges(self, file: str, places: Sequence[GroupEntry]) -> dict[int, bytes]:
        """Return the rows of key groups that lie one behind the other in a file, read at once."""
        start, end = places[0].offset, places[-1].offset + places[-1].size
        data = self.storage.read(join(self.directory, file), start, end - start)
        found = {}
        for place in places:
            rows = data[place.offset - start : place.offset - start + place.size]
            # What is damaged is read again by itself, and reported.
            is_good = len(rows) == place.size and crc32(rows) == place.crc32
            found[place.group] = rows if is_good else self.checked(file, place.offset, place.size, place.crc32)
        return found

    def values(self, section: Section | None) -> tuple[Any, ...]:
        """Return the values of a section; none without a section."""
        if section is None:
            return ()
        return tuple(self._loads(section, data) for data in self.decoded(section, _BINS))

    def decoded(self, section: Section, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
        """Return the decoded content of a section."""
        try:
            return decoder.decode(self.bytes_of(section))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.shown(section.file)} is not what its format says: {error}") from error

    def operator(self, entry: OperatorEntry) -> OperatorSnapshot:
        """Return the snapshot of one step. Rows and files of keyed state are read at their access."""
        broadcast = None
        if (section := entry.broadcast) is not None:
            broadcast = {
                name: {self._loads(section, key): self._loads(section, value) for key, value in entries}
                for name, entries in self.decoded(section, _BROADCAST)
            }
        pending: tuple[tuple[Any, int | None], ...] = ()
        if (section := entry.pending) is not None:
            pending = tuple((self._loads(section, v), at) for v, at in self.decoded(section, _PENDING))
        return OperatorSnapshot(
            entry.uid,
            keyed=None if entry.keyed is None else self.keyed(entry.uid, entry.keyed),
            splits=self.values(entry.splits),
            lists=tuple(map(self._list, entry.lists)),
            broadcast=broadcast,
            pending=pending,
            committables=self.values(entry.committables),
        )

    def keyed(self, uid: str, entry: KeyedEntry) -> KeyedSnapshot:
        """Return the keyed state of a step in one subtask, which is read at its access."""
        tables = tuple(map(_meta, entry.tables))
        # Nothing is read yet: snapshots are sent to subtasks, which read what they own.
        if entry.native is not None:
            native = StoredFiles(self.storage, self.directory, entry.native)
            return KeyedSnapshot(tables, _NoRows(native, self.shown("")), native)
        rows = _StoredRows(self, entry)
        return KeyedSnapshot(tables, _JoinedRows(self, entry, rows) if entry.shared else rows)

    def attachment(self, entry: SubtaskEntry, name: str) -> bytes:
        """Return bytes attached to a subtask's state under a name. Raises KeyError."""
        return self.bytes_of(entry.attachments[name])

    def _list(self, entry: ListEntry) -> ListSnapshot:
        elements: list[bytes] = [] if entry.elements is None else self.decoded(entry.elements, _BINS)
        return ListSnapshot(
            entry.name,
            ListMode(entry.mode),
            entry.serializer,
            entry.version,
            entry.type,
            entry.subtask,
            entry.parallelism,
            tuple(elements),
            entry.schema,
        )

    def _loads(self, section: Section, data: bytes) -> Any:
        try:
            return _PLAIN.loads(data)
        except SerializationError as error:
            raise CheckpointError(f"{self.shown(section.file)}: {error}") from error


def read_operators(
    storage: CheckpointStorage, directory: str, metadata: CheckpointMetadata
) -> tuple[OperatorSnapshot, ...]:
    """Return the snapshots of all steps in all subtasks, in order, to restore a job from.

    Keyed state is read at its access; so these can be pickled and sent to the subtasks.

    Raises:
        CheckpointError: a file is missing or damaged; names it.
    """
    reader = StateReader(storage, directory)
    return tuple(
        replace(
            reader.operator(operator),
            subtask=subtask.index,
            parallelism=vertex.parallelism,
            drained=subtask.finished,
        )
        for vertex in metadata.vertices
        for subtask in sorted(vertex.subtasks, key=lambda s: s.index)
        for operator in subtask.operators
    )


def read_enumerators(storage: CheckpointStorage, directory: str, metadata: CheckpointMetadata) -> dict[str, Any]:
    """Return the state of the enumerators by uid of a source. Raises CheckpointError."""
    reader = StateReader(storage, directory)
    return {uid: reader.values(section)[0] for uid, section in metadata.enumerators.items()}


def read_in_flight(
    storage: CheckpointStorage, directory: str, metadata: CheckpointMetadata
) -> tuple[InFlight, ...]:
    """Return the in-flight records, which are read at their access."""
    reader = StateReader(storage, directory)
    return tuple(
        InFlight(
            EdgeName(entry.source, entry.target, entry.port, entry.tag, entry.number),
            entry.partitioner,
            entry.producer,
            entry.consumer,
            entry.consumers,
            entry.max_parallelism,
            entry.stage,
            _StoredFrames(reader, entry),
            entry.elements.size,
            entry.serializer,
            entry.version,
        )
        for subtask in metadata.subtasks()
        for entry in subtask.in_flight
    )


class _StoredFrames(Sequence[bytes]):
    """Batches of one channel."""

    def __init__(self, reader: StateReader, entry: InFlightEntry) -> None:
        self._reader = reader
        self._section = entry.elements

    def __getitem__(self, index: Any) -> Any:
        return self._reader.decoded(self._section, _BINS)[index]

    def __iter__(self) -> Iterator[bytes]:
        frames: list[bytes] = self._reader.decoded(self._section, _BINS)
        return iter(frames)

    def __len__(self) -> int:
        return self._section.count


def _meta(entry: TableEntry) -> StateMeta:
    return StateMeta(
        entry.name,
        TableKind(entry.table),
        entry.serializer,
        entry.version,
        entry.type,
        entry.expires,
        entry.kind,
        entry.ttl_ms,
        entry.schema,
    )


class _StoredRows(Mapping[int, bytes]):
    """Rows of key groups, read one group at a time."""

    def __init__(self, reader: StateReader, entry: KeyedEntry) -> None:
        self._reader = reader
        self._file = entry.file or ""
        self._groups: dict[int, GroupEntry] = {group.group: group for group in entry.groups}

    def __getitem__(self, group: int) -> bytes:
        entry = self._groups[group]
        return self._reader.checked(self._file, entry.offset, entry.size, entry.crc32)

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class _JoinedRows(Mapping[int, bytes]):
    """Rows of key groups of which some are in shared files."""

    def __init__(self, reader: StateReader, entry: KeyedEntry, private: _StoredRows) -> None:
        self._made_of = reader, entry, private
        self._private = private
        ahead = _AHEAD // len(entry.shared)
        self._files = [_SharedFile(reader, file, ahead) for file in entry.shared]

    def __reduce__(self) -> tuple[Any, ...]:
        return _JoinedRows, self._made_of  # without what was read ahead

    def __getitem__(self, group: int) -> bytes:
        found = [self._private[group], *(rows for file in self._files if (rows := file.rows(group)) is not None)]
        return merge_rows(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._private)

    def __len__(self) -> int:
        return len(self._private)


class _SharedFile:
    """Reader of a file with rows that checkpoints share.

    Args:
        reader: reader of the checkpoint.
        entry: entry of the file.
        ahead: bytes that are read ahead.
    """

    def __init__(self, reader: StateReader, entry: SharedRowsEntry, ahead: int) -> None:
        self._reader = reader
        self._entry = entry
        self._ahead = ahead
        self._index: dict[int, GroupEntry] | None = None
        self._read: dict[int, bytes] = {}

    def rows(self, group: int) -> bytes | None:
        """Return the rows of a key group; None: the file has none. Raises CheckpointError if it is damaged."""
        if self._index is None:
            index = self._reader.decoded(self._entry.index, _INDEX)
            self._index = {place.group: place for place in sorted(index, key=lambda each: each.offset)}
        wanted = self._index.get(group)
        if wanted is None:
            return None
        # Never changed in place: several subtasks may read in several threads.
        read = self._read
        if group not in read:
            places = [wanted]
            for place in self._index.values():
                if place.offset > wanted.offset:
                    if place.offset + place.size - wanted.offset > self._ahead:
                        break
                    places.append(place)
            read = self._read = self._reader.ranges(self._entry.file, places)
        return read[group]


class _NoRows(Mapping[int, bytes]):
    """Empty rows, for state in files of a backend."""

    def __init__(self, native: NativeState, where: str) -> None:
        self._native = native
        self._where = where

    def __getitem__(self, group: int) -> bytes:
        raise StateError(
            f"the keyed state in {self._where} is in the format {self._native.format!r} of a state backend, which "
            "the one that is installed does not read: use the version that wrote it"
        )

    def __iter__(self) -> Iterator[int]:
        # All of its key groups count as having rows, so that each subtask that owns one of them is given the
        # files.
        return iter(range(*self._native.key_groups))

    def __len__(self) -> int:
        start, end = self._native.key_groups
        return end - start
