"""Operator of aggregates in columns, per key and window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.aggregates import RUNNING
from sluiceway.columns.aggregation.keyed import can_be_keyed
from sluiceway.columns.aggregation.late import LateRows
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.joining import as_one
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.state_names import KEYS
from sluiceway.columns.times import as_numpy
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch
from sluiceway.operators.columns.cold_keys import KEYS_STATE, ColdKeys
from sluiceway.operators.columns.combining import Partials, partials_of
from sluiceway.operators.columns.held_slices import HeldSlices
from sluiceway.operators.columns.late_rows import give_late_rows
from sluiceway.operators.columns.slicing import rows_by_slice, slicing_of
from sluiceway.operators.columns.timed import ColumnTimeOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.late_records import count_late
from sluiceway.operators.windows.slice_types import NEVER

__all__ = ["ColumnWindowOperator"]

_Results = tuple[Any, int, dict[str, Any]]
"""Rows that have changed the results of a window, its end, and for each of them the columns."""

_LATE_RESULTS: Final = 1 << 17
"""New results of windows that are over and are made at a time, about; all of one row are."""


def _parted(rows: Any, over: Any, end: int) -> tuple[Any, Any]:
    """Return the rows for which windows with that end are not over, and the others.

    Args:
        rows: indices of rows.
        over: windows that end by this are over: for all rows, or for each of the batch.
        end: when they end.
    """
    if isinstance(over, int):
        return (rows[:0], rows) if over >= end else (rows, rows[:0])
    is_over = over[rows] >= end
    return rows[~is_over], rows[is_over]


class ColumnWindowOperator(ColumnTimeOperator):
    """Operator of windows whose rows are aggregated in arrays, slice by slice.

    A window is merged from its slices, the older before the newer; a slice is made of its rows in the order of
    their arrival. Results are in the order of the windows' ends, within a window in that of the keys' arrival.

    State: a block per slice and key group, in chunks where a slice has many keys. Chunks of which much has changed
    since the last snapshot are written, of others the keys that have changed. Without windows, a value per key
    once they have exceeded memory.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        slicing = slicing_of(self._step.assigner)
        assert slicing is not None  # the pipeline has looked
        self._slicing = slicing
        self._slices: HeldSlices
        self._due_at = NEVER
        self._lateness = self._step.lateness_ms
        self._numbers_rows = self._lateness > 0 or self._layout.takes_arrivals
        self._has_running = all(aggregate.kind in RUNNING for _, aggregate in self._step.aggregates)
        # Where a row is in one window, its new result is the running one.
        self._at_once = slicing.width == slicing.size and self._has_running

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the slices that are in the state."""
        has_keys = any(meta.name == KEYS for saved in self._saved for meta in saved.tables)
        super().open()
        slicing = self._slicing
        self._slices = HeldSlices(
            self._layout, self._keys, self._blocks, self._group_keys, slicing.width, self._cold_keys(has_keys)
        )

        def check(name: tuple[Any, ...]) -> None:
            start, end, *_ = name
            if type(start) is not int or end - start != slicing.width or start != slicing.start_of(start):
                raise self._other_windows()

        self._slices.open(check)
        self._drop_slices()  # a shorter lateness than before has no use for some
        self._due_at = self._next_due()

    def _cold_keys(self, are_there: bool) -> ColdKeys | None:
        """Return the keys that may be in the state by themselves; None: they cannot be."""
        if self._step.assigner is not None:
            return None
        if not are_there and (self._blocks.working_memory is None or not can_be_keyed(self._layout)):
            return None
        own = range(self.context.key_groups.start, self.context.key_groups.end)
        return ColdKeys(self._layout, self._keys, self.backend.table(KEYS_STATE), self._group_keys, own)

    def _write_blocks(self) -> None:
        self._slices.save()

    # ---- rows -------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        data: Any = batch.columns
        if self._step.assigner is None:
            self._add(0, ids, columns, arrivals)
            return
        assert batch.timestamps is not None
        slicing, limit = self._slicing, self._limit
        # The usual case: all rows are in one slice, and all late or none, so that no row is looked at by itself.
        first, last = map(slicing.start_of, batch.span())
        if first == last and self._ahead is None:
            if slicing.last_end(first) + self._lateness <= limit:
                give_late_rows(self, self._late_tag, data, as_numpy(batch.timestamps), np.arange(len(ids)))
                return
            if not self._lateness or slicing.first_end(first) > limit:
                self._add(first, ids, columns, arrivals)
                return
        self._deal(batch, ids, columns, arrivals)

    def _deal(self, batch: Batch[Any], ids: Any, columns: Mapping[str, Values], arrivals: Any) -> None:
        """Add rows of several slices, or of which some are late."""
        assert batch.timestamps is not None
        stamps: Any = as_numpy(batch.timestamps)
        parts = rows_by_slice(stamps, self._slicing, batch.span())
        for values in columns.values():
            _ = values.numbers, values.valid  # once for all slices
        late = [np.zeros(0, np.int64)]
        again: list[tuple[int, Any]] = []
        over = self._limits_of(ids)
        for start, rows in parts:
            rows, those = _parted(rows, over, self._slicing.last_end(start) + self._lateness)
            late.append(those)
            if self._lateness:
                rows, those = _parted(rows, over, self._slicing.first_end(start))
                again.append((start, those))
            if len(rows):
                taken = {name: values.take(rows) for name, values in columns.items()}
                self._add(start, ids[rows], taken, None if arrivals is None else arrivals[rows])
        again = [(start, rows) for start, rows in again if len(rows)]
        if again:
            self._add_again(again, ids, columns, arrivals, np.broadcast_to(over, len(ids)))
        rows = np.sort(np.concatenate(late))
        if len(rows):
            give_late_rows(self, self._late_tag, batch.columns, stamps, rows)

    @property
    def _limit(self) -> int:
        return min(max(self._over, self.current_watermark + 1), MAX_WATERMARK)

    def _limits_of(self, ids: Any) -> Any:
        """Return by when windows that end are over: for all keys, or for each where key groups differ."""
        if self._ahead is None:
            return self._limit
        return np.maximum(self._limit, self._ahead[self._keys.groups()[ids]])

    def _add(self, start: int, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> None:
        self._slice_at(start).update(ids, columns, arrivals)

    def _slice_at(self, start: int) -> AggregateSlice:
        if start not in self._slices:
            self._due_at = min(self._due_at, self._due_of(start))
        return self._slices.change(start)

    def process(self, batch: Batch[Any]) -> None:
        """Add the rows, or what their producer has combined, and keep to the memory that there is for slices."""
        partials = partials_of(batch, self._layout)
        if partials is None:
            super().process(batch)
        else:
            self._merge(partials)
        if self._slices.shrink():
            self._forget_keys()

    def _merge(self, partials: Partials) -> None:
        """Add partial results, slice by slice."""
        self._arrived += int(partials.rows.sum())
        every = self._keys.find(partials.keys)
        for stamp, begin, end in partials.by_slice():
            start, ids = self._slicing.start_of(stamp), every[begin:end]
            states = {name: each.slice(begin, end - begin) for name, each in partials.accumulators.items()}
            if self._step.assigner is not None:
                kept, late = _parted(np.arange(len(ids)), self._limits_of(ids), self._slicing.last_end(start))
                if len(late):
                    count_late(self, int(partials.rows[begin:end][late].sum()))
                    ids, states = ids[kept], {name: each.take(array_of(kept)) for name, each in states.items()}
            if len(ids):
                self._slice_at(start).merge_states(ids, states)

    # ---- late rows --------------------------------------------------------------------------------------------

    def _add_again(
        self,
        parts: Sequence[tuple[int, Any]],
        ids: Any,
        columns: Mapping[str, Values],
        arrivals: Any,
        limits: Any,
    ) -> None:
        """Add rows of windows that are over, and emit for each row the new results of these windows.

        Args:
            parts: slices, and the indices of their rows.
            ids: the key of each row of the batch.
            columns: the columns that the aggregates read.
            arrivals: numbers of the rows.
            limits: for each row, windows that end by this are over.
        """
        found: list[_Results] = []
        if self._at_once:
            for start, rows in parts:
                taken = {name: values.take(rows) for name, values in columns.items()}
                results = dict(zip(self._names, self._keys.columns(ids[rows]), strict=True))
                results |= self._slice_at(start).running(ids[rows], taken, arrivals[rows])
                found.append((rows, self._slicing.last_end(start), results))
        else:
            rows = np.concatenate([rows for _, rows in parts])
            starts = np.concatenate([np.full(len(rows), start) for start, rows in parts])
            order = rows.argsort()
            rows, starts = rows[order], starts[order]
            if self._has_running:
                several = max(1, _LATE_RESULTS // max(1, self._slicing.size // self._slicing.slide))
                for begin in range(0, len(rows), several):
                    part = slice(begin, begin + several)
                    self._emit_again(self._results_after(rows[part], starts[part], ids, columns, arrivals, limits))
                return
            # One row of each key, then the next one of each.
            ranks = Runs(ids[rows]).ranks
            for rank in range(int(ranks.max()) + 1):
                chosen = ranks == rank
                found += self._add_one_of_each(rows[chosen], starts[chosen], ids, columns, arrivals, limits)
        self._emit_again(found)

    def _results_after(
        self, rows: Any, starts: Any, ids: Any, columns: Mapping[str, Values], arrivals: Any, limits: Any
    ) -> list[_Results]:
        """Add late rows, and return for each the new results of its windows that are over."""
        taken = {name: values.take(rows) for name, values in columns.items()}
        late = LateRows(self._layout, self._keys, ids[rows], taken, arrivals[rows])
        of_slices = [(start, np.flatnonzero(starts == start)) for start in np.unique(starts).tolist()]
        by_end: dict[int, list[Any]] = {}
        for start, mine in of_slices:
            for end, due in self._due_again(start, mine, limits[rows[mine]]):
                by_end.setdefault(end, []).append(due)
        first = min(map(self._slicing.window_start, by_end), default=0)
        for start in self._slices.between(first, max(by_end, default=first)):
            late.hold(start, self._slices[start])
        for start, mine in of_slices:
            late.add(start, self._slice_at(start), mine)
        found: list[_Results] = []
        for end, parts in by_end.items():
            due = np.sort(np.concatenate(parts))
            inside = self._slices.between(self._slicing.window_start(end), end)
            found.append((rows[due], end, late.results(inside, due)))
        return found

    def _due_again(self, start: int, rows: Any, limit: Any) -> Iterator[tuple[int, Any]]:
        """Return the ends of the windows of a slice that are over and that rows change, each with these rows."""
        lateness = self._lateness
        for end in self._slicing.ends_of(start, int(limit.min()) - lateness, int(limit.max())):
            due = rows[(limit >= end) & (limit < end + lateness)]
            if len(due):
                yield end, due

    def _add_one_of_each(
        self, rows: Any, starts: Any, ids: Any, columns: Mapping[str, Values], arrivals: Any, limits: Any
    ) -> list[_Results]:
        by_end: dict[int, list[Any]] = {}
        for start in np.unique(starts).tolist():
            mine = rows[starts == start]
            self._add(start, ids[mine], {n: values.take(mine) for n, values in columns.items()}, arrivals[mine])
            for end, due in self._due_again(start, mine, limits[mine]):
                by_end.setdefault(end, []).append(due)
        found: list[_Results] = []
        for end, parts in by_end.items():
            due = np.concatenate(parts)
            wanted, window = ids[due], AggregateSlice(self._layout, self._keys, tracked=False)
            for at in self._slices.between(self._slicing.window_start(end), end):
                window.merge_keys(self._slices[at], wanted)
            order = wanted.argsort()
            of_row = due[order][np.searchsorted(wanted[order], window.positions.ids)]
            found.append((of_row, end, window.results()))
        return found

    def _emit_again(self, found: Sequence[_Results]) -> None:
        """Emit new results in the order of the rows that changed them, those of a row in that of the windows."""
        if not found:
            return
        whole = pa.Table.from_batches([self._rows_of(results, end) for _, end, results in found])
        ends = np.concatenate([np.full(len(rows), end) for rows, end, _ in found])
        order: Any = np.lexsort((ends, np.concatenate([rows for rows, _, _ in found])))
        for _ in self._emit_rows(as_one(whole.take(order)), ends[order] - 1):
            pass

    # ---- time -------------------------------------------------------------------------------------------------

    def _next_end(self, start: int) -> int:
        """Return the end of the first window that includes the slice and is not over."""
        return max(self._slicing.first_end(start), self._slicing.next_end(self._over))

    def _due_of(self, start: int) -> int:
        """Return the event time at which a window of the slice is over, or the slice takes no more late rows."""
        end, last = self._next_end(start), self._slicing.last_end(start)
        return (end if end <= last else last + self._lateness) - 1

    def _next_due(self) -> int:
        """Return the first event time at which anything is due."""
        starts, slicing = self._slices.starts, self._slicing
        # What is due of a slice comes no earlier than of those before it: among the slices whose windows are all
        # over, and among the others.
        active = bisect_left(starts, slicing.next_end(self._over), key=slicing.last_end)
        return min(map(self._due_of, (*starts[:1], *starts[active : active + 1])), default=NEVER)

    def _is_due(self, until: int) -> bool:
        return self._due_at <= until

    def _fire(self, until: int) -> Iterator[None]:
        while self._due_at <= until:
            # Something is due: a window ends, or a slice has had the last of its late rows.
            end = self._due_at + 1
            if self._slicing.next_end(end - 1) == end:
                yield from self._emit(end)
            self._over = end
            self._drop_slices()
            self._due_at = self._next_due()
        self._passed(until)

    def _emit(self, end: int) -> Iterator[None]:
        """Emit the results of the window with that end, if it has any slice."""
        if self._step.assigner is None:
            for part in self._slices.parts(0):
                yield from self._emit_window(part, end)
            return
        window = self._slices.window(self._slicing.window_start(end), end)
        if window is not None:
            yield from self._emit_window(window, end)

    def _emit_window(self, window: AggregateSlice, end: int) -> Iterator[None]:
        data = self._rows_of(window.results(), end)
        if self._ahead is not None:
            data = data.filter(array_of(self._ahead[window.groups()] < end))
        yield from self._emit_rows(data, np.full(data.num_rows, min(end - 1, MAX_WATERMARK)))

    def _rows_of(self, results: dict[str, Any], end: int) -> Any:
        """Return results of a window as rows."""
        if self._step.assigner is not None:
            count = len(next(iter(results.values())))
            for name, time in (("window_start", self._slicing.window_start(end)), ("window_end", end)):
                bounded = min(max(time, MIN_WATERMARK), MAX_WATERMARK)
                results[name] = self._bounds(name, np.full(count, bounded))
        return pa.RecordBatch.from_arrays(list(results.values()), schema=self._step.schema)

    def _drop_slices(self) -> None:
        slicing = self._slicing
        for start in self._slices:
            if slicing.last_end(start) + self._lateness > self._over:
                break  # so do those behind it
            self._slices.drop(start)
        self._forget_keys()

    def _holders(self) -> Iterable[HoldsKeys]:
        return self._slices.holders()
