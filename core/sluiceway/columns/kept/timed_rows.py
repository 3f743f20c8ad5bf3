"""Rows of one input of an interval join: by slice of time, in order of key and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import concatenated, plain_schema, write_blocks
from sluiceway.columns.kept.stored_rows import RowBlocks, StoredRows, largest_run
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["MATCHED", "Matches", "Run", "TimedRows", "shifted", "with_matched"]

MATCHED: Final = "sluiceway matched"
"""Column of the state that says whether a row has had a match."""

_BURST: Final = 1 << 15
"""Pairs that are made at a time."""

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def shifted(stamps: Any, ms: int) -> Any:
    """Return event times with ``ms`` added, within 64 bits."""
    moved = stamps + np.int64(ms)
    if ms > 0:
        return np.where(moved < stamps, _MOST, moved)
    return np.where(moved > stamps, _LEAST, moved)


def with_matched(schema: Any) -> Any:
    """Return the columns of rows in the state that say whether they have had a match."""
    return schema.append(pa.field(MATCHED, pa.bool_(), False))


def moment(number: int, width: int, times: Any) -> Any:
    """Return event times of times in a slice. The slice may start before the first time of 64 bits."""
    start = number * width
    return times + start if start >= _LEAST else (times - (_LEAST - start)) + _LEAST


class Run(NamedTuple):
    """Rows of a slice that arrived one after the other, in order of key, time and arrival.

    Attributes:
        number: rises from run to run.
        index: of each row, the number of its key times the width of a slice, plus its time in the slice.
        data: the rows: a record batch, or StoredRows where the state alone has them.
        visible: time in the slice from which on rows can have further matches.
        saved: whether the state has it.
        matched: whether each row has had a match; None: it does not count.
        nbytes: of the rows that are in memory.
        stored: the rows in the state, where that is known without a look at their order.
    """

    number: int
    index: Any
    data: Any
    visible: int
    saved: bool
    matched: Any = None
    nbytes: int = 0
    stored: StoredRows | None = None

    @property
    def is_stored(self) -> bool:
        """True if the state alone has the rows."""
        return isinstance(self.data, StoredRows)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        matched = 0 if self.matched is None else self.matched.nbytes
        stored = 0 if self.stored is None else self.stored.held
        return int(self.index.nbytes + matched + stored + self.nbytes)


class Matches:
    """Matches of the rows of a batch, as ranges of rows of runs."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._slices: list[int] = []
        self._parts: list[tuple[Any, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, run: Run, at: int, rows: Any, first: Any, counts: Any) -> bool:
        """Add the matches in a run, and return if there are any.

        Args:
            run: the run.
            at: the number of its slice.
            rows: rows of the batch.
            first: of each of them, the first match in the run.
            counts: how many matches there are.
        """
        found = np.flatnonzero(counts > 0)
        if len(found):
            self._runs.append(run)
            self._slices.append(at)
            self._parts.append((rows[found], first[found], counts[found]))
        return len(found) > 0

    def rows(self) -> Any:
        """Return the rows of the batch that have matches, in no order, some of them several times."""
        return np.concatenate([rows for rows, _, _ in self._parts])

    def ranges(self) -> Iterator[tuple[Run, int, Any, Any]]:
        """Return for each run the number of its slice, first matches and their counts."""
        for run, at, (_, first, counts) in zip(self._runs, self._slices, self._parts, strict=True):
            yield run, at, first, counts

    def fetch(self) -> None:
        """Read the matches that the state alone has, each once. Before they are asked for."""
        for number, run in enumerate(self._runs):
            if not run.is_stored:
                continue
            rows, first, counts = self._parts[number]
            size = len(run.index) + 1
            begin, end = np.bincount(first, minlength=size), np.bincount(first + counts, minlength=size)
            at = np.flatnonzero(np.cumsum(begin - end)[:-1])
            self._runs[number] = run._replace(index=run.index[at], data=run.data.take(at), matched=None)
            self._parts[number] = rows, np.searchsorted(at, first), counts

    def pieces(self, width: int) -> Iterator[tuple[Any, Any, Any]]:
        """Return pairs, a bounded number at a time.

        Args:
            width: width of a slice.

        Returns:
            rows of the batch, in their order; the times of the rows that match them; and these rows.
        """
        rows, first, counts = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        run = np.repeat(np.arange(len(self._parts)), [len(part[0]) for part in self._parts])
        if len(self._parts) > 1:
            order = rows.argsort(kind="stable")
            rows, first, counts, run = rows[order], first[order], counts[order], run[order]
        ends = np.cumsum(counts)
        for begin in range(0, int(ends[-1]), _BURST):
            end = min(begin + _BURST, int(ends[-1]))
            inside = slice(int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1)
            starts = ends[inside] - counts[inside]
            low, high = np.maximum(starts, begin), np.minimum(ends[inside], end)
            many = high - low
            at = np.arange(begin, end) - np.repeat(starts - first[inside], many)
            times, data = self._gathered(np.repeat(run[inside], many), at, width)
            yield np.repeat(rows[inside], many), times, data

    def _gathered(self, run: Any, at: Any, width: int) -> tuple[Any, Any]:
        present = np.unique(run).tolist()
        if len(present) == 1:
            return self._taken(present[0], at, width)
        parts, places = [], []
        for number in present:
            place = np.flatnonzero(run == number)
            parts.append(self._taken(number, at[place], width))
            places.append(place)
        order = np.concatenate(places).argsort(kind="stable")
        data = concatenated([rows for _, rows in parts]).take(pa.array(order))
        return np.concatenate([times for times, _ in parts])[order], data

    def _taken(self, number: int, at: Any, width: int) -> tuple[Any, Any]:
        run = self._runs[number]
        return moment(self._slices[number], width, run.index[at] % width), run.data.take(pa.array(at))


class TimedRows:
    """Rows of one input of an interval join, until no row of the other input can match them.

    A slice is a few runs of growing size, so that a row is copied a few times at most and a batch of one row costs
    no more than its place in them. Where memory is bounded, the rows of a slice may be in the state alone. Their
    keys, times and places in the blocks of the state stay in memory, as each batch of the other input is compared
    with them.

    Args:
        keys: the keys of both inputs.
        schema: the rows.
        width: width of a slice, in ms.
        kept: time in ms from a row's own for which it can have further matches.
        blocks: the blocks of the state; a namespace is width, slice and number of a run.
        outer: whether rows without a match count: the state has a column more, which says so.
    """

    def __init__(
        self, keys: KeyIds, schema: Any, width: int, kept: int, blocks: RowBlocks, *, outer: bool = False
    ) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self.saved_schema = with_matched(self.schema) if outer else self.schema
        self._outer = outer
        self._width = width
        self.kept = kept
        self.blocks, self._table = blocks, blocks.table
        self._largest = largest_run(self._table)
        self._slices: dict[int, list[Run]] = {}
        # When the rows of each slice were last used: a count of uses.
        self._used: dict[int, int] = {}
        self._uses = 0

    def __len__(self) -> int:
        return sum(len(run.index) for runs in self._slices.values() for run in runs)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(map(len, self._slices.values()))

    def add(self, ids: Any, stamps: Any, data: Any, number: int, matched: Any = None) -> None:
        """Add rows.

        Args:
            ids: the number of each row's key.
            stamps: their event times, in ms.
            data: the rows.
            number: number of the run, above all that there are.
            matched: whether each row has had a match, where that counts.
        """
        slices = stamps // self._width
        first, last = int(slices.min()), int(slices.max())
        for at in [first] if first == last else np.unique(slices).tolist():
            rows = None if first == last else np.flatnonzero(slices == at)
            times = (stamps if rows is None else stamps[rows]) % self._width
            index = (ids if rows is None else ids[rows]) * self._width + times
            order = index.argsort(kind="stable")
            taken = data.take(pa.array(order if rows is None else rows[order]))
            had = None if matched is None else (matched if rows is None else matched[rows])[order]
            self._append(at, Run(number, index[order], taken, 0, False, had, taken.nbytes))

    def add_saved(
        self, at: int, ids: Any, times: Any, data: Any, number: int, stored: StoredRows | None = None
    ) -> None:
        """Add the rows of a run that the state has; ``times`` are those in the slice, ``stored`` the same rows."""
        index = ids * self._width + times
        order = index.argsort(kind="stable")
        data, matched = self.split(data.take(pa.array(order)))
        stored = None if stored is None else stored.taken(order)
        run = Run(number, index[order], data, 0, True, matched, data.nbytes, stored)
        self._slices.setdefault(at, []).append(run)
        self._touch(at)

    def split(self, data: Any) -> tuple[Any, Any]:
        """Return the rows of a block of the state, and whether each of them has had a match."""
        if not self._outer:
            return data, None
        matched = np.array(data.column(MATCHED).to_numpy(zero_copy_only=False), bool)
        return data.select(self.schema.names), matched

    def mark(self, matches: Matches) -> None:
        """Note the rows that have had a match."""
        for run, at, first, counts in matches.ranges():
            ends = np.cumsum(counts)
            rows = np.arange(int(ends[-1])) - np.repeat(ends - counts - first, counts)
            if run.matched[rows].all():
                continue
            if run.is_stored:
                run.data.mark(rows[~run.matched[rows]])
                run.matched[rows] = True
                continue
            run.matched[rows] = True
            if run.saved:  # its block in the state says otherwise
                runs = self._slices[at]
                place = next(i for i, each in enumerate(runs) if each.number == run.number)
                self._table.drop((self._width, at, run.number))
                runs[place] = run._replace(saved=False, stored=None)

    def unmatched(self, watermark: int) -> Iterator[tuple[Any, Any]]:
        """Return times and rows of those that can have no further match, and have had none: before they expire."""
        over = watermark - self.kept
        for at in sorted(self._slices):
            if at * self._width > over:
                return
            until = min(over - at * self._width + 1, self._width)
            for run in self._slices[at]:
                times = run.index % self._width
                rows = np.flatnonzero(~run.matched & (times < until) & (times >= run.visible))
                data, places = run.data, rows
                if run.is_stored and len(rows):
                    data, places = data.take(rows), np.arange(len(rows))
                for begin in range(0, len(rows), _BURST):
                    part = slice(begin, begin + _BURST)
                    yield moment(at, self._width, times[rows[part]]), data.take(pa.array(places[part]))

    def _append(self, at: int, run: Run) -> None:
        runs = self._slices.setdefault(at, [])
        while runs and not runs[-1].is_stored and self._fit(runs[-1], run):
            run = self._merged(at, runs.pop(), run)
        runs.append(run)
        self._touch(at)

    def _fit(self, older: Run, newer: Run) -> bool:
        """Return if two runs go together: the newer one is not much smaller, and both are not too large."""
        large = older.data.nbytes + newer.nbytes > self._largest
        return not large and len(newer.index) * 2 > len(older.index)

    def _touch(self, at: int) -> None:
        self._uses += 1
        self._used[at] = self._uses

    def _merged(self, at: int, older: Run, newer: Run) -> Run:
        older, newer = self._to_copy(older), self._to_copy(newer)
        for run in (older, newer):
            if run.saved:
                self._table.drop((self._width, at, run.number))
        index = np.concatenate([older.index, newer.index])
        order = index.argsort(kind="stable")
        data = concatenated([older.data, newer.data]).take(pa.array(order))
        matched = None if older.matched is None else np.concatenate([older.matched, newer.matched])[order]
        return Run(newer.number, index[order], data, 0, False, matched, data.nbytes)

    def _to_copy(self, run: Run) -> Run:
        """Return a run in memory, without the rows that have expired: they go when it is copied in any case."""
        if not run.visible:
            return run._replace(data=run.data.take()) if run.is_stored else run
        left = np.flatnonzero(run.index % self._width >= run.visible)
        matched = None if run.matched is None else run.matched[left]
        return run._replace(index=run.index[left], data=run.data.take(pa.array(left)), matched=matched)

    def find(self, ids: Any, low: Any, high: Any) -> Matches:
        """Return the rows of the same keys and between two times, both included, for each row of a batch."""
        found, width = Matches(), self._width
        earliest, latest, least, most = int(low.max()), int(high.min()), int(low.min()), int(high.max())
        every = np.arange(len(ids))
        for at in sorted(self._slices):
            # The first and the last slice reach beyond 64 bits.
            start = max(at * width, _LEAST)
            end = min(at * width + width - 1, _MOST)
            if end < least or start > most:
                continue
            rows = every
            if earliest > end or latest < start:
                rows = np.flatnonzero((low <= end) & (high >= start))
            # Rows of a run are in the order of this number, so the matches of a row are one range.
            base = ids[rows] * width
            since = np.maximum(low[rows], start) % width
            until = base + np.minimum(high[rows], end) % width
            for run in self._slices[at]:
                visible = np.maximum(since, run.visible) if run.visible else since
                first = np.searchsorted(run.index, base + visible)
                if found.add(run, at, rows, first, np.searchsorted(run.index, until, "right") - first):
                    self._touch(at)
        return found

    def expire(self, watermark: int) -> bool:
        """Forget the rows without further matches. Return if any slice has gone."""
        over = watermark - self.kept
        gone = [at for at in self._slices if (at + 1) * self._width - 1 <= over]
        for at in gone:
            self._used.pop(at, None)
            for run in self._slices.pop(at):
                if run.saved:
                    self._table.drop((self._width, at, run.number))
        at = over // self._width
        if at in self._slices:
            visible = over - at * self._width + 1
            self._slices[at] = [run._replace(visible=visible) for run in self._slices[at]]
        return bool(gone)

    def save(self) -> None:
        """Write the runs that the state does not have."""
        for at, runs in self._slices.items():
            for place, run in enumerate(runs):
                if run.is_stored:
                    if run.matched is not None:
                        run.data.write_marks(MATCHED, run.matched)
                elif not run.saved and len(run.index):
                    self._write(at, run)
                    runs[place] = run._replace(saved=True)

    def _write(self, at: int, run: Run) -> None:
        ids, times = np.divmod(run.index, self._width)
        entries = self._table.entries((self._width, at, run.number))
        data = run.data
        if run.matched is not None:
            columns = [*data.columns, pa.array(run.matched)]
            data = pa.RecordBatch.from_arrays(columns, schema=self.saved_schema)
        stamps = moment(at, self._width, times)
        write_blocks(entries, self.blocks.group_keys, self._keys.groups()[ids], stamps, data)

    # ---- memory -----------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(run.held for runs in self._slices.values() for run in runs)

    @property
    def rows_nbytes(self) -> int:
        """Memory of the rows that can be stored, in bytes: without their keys and times."""
        return sum(run.nbytes for runs in self._slices.values() for run in runs)

    def in_memory(self) -> Iterator[tuple[int, int]]:
        """Return the slices that have rows in memory, each after the count of uses at its last one."""
        for at, runs in self._slices.items():
            if any(not run.is_stored for run in runs):
                yield self._used[at], at

    def store(self, at: int) -> int:
        """Write the rows of a slice and forget them. Return by how many bytes memory has shrunk."""
        runs = self._slices[at]
        before = sum(run.held for run in runs)
        # Few rows come for a slice whose time has passed: they are put to those that they follow.
        put: list[Run] = []
        for run in runs:
            merged = run
            while not merged.is_stored and put and self._fit(put[-1], merged):
                merged = self._merged(at, put.pop(), merged)
            put.append(merged)
        self._slices[at] = [self._stored(at, run) for run in put if len(run.index)]
        return before - sum(run.held for run in self._slices[at])

    def _stored(self, at: int, run: Run) -> Run:
        if run.is_stored:
            return run
        if not run.saved:
            self._write(at, run)
        rows = run.stored
        if rows is None:
            groups = self._keys.groups()[run.index // self._width]
            rows = StoredRows.written(self.blocks, (self._width, at, run.number), groups, run.nbytes)
        return run._replace(data=rows, stored=rows, nbytes=0, saved=True)

    # ---- keys -------------------------------------------------------------------------------------------------

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys of the rows, run by run."""
        return (run.index // self._width for runs in self._slices.values() for run in runs)

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        width = self._width
        for runs in self._slices.values():
            for place, run in enumerate(runs):
                index = renumbered[run.index // width] * width + run.index % width
                runs[place] = run._replace(index=index)
