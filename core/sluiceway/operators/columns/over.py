"""Operator of aggregates of columns over the last rows of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.aggregates import BoundAggregate
from sluiceway.columns.aggregation.ranges import of_ranges
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.kept.blocks import concatenated, plain_schema
from sluiceway.columns.kept.due_rows import Due, DueRows
from sluiceway.columns.kept.recent_rows import RecentRows
from sluiceway.columns.kept.timed_rows import shifted
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import OVER_KEYS, OVER_RECENT, OVER_WAITING
from sluiceway.columns.times import as_array
from sluiceway.elements import MIN_WATERMARK, Batch
from sluiceway.operators.columns.cold_rows import ColdRows, KeptColumns
from sluiceway.operators.columns.definition import changed_key
from sluiceway.operators.columns.kept_rows import KeptRowsOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.state import BlockStateDescriptor
from sluiceway.steps.column_over import ColumnOverStep

__all__ = ["ColumnOverOperator"]

_WAITING: Final = BlockStateDescriptor(OVER_WAITING, bytes)
_RECENT: Final = BlockStateDescriptor(OVER_RECENT, bytes)
"""By run of rows: the block of each key group, an Arrow IPC stream."""

_BURST: Final = 1 << 15
"""Rows of results that are emitted before mails have their turn."""

_READS: Final = 1 << 20
"""Rows that the different windows of a part of the results have together; more only if one window has."""


class ColumnOverOperator(KeptRowsOperator):
    """Operator of aggregates over the last rows of a key.

    A result depends on the rows of its window and their order alone: sums of floats, too, for which each due row
    reads its window anew.
    """

    own_tables = KeptRowsOperator.own_tables | {_WAITING.name, _RECENT.name, OVER_KEYS}

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnOverStep)
        self._step = step
        self._schema = schema = plain_schema(step.entering)
        self._names: tuple[str, ...] = step.key.names
        kinds = [schema.field(name).type for name in self._names]
        self._keys = KeyIds(kinds, context.node.max_parallelism)
        where = f"step {self.step_name!r}"
        self._bound = [aggregate.bind(schema, where) for _, aggregate in step.aggregates]
        read = {name for bound in self._bound for name in bound.columns}
        # What later windows read of a row.
        self._cold: ColdRows | None = None
        self._recent_schema = pa.schema([f for f in schema if f.name in read or f.name in self._names])

    # ---- state ------------------------------------------------------------------------------------------------

    def _definition(self) -> dict[str, Any]:
        return {"key": list(self._names), "rows": self._step.rows, "range": self._step.age}

    def _problem_of(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        for name, unit in (("rows", "rows"), ("range", "ms")):
            was, is_now = old[name], now[name]
            if was is not None and (is_now is None or is_now > was):
                new = "has no bound" if is_now is None else f"is {is_now} {unit}"
                return f"its {name}= was {was} {unit}, and {new} now: earlier rows are gone"
        return changed_key(old, now, "key")

    def _restore(self) -> None:
        step, names = self._step, self._names
        waiting, recent = map(self.backend.table, (_WAITING, _RECENT))
        blocks = self._blocks(waiting, self._schema, names, self._schema)
        self._waiting = DueRows(self._keys, self._schema, names, blocks)
        most = None if step.rows is None else step.rows - 1
        self._recent = RecentRows(self._keys, self._recent_schema, most, step.age, recent)
        blocks = self._blocks(recent, self._recent_schema, names, self._recent_schema, added=False)
        self._know_numbers(waiting, recent)
        columns = KeptColumns(self._recent_schema, names, self.step_name, added=False)
        self._cold = self._cold_rows(self._recent, columns, OVER_KEYS, step.age)
        for namespace, ids, stamps, data, _ in self._saved_runs(blocks, names, None):
            self._recent.add_saved(ids, stamps, data, namespace[-1])
        if self._cold is not None:
            self._cold.all_known()
        self._shrink()  # not before: a key may have rows in several runs
        for namespace, ids, stamps, data, stored in self._saved_runs(self._waiting.blocks, names, 0):
            self._waiting.add_saved(namespace, ids, stamps, data, stored)
            self._shrink()

    def _save(self) -> None:
        self._waiting.save()
        self._recent.save(self._group_keys)

    def _shrink(self) -> None:
        self._shrink_recent()
        if self._shrink_due(self._waiting, others=self._recent.nbytes):
            self._forget_keys(*self._holders())

    def _shrink_recent(self) -> None:
        """Have the last rows take no more memory than there is for them; keys may get other numbers."""
        if self._cold is not None:
            self._cold.shrink(self._waiting)

    def _holders(self) -> list[HoldsKeys]:
        held: list[HoldsKeys] = [self._waiting, self._recent]
        return held if self._cold is None else [*held, self._cold]

    # ---- rows -------------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Keep rows until the watermark reaches them."""
        self._end_work()
        self._shrink()
        rows = self._in_time(batch, self._names, self._schema, self._step.late_tag, -1)
        if rows is not None:
            self._waiting.add(*rows, self._next_number())

    def _pass(self, watermark: int) -> Iterator[None]:
        until = MIN_WATERMARK
        while until < watermark:
            # As if the watermark came in steps, where rows that are due are many and in the state.
            until = self._waiting.due_until(watermark)
            due = self._waiting.take(until)
            if self._cold is not None:
                self._cold.fetch()
            if due is not None:
                data = due.data.select(self._recent_schema.names)
                yield from self._evaluated(due, [*self._recent.find(np.unique(due.ids)), due._replace(data=data)])
                self._recent.put(due.ids, due.stamps, data, self._next_number())
                self._forget_keys(*self._holders())
                self._shrink_recent()
        self._recent.expire(watermark)
        if self._cold is not None:
            self._cold.expire(watermark)

    def _evaluated(self, due: Due, parts: list[Due]) -> Iterator[None]:
        ids, stamps = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        # Rows of earlier windows and due ones in order of key and time; the sort keeps the order of arrival.
        order = np.lexsort((stamps, ids))
        first, end = self._windows(ids[order], stamps[order])
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        places = places[len(order) - len(due.ids) :]  # of the due rows, in order of time
        first, counts = first[places], (end - first)[places]
        data = concatenated([part.data for part in parts])
        columns = {name: Values(data.column(name)) for bound in self._bound for name in bound.columns}
        ordered = {name: values.take(order) for name, values in columns.items()}
        # Aggregates that need not read each window at once; the others below, some rows at a time.
        ranged = [of_ranges(bound, ordered, first, first + counts) for bound in self._bound]
        reads = [bound for bound, found in zip(self._bound, ranged, strict=True) if found is None]
        end = first + counts
        # Where rows are not counted, those of one key and time have one window.
        shared = self._step.rows is None and all(_is_repeatable(bound.result_type) for bound in reads)
        before = _places_before(end) if reads and shared else np.full(len(end), -1)
        for begin, stop in _pieces(counts if reads else np.zeros_like(counts), before):
            read: Iterator[Any] = iter(())
            if reads:
                again = bool((before[begin:stop] >= begin).any())
                read = iter(self._read(reads, first[begin:stop], end[begin:stop], order, columns, again=again))
            results = [next(read) if found is None else found.slice(begin, stop - begin) for found in ranged]
            rows = due.data.slice(begin, stop - begin)
            rows = pa.RecordBatch.from_arrays([*rows.columns, *results], schema=self._step.schema)
            self.output.emit(Batch.of_columns(rows, as_array(due.stamps[begin:stop])))
            yield

    def _read(
        self,
        bounds: list[BoundAggregate],
        first: Any,
        end: Any,
        order: Any,
        columns: dict[str, Values],
        *,
        again: bool,
    ) -> list[Any]:
        """Return the results of the windows of some rows; ``again``: rows that share one are to read it once."""
        window = None
        if again:
            _, which, window = np.unique(end, return_index=True, return_inverse=True)
            first, end = first[which], end[which]
        counts = end - first
        ends = np.cumsum(counts)
        at = np.repeat(np.arange(len(counts)), counts)
        inside = order[np.arange(ends[-1]) - np.repeat(ends - counts - first, counts)]
        results = self._results(bounds, len(counts), at, inside, columns)
        return results if window is None else [found.take(pa.array(window)) for found in results]

    def _results(
        self, bounds: list[BoundAggregate], count: int, at: Any, inside: Any, columns: dict[str, Values]
    ) -> list[Any]:
        names = {name for bound in bounds for name in bound.columns}
        taken = {name: columns[name].take(inside) for name in names}
        rows, arrivals = RowPositions(at, count), np.arange(len(inside))
        results = []
        for bound in bounds:
            accumulator = bound.create()
            accumulator.resize(count)
            accumulator.update(rows, [taken[name] for name in bound.columns], arrivals)
            results.append(accumulator.result(count))
        return results

    def _windows(self, ids: Any, stamps: Any) -> tuple[Any, Any]:
        """Return the places where the window of each row begins and ends, of rows in order of key and time."""
        step, every = self._step, np.arange(len(ids))
        is_new = np.append(True, ids[1:] != ids[:-1])
        first = np.maximum.accumulate(np.where(is_new, every, 0))
        end = every + 1
        if step.rows is not None:
            first = np.maximum(first, end - step.rows)
        if step.age is not None:
            # Key and time as one number: the place of a time among all times takes few bits.
            times, places = np.unique(stamps, return_inverse=True)
            base = (np.cumsum(is_new) - 1) * (len(times) + 1)
            since = base + np.searchsorted(times, shifted(stamps, -step.age))
            first = np.maximum(first, np.searchsorted(base + places, since))
            if step.rows is None:
                end = np.searchsorted(base + places, base + places, "right")  # with all rows of its time
        return first, end


def _is_repeatable(kind: Any) -> bool:
    """Return whether results may be repeated: lists are as long as windows, and Arrow takes no rows of views."""
    types = pa.types
    return not (types.is_nested(kind) or types.is_string_view(kind) or types.is_binary_view(kind))


def _places_before(values: Any) -> Any:
    """Return for each value the place of the last equal one before it; -1: there is none."""
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    before = np.full(len(values), -1)
    before[order[again + 1]] = order[again]
    return before


def _pieces(counts: Any, before: Any) -> Iterator[tuple[int, int]]:
    """Return ranges of rows whose windows have a bounded number of rows together.

    Args:
        counts: the number of rows of each row's window.
        before: the place of the last row before that has the same window, which counts once.
    """
    begin = 0
    while begin < len(counts):
        some = slice(begin, begin + _BURST)
        many = np.cumsum(np.where(before[some] < begin, counts[some], 0))
        stop = begin + max(int(np.searchsorted(many, _READS, "right")), 1)
        yield begin, stop
        begin = stop
