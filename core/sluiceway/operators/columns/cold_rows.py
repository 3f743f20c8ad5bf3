"""Rows of keys that are in the state alone, key by key, because memory is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.keyed import DUE, is_plain_key, pack, unpack
from sluiceway.columns.kept.blocks import block_of, concatenated, rows_as
from sluiceway.columns.kept.due_rows import Due
from sluiceway.columns.kept.keyed_runs import KeyedRuns
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.row_bytes import can_be_rows
from sluiceway.elements import MIN_WATERMARK
from sluiceway.operators.columns.row_forms import RowForms
from sluiceway.state import StateTable

__all__ = ["ColdRows", "KeptColumns"]

_PART: Final = 1 << 12
"""Keys that are read or written at a time, at most."""

_BYTES: Final = 1 << 24
"""Bytes of rows that are encoded or decoded at a time; more only of one key."""

_LEAST_WIDTH: Final = 1000
"""Event time in ms of a namespace of keys by the time of their last row, at least."""

_NONE: Final = np.zeros(0, np.int64)


class KeptColumns:
    """Columns of kept rows, behind their event time.

    Args:
        schema: the rows.
        keys: names of the key columns.
        step: name of the step, for messages.
        added: False if a column that is new to the step may have been there before, without being saved.

    Attributes:
        step: name of the step.
        metadata: nothing: the names and types say it all.
    """

    metadata = b"{}"

    def __init__(self, schema: Any, keys: Sequence[str], step: str, *, added: bool = True) -> None:
        self.schema, self.keys, self.step, self._added = schema, tuple(keys), step, added

    def read(self, metadata: bytes | None, rows: Any, count: int) -> Any:
        """Return saved rows in the columns of now. Raises IncompatibleStateError."""
        data = rows_as(rows.remove_column(0), self.schema, self.step, self.keys, added=self._added)
        return block_of(rows.column(0), data)

    def can_be_alone(self) -> bool:
        """Return if rows can be in the state key by key."""
        keys = all(is_plain_key(self.schema.field(name).type) for name in self.keys)
        return keys and all(can_be_rows(field.type) for field in self.schema)


class ColdRows:
    """Rows of keys that are in the state by themselves. A key has its rows here, or in memory.

    Each number of a key that has been looked up is that of a key whose rows are in memory, if it has any.

    Args:
        columns: the rows.
        runs: the rows in memory.
        keys: the keys of the subtask.
        table: the state: the value of a key is its rows, in order of time.
        name: name of the state.
        group_keys: the key of each group's forms.
        own: the key groups of the subtask.
        age: age in ms up to which a row is kept; None: any.
        next_number: returns the number of a new run.
    """

    def __init__(
        self,
        columns: KeptColumns,
        runs: KeyedRuns,
        keys: KeyIds,
        table: StateTable,
        name: str,
        group_keys: Sequence[int],
        own: range,
        age: int | None,
        next_number: Callable[[], int],
    ) -> None:
        self._columns, self._runs, self._keys, self._table = columns, runs, keys, table
        self._entries = table.entries()
        self._forms = RowForms(columns, table, name, group_keys, own, 1)
        self._age, self._next_number = age, next_number
        self._width = max((age or 0) // 16, _LEAST_WIDTH)
        # Start and width of each namespace with keys by the time of their last row, if rows become too old.
        self._buckets: set[tuple[int, int]] = set()
        self._known = 0
        self._has_rows = False
        # The rows in memory of which none could leave.
        self._in_vain = 0

    def open(self) -> None:
        """Read what is not by key; all rows, if they go into memory in any case.

        Raises:
            IncompatibleStateError: the columns have changed.
            StateError: the state is damaged.
        """
        times = self._forms.open()
        if times is None:
            return
        self._has_rows = True
        if self._age is None:
            for bucket in times:
                self._table.drop((DUE, *bucket))
        else:
            self._buckets.update(times)
        if not self._can_shrink():
            self._load_all()
        elif self._age is not None and not self._buckets:  # rows were kept for ever before
            values = iter(self._entries.values())
            while part := list(islice(values, _PART)):
                keys, stamps = self._last_times(part)
                self._file(self._forms.objects(keys.columns()), stamps)

    def _can_shrink(self) -> bool:
        return self._table.working_memory is not None and self._columns.can_be_alone()

    def _load_all(self) -> None:
        values = iter(self._entries.values())
        while part := list(islice(values, _PART)):
            self._put(part)
        self._forms.clear()
        self._entries = self._table.entries()
        self._buckets.clear()
        self._has_rows = False

    # ---- rows that come back ----------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Bring the rows of the keys that have got numbers since the last call into memory, if they are here.

        Raises:
            StateError: the state is damaged, or a key cannot be looked up.
        """
        before, self._known = self._known, len(self._keys)
        if before == self._known or not self._has_rows:
            return
        keys = self._forms.objects(self._keys.since(before))
        for begin in range(0, len(keys), _PART):
            found = self._table.read(keys[begin : begin + _PART])
            if found:
                self._put(list(found.values()))
                self._table.remove(list(found))

    def all_known(self) -> None:
        """Note that the rows of all keys with numbers are in memory."""
        self._known = len(self._keys)

    def _put(self, values: Sequence[bytes]) -> None:
        for some in _by_size(values):
            for rows in self._decode(some):
                stamps, data = self._split(rows)
                ids = self._keys.find([data.column(name) for name in self._columns.keys])
                self._runs.put(ids, stamps, data, self._next_number())

    def _split(self, rows: Any) -> tuple[Any, Any]:
        """Return event times and rows without them: a column may have the name of the event time."""
        data = pa.RecordBatch.from_arrays(rows.columns[1:], schema=self._columns.schema)
        return rows.column(0).to_numpy(), data

    def _decode(self, values: Iterable[bytes]) -> Iterator[Any]:
        try:
            rows = [row for value in values for row in unpack(value)]
        except ValueError as error:
            raise self._forms.damaged(error) from error
        return self._forms.decode(rows)

    # ---- rows that leave --------------------------------------------------------------------------------------

    def shrink(self, *waiting: HoldsKeys) -> bool:
        """Write and forget the rows of keys that have had none for long, if all take half of the memory.

        Args:
            waiting: holders of numbers of keys that are going to be looked up.

        Returns:
            true if any has gone: keys have other numbers then.
        """
        memory, count = self._table.working_memory, len(self._runs)
        if memory is None or self._nbytes() <= memory // 2 or not self._can_shrink():
            return False
        # Keys alone may take more than half: no rows leave for them. Nor does a look at all rows pay each time.
        if self._runs.nbytes <= memory // 4 or self._in_vain <= count < self._in_vain * 9 // 8:
            return False
        idle = np.ones(len(self._keys), bool)
        for each in waiting:
            for ids in each.used_ids():
                idle[ids] = False
        shrunk = False
        # By the run in which a key has its last row.
        newest = np.full(len(self._keys), -1, np.int64)
        for at, ids in enumerate(self._runs.used_ids()):
            newest[ids] = at
        for at in range(int(newest.max()) + 1):
            gone = np.flatnonzero((newest == at) & idle)
            if len(gone):
                self._write(self._runs.take_out(gone))
                shrunk = True
            if self._runs.nbytes <= memory // 4:
                break
        if shrunk:
            self._forget_keys(waiting)
        self._in_vain = 0 if shrunk else count
        return shrunk

    def _nbytes(self) -> int:
        return self._runs.nbytes + self._keys.nbytes

    def _forget_keys(self, waiting: Sequence[HoldsKeys]) -> None:
        live = np.zeros(len(self._keys), bool)
        holders = [*waiting, self._runs, self]
        for each in holders:
            for ids in each.used_ids():
                live[ids] = True
        renumbered = self._keys.retain(live)
        for each in holders:
            each.renumber(renumbered)

    def _write(self, parts: Sequence[Due]) -> None:
        if not parts:
            return
        self._has_rows = True
        ids, stamps = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        data = concatenated([part.data for part in parts])
        order = ids.argsort(kind="stable")  # older parts come first
        ids, stamps, data = ids[order], stamps[order], data.take(pa.array(order))
        there, bounds = np.unique(ids, return_index=True)
        limits = np.append(bounds, len(ids))
        step = min(_PART, max(len(there) * _BYTES // max(data.nbytes, 1), 1))
        for begin in range(0, len(there), step):
            cuts = limits[begin : begin + step + 1]
            low, high = int(cuts[0]), int(cuts[-1])
            rows = self._forms.encode(block_of(stamps[low:high], data.slice(low, high - low)))
            keys = self._forms.objects(self._keys.columns(there[begin : begin + step]))
            packed = (pack(rows[first:end]) for first, end in pairwise((cuts - low).tolist()))
            self._entries.update(zip(keys, packed, strict=True))
            if self._age is not None:
                self._file(keys, stamps[cuts[1:] - 1])

    def _file(self, keys: Sequence[Any], stamps: Any) -> None:
        """Put keys into the namespaces for the times of their last rows."""
        apart = stamps % self._width
        starts = np.where(stamps < MIN_WATERMARK + apart, MIN_WATERMARK, stamps - apart)
        for start in np.unique(starts).tolist():
            self._buckets.add((start, self._width))
            mine = [keys[at] for at in np.flatnonzero(starts == start).tolist()]
            self._table.entries((DUE, start, self._width)).update(dict.fromkeys(mine, b""))

    def expire(self, watermark: int) -> None:
        """Remove the keys all of whose rows are too old for any row to come, some a little later."""
        if self._age is None:
            return
        over = watermark - self._age
        for start, width in sorted(bucket for bucket in self._buckets if sum(bucket) <= over):
            keys = iter(self._table.entries((DUE, start, width)))
            while part := list(islice(keys, _PART)):
                self._remove_old(list(self._table.read(part).values()), over)
            self._table.drop((DUE, start, width))
            self._buckets.remove((start, width))

    def _remove_old(self, values: Sequence[bytes], over: int) -> None:
        keys, stamps = self._last_times(values)
        gone = np.flatnonzero(stamps < over)
        if len(gone):
            self._table.remove(self._forms.objects(keys.columns(gone)))

    def _last_times(self, values: Sequence[bytes]) -> tuple[KeyIds, Any]:
        """Return the keys of values, and by their numbers the times of their last rows."""
        keys = KeyIds(self._keys.types, self._keys.max_parallelism)
        last = _NONE
        for some in _by_size(values):
            for rows in self._decode(some):
                times, data = self._split(rows)
                ids = keys.find([data.column(name) for name in self._columns.keys])
                last = np.append(last, np.full(len(keys) - len(last), MIN_WATERMARK))
                np.maximum.at(last, ids, times)
        return keys, last

    # ---- numbers of keys --------------------------------------------------------------------------------------

    def used_ids(self) -> Iterable[Any]:
        """Return no numbers: those of keys that are in memory are held there."""
        return ()

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._known = int((renumbered[: self._known] >= 0).sum())


def _by_size(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Return values in parts of a bounded number of bytes."""
    begin = size = 0
    for at, value in enumerate(values):
        if size and size + len(value) > _BYTES:
            yield values[begin:at]
            begin, size = at, 0
        size += len(value)
    if begin < len(values):
        yield values[begin:]
