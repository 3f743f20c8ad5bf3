"""Rows that wait for event time to reach them, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import concatenated, plain_schema, write_blocks
from sluiceway.columns.kept.stored_rows import RowBlocks, StoredRows, largest_run
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["Due", "DueRows"]


_LAST: Final = np.iinfo(np.int64).max

_STEP: Final = 1 << 27
"""Bytes of the rows in memory that become due together, about; more only if they have one time."""


class Due(NamedTuple):
    """Rows in order of time, those of one time in order of arrival.

    Attributes:
        ids: the number of each row's key.
        stamps: their event times, in ms.
        data: the rows.
    """

    ids: Any
    stamps: Any
    data: Any


class _Run(NamedTuple):
    """Rows that arrived one after the other, in memory.

    Attributes:
        number: rises from run to run.
        part: a run of which some rows have been stored is in parts, of which no two have rows of one time.
        rows: the rows.
        whole: how many they were before some became due.
        saved: whether the state has them.
        nbytes: memory of the rows, and of those that became due and are not yet free.
        stored: the same rows in the state, where that is known without a look at their order.
    """

    number: int
    part: int
    rows: Due
    whole: int
    saved: bool
    nbytes: int
    stored: StoredRows | None = None


class _Stored(NamedTuple):
    """Rows of a run, or of a part of one, that the state alone has.

    Attributes:
        number: of the run.
        part: of the run.
        first: time of the first of the rows.
        length: their number.
        rows: the rows.
    """

    number: int
    part: int
    first: int
    length: int
    rows: StoredRows


def _size(rows: Due) -> int:
    return int(rows.data.nbytes + rows.ids.nbytes + rows.stamps.nbytes)


def _ordered(ids: Any, stamps: Any, data: Any) -> Due:
    if len(stamps) > 1 and (stamps[1:] < stamps[:-1]).any():
        order = stamps.argsort(kind="stable")
        return Due(ids[order], stamps[order], data.take(pa.array(order)))
    return Due(ids, stamps, data)


def _joined(parts: Sequence[Due]) -> Due:
    if len(parts) == 1:
        return parts[0]
    ids, stamps = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return _ordered(ids, stamps, concatenated([part.data for part in parts]))


class DueRows:
    """Rows of an input, until the watermark reaches their times.

    A few runs of growing size, each in order of time: what is due is at their beginnings. Where memory is bounded,
    later rows may be in the state alone, in parts that are read as a whole when the first of their rows is due.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        names: their key columns.
        blocks: the blocks of the state; a namespace is the number of a part, 0 for all of a run, and of its run.
    """

    def __init__(self, keys: KeyIds, schema: Any, names: Sequence[str], blocks: RowBlocks) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self._names = names
        self.blocks, self._table = blocks, blocks.table
        self.memory = self._table.working_memory
        self._largest = largest_run(self._table)
        self._runs: list[_Run | _Stored] = []
        spaces: Any = self._table.namespaces()
        self._part = max((part for part, _ in spaces), default=0)

    def __len__(self) -> int:
        return sum(run.length if isinstance(run, _Stored) else len(run.rows.ids) for run in self._runs)

    def add(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add rows.

        Args:
            ids: the number of each row's key.
            stamps: their event times, in ms.
            data: the rows, in order of arrival.
            number: number of the run, above all that there are.
        """
        rows = _ordered(ids, stamps, data)
        run = _Run(number, 0, rows, len(ids), False, _size(rows))
        runs = self._runs
        while runs and isinstance(older := runs[-1], _Run) and self._fit(older, run):
            runs.pop()
            run = self._merged(older, run)
        runs.append(run)

    def _fit(self, older: _Run, newer: _Run) -> bool:
        """Return if two runs go together: the newer one is not much smaller, and both are not too large."""
        large = older.nbytes + newer.nbytes > self._largest
        return not large and len(newer.rows.ids) * 2 > len(older.rows.ids)

    def _merged(self, older: _Run, newer: _Run) -> _Run:
        self._drop(older)
        self._drop(newer)
        rows = _joined([older.rows, newer.rows])
        return _Run(newer.number, newer.part, rows, len(rows.ids), False, _size(rows))

    def add_saved(
        self, namespace: tuple[int, ...], ids: Any, stamps: Any, data: Any, stored: StoredRows | None
    ) -> None:
        """Add the rows of a run, or of a part of one, that the state has, with the same rows there."""
        part, number = namespace
        order = stamps.argsort(kind="stable")
        rows = Due(ids[order], stamps[order], data.take(pa.array(order)))
        stored = None if stored is None else stored.taken(order)
        held = 0 if stored is None else stored.held
        self._runs.append(_Run(number, part, rows, len(ids), True, _size(rows) + held, stored))

    def _drop(self, run: _Run) -> None:
        if run.saved:
            self._table.drop((run.part, run.number))

    def due_until(self, watermark: int) -> int:
        """Return a time up to the watermark until which the rows that are due go into memory together."""
        watermark = self._step_until(watermark)
        firsts = sorted((run.first, run.rows.nbytes) for run in self._runs if isinstance(run, _Stored))
        size = 0
        for first, nbytes in firsts:
            if first > watermark:
                break
            if size and first > firsts[0][0] and size + nbytes > (self.memory or 0) // 4:
                return first - 1
            size += nbytes
        return watermark

    def _step_until(self, watermark: int) -> int:
        """Return a time up to the watermark until which the rows in memory may be copied together."""
        due = []
        for run in self._runs:
            if isinstance(run, _Run) and (count := int(np.searchsorted(run.rows.stamps, watermark, "right"))):
                due.append((run.rows.stamps, count, _size(run.rows) / len(run.rows.stamps)))
        if sum(count * each for _, count, each in due) <= _STEP:
            return watermark
        # An equal share of each run, so that no run need be read to know which of its rows come before others'.
        for stamps, count, each in due:
            share = max(1, int(_STEP / len(due) / each))
            if share < count:
                watermark = min(watermark, int(stamps[share - 1]))
        return watermark

    def take(self, watermark: int) -> Due | None:
        """Remove and return the rows whose time is at most ``watermark``; None if there are none."""
        due: list[Due] = []
        runs, self._runs = self._runs, []
        for run in runs:
            if isinstance(run, _Run):
                self._take(run, watermark, due)
            elif run.first > watermark:
                self._runs.append(run)
            else:
                self._take(self._loaded(run), watermark, due)
                if self.memory is not None and self.rows_nbytes > self.memory // 2:
                    self.store()
        return _joined(due) if due else None

    def _loaded(self, run: _Stored) -> _Run:
        stamps, data = run.rows.read()
        ids = self._keys.find([data.column(name) for name in self._names])
        rows = Due(ids, stamps, data)
        return _Run(run.number, run.part, rows, run.length, True, _size(rows) + run.rows.held, run.rows)

    def _take(self, run: _Run, watermark: int, due: list[Due]) -> None:
        """Put the rows of a run that are due to others, and keep the rest of it."""
        ids, stamps, data = run.rows
        count = int(np.searchsorted(stamps, watermark, "right"))
        if not count:
            self._runs.append(run)
            return
        # Slices: what is due is emitted at once, and no copy of the rest is made before half of it is gone.
        due.append(Due(ids[:count], stamps[:count], data.slice(0, count)))
        rest = len(ids) - count
        if not rest:
            self._drop(run)
            return
        if rest * 2 < run.whole:
            # A copy, so that the memory and the block of those that are gone become free.
            self._drop(run)
            self._runs.append(self._copied(run, slice(count, None)))
            return
        rows = Due(ids[count:], stamps[count:], data.slice(count))
        self._runs.append(run._replace(rows=rows, stored=None))

    def _copied(self, run: _Run, places: slice) -> _Run:
        """Return some rows of a run, which the state does not have."""
        ids, stamps, data = run.rows
        at = pa.array(np.arange(len(ids))[places])
        rows = Due(ids[places].copy(), stamps[places].copy(), data.take(at))
        return _Run(run.number, run.part, rows, len(rows.ids), False, _size(rows))

    def save(self) -> None:
        """Write the runs that the state does not have."""
        for place, run in enumerate(self._runs):
            if isinstance(run, _Run) and not run.saved:
                self._write(run)
                self._runs[place] = run._replace(saved=True)

    def _write(self, run: _Run) -> Any:
        """Write a run, and return the key group of each row."""
        ids, stamps, data = run.rows
        groups = self._keys.groups()[ids]
        entries = self._table.entries((run.part, run.number))
        write_blocks(entries, self.blocks.group_keys, groups, stamps, data)
        return groups

    # ---- memory -----------------------------------------------------------------------------------------------

    @property
    def rows_nbytes(self) -> int:
        """Memory of the rows that can be stored, in bytes."""
        return sum(run.nbytes for run in self._runs if isinstance(run, _Run))

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(run.rows.held if isinstance(run, _Stored) else run.nbytes for run in self._runs)

    def store(self) -> None:
        """Write the later half of the rows in memory and forget them; where all have one time, all."""
        stamps = [run.rows.stamps for run in self._runs if isinstance(run, _Run)]
        if not stamps:
            return
        times = np.concatenate(stamps)
        half = len(times) // 2
        cut = int(np.partition(times, half)[half])
        runs, self._runs = self._runs, []
        for run in runs:
            first = 0 if isinstance(run, _Stored) else int(np.searchsorted(run.rows.stamps, cut))
            if isinstance(run, _Stored) or first == len(run.rows.ids):
                self._runs.append(run)
            elif first == 0 and run.stored is not None:
                self._runs.append(self._stored(run, run.stored))
            elif first == 0 and run.saved and len(run.rows.ids) == run.whole:
                self._runs.append(self._stored(run, self._of_state(run, self._keys.groups()[run.rows.ids])))
            else:
                self._drop(run)
                if first:
                    self._runs.append(self._copied(run, slice(0, first)))
                for begin, end in self._pieces(run, first):
                    self._part += 1
                    piece = self._copied(run._replace(part=self._part), slice(begin, end))
                    self._runs.append(self._stored(piece, self._of_state(piece, self._write(piece))))
        self._put_together()

    def _put_together(self) -> None:
        """Put runs together that have stored ones between them, unless these have rows of the same times.

        Rows take the number of a later run then, and numbers say what arrived first among rows of one time.
        """
        lowest, lows = _LAST, []
        for run in reversed(self._runs):
            if isinstance(run, _Stored):
                lowest = min(lowest, run.first)
            elif run.part:
                lowest = min(lowest, int(run.rows.stamps[0]))
            lows.append(lowest)
        lows.reverse()
        put: dict[int, _Run | _Stored] = {}
        before: list[tuple[int, _Run]] = []
        for place, run in enumerate(self._runs):
            merged = run
            if isinstance(merged, _Run):
                while before and self._fit(before[-1][1], merged):
                    at, older = before[-1]
                    if int(older.rows.stamps[-1]) >= lows[at]:
                        break
                    before.pop()
                    del put[at]
                    merged = self._merged(older, merged)
                before.append((place, merged))
            put[place] = merged
        self._runs = list(put.values())

    def _pieces(self, run: _Run, first: int) -> Iterable[tuple[int, int]]:
        """Return ranges of rows of a bounded size, from one on, of which no two have rows of one time."""
        stamps = run.rows.stamps
        many = max(1, self._largest * len(stamps) // max(_size(run.rows), 1))
        while first < len(stamps):
            end = min(first + many, len(stamps))
            if end < len(stamps):
                before = int(np.searchsorted(stamps, stamps[end]))
                end = before if before > first else int(np.searchsorted(stamps, stamps[end], "right"))
            yield first, end
            first = end

    def _of_state(self, run: _Run, groups: Any) -> StoredRows:
        return StoredRows.written(self.blocks, (run.part, run.number), groups, run.nbytes)

    @staticmethod
    def _stored(run: _Run, rows: StoredRows) -> _Stored:
        return _Stored(run.number, run.part, int(run.rows.stamps[0]), len(run.rows.ids), rows)

    # ---- keys -------------------------------------------------------------------------------------------------

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys of the rows in memory, run by run."""
        return (run.rows.ids for run in self._runs if isinstance(run, _Run))

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        for place, run in enumerate(self._runs):
            if isinstance(run, _Run):
                self._runs[place] = run._replace(rows=run.rows._replace(ids=renumbered[run.rows.ids]))
