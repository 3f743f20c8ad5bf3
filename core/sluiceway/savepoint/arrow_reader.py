"""Sources of the columns of saved state, read from the files one key group at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from sluiceway.checkpoint import StateReader
from sluiceway.checkpoint.metadata import KeyedEntry, ListEntry, OperatorEntry, Section, VertexEntry
from sluiceway.checkpoint.native_files import OpenBackend, with_rows
from sluiceway.checkpoint.offline_reader import Decoder, Opaque
from sluiceway.checkpoint.safe_unpickler import plain_classes
from sluiceway.operators.keyed_timers import timers_in
from sluiceway.savepoint.arrow_schema import (
    Fixed,
    Found,
    Moments,
    NamespaceFound,
    Shape,
    Typed,
    arrow,
    can_be_typed,
)
from sluiceway.serializers import Block, Row, decode_blocks, decode_rows
from sluiceway.serializers.evolution import PlainReader
from sluiceway.state import KeyedSnapshot, StateMeta, TableKind
from sluiceway.util.overriding import override

__all__ = ["BroadcastSource", "KeyedSource", "ListSource", "Part", "Place", "Source", "TimerSource"]

Part: TypeAlias = dict[str, Sequence[Any]]
"""Columns of equal length by role (``key``, ``value``, ...)."""

_PICKLED: Final = b"\xc1"
_ROWS: Final = 1 << 14
_CENTURIES_MS: Final = 100_000_000_000_000
_DECODE: Final = msgspec.msgpack.Decoder().decode
_BINS: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_BROADCAST: Final = msgspec.msgpack.Decoder(list[tuple[str, list[tuple[bytes, bytes]]]])
_PENDING: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int | None]])


@dataclass(frozen=True, slots=True)
class Place:
    """Access to a checkpoint: files, decoder and state backends.

    Attributes:
        reader: reader of its files.
        decode: decoder of its values.
        open_backend: function that creates a state backend by name, for files in its own format.
    """

    reader: StateReader
    decode: Decoder
    open_backend: OpenBackend

    def value(self, data: bytes, serializer: str, reader: PlainReader | None) -> Any:
        """Return one value.

        Args:
            data: the value as it was written.
            serializer: name of the serializer that has written it.
            reader: reader by the schema of the state; None: it has none.
        """
        if reader is None:
            return self.decode.by(serializer, data)
        try:
            return reader.loads(data)
        except Exception:  # of a class, or damaged
            return Opaque(serializer, data)


class Source(ABC):
    """Source of the entries of one state, as columns."""

    @abstractmethod
    def shapes(self) -> dict[str, Shape]:
        """Return new shapes by role, in the order of the columns."""

    @abstractmethod
    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield the entries in parts.

        Args:
            rows: maximum number of rows of a part.
            only: required roles; None: all.
        """

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold resources open around calls of :meth:`parts`."""
        yield

    def unfit(self) -> bool:
        """Return whether values read did not fit the declared type; :meth:`shapes` then returns untyped ones."""
        return False


class KeyedSource(Source):
    """Source of a table of keyed state.

    Args:
        place: access to the checkpoint.
        name: name of the table.
        parts: entries of the subtasks that have the table.
        nested: whether a list or map is one value of one row, instead of one row per element.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        parts: Sequence[tuple[VertexEntry, str, KeyedEntry]],
        *,
        nested: bool = False,
    ) -> None:
        self._place = place
        self._name = name
        self._entries = parts
        self._nested = nested
        self._open: list[KeyedSnapshot] | None = None
        self._strays = False
        forms = [table for _, _, entry in parts for table in entry.tables if table.name == name]
        self.table = first = forms[0]
        # Subtasks that have not asked for the state since its type changed write it in its earlier form.
        self._has_forms = any(form.schema != first.schema for form in forms)
        self._is_map = first.table == TableKind.MAP.value
        self._is_list = first.kind == "list"
        self._schema = first.schema if first.serializer == "msgspec" and not self._has_forms else None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the backend's files once for several passes."""
        opened: list[KeyedSnapshot] = []
        try:
            for vertex, uid, entry in self._entries:
                snapshot = self._place.reader.keyed(uid, entry)
                opened.append(with_rows(snapshot, self._place.open_backend, uid, 0, vertex.max_parallelism))
            self._open = opened
            yield
        finally:
            self._open = None
            for snapshot in opened:
                snapshot.release()

    def unfit(self) -> bool:
        """Return whether values did not fit the declared type, and drop that type."""
        strays, self._strays = self._strays, False
        if strays:
            self._schema = None
        return strays

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of key, namespace, index or map key, value, and times."""
        shapes: dict[str, Shape] = {"key": Found(), "namespace": NamespaceFound()}
        of_name, of_value = self._inner()
        if self._is_list and not self._nested:
            shapes["index"] = Fixed(arrow().int64())
        if self._is_map and not self._nested:
            shapes["map_key"] = Typed(of_name) if can_be_typed(of_name) else Found()
        whole = self._nested and (self._is_map or self._is_list)
        if can_be_typed(of_value):
            shapes["value"] = Typed(self._whole(of_name, of_value), whole=whole)
        else:
            shapes["value"] = Found(records=not whole, whole=whole)
        if self.table.expires:
            pa, ttl_ms = arrow(), self.table.ttl_ms or 0
            moment = pa.timestamp("ms", "UTC")
            # A time to live of thousands of years exceeds the range of timestamps.
            until = moment if ttl_ms < _CENTURIES_MS else pa.int64()
            shapes |= {"touched_at": Fixed(moment), "expires_at": Fixed(until)}
        return shapes

    def _inner(self) -> tuple[Any, Any]:
        """Return the schemas of map keys and of values."""
        schema, of_name = self._schema, None
        if schema is None:
            return None, None
        if self._is_map:
            of_name, schema = schema["tuple"]
        if self._is_list:
            schema = schema["list"]
        return of_name, schema["tuple"][1] if self.table.expires else schema

    def _whole(self, of_name: Any, of_value: Any) -> Any:
        if self._nested and self._is_list:
            return {"list": of_value}
        return {"dict": [of_name, of_value]} if self._nested and self._is_map else of_value

    @override
    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        assert self._open is not None
        with_values = only is None or not only.isdisjoint(("value", "map_key"))
        cut = _Cut(rows)
        for snapshot in self._open:
            for index, meta in enumerate(snapshot.tables):
                if meta.name == self._name:
                    yield from self._of_table(snapshot, index, cut, with_values)
        yield from cut.rest()

    def _of_table(self, snapshot: KeyedSnapshot, index: int, cut: _Cut, with_values: bool) -> Iterator[Part]:
        meta = snapshot.tables[index]
        schema = meta.schema if self._has_forms and meta.serializer == "msgspec" else self._schema
        reader = None if schema is None else PlainReader(schema, plain_classes())
        for group in sorted(snapshot.groups):
            data = snapshot.groups[group]
            # Lists of declared types are in blocks as well, but are read as rows, which have their elements apart.
            rows, blocks = (decode_rows(data), []) if self._is_list else decode_blocks(data)
            for block in blocks:
                if block.table == index:
                    yield from cut.add(self._of_block(block, reader, with_values))
            # A key group may have any number of rows: slices bound what is decoded at a time.
            mine = [row for row in rows if row.table == index]
            for start in range(0, len(mine), _ROWS):
                yield from cut.add(self._of_rows(mine[start : start + _ROWS], meta, reader, with_values))

    def _of_block(self, block: Block, reader: PlainReader | None, with_values: bool) -> Part:
        keys = list(map(_as_key, _DECODE(block.keys)))
        namespaces = [self._place.decode.key(block.namespace)] * len(keys)
        if not with_values:
            return {"key": keys, "namespace": namespaces}
        values = _DECODE(block.values)
        if reader is not None and not block.pickled:
            values = list(map(reader.plain, values))
        elif not self._is_list:
            values = list(map(_as_key, values))
        return self._exploded(keys, namespaces, [1] * len(keys), values)

    def _of_rows(self, rows: list[Row], meta: StateMeta, reader: PlainReader | None, with_values: bool) -> Part:
        decode = self._place.decode
        # Many rows share a namespace: each is decoded once.
        spaces = {data: decode.key(data) for data in {row.namespace for row in rows}}
        keys, namespaces = _keys([row.key for row in rows], decode), [spaces[row.namespace] for row in rows]
        many = [row.value if isinstance(row.value, list) else [row.value] for row in rows]
        flat = list(chain.from_iterable(many))
        if self._schema is not None and any(data[:1] == _PICKLED for data in flat):
            # A value that does not fit its declared type is pickled, and so the column cannot have that type: see
            # unfit().
            self._strays = True
        if not with_values:
            return {"key": keys, "namespace": namespaces}
        values = self._decoded(flat, meta, reader)
        return self._exploded(keys, namespaces, list(map(len, many)), values)

    def _exploded(self, keys: list[Any], namespaces: list[Any], counts: list[int], values: list[Any]) -> Part:
        """Return the columns: one row per element of lists and maps, unless nested.

        Args:
            keys: the keys.
            namespaces: namespace of each key.
            counts: number of ``values`` of each key: entries of a map, else 1.
            values: values of all keys in a row.
        """
        if not (self._is_map or self._is_list):
            return self._with_times({"key": keys, "namespace": namespaces}, *self._unpaired(values))
        columns: dict[str, list[Any]] = {"key": [], "namespace": [], "map_key": [], "index": [], "value": []}
        touched: list[Any] = []
        start = 0
        for key, namespace, how_many in zip(keys, namespaces, counts, strict=True):
            # Values of all keys are in a row: those of this key are the next `how_many`.
            of_key = values[start : start + how_many]
            start += how_many
            names: list[Any] = []
            if self._is_map:
                names = [None if isinstance(one, Opaque) else _as_record(one[0]) for one in of_key]
                of_key = [one if isinstance(one, Opaque) else one[1] for one in of_key]
            elif not isinstance(of_key[0], Opaque):
                of_key = of_key[0]
            inside, times = self._unpaired(of_key)
            if self._nested:
                # The list or map is one row: its latest access time stands for all of it.
                times = [max((at for at in times if at is not None), default=None)]
                inside = [inside if self._is_list else self._mapping(names, inside)]
            count = len(inside)
            columns["key"] += [key] * count
            columns["namespace"] += [namespace] * count
            columns["map_key"] += names
            columns["index"] += range(count)
            columns["value"] += inside
            touched += times
        wanted = {"index": self._is_list and not self._nested, "map_key": self._is_map and not self._nested}
        part: Part = {name: column for name, column in columns.items() if wanted.get(name, True)}
        return self._with_times(part, part["value"], touched)

    def _decoded(self, flat: list[bytes], meta: StateMeta, reader: PlainReader | None) -> list[Any]:
        """Decode values, all in one call where possible."""
        if meta.serializer == "msgspec" and not any(data[:1] == _PICKLED for data in flat):
            try:
                found = _DECODE(_array(flat))
                return found if reader is None else list(map(reader.plain, found))
            except Exception:  # a value is damaged: decode one by one, to lose only that one
                pass
        return [self._place.value(data, meta.serializer, reader) for data in flat]

    def _unpaired(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return values, and their access times if the state has a time to live."""
        if not self.table.expires:
            return list(map(_as_record, values)), []
        pairs = [(None, one) if isinstance(one, Opaque) else one for one in values]
        return [_as_record(value) for _, value in pairs], [at for at, _ in pairs]

    def _mapping(self, names: list[Any], values: list[Any]) -> Any:
        if self._schema is not None or all(isinstance(name, str) for name in names):
            return dict(zip(names, values, strict=True))
        return list(zip(names, values, strict=True))

    def _with_times(self, part: Part, values: Sequence[Any], touched: Sequence[Any]) -> Part:
        part["value"] = values
        if self.table.expires:
            ttl = self.table.ttl_ms
            part["touched_at"] = touched
            part["expires_at"] = [None if at is None or ttl is None else at + ttl for at in touched]
        return part


class TimerSource(Source):
    """Source of the timers of a step, which are a table of its keyed state.

    Args:
        table: source of that table.
    """

    def __init__(self, table: KeyedSource) -> None:
        self._table = table

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the table."""
        with self._table.opened():
            yield

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of key, namespace, domain and time."""
        text = Fixed(arrow().string())
        return {"key": Found(), "namespace": NamespaceFound(), "domain": text, "fires_at": Moments()}

    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield the timers, one row each."""
        cut = _Cut(rows)
        for part in self._table.parts(rows):
            for key, timers in zip(part["key"], part["value"], strict=True):
                for is_event, at, namespace in () if isinstance(timers, Opaque) else timers_in(timers):
                    domain = "event time" if is_event else "processing time"
                    space = tuple(namespace) if isinstance(namespace, list | tuple) else namespace
                    found: Part = {"key": [key], "namespace": [space], "domain": [domain], "fires_at": [at]}
                    yield from cut.add(found)
        yield from cut.rest()


class ListSource(Source):
    """Source of elements of operator state, of splits, or of records in flight.

    Args:
        place: access to the checkpoint.
        sections: pairs of subtask and section.
        kept: entry of the operator list state; None for splits and records.
        with_times: whether elements are pairs of value and timestamp.
    """

    def __init__(
        self,
        place: Place,
        sections: Sequence[tuple[int, Section]],
        kept: ListEntry | None = None,
        *,
        with_times: bool = False,
    ) -> None:
        self._place = place
        self._sections = sections
        self._serializer = "msgspec" if kept is None else kept.serializer
        self._schema = None if kept is None or kept.serializer != "msgspec" else kept.schema
        self._with_times = with_times
        self._strays = False

    def unfit(self) -> bool:
        """Return whether an element did not fit the declared type, and drop that type."""
        strays, self._strays = self._strays, False
        if strays:
            self._schema = None
        return strays

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of subtask, index, timestamp if any, and value."""
        number = arrow().int64()
        shapes: dict[str, Shape] = {"subtask": Fixed(arrow().int32()), "index": Fixed(number)}
        if self._with_times:
            shapes["timestamp"] = Moments()
        shapes["value"] = Typed(self._schema) if can_be_typed(self._schema) else Found(records=True)  # type: ignore[arg-type]
        return shapes

    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield the elements, section by section."""
        cut = _Cut(rows)
        reader = None if self._schema is None else PlainReader(self._schema, plain_classes())
        for subtask, section in self._sections:
            times: list[int | None] = []
            if self._with_times:
                pairs = self._place.reader.decoded(section, _PENDING)
                data = [value for value, _ in pairs]
                times = [at for _, at in pairs]
            else:
                data = _BINS(self._place.reader.bytes_of(section))
            if reader is not None:
                self._strays = self._strays or any(one[:1] == _PICKLED for one in data)
            values = [_as_record(self._place.value(one, self._serializer, reader)) for one in data]
            part: Part = {"subtask": [subtask] * len(data), "index": range(len(data)), "value": values}
            if self._with_times:
                part["timestamp"] = times
            yield from cut.add(part)
        yield from cut.rest()


class BroadcastSource(Source):
    """Source of a broadcast state. Every subtask has the same copy, so one is read.

    Args:
        place: access to the checkpoint.
        name: name of the state.
        operator: entry of an operator with the state.
    """

    def __init__(self, place: Place, name: str, operator: OperatorEntry) -> None:
        self._place = place
        self._name = name
        self._operator = operator

    @staticmethod
    def names(place: Place, operator: OperatorEntry) -> list[str]:
        """Return the names of the broadcast states of an operator."""
        if operator.broadcast is None:
            return []
        return [name for name, _ in place.reader.decoded(operator.broadcast, _BROADCAST)]

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of map key and value."""
        return {"map_key": Found(), "value": Found(records=True)}

    @override
    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        assert self._operator.broadcast is not None
        cut, decode = _Cut(rows), self._place.decode
        for name, entries in self._place.reader.decoded(self._operator.broadcast, _BROADCAST):
            if name == self._name:
                keys = [decode.key(key) for key, _ in entries]
                values = [_as_record(decode.any(value)) for _, value in entries]
                yield from cut.add({"map_key": keys, "value": values})
        yield from cut.rest()


class _Cut:
    """Regrouping of parts of any size into parts of a fixed size."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._waiting: dict[str, list[Any]] = {}
        self._count = 0

    def add(self, part: Part) -> Iterator[Part]:
        waiting = self._waiting
        for name, values in part.items():
            waiting.setdefault(name, []).extend(values)
        self._count += len(next(iter(part.values())))
        while self._count >= self._rows:
            cut: Part = {name: values[: self._rows] for name, values in waiting.items()}
            yield cut
            for values in waiting.values():
                del values[: self._rows]
            self._count -= self._rows

    def rest(self) -> Iterator[Part]:
        if self._count:
            yield dict(self._waiting)
            self._waiting, self._count = {}, 0


def _array(parts: list[bytes]) -> bytes:
    """Return one msgpack array of separately encoded values, so that one call decodes them all."""
    return b"".join((b"\xdd", len(parts).to_bytes(4), *parts))


def _keys(data: list[bytes], decode: Decoder) -> list[Any]:
    if any(one[:1] == _PICKLED for one in data):
        return [decode.key(one) for one in data]
    try:
        return list(map(_as_key, _DECODE(_array(data))))
    except msgspec.MsgspecError:
        return [decode.key(one) for one in data]


def _as_key(value: Any) -> Any:
    """Return a key with lists, msgpack's form of tuples, as tuples."""
    return tuple(map(_as_key, value)) if type(value) is list else value


def _as_record(value: Any) -> Any:
    """Return an unpickled object with fields as a dict."""
    kind = type(value)
    if kind in (int, str, float, dict, tuple, list) or value is None or isinstance(value, Opaque):
        return value
    if is_dataclass(kind):
        return asdict(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, value, strict=True))
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else value
