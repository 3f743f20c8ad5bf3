"""Saved state of steps in columns as rows, read without the job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.keyed import keyed_rows, open_form, unpack
from sluiceway.columns.aggregation.stored import LAYOUT, latest, open_stored
from sluiceway.columns.ipc import decode
from sluiceway.state import VOID_NAMESPACE

__all__ = ["BOUNDS", "KeysAndRows", "as_common", "common_schema", "saved_rows"]

BOUNDS: Final = ("window_start", "window_end")

_SESSION: Final = ("start", "end", "arrival")
_VALUES: Final = 1 << 16
"""Keys by themselves that are read at a time."""

_MOMENT: Final = pa.timestamp("ms", "UTC")
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""Times that Python has."""


class KeysAndRows:
    """Rows of one key group.

    Attributes:
        keys: names of the key columns; empty: it is not saved which these are.
        bounds: names of the columns with the bounds of windows, or the event time.
        data: a record batch with a column for each of both, then the others.
    """

    __slots__ = ("bounds", "data", "keys")

    def __init__(self, keys: tuple[str, ...], bounds: tuple[str, ...], data: Any) -> None:
        self.keys, self.bounds, self.data = keys, bounds, data


def saved_rows(kind: str, blocks: Mapping[Any, Any]) -> Iterator[KeysAndRows]:
    """Return the rows of one key group of a state.

    Args:
        kind: ``aggregates`` or ``rows``.
        blocks: the blocks by namespace; of keys by themselves the values of all in the void namespace.

    Raises:
        ValueError: a block is damaged.
    """
    try:
        values = blocks.get(VOID_NAMESPACE)
        if isinstance(values, list):
            yield from _keyed(values, blocks) if kind == "aggregates" else _keyed_rows(values, blocks)
            return
        yield from _aggregates(blocks) if kind == "aggregates" else map(_rows, blocks.values())
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"no block of rows in columns: {error}") from error


def _rows(block: bytes) -> KeysAndRows:
    return _timed(decode(block))


def _timed(found: Any) -> KeysAndRows:
    """Return rows behind their event time."""
    names = _different(["event_time", *found.schema.names[1:]])
    return KeysAndRows(
        (), ("event_time",), pa.RecordBatch.from_arrays([_times(found.column(0)), *found.columns[1:]], names)
    )


def _keyed_rows(values: Sequence[bytes], blocks: Mapping[Any, Any]) -> Iterator[KeysAndRows]:
    for begin in range(0, len(values), _VALUES):
        rows = [row for value in values[begin : begin + _VALUES] for row in unpack(value)]
        yield from map(_timed, keyed_rows(rows, _forms(blocks)))


def _forms(blocks: Mapping[Any, Any]) -> dict[int, Any]:
    # Namespaces with more in their names have keys by when something is due.
    return {name[0]: open_form(name[0], form) for name, form in blocks.items() if len(name) == 1}


def _aggregates(blocks: Mapping[Any, bytes]) -> Iterator[KeysAndRows]:
    slices: dict[tuple[Any, Any], list[Any]] = {}
    for name, block in blocks.items():
        if not isinstance(name, tuple) or len(name) < len(BOUNDS):
            raise ValueError(f"no block of a slice: its namespace is {name!r}")
        start, end, *number = name
        slices.setdefault((start, end), []).append(open_stored(0, number[0] if number else 0, block))
    for (start, end), some in sorted(slices.items()):
        metadata = json.loads(some[0].metadata or b"{}")
        for rows in latest(some):
            if start == "sessions":
                bounds = [_times(rows.column(place)) for place in (0, 1)]
                first = len(_SESSION)
            else:
                bounds = [_times(pa.array(np.full(len(rows), bound))) for bound in (start, end)]
                first = 1
            if not metadata.get("windows", True):
                bounds = []
            yield _keys_and_rows(rows, first, tuple(metadata.get("keys", ())), bounds)


def _keyed(values: Sequence[bytes], blocks: Mapping[Any, Any]) -> Iterator[KeysAndRows]:
    schemas = _forms(blocks)
    has_sessions = any(schema.names[: len(_SESSION)] == [*_SESSION] for schema in schemas.values())
    for begin in range(0, len(values), _VALUES):
        some = values[begin : begin + _VALUES]
        if has_sessions:
            some = [row for value in some for row in unpack(value)]
        for rows in keyed_rows(some, schemas):
            keys = tuple(json.loads((rows.schema.metadata or {}).get(LAYOUT) or b"{}").get("keys", ()))
            bounds = [_times(rows.column(place)) for place in (0, 1)] if has_sessions else []
            yield _keys_and_rows(rows, len(_SESSION) if has_sessions else 0, keys, bounds)


def _keys_and_rows(rows: Any, first: int, keys: tuple[str, ...], bounds: Sequence[Any]) -> KeysAndRows:
    """Return rows whose keys begin with the column ``first``, and are followed by accumulators."""
    after = first + len(keys)
    names = _different([*keys, *(BOUNDS if bounds else ()), *rows.schema.names[after:]])
    columns = [*rows.columns[first:after], *bounds, *rows.columns[after:]]
    return KeysAndRows(keys, BOUNDS if bounds else (), pa.RecordBatch.from_arrays(columns, names))


def _different(names: Iterable[str]) -> list[str]:
    """Return names of which those that have been before are followed by ``_``."""
    found: list[str] = []
    for name in names:
        while name in found:
            name += "_"
        found.append(name)
    return found


def _times(milliseconds: Any) -> Any:
    """Return times as timestamps; what Python has no date for as the first or the last that it has."""
    numbers = milliseconds.to_numpy().astype(np.int64)
    return pa.array(np.clip(numbers, _FIRST_MS, _LAST_MS)).view(_MOMENT)


# ---- one schema -------------------------------------------------------------------------------------------------


def common_schema(schemas: Iterable[Any]) -> Any:
    """Return the schema that rows of all of these can have: sums in several parts where some are.

    Raises:
        ValueError: the columns of two blocks differ; names them.
    """
    found: Any = None
    for schema in schemas:
        if found is None or found.equals(schema):
            found = schema
            continue
        if found.names != schema.names:
            raise ValueError(
                f"some blocks have the columns {', '.join(found.names)}, others {', '.join(schema.names)}"
            )
        found = pa.schema(
            [
                pa.field(name, _common(name, found.field(name).type, schema.field(name).type))
                for name in found.names
            ]
        )
    return found


def _common(name: str, one: Any, other: Any) -> Any:
    if one.equals(other):
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        if _is_total(one) and _is_parted(other):
            return other
        if _is_parted(one) and _is_total(other):
            return one
        if [field.name for field in one] == [field.name for field in other]:
            return pa.struct(
                [
                    pa.field(a.name, _common(f"{name}.{a.name}", a.type, b.type))
                    for a, b in zip(one, other, strict=True)
                ]
            )
    raise ValueError(f"column {name!r} is {one} in some blocks and {other} in others")


def _is_total(kind: Any) -> bool:
    return {field.name for field in kind} == {"total", "some"} and pa.types.is_integer(kind.field("total").type)


def _is_parted(kind: Any) -> bool:
    return {field.name for field in kind} == {"some", "limb0", "limb1"}


def as_common(rows: Any, schema: Any) -> Any:
    """Return rows in a schema of :func:`common_schema`."""
    if rows.schema.equals(schema):
        return rows
    columns = [_converted(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _converted(column: Any, kind: Any) -> Any:
    if column.type.equals(kind):
        return column
    parts = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    if _is_total(column.type) and _is_parted(kind):
        total = parts["total"].to_numpy()
        parts["limb0"], parts["limb1"] = pa.array(total & np.int64(0xFFFFFFFF)), pa.array(total >> np.int64(32))
    fields = list(kind)
    return pa.StructArray.from_arrays([_converted(parts[f.name], f.type) for f in fields], fields=fields)
