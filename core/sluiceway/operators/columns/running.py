"""Operator of running aggregates in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluiceway.columns.aggregation.values import Values
from sluiceway.elements import Batch
from sluiceway.operators.columns.windows import ColumnWindowOperator

__all__ = ["ColumnRunningOperator"]


class ColumnRunningOperator(ColumnWindowOperator):
    """Operator that emits each row with the aggregates of its key so far.

    State: that of aggregates without windows, from which a job may go on with running ones, and the other way.
    """

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        data: Any = batch.columns
        found = self._slice_at(0).running(ids, columns, arrivals)
        rows = pa.RecordBatch.from_arrays([*data.columns, *found.values()], schema=self._step.schema)
        self.output.emit(Batch.of_columns(rows, batch.timestamps))

    def _is_due(self, until: int) -> bool:
        return False
