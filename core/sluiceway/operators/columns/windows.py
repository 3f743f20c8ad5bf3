"""Operator of aggregates in columns, per key and window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.accumulators import Values
from sluiceway.columns.keys import KeyIds, key_groups_of_rows
from sluiceway.columns.slices import AggregateSlice, Layout, forget_idle
from sluiceway.columns.times import as_array, as_numpy
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Watermark
from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.columns.slicing import WindowSlices, slicing_of
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.slice_types import END_OF_TIME, NEVER
from sluiceway.state import ValueStateDescriptor
from sluiceway.steps import without_timestamps
from sluiceway.steps.columns import ColumnWindowStep

__all__ = ["ColumnWindowOperator"]

_BLOCKS: Final = ValueStateDescriptor("slices in columns", bytes)
"""By slice: the block of each key group, an Arrow IPC stream."""

_PROGRESS: Final = ValueStateDescriptor("progress in columns", tuple[int, int])
"""Of each key group: the end of the last window that is over, and the number of rows so far."""

_BURST: Final = 1 << 15
"""Rows of results that are emitted before mails have their turn."""


_FEW_SLICES: Final = 8


@lru_cache(maxsize=8)
def _keys_of_groups(max_parallelism: int) -> list[int]:
    """Return for each key group the smallest integer that is in it: the key of the group's blocks."""
    found = np.full(max_parallelism, -1, np.int64)
    start, step = 0, max(1024, 4 * max_parallelism)
    while (found < 0).any():
        numbers = np.arange(start, start + step)
        groups = key_groups_of_rows([pa.array(numbers)], max_parallelism)
        first, at = np.unique(groups, return_index=True)
        new = found[first] < 0
        found[first[new]] = numbers[at[new]]
        start += step
    keys: list[int] = found.tolist()
    return keys


class ColumnWindowOperator(KeyedOperator, TimedOperator):
    """Operator of windows whose rows are aggregated in arrays, slice by slice.

    A window is merged from its slices, the older before the newer; a slice is made of its rows in the order of
    their arrival. Results are in the order of the windows' ends, within a window in that of the keys' arrival.

    State: a block per slice and key group, written when the slice has changed since the last snapshot.
    """

    own_tables: ClassVar[frozenset[str]] = frozenset({_BLOCKS.name, _PROGRESS.name})

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnWindowStep)
        self._step = step
        slicing = slicing_of(step.assigner)
        assert slicing is not None  # the pipeline has looked
        self._slicing = slicing
        self._names: tuple[str, ...] = step.key.names
        entering = step.entering
        where = f"step {self.step_name!r}"
        bound = {name: aggregate.bind(entering, where) for name, aggregate in step.aggregates}
        kinds = {name: _decoded(entering.field(name).type) for name in self._names}
        self._layout = Layout(kinds, bound, self.step_name)
        self._keys = KeyIds(list(kinds.values()), context.node.max_parallelism)
        self._slices: dict[int, AggregateSlice] = {}
        self._late_tag = None if step.late_tag is None else step.late_tag.name
        self._arrived = 0
        self._kept_keys = 0
        # Windows that end by this are over.
        self._over = MIN_WATERMARK
        # Where a restored key group is further than others: by key group, the end of its last window.
        self._ahead: Any = None
        self._due_at = NEVER
        self._firing: Iterator[None] = iter(())
        self._held: Watermark | None = None

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the slices that are in the state."""
        super().open()
        self._blocks = self.backend.table(_BLOCKS)
        self._progress = self.backend.table(_PROGRESS).entries()
        self._group_keys = _keys_of_groups(self.context.node.max_parallelism)
        self._restore_progress()
        spans: Any = self._blocks.namespaces()
        for span in sorted(spans):
            start, end = span
            if end - start != self._slicing.width or start != self._slicing.start_of(start):
                raise IncompatibleStateError(
                    f"step {self.step_name!r} cannot go on with the windows that are open in its snapshot: they "
                    f"have borders at other times than those of {self._step.assigner!r}. Undo the change until "
                    "these windows have ended, or give the step another uid, so that it begins without them"
                )
            restored = self._slices[start] = AggregateSlice(self._layout, self._keys)
            restored.restore(list(self._blocks.entries(span).values()))
        self._due_at = self._next_due()

    def _restore_progress(self) -> None:
        own = self.context.key_groups
        kept = [self._progress.get(self._group_keys[group]) for group in range(own.start, own.end)]
        found = [progress for progress in kept if progress is not None]
        if not found:
            return
        self._arrived = max(arrived for _, arrived in found)
        ends = [MIN_WATERMARK if progress is None else progress[0] for progress in kept]
        self._over = min(ends)
        if max(ends) > self._over:
            self._ahead = np.full(self.context.node.max_parallelism, MIN_WATERMARK, np.int64)
            self._ahead[own.start : own.end] = np.minimum(np.array(ends, object), MAX_WATERMARK).astype(np.int64)

    def snapshot(self) -> OperatorSnapshot:
        """Write the slices that have changed."""
        keys = self._group_keys
        for start, each in self._slices.items():
            if each.changed:
                entries = self._blocks.entries((start, start + self._slicing.width))
                for group, block in each.blocks().items():
                    entries[keys[group]] = block
                each.changed = False
        own = self.context.key_groups
        for group in range(own.start, own.end):
            ahead = MIN_WATERMARK if self._ahead is None else int(self._ahead[group])
            self._progress[keys[group]] = (min(max(self._over, ahead), MAX_WATERMARK), self._arrived)
        return super().snapshot()

    # ---- rows -------------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Add the rows to their slices."""
        data: Any = batch.columns
        assert data is not None
        count = data.num_rows
        if not count:
            return
        arrivals = np.arange(self._arrived, self._arrived + count)
        self._arrived += count
        ids = self._keys.find([data.column(name) for name in self._names])
        columns = {name: Values(data.column(name)) for name in self._layout.columns}
        if self._step.assigner is None:
            self._add(0, ids, columns, arrivals)
            return
        if batch.timestamps is None:
            raise StateError(without_timestamps(repr(self.step_name)))
        first, last = map(self._slicing.start_of, batch.span())
        if first == last and self._ahead is None:
            if self._is_over(first):
                self._give_late(data, batch.timestamps, np.arange(count))
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
        into = self._slices.get(start)
        if into is None:
            into = self._slices[start] = AggregateSlice(self._layout, self._keys)
            self._due_at = min(self._due_at, self._next_end(start) - 1)
        into.update(ids, columns, arrivals)

    def _give_late(self, data: Any, timestamps: Sequence[int], rows: Any) -> None:
        if self._late_tag is None:
            self.context.metrics.counter("numLateRecordsDropped").inc(len(rows))
        else:
            stamps = as_array(as_numpy(timestamps)[rows])
            self.output.side(self._late_tag, Batch.of_columns(data.take(pa.array(rows)), stamps))

    # ---- time -------------------------------------------------------------------------------------------------

    def _next_end(self, start: int) -> int:
        """Return the end of the first window that includes the slice and is not over."""
        return max(self._slicing.first_end(start), self._slicing.next_end(self._over))

    def _next_due(self) -> int:
        return min(map(self._next_end, self._slices), default=NEVER + 1) - 1

    def advance(self, watermark: Watermark) -> None:
        """Evaluate what is due, a part at a time; the watermark follows the last of it."""
        until = watermark.timestamp if watermark.timestamp < MAX_WATERMARK else END_OF_TIME
        if self._due_at <= until:
            self._held = watermark
            self._firing = self._fire(until)
            self.has_work = True
            self.work()
        else:
            self._over = max(self._over, until + 1)
            self.output.control(watermark)

    def work(self) -> None:
        """Emit the next part of the results."""
        for _ in self._firing:
            return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(held)

    def _fire(self, until: int) -> Iterator[None]:
        while self._due_at <= until:
            end = self._due_at + 1
            yield from self._emit(end)
            self._over = end
            self._drop_slices()
            self._due_at = self._next_due()
        self._over = until + 1
        if self._ahead is not None and self._ahead.max() <= self._over:
            self._ahead = None

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
                results[name] = pa.array(np.full(count, bounded)).view(self._step.schema.field(name).type)
        data = pa.RecordBatch.from_arrays(list(results.values()), schema=self._step.schema)
        if self._ahead is not None:
            groups = self._keys.groups()[window.positions.ids]
            data = data.filter(pa.array(self._ahead[groups] < end))
        stamp = min(end - 1, MAX_WATERMARK)
        for begin in range(0, data.num_rows, _BURST):
            part = data.slice(begin, _BURST)
            self.output.emit(Batch.of_columns(part, as_array(np.full(part.num_rows, stamp))))
            yield

    def _drop_slices(self) -> None:
        slicing = self._slicing
        for start in [start for start in self._slices if slicing.last_end(start) <= self._over]:
            del self._slices[start]
            self._blocks.drop((start, start + slicing.width))
        self._kept_keys = forget_idle(self._keys, self._slices.values(), self._kept_keys)


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


def _decoded(kind: Any) -> Any:
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind
