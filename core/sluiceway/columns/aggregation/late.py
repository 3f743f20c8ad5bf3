"""Results of windows that are over, after each of the late rows that have changed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sluiceway.columns.aggregation.accumulator import Accumulator
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.slices import AggregateSlice, part_of
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["LateRows"]


class LateRows:
    """Late rows of a batch, for aggregates with running results.

    A window is merged from its slices, the older before the newer, and a slice is made of its rows in their order.
    So is the result after each row, to the last bit: for sums of floats each slice is kept as it was after each of
    its late rows. Other aggregates do not depend on that order, and take the rows one after the other.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        ids: the number of each row's key, in the order of arrival.
        columns: the columns of the rows that the aggregates read.
        arrivals: numbers of the rows.
    """

    def __init__(
        self, layout: Layout, keys: KeyIds, ids: Any, columns: Mapping[str, Values], arrivals: Any
    ) -> None:
        self._layout, self._keys = layout, keys
        self._ids, self._columns, self._arrivals = ids, columns, arrivals
        self._wanted = np.unique(ids)
        # By slice: the aggregates of the rows' keys before the rows, and those after each of its own.
        self._before: dict[int, AggregateSlice] = {}
        self._after: dict[int, tuple[Any, Any, dict[str, Accumulator]]] = {}

    def hold(self, start: int, of: AggregateSlice) -> None:
        """Keep the aggregates that a slice has before the rows are added."""
        if start not in self._before:
            kept = self._before[start] = AggregateSlice(self._layout, self._keys, tracked=False)
            kept.merge_keys(of, self._wanted)

    def add(self, start: int, into: AggregateSlice, rows: Any) -> None:
        """Add rows to their slice.

        Args:
            start: the slice.
            into: its aggregates.
            rows: places of the rows, ascending.
        """
        taken = {name: values.take(rows) for name, values in self._columns.items()}
        states = into.running_states(self._ids[rows], taken, self._arrivals[rows])
        codes = self._codes(rows)
        # Sorted by key and arrival: the state that a row of another slice meets is the last one up to it.
        order = codes.argsort()
        self._after[start] = codes[order], order, {n: each for n, each in states.items() if each.depends_on_order}

    def results(self, slices: Iterable[int], due: Any) -> dict[str, Any]:
        """Return keys and results of a window by name, as they are after each of its late rows.

        Args:
            slices: the slices of the window, ascending.
            due: places of its late rows, ascending.
        """
        ids = self._ids[due]
        taken = {name: values.take(due) for name, values in self._columns.items()}
        window = AggregateSlice(self._layout, self._keys, tracked=False)
        ordered = {name: each for name, each in window.accumulators.items() if each.depends_on_order}
        of_rows = {name: self._layout.aggregates[name].create() for name in ordered}
        for each in of_rows.values():
            each.resize(len(due))
        for start in slices:
            if (before := self._before.get(start)) is not None:
                window.merge(before)
            if ordered:
                self._merge_slice(start, due, of_rows)
        # The window as it was before the rows. Those that do not depend on the order take the rows one after the
        # other.
        runs = Runs(window.find(ids))
        found = dict(zip(self._layout.keys, self._keys.columns(ids), strict=True))
        for name, each in window.accumulators.items():
            if name in ordered:
                found[name] = of_rows[name].result(len(due))
                continue
            each.resize(len(window))
            read = [taken[column] for column in self._layout.aggregates[name].columns]
            found[name] = each.running(runs, read, self._arrivals[due]).result(len(due))
        return found

    def _codes(self, rows: Any) -> Any:
        """Return numbers that put rows in the order of key and arrival."""
        return self._ids[rows].astype(np.int64) * len(self._ids) + rows

    def _merge_slice(self, start: int, due: Any, into: Mapping[str, Accumulator]) -> None:
        """Add to the accumulators of each row what the slice had for its key when the row had been added."""
        left = np.arange(len(due))
        if start in self._after:
            codes, order, states = self._after[start]
            places = np.searchsorted(codes, self._codes(due), "right") - 1
            has = (places >= 0) & (codes[places] // len(self._ids) == self._ids[due])
            self._merge(into, left[has], states, order[places[has]])
            left = left[~has]
        before = self._before.get(start)
        if before is not None and len(before) and len(left):
            known = before.positions.ids
            order = known.argsort()
            ids = self._ids[due[left]]
            places = order[np.minimum(np.searchsorted(known[order], ids), len(order) - 1)]
            has = known[places] == ids
            self._merge(into, left[has], before.accumulators, places[has])

    def _merge(self, into: Mapping[str, Accumulator], rows: Any, of: Mapping[str, Accumulator], at: Any) -> None:
        if len(rows):
            for name, part in part_of({name: of[name] for name in into}, at, self._layout).items():
                into[name].merge(rows, part)
