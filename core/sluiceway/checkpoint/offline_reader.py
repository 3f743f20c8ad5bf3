"""Reader of a checkpoint's state as rows of data, without the job's code."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from sluiceway.checkpoint.metadata import CheckpointMetadata, KeyedEntry, OperatorEntry, VertexEntry
from sluiceway.checkpoint.native_files import OpenBackend, opened_rows
from sluiceway.checkpoint.restore import StateReader
from sluiceway.checkpoint.safe_unpickler import PlainUnpickler, pickled_type
from sluiceway.columns.state_names import BY_KEY, kind_of_state
from sluiceway.errors import CheckpointError, SluicewayError, choose
from sluiceway.serializers import PickleSerializer, decode_rows, serializer_by_name
from sluiceway.state import VOID_NAMESPACE, KeyedSnapshot, StateMeta, TableKind

__all__ = [
    "Decoder",
    "Opaque",
    "StateRow",
    "blocks_in_columns",
    "content_of",
    "kind_in_columns",
    "progress_in_columns",
]

_PICKLED: Final = b"\xc1"
_DECODE: Final = msgspec.msgpack.Decoder().decode
_BINS: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_BROADCAST: Final = msgspec.msgpack.Decoder(list[tuple[str, list[tuple[bytes, bytes]]]])


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that cannot be read without the job's code.

    Attributes:
        serializer: name of the serializer that has written them.
        data: the bytes.
    """

    serializer: str
    data: bytes

    @property
    def type_name(self) -> str:
        """Name of the class, if it can be found; else empty."""
        if self.serializer == "pickle":
            return pickled_type(self.data)
        return pickled_type(self.data[1:]) if self.serializer == "msgspec" and self.data[:1] == _PICKLED else ""

    def __repr__(self) -> str:
        return f"<{self.serializer}, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True)
class StateRow:
    """Piece of state.

    Attributes:
        uid: uid of the step.
        state: name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``; of steps in columns ``aggregates``,
            ``rows``, ``progress``, ``definition``; of operator state ``operator list`` or ``union list``;
            ``broadcast``; ``split`` for the splits of a source.
        subtask: index of the subtask.
        key_group: key group of the key; None without a key.
        namespace: such as a window; ``()`` for state that belongs to the key alone, None without a key.
        key: the key; None for state without keys.
        name: for an entry of a map: its key in the map.
        value: the value; an :class:`Opaque` where it cannot be read.
        touched_ms: time of the last access, if it has a time to live.
    """

    uid: str
    state: str
    kind: str
    subtask: int
    key_group: int | None = None
    namespace: Any = None
    key: Any = None
    name: Any = None
    value: Any = None
    touched_ms: int | None = None


def content_of(
    reader: StateReader,
    metadata: CheckpointMetadata,
    *,
    open_backend: OpenBackend,
    uid: str | None = None,
    state: str | None = None,
    trusted: bool = False,
) -> Iterator[StateRow]:
    """Yield the rows of a checkpoint, read one key group after the other.

    Args:
        reader: reader of its files.
        metadata: its metadata.
        open_backend: makes the backend of a name, for files in its format.
        uid: only the state of this step.
        state: only the state of this name.
        trusted: unpickle what is pickled, which may run any code, with the job's classes.

    Raises:
        CheckpointError: a file is missing or damaged; names it.
        UnknownNameError: the checkpoint has no such uid or name; lists those that it has.
    """
    _check("step with the uid", uid, {operator.uid for _, _, operator in metadata.operators()})
    steps = list(metadata.operators(uid))
    _check("state", state, {name for _, _, operator in steps for name in _names(reader, operator)})
    decode = Decoder(trusted)
    for vertex, subtask, operator in steps:
        keyed = operator.keyed
        if keyed is not None and (state is None or any(table.name == state for table in keyed.tables)):
            yield from _keyed(reader, vertex, operator.uid, keyed, subtask.index, decode, open_backend, state)
        yield from _others(reader, operator, subtask.index, decode, state)


def _check(kind: str, wanted: str | None, known: set[str]) -> None:
    if wanted is not None and wanted not in known:
        raise choose(kind, wanted, known, "in the checkpoint")


def _names(reader: StateReader, operator: OperatorEntry) -> Iterator[str]:
    if operator.keyed is not None:
        yield from (table.name for table in operator.keyed.tables)
    yield from (kept.name for kept in operator.lists)
    if operator.broadcast is not None:
        yield from (name for name, _ in reader.decoded(operator.broadcast, _BROADCAST))
    if operator.splits is not None:
        yield "splits"


def _keyed(
    reader: StateReader,
    vertex: VertexEntry,
    uid: str,
    entry: KeyedEntry,
    subtask: int,
    decode: Decoder,
    open_backend: OpenBackend,
    state: str | None,
) -> Iterator[StateRow]:
    with opened_rows(reader.keyed(uid, entry), open_backend, uid, subtask, vertex.max_parallelism) as snapshot:
        metas = snapshot.tables
        # State in columns is in blocks, each decoded as a whole. All other state is read row by row.
        in_columns = {meta.name: kind for meta in metas if (kind := kind_in_columns(vertex, uid, meta.name))}
        for name, kind in sorted(in_columns.items(), key=lambda found: found[1] == "progress"):
            if state in (None, name):
                yield from _in_columns(snapshot, uid, name, kind, subtask, decode)
        if state in in_columns:
            return
        for group in sorted(snapshot.groups):
            for row in decode_rows(snapshot.groups[group]):
                meta = metas[row.table]
                if state not in (None, meta.name) or meta.name in in_columns:
                    continue
                namespace, key = decode.key(row.namespace), decode.key(row.key)
                kind = meta.declared or meta.kind.value
                # A map table has a list of pairs per row.
                values = row.value if isinstance(row.value, list) else [row.value]
                for data in values:
                    name, value, touched = decode.value(meta, data)
                    yield StateRow(uid, meta.name, kind, subtask, group, namespace, key, name, value, touched)


def kind_in_columns(vertex: VertexEntry, uid: str, name: str) -> str:
    """Return the kind of a state of a step in columns; empty: it is another state, or pyarrow is not installed."""
    step = next((step.kind for step in vertex.steps if step.uid == uid), "")
    kind = kind_of_state(step, name)
    return kind if kind and find_spec("pyarrow") is not None else ""


def blocks_in_columns(
    snapshot: KeyedSnapshot, name: str, decode: Decoder, groups: Collection[int] | None = None
) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield key groups with the blocks of a state in columns by namespace; of keys by themselves a list.

    Args:
        snapshot: the keyed state of a subtask, with rows.
        name: name of the state.
        decode: decodes namespaces and values.
        groups: the key groups to read; None: all.
    """
    index = next((place for place, meta in enumerate(snapshot.tables) if meta.name == name), None)
    for group in sorted(snapshot.groups if groups is None else snapshot.groups.keys() & set(groups)):
        rows = [row for row in decode_rows(snapshot.groups[group]) if row.table == index]
        values = [
            (decode.key(row.namespace), decode.any(row.value)) for row in rows if isinstance(row.value, bytes)
        ]
        found: dict[Any, Any] = dict(values)
        if name in BY_KEY:
            found[VOID_NAMESPACE] = [value for space, value in values if space == VOID_NAMESPACE]
        if values:
            yield group, found


def progress_in_columns(snapshot: KeyedSnapshot, name: str, decode: Decoder) -> Iterator[tuple[int, int, int]]:
    """Yield key group, event time in ms and a number, for each key group with progress of a step in columns."""
    for group, found in blocks_in_columns(snapshot, name, decode):
        for at, number in found.values():
            yield group, at, number


def definitions_in_columns(snapshot: KeyedSnapshot, name: str, decode: Decoder) -> Iterator[tuple[int, str]]:
    """Yield key group and definition, as JSON, for each key group with that of a step in columns."""
    index = next((place for place, meta in enumerate(snapshot.tables) if meta.name == name), None)
    for group in sorted(snapshot.groups):
        for row in decode_rows(snapshot.groups[group]):
            if row.table == index and isinstance(row.value, bytes):
                yield group, decode.any(row.value)


def _in_columns(
    snapshot: KeyedSnapshot, uid: str, name: str, kind: str, subtask: int, decode: Decoder
) -> Iterator[StateRow]:
    if kind == "progress":
        for group, at, number in progress_in_columns(snapshot, name, decode):
            yield StateRow(uid, name, kind, subtask, group, (), group, value={"watermark": at, "number": number})
        return
    if kind == "definition":
        for group, text in definitions_in_columns(snapshot, name, decode):
            yield StateRow(uid, name, kind, subtask, group, (), group, value=json.loads(text))
        return
    from sluiceway.columns.saved import saved_rows  # it imports pyarrow

    for group, blocks in blocks_in_columns(snapshot, name, decode):
        try:
            for found in saved_rows(kind, blocks):
                for row in found.data.to_pylist():
                    if kind == "rows":
                        yield StateRow(uid, name, kind, subtask, value=row)
                        continue
                    parts = tuple(row.pop(part) for part in found.keys)
                    space = tuple(round(row.pop(part).timestamp() * 1000) for part in found.bounds)
                    key = parts[0] if len(parts) == 1 else parts
                    yield StateRow(uid, name, kind, subtask, group, space, key, value=row)
        except ValueError as error:
            raise CheckpointError(f"state {name!r} of step {uid!r} cannot be read: {error}") from error


def _others(
    reader: StateReader, operator: OperatorEntry, subtask: int, decode: Decoder, state: str | None
) -> Iterator[StateRow]:
    uid = operator.uid
    for kept in operator.lists:
        if state in (None, kept.name) and kept.elements is not None:
            kind = "operator list" if kept.mode == "list" else kept.mode
            for data in _BINS(reader.bytes_of(kept.elements)):
                value = decode.by(kept.serializer, data)
                yield StateRow(uid, kept.name, kind, subtask, value=value)
    if operator.broadcast is not None:
        for name, entries in reader.decoded(operator.broadcast, _BROADCAST):
            if state in (None, name):
                for key, value in entries:
                    yield StateRow(uid, name, "broadcast", subtask, name=decode.any(key), value=decode.any(value))
    if operator.splits is not None and state in (None, "splits"):
        for data in _BINS(reader.bytes_of(operator.splits)):
            yield StateRow(uid, "splits", "split", subtask, value=decode.any(data))


class Decoder:
    """Decoder of serialized values, as far as no class of the job is needed.

    Args:
        trusted: unpickle also what needs classes.
    """

    def __init__(self, trusted: bool) -> None:
        self._trusted = trusted

    def any(self, data: bytes) -> Any:
        """Return a value of any type."""
        return self.by("msgspec", data)

    def key(self, data: bytes) -> Any:
        """Return a key or namespace."""
        found = self.any(data)
        return _as_tuples(found) if type(found) is list else found

    def by(self, serializer: str, data: bytes) -> Any:
        """Return a value written by a serializer."""
        try:
            if serializer == "pickle":
                return self._unpickled(data)
            if serializer == "msgspec":
                return self._unpickled(data[1:]) if data[:1] == _PICKLED else _DECODE(data)
            return serializer_by_name(serializer).loads(data)
        # Shown as bytes: one value that cannot be read must not hide all others.
        except (SluicewayError, msgspec.MsgspecError, ValueError):
            return Opaque(serializer, data)

    def value(self, meta: StateMeta, data: bytes) -> tuple[Any, Any, int | None]:
        """Return name in a map, value, and time of the last access."""
        found, name = self.by(meta.serializer, data), None
        if isinstance(found, Opaque):
            return name, found, None
        if meta.kind is TableKind.MAP:
            name, found = found
        # State with a time to live has each value in a pair with the time of its last access.
        if not meta.expires:
            return name, found, None
        if meta.declared == "list":
            return name, [value for _, value in found], max((touched for touched, _ in found), default=None)
        touched, found = found
        return name, found, touched

    def _unpickled(self, data: bytes) -> Any:
        if self._trusted:
            return PickleSerializer().loads(data)
        try:
            return PlainUnpickler(data).load()
        except Exception:  # whatever broken or foreign bytes may cause
            return Opaque("pickle", data)


def _as_tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple([_as_tuples(part) if type(part) is list else part for part in value])
