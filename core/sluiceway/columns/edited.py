"""State of steps in columns made of tables, in the form that the same state had before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.keyed import DUE, encode_keyed, form_of, open_form, pack, tag_of, unpack
from sluiceway.columns.aggregation.layout import in_blocks
from sluiceway.columns.aggregation.slices import CHUNK
from sluiceway.columns.aggregation.stored import LAYOUT, open_stored
from sluiceway.columns.ipc import decode
from sluiceway.columns.joining import as_one
from sluiceway.columns.kept.blocks import block_of, write_blocks
from sluiceway.columns.keys.key_ids import KeyIds, key_groups_of_rows, keys_of_groups
from sluiceway.columns.saved import BOUNDS, common_schema, saved_rows
from sluiceway.columns.state_names import BY_KEY, KEYS, LATEST, LATEST_KEYS, LEFT, RIGHT, SESSIONS
from sluiceway.state import VOID_NAMESPACE, StateTable

__all__ = ["EditedRows"]

_SESSIONS: Final = "sessions"
_EVENT_TIME: Final = "event_time"
_EMPTY: Final = ({"value", "some"}, {"value", "arrival"})
"""Fields of accumulators of which ``value`` is null where there has been no value."""


class EditedRows:
    """Rows for a state in columns, in the place of those that it has.

    Args:
        name: name of the state.
        kind: ``aggregates`` or ``rows``.
        groups: the blocks of each key group by namespace, as
            :func:`~sluiceway.columns.saved.saved_rows` takes them: the columns and types are theirs.
        max_parallelism: number of key groups.
        keys: names of the key columns; of aggregates, the blocks have them.

    Raises:
        ValueError: there are no blocks, a block is damaged, or some have other columns than others.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        groups: Sequence[Mapping[Any, Any]],
        max_parallelism: int,
        keys: tuple[str, ...] = (),
    ) -> None:
        self._name, self._kind, self._most, self.keys = name, kind, max_parallelism, keys
        self._metadata: bytes | None = None
        self._space: Any = VOID_NAMESPACE
        self._inner: list[str] = []
        schemas = set()
        for blocks in groups:
            for found in saved_rows(kind, blocks):
                schemas.add(found.data.schema)
                self.keys = found.keys or self.keys
            self._see(blocks)
        if not schemas:
            raise ValueError("it is empty, so that the types of its columns are not known")
        self.schema: Any = common_schema(schemas)
        if kind == "rows":  # a column named like the event time is shown under another name
            self.keys = tuple(self.schema.names[1 + self._inner.index(name)] for name in keys)
        self._bounds = kind == "aggregates" and self.schema.names[len(self.keys) : len(self.keys) + 2] == [*BOUNDS]
        self._parts: list[Any] = []

    def _see(self, blocks: Mapping[Any, Any]) -> None:
        used = self._used_forms(blocks.get(VOID_NAMESPACE, ())) if self._name in BY_KEY else frozenset()
        for name, block in blocks.items():
            if self._kind == "rows" and self._name not in BY_KEY:
                self._inner = decode(block).schema.names[1:]
                continue
            if self._name in BY_KEY:
                # Forms stay when no row has them any more.
                if len(name) != 1 or name[0] not in used:
                    continue
                schema = open_form(name[0], block)
                if self._kind == "rows":
                    self._inner = schema.names[1:]
                    continue
                metadata, self._inner = schema.metadata.get(LAYOUT), schema.names
                if self._name == SESSIONS:
                    self._space, self._inner = (_SESSIONS, 0), schema.names[3:]
            else:
                stored = open_stored(0, 0, block)
                self._space, metadata = name, stored.metadata
                self._inner = stored.rows.schema.names[3 if name[0] == _SESSIONS else 1 :]
            if self._metadata not in (None, metadata):
                raise ValueError(
                    "some of it was written before the columns of the step have changed: take a savepoint of the "
                    "job when all of it has been written anew"
                )
            self._metadata = metadata

    def _used_forms(self, values: Sequence[bytes]) -> frozenset[int]:
        rows = values if self._name == KEYS else [row for value in values for row in unpack(value)]
        return frozenset(map(tag_of, rows))

    # ---- rows in ----------------------------------------------------------------------------------------------

    def add(self, data: Any) -> int:
        """Add the rows of an Arrow table, and return their number.

        Raises:
            ValueError: columns are missing or unknown, or a value is not of the type of its column.
        """
        names = self.schema.names
        if missing := [name for name in names if name not in data.schema.names]:
            raise ValueError(f"column {missing[0]!r} is missing: it has {', '.join(names)}")
        if unknown := [name for name in data.schema.names if name not in names]:
            raise ValueError(f"column {unknown[0]!r} is not one of {', '.join(names)}")
        columns = []
        for field in self.schema:
            column = data.column(field.name)
            try:
                columns.append(column if column.type.equals(field.type) else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"column {field.name!r} is {column.type}, and has to be {field.type} ({reason})"
                ) from error
        rows = as_one(pa.Table.from_arrays(columns, schema=self.schema))
        self._check_nulls(rows)
        self._parts.append(rows)
        return int(rows.num_rows)

    def _check_nulls(self, rows: Any) -> None:
        first = len(self.keys) + (2 if self._bounds else 0)
        if self._kind == "rows":
            names = [_EVENT_TIME]
        else:
            names = [*(BOUNDS if self._bounds else ()), *rows.schema.names[first:]]
        for name in names:
            if (where := _null_in(name, rows.column(name))) is not None:
                raise ValueError(f"{where} is null in some rows, which it cannot be")

    def key_rows(self) -> list[Any]:
        """Return the key columns of the rows that have been added, as record batches."""
        return [rows.select(list(self.keys)) for rows in self._parts]

    def check_others(self, where: str, others: Sequence[Any]) -> None:
        """Raise ValueError if a key is also among those of another state: key columns as record batches."""
        if not others or not self._parts:
            return
        rows = as_one(pa.Table.from_batches(self._parts, self.schema))
        kinds = [self.schema.field(name).type for name in self.keys]
        ids = KeyIds(kinds)
        for other in others:
            ids.find([column.cast(kind) for column, kind in zip(other.columns, kinds, strict=True)])
        known = len(ids)
        if len(again := np.flatnonzero(ids.find([rows.column(name) for name in self.keys]) < known)):
            raise ValueError(f"the key {self._shown(rows, int(again[0]))} is in state {where!r} of the step, too")

    # ---- state out --------------------------------------------------------------------------------------------

    def write(self, table: StateTable) -> None:
        """Write all rows that have been added.

        Raises:
            ValueError: two rows have one key and window; sessions of a key overlap; or bounds are of no slice.
            UnstableKeyError: a key is NaN.
        """
        rows = as_one(pa.Table.from_batches(self._parts, self.schema))
        if not rows.num_rows:
            return
        group_keys = keys_of_groups(self._most)
        keys = [rows.column(name) for name in self.keys]
        groups = key_groups_of_rows(keys, self._most)
        if self._kind == "rows":
            self._write_rows(table, rows, groups, group_keys)
            return
        ids = KeyIds([column.type for column in keys]).find(keys)
        inner = [*keys, *rows.columns[len(keys) + (2 if self._bounds else 0) :]]
        if self._name == KEYS:
            self._check_different(ids, rows)
            self._write_keys(table, pa.RecordBatch.from_arrays(inner, self._inner), group_keys)
            return
        if self._bounds:
            starts, ends = (rows.column(name).cast(pa.int64()).to_numpy() for name in BOUNDS)
        else:
            starts, ends = (np.full(len(ids), bound) for bound in self._space[:2])
        if self._space[0] == _SESSIONS:
            self._check_sessions(ids, starts, ends, rows)
            columns = [pa.array(starts), pa.array(ends), pa.array(np.arange(len(ids))), *inner]
            block = pa.RecordBatch.from_arrays(columns, ["start", "end", "arrival", *self._inner])
            if self._name == SESSIONS:
                order: Any = np.lexsort((ends, ids))
                ids, ends, block = ids[order], ends[order], block.take(pa.array(order))
                # The job reads keys when one of their sessions ends, or before.
                due = ends[np.unique(ids, return_index=True)[1]]
                self._write_packed(table, block, block.columns[3 : 3 + len(keys)], ids, due, group_keys)
                return
            self._write_blocks(table, self._space, block, groups, group_keys)
            return
        self._check_slices(starts, ends)
        for start in np.unique(starts).tolist():
            mine = np.flatnonzero(starts == start)
            self._check_different(ids[mine], rows.take(mine))
            for chunk, begin in enumerate(range(0, len(mine), CHUNK)):
                some = mine[begin : begin + CHUNK]
                positions = pa.array(np.arange(begin, begin + len(some), dtype=np.int32))
                columns = [positions, *(column.take(some) for column in inner)]
                block = pa.RecordBatch.from_arrays(columns, ["position", *self._inner])
                space = (start, int(ends[some[0]]), *((chunk,) if chunk else ()))
                self._write_blocks(table, space, block, groups[some], group_keys)

    def _write_blocks(self, table: StateTable, space: Any, rows: Any, groups: Any, keys: Sequence[int]) -> None:
        entries = table.entries(space)
        for group, block in in_blocks(rows, groups, self._metadata or b"{}").items():
            entries[keys[group]] = block

    def _write_keys(self, table: StateTable, rows: Any, group_keys: Sequence[int]) -> None:
        tag, form = form_of(rows, self._metadata or b"{}")
        forms = table.entries((tag,))
        forms.update(dict.fromkeys(group_keys, form))
        values = [column.to_pylist() for column in rows.columns[: len(self.keys)]]
        keys = values[0] if len(values) == 1 else list(zip(*values, strict=True))
        table.entries().update(zip(keys, encode_keyed(tag, rows), strict=True))

    def _write_packed(
        self, table: StateTable, rows: Any, keys: Sequence[Any], ids: Any, times: Any, group_keys: Sequence[int]
    ) -> None:
        """Write rows key by key.

        Args:
            table: the state.
            rows: the rows, those of a key together.
            keys: their key columns.
            ids: the number of each row's key, ascending.
            times: for each key, the time by which the job finds it.
            group_keys: the key of each group's form.
        """
        _, firsts = np.unique(ids, return_index=True)
        tag, form = form_of(rows, self._metadata or b"{}")
        table.entries((tag,)).update(dict.fromkeys(group_keys, form))
        columns = [column.take(pa.array(firsts)).to_pylist() for column in keys]
        objects = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        values, limits = encode_keyed(tag, rows), [*firsts.tolist(), len(rows)]
        packed = (pack(values[low:high]) for low, high in pairwise(limits))
        table.entries().update(zip(objects, packed, strict=True))
        width = max((int(times.max()) - int(times.min())) // 64, 1)
        for start in np.unique(times // width).tolist():
            mine = np.flatnonzero(times // width == start).tolist()
            table.entries((DUE, start * width, width)).update(dict.fromkeys([objects[at] for at in mine], b""))

    def _write_rows(self, table: StateTable, rows: Any, groups: Any, group_keys: Sequence[int]) -> None:
        stamps = rows.column(0).cast(pa.int64()).to_numpy()
        order = stamps.argsort(kind="stable")
        rows, stamps, groups = rows.take(pa.array(order)), stamps[order], groups[order]
        keys = [rows.column(name) for name in self.keys]
        ids = KeyIds([column.type for column in keys]).find(keys)
        if self._name in (LATEST, LATEST_KEYS):
            self._check_different(ids, rows)
        # The width of a slice that no join has: the job deals rows to slices of its own when it reads them.
        space = (0, 0, 1) if self._name in (LEFT, RIGHT) else (0, 1)
        data = pa.RecordBatch.from_arrays(rows.columns[1:], schema=_inner_schema(self.schema, self._inner))
        if self._name in BY_KEY:
            order = ids.argsort(kind="stable")
            last = np.append(np.unique(ids[order], return_index=True)[1][1:], len(ids)) - 1
            taken = block_of(stamps, data).take(pa.array(order))
            of_keys = [key.take(pa.array(order)) for key in keys]
            self._write_packed(table, taken, of_keys, ids[order], stamps[order][last], group_keys)
            return
        write_blocks(table.entries(space), group_keys, groups, stamps, data)

    # ---- checks -----------------------------------------------------------------------------------------------

    def _shown(self, rows: Any, row: int) -> str:
        return ", ".join(f"{name}={rows.column(name)[row].as_py()!r}" for name in self.keys)

    def _check_different(self, ids: Any, rows: Any) -> None:
        found, first = np.unique(ids, return_index=True)
        if len(found) < len(ids):
            again = np.setdiff1d(np.arange(len(ids)), first)[0]
            where = " in one window" if self._bounds else ""
            raise ValueError(f"the key {self._shown(rows, int(again))} has two rows{where}")

    def _check_slices(self, starts: Any, ends: Any) -> None:
        start, end = self._space[:2]
        wrong = np.flatnonzero((ends - starts != end - start) | ((starts - start) % (end - start) != 0))
        if len(wrong):
            found = int(starts[wrong[0]]), int(ends[wrong[0]])
            raise ValueError(
                f"window_start and window_end are {found[0]} and {found[1]} ms in row {int(wrong[0])}, which are "
                f"no bounds of a slice: those are {end - start} ms long, and one begins at {start} ms"
            )

    def _check_sessions(self, ids: Any, starts: Any, ends: Any, rows: Any) -> None:
        order = np.lexsort((starts, ids))
        ids, starts, ends = ids[order], starts[order], ends[order]
        if len(wrong := np.flatnonzero(ends <= starts)):
            raise ValueError(f"the session of {self._shown(rows, int(order[wrong[0]]))} ends before it begins")
        touch = np.flatnonzero((ids[1:] == ids[:-1]) & (starts[1:] <= ends[:-1]))
        if len(touch):
            raise ValueError(f"two sessions of the key {self._shown(rows, int(order[touch[0]]))} overlap or touch")


def _inner_schema(schema: Any, names: Sequence[str]) -> Any:
    """Return the schema of the rows that a step keeps, under the names that they have there."""
    fields = [schema.field(place) for place in range(1, len(schema))]
    return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])


def _null_in(name: str, column: Any) -> str | None:
    """Return the path of nulls that an accumulator, or a part of it, cannot be; None: there are none."""
    kind = column.type
    if column.null_count:
        return f"column {name!r}"
    if pa.types.is_struct(kind):
        fields = {field.name: part for field, part in zip(kind, column.flatten(), strict=True)}
        if fields.keys() in _EMPTY:
            value = fields.pop("value")
            (mark,) = fields.values()
            if mark.null_count:
                return f"column {name!r}"
            marks = mark.to_numpy(zero_copy_only=False)
            has = marks if pa.types.is_boolean(mark.type) else marks >= 0
            if not np.array_equal(value.is_valid().to_numpy(zero_copy_only=False), has):
                return f"column {name + '.value'!r} is not null where there is none, or"
            return None
        for inner, part in fields.items():
            if (where := _null_in(f"{name}.{inner}", part)) is not None:
                return where
    elif pa.types.is_list(kind):
        return _null_in(f"{name}[]", column.flatten())
    return None
