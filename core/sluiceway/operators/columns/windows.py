"""Operator of aggregates in columns, per key and window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.accumulators import Values
from sluiceway.columns.slices import AggregateSlice, forget_idle
from sluiceway.columns.times import as_numpy
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch
from sluiceway.operators.columns.slicing import WindowSlices, slicing_of
from sluiceway.operators.columns.timed import ColumnTimeOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.windows.slice_types import NEVER

__all__ = ["ColumnWindowOperator"]

_FEW_SLICES: Final = 8


class ColumnWindowOperator(ColumnTimeOperator):
    """Operator of windows whose rows are aggregated in arrays, slice by slice.

    A window is merged from its slices, the older before the newer; a slice is made of its rows in the order of
    their arrival. Results are in the order of the windows' ends, within a window in that of the keys' arrival.

    State: a block per slice and key group, written when the slice has changed since the last snapshot.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        slicing = slicing_of(self._step.assigner)
        assert slicing is not None  # the pipeline has looked
        self._slicing = slicing
        self._slices: dict[int, AggregateSlice] = {}
        self._due_at = NEVER

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the slices that are in the state."""
        super().open()
        spans: Any = self._blocks.namespaces()
        for span in sorted(spans, key=str):
            start, end = span
            slicing = self._slicing
            if type(start) is not int or end - start != slicing.width or start != slicing.start_of(start):
                raise self._other_windows()
            restored = self._slices[start] = AggregateSlice(self._layout, self._keys)
            restored.restore(list(self._blocks.entries(span).values()))
        self._due_at = self._next_due()

    def _write_blocks(self) -> None:
        keys = self._group_keys
        for start, each in self._slices.items():
            if each.changed:
                entries = self._blocks.entries((start, start + self._slicing.width))
                for group, block in each.blocks().items():
                    entries[keys[group]] = block
                each.changed = False

    # ---- rows -------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        data: Any = batch.columns
        if self._step.assigner is None:
            self._add(0, ids, columns, arrivals)
            return
        assert batch.timestamps is not None
        first, last = map(self._slicing.start_of, batch.span())
        if first == last and self._ahead is None:
            if self._is_over(first):
                self._give_late(data, batch.timestamps, np.arange(len(ids)))
            else:
                self._add(first, ids, columns, arrivals)
            return
        self._deal(data, batch.timestamps, ids, columns, arrivals)

    def _deal(
        self, data: Any, timestamps: Sequence[int], ids: Any, columns: Mapping[str, Values], arrivals: Any
    ) -> None:
        """Add rows of several slices."""
        stamps: Any = as_numpy(timestamps)
        parts = _rows_by_slice(stamps, self._slicing)
        for values in columns.values():
            _ = values.numbers, values.valid  # once for all slices
        late = [np.zeros(0, np.int64)]
        groups = None if self._ahead is None else self._keys.groups()[ids]
        for start, rows in parts:
            if self._is_over(start):
                late.append(rows)
                continue
            if groups is not None:
                is_late = self._ahead[groups[rows]] >= self._slicing.last_end(start)
                late.append(rows[is_late])
                rows = rows[~is_late]
            if len(rows):
                taken = {name: values.take(rows) for name, values in columns.items()}
                self._add(start, ids[rows], taken, arrivals[rows])
        rows = np.sort(np.concatenate(late))
        if len(rows):
            self._give_late(data, timestamps, rows)

    def _is_over(self, start: int) -> bool:
        return self._slicing.last_end(start) <= self._over or (
            self._slicing.last_end(start) - 1 <= self.current_watermark
        )

    def _add(self, start: int, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> None:
        self._slice_at(start).update(ids, columns, arrivals)

    def _slice_at(self, start: int) -> AggregateSlice:
        into = self._slices.get(start)
        if into is None:
            into = self._slices[start] = AggregateSlice(self._layout, self._keys)
            self._due_at = min(self._due_at, self._next_end(start) - 1)
        return into

    # ---- time -------------------------------------------------------------------------------------------------

    def _next_end(self, start: int) -> int:
        """Return the end of the first window that includes the slice and is not over."""
        return max(self._slicing.first_end(start), self._slicing.next_end(self._over))

    def _next_due(self) -> int:
        return min(map(self._next_end, self._slices), default=NEVER + 1) - 1

    def _is_due(self, until: int) -> bool:
        return self._due_at <= until

    def _fire(self, until: int) -> Iterator[None]:
        while self._due_at <= until:
            end = self._due_at + 1
            yield from self._emit(end)
            self._over = end
            self._drop_slices()
            self._due_at = self._next_due()
        self._passed(until)

    def _emit(self, end: int) -> Iterator[None]:
        slicing = self._slicing
        start = slicing.window_start(end)
        if self._step.assigner is None:
            inside = [0]
        else:
            inside = [at for at in sorted(self._slices) if start <= at < end]
        window = self._slices[inside[0]]
        if len(inside) > 1:
            window = AggregateSlice(self._layout, self._keys)
            for at in inside:
                window.merge(self._slices[at])
        results = window.results()
        if self._step.assigner is not None:
            count = len(window)
            for name, time in (("window_start", start), ("window_end", end)):
                bounded = min(max(time, MIN_WATERMARK), MAX_WATERMARK)
                results[name] = self._bounds(name, np.full(count, bounded))
        data = pa.RecordBatch.from_arrays(list(results.values()), schema=self._step.schema)
        if self._ahead is not None:
            groups = self._keys.groups()[window.positions.ids]
            data = data.filter(pa.array(self._ahead[groups] < end))
        yield from self._emit_rows(data, np.full(data.num_rows, min(end - 1, MAX_WATERMARK)))

    def _drop_slices(self) -> None:
        slicing = self._slicing
        for start in [start for start in self._slices if slicing.last_end(start) <= self._over]:
            del self._slices[start]
            self._blocks.drop((start, start + slicing.width))
        self._kept_keys = forget_idle(
            self._keys, [each.positions for each in self._slices.values()], self._kept_keys
        )


def _rows_by_slice(stamps: Any, slicing: WindowSlices) -> list[tuple[int, Any]]:
    """Return for each slice that has rows its start and the rows, in their order."""
    first = slicing.start_of(int(stamps.min()))
    numbers = (stamps - first) // slicing.width
    count = int(numbers.max()) + 1
    each: Iterable[tuple[int, Any]]
    if count <= _FEW_SLICES:  # comparing is faster than sorting
        each = ((number, np.flatnonzero(numbers == number)) for number in range(count))
    else:
        small = np.uint16 if count <= 1 << 16 else np.int64  # those of 16 bits are sorted by their digits
        order = numbers.astype(small).argsort(kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        each = zip(found.tolist(), np.split(order, begins[1:]), strict=True)
    return [(first + number * slicing.width, rows) for number, rows in each if len(rows)]
