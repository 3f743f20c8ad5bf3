"""Local aggregation in columns: rows of a window are combined per key before they are sent to the window's step.

Partial results travel as rows of their own: the key columns, the number of rows that each stands for, and the
accumulators in the form in which they are saved. The metadata of their schema tells them from rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import LAYOUT
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.joining import joined
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.columns.routing import subtasks_of_groups
from sluiceway.columns.times import as_array, as_numpy
from sluiceway.elements import MIN_WATERMARK, Batch
from sluiceway.errors import UnstableKeyError
from sluiceway.operators.columns.slicing import WindowSlices, rows_by_slice, slicing_of
from sluiceway.operators.columns.timed import layout_of
from sluiceway.operators.combiner_base import CombinerBase
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.util.overriding import override

__all__ = ["ColumnCombiner", "Partials", "combines_columns", "partials_of"]

_ROWS: Final = "rows"
"""Column of partial results: how many rows each stands for."""

_FEW: Final = 1024
"""Rows of a batch that are sent unchanged, as where rows come slowly: a partial result would come later."""

_KNOWN: Final = 1 << 18
"""Keys from which on those known are forgotten between two sets of partial results."""


def combines_columns(step: ColumnWindowStep, step_name: str) -> bool:
    """Return if rows of a window step may be combined: if partial results of it, in any order, give the same."""
    if type(step) is not ColumnWindowStep or step.lateness_ms or step.late_tag is not None:
        return False
    aggregates = layout_of(step, step_name).aggregates.values()
    return slicing_of(step.assigner) is not None and all(bound.create().combines for bound in aggregates)


class ColumnCombiner(CombinerBase):
    """Partial results on one edge, by slice and key.

    Args:
        step: the window step at the consumer's end of the edge.
        step_name: its name.
        consumers: number of consumers.
        max_parallelism: number of key groups of the consumer.
    """

    most = 1 << 17
    tried = 1 << 18
    rested = 1 << 22
    # A batch takes some 10 ms: in a few batches of many keys hardly one comes again.
    longest_s = 0.25
    batches = 16
    # A source waits for the next block of a file after each: if partial results went then, few would be combined.
    # Where rows come slowly, batches are below _FEW, and nothing waits.
    idle_s = 0.02

    def __init__(self, step: ColumnWindowStep, step_name: str, consumers: int, max_parallelism: int) -> None:
        super().__init__()
        slicing = slicing_of(step.assigner)
        assert slicing is not None
        self._windows = step.assigner is not None
        self._slicing: WindowSlices = slicing
        self._names = step.key.names
        self._layout = layout_of(step, step_name)
        self._max_parallelism = max_parallelism
        self._subtasks = subtasks_of_groups(consumers, max_parallelism)
        self._keys = self._new_keys()
        # By start: the aggregates, and the number of rows at each position.
        self._slices: dict[int, tuple[AggregateSlice, Any]] = {}

    def _new_keys(self) -> KeyIds:
        return KeyIds(list(self._layout.keys.values()), self._max_parallelism)

    @override
    def add(self, batch: Batch[Any], watermark: int) -> Batch[Any] | None:
        data, stamps = batch.columns, batch.timestamps
        assert data is not None
        if self._windows and stamps is None:
            self.stop()  # the window operator reports it, with the step's name
            return batch
        if data.num_rows < _FEW:
            return batch
        try:
            ids = self._keys.find([data.column(name) for name in self._names])
        except UnstableKeyError:
            self.stop()  # the partitioner raises it again
            return batch
        columns = {name: Values(data.column(name)) for name in self._layout.columns}
        if not self._windows:
            self._add_to(0, ids, columns)
            return None
        assert stamps is not None
        late: list[Any] = []
        times = as_numpy(stamps)
        for start, rows in rows_by_slice(times, self._slicing, batch.span()):
            # As with records: once the first window has ended, the consumer decides for each row if it is late.
            if watermark > MIN_WATERMARK and self._slicing.first_end(start) - 1 <= watermark:
                late.append(rows)
            elif len(rows) == len(ids):
                self._add_to(start, ids, columns)
            else:
                self._add_to(start, ids[rows], {name: each.take(rows) for name, each in columns.items()})
        if not late:
            return None
        left = np.sort(np.concatenate(late))
        return Batch.of_columns(data.take(array_of(left)), as_array(times[left]))

    def _add_to(self, start: int, ids: Any, columns: dict[str, Values]) -> None:
        held = self._slices.get(start)
        if held is None:
            # Partial results go soon, and the next slices begin with no positions: each key would be looked up
            # again and again, to get one.
            of_all = len(self._keys) <= len(ids)
            held = AggregateSlice(self._layout, self._keys, tracked=False, of_all=of_all), np.zeros(0, np.int64)
        into, rows = held
        added = into.update(ids, columns, None).counts.copy()
        added[: len(rows)] += rows
        self._slices[start] = into, added
        self.records += len(ids)
        self.waiting += int(np.count_nonzero(added)) - int(np.count_nonzero(rows))

    @override
    def take(self) -> list[tuple[int, Batch[Any]]]:
        shares: dict[int, list[Batch[Any]]] = {}
        for start, (held, rows) in self._slices.items():
            some = np.flatnonzero(rows)
            ids = held.positions.ids[some]
            routes = self._subtasks.take(self._keys.groups()[ids])
            for consumer in np.flatnonzero(np.bincount(routes)).tolist():
                # Not with an array of bool, which takes four times as long where keys alternate.
                chosen = np.flatnonzero(routes == consumer)
                share = self._share(start, held, rows, some[chosen], ids[chosen])
                shares.setdefault(consumer, []).append(share)
        self._judge()
        self._slices = {}
        if len(self._keys) >= _KNOWN:
            self._keys = self._new_keys()
        # A batch costs as much as a thousand of its rows, here and at the other end. Sums have two forms.
        return [
            (consumer, batch)
            for consumer, share in shares.items()
            for _, alike in groupby(share, key=_schema)
            for batch in joined(list(alike))
        ]

    def _share(self, start: int, held: AggregateSlice, rows: Any, at: Any, ids: Any) -> Batch[Any]:
        """Return the partial results of a slice at some positions, whose keys have these numbers."""
        arrays = [*self._keys.columns(ids), array_of(rows[at])]
        arrays += [each.part(at) for each in held.accumulators.values()]
        names = [*self._layout.keys, _ROWS, *held.accumulators]
        data = pa.RecordBatch.from_arrays(arrays, names, metadata={LAYOUT: self._layout.metadata})
        if not self._windows:
            return Batch.of_columns(data)
        return Batch.of_columns(data, array("q", [max(start, MIN_WATERMARK)]) * len(at))  # both are in the slice


def _schema(batch: Batch[Any]) -> Any:
    data: Any = batch.columns
    return data.schema


class Partials:
    """Partial results of some slices.

    Args:
        layout: that of the consumer.
        batch: what a :class:`ColumnCombiner` has sent.
        metadata: the layout of its sender.

    Attributes:
        keys: the key columns; in a slice, a key is there once.
        rows: the number of rows that each partial result stands for.
        accumulators: their state, by name.
    """

    def __init__(self, layout: Layout, batch: Batch[Any], metadata: bytes) -> None:
        data: Any = batch.columns
        keys, columns = len(layout.keys), data.columns
        names = [_ROWS, *layout.keys, *data.schema.names[keys + 1 :]]
        ordered = pa.RecordBatch.from_arrays([columns[keys], *columns[:keys], *columns[keys + 1 :]], names)
        read = layout.read(metadata, ordered, 1)
        self.rows = numpy_of(read.column(0))
        self.keys = read.columns[1 : keys + 1]
        self.accumulators = dict(zip(layout.aggregates, read.columns[keys + 1 :], strict=True))
        self._stamps = batch.timestamps

    def by_slice(self) -> Iterator[tuple[int, int, int]]:
        """Yield for each slice a time in it, its first partial result, and the one behind its last."""
        if self._stamps is None:
            yield 0, 0, len(self.rows)
            return
        stamps = as_numpy(self._stamps)
        borders = [0, *(np.flatnonzero(stamps[1:] != stamps[:-1]) + 1).tolist(), len(stamps)]
        for begin, end in pairwise(borders):
            yield int(stamps[begin]), begin, end


def partials_of(batch: Batch[Any], layout: Layout) -> Partials | None:
    """Return the partial results that a batch has; None: it has rows."""
    metadata = None if batch.columns is None else batch.columns.schema.metadata
    layout_of_sender = None if metadata is None else metadata.get(LAYOUT)
    return None if layout_of_sender is None else Partials(layout, batch, layout_of_sender)
