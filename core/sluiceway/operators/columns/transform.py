"""Operator of transforms of columns that keep no state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluiceway.columns.schemas import shown
from sluiceway.columns.transforms import Stamps
from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.record_errors import record_loop
from sluiceway.steps.columns import ColumnTransformStep

__all__ = ["ColumnTransformOperator"]


class ColumnTransformOperator(Operator):
    """Operator of one transform."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnTransformStep)
        self._apply = step.transform.compiled(step.schema)
        self._word = step.transform.word
        self._schema = step.schema

    def process(self, batch: Batch[Any]) -> None:
        """Emit what the transform makes of the rows; nothing where it keeps none.

        Raises:
            FunctionContractError: an expression fails on the values, or a function returned other columns than the
                step has.
        """
        assert batch.columns is not None
        data, stamps = self._transformed(batch.columns, batch.timestamps)
        if not data.num_rows:
            return
        if data.schema != self._schema:
            data = self._fitted(data)
        self.output.emit(Batch.of_columns(data, stamps))

    @record_loop  # by itself, so that a message names this step and no other one of the chain
    def _transformed(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        try:
            return self._apply(data, stamps)  # type: ignore[no-any-return]
        except pa.ArrowException as error:
            raise FunctionContractError(f"{self._word}() of step {self.step_name!r}: {error}") from error

    def _fitted(self, data: Any) -> Any:
        """Return the rows with the columns that the step was declared to have."""
        try:
            return data.select(self._schema.names).cast(self._schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise FunctionContractError(
                f"{self._word}() of step {self.step_name!r} made the columns {shown(data.schema)}, where it has "
                f"{shown(self._schema)}: {error}"
            ) from error
