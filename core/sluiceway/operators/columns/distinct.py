"""Operator of the first rows of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.times import as_array, as_numpy
from sluiceway.elements import Batch
from sluiceway.operators.columns.windows import ColumnWindowOperator
from sluiceway.operators.context import OperatorContext

__all__ = ["ColumnDistinctOperator"]


class ColumnDistinctOperator(ColumnWindowOperator):
    """Operator that emits the first row of each key, or of each key and window, when it arrives.

    State: the keys, those of a window until it is over.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._numbers_rows = True
        # Numbers of the rows of the current batch that are first ones.
        self._firsts: list[Any] = []

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        super()._take(batch, ids, columns, arrivals)
        firsts, self._firsts = self._firsts, []
        if not firsts:
            return
        rows = np.sort(np.concatenate(firsts)) - int(arrivals[0])
        if len(rows) == len(ids):
            self.output.emit(batch)
            return
        data: Any = batch.columns
        stamps = None if batch.timestamps is None else as_array(as_numpy(batch.timestamps)[rows])
        self.output.emit(Batch.of_columns(data.take(pa.array(rows)), stamps))

    def _add(self, start: int, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> None:
        into = self._slice_at(start)
        known = len(into)
        places = into.positions.find(ids)
        fresh = np.flatnonzero(places >= known)
        if len(fresh):
            into.find(ids[fresh])
            # A new key may have several rows in the batch: places rise in the order of their first ones.
            _, firsts = np.unique(places[fresh], return_index=True)
            self._firsts.append(arrivals[fresh[firsts]])

    def _add_again(
        self,
        parts: Sequence[tuple[int, Any]],
        ids: Any,
        columns: Mapping[str, Values],
        arrivals: Any,
        limits: Any,
    ) -> None:
        for start, rows in parts:
            self._add(start, ids[rows], columns, arrivals[rows])

    def _is_due(self, until: int) -> bool:
        return self._step.assigner is not None and super()._is_due(until)

    def _emit(self, end: int) -> Iterator[None]:
        yield from ()
