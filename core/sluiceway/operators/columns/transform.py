"""Operator of transforms of columns that keep no state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluiceway.columns.exact import cast_exactly
from sluiceway.columns.joining import joined
from sluiceway.columns.schemas import shown
from sluiceway.columns.transforms import Stamps, failing
from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.record_errors import record_loop
from sluiceway.steps.columns import ColumnTransformStep
from sluiceway.util.arrow_values import row_as_text

__all__ = ["ColumnTransformOperator"]


class ColumnTransformOperator(Operator):
    """Operator of one transform."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnTransformStep)
        self._transform = step.transform
        self._apply = step.transform.compiled(step.schema)
        self._word = step.transform.word
        self._schema = step.schema
        self._dead = DeadLetters(context)

    def process(self, batch: Batch[Any]) -> None:
        """Emit what the transform makes of the rows; nothing where it keeps none.

        Raises:
            FunctionContractError: an expression fails on the values, or a function returned other columns than the
                step has.
        """
        if self._dead.skipping:
            made: list[Batch[Any]] = []
            self._add_without_failing(batch, made)
            for part in joined(made) if made else ():
                self.output.emit(part)
            self._dead.give(self.output)
        elif (whole := self._made(batch)) is not None:
            self.output.emit(whole)

    def _add_without_failing(self, batch: Batch[Any], made: list[Batch[Any]]) -> None:
        """Add what the transform makes of the rows, but for those that it fails on: these are found by halving."""
        try:
            whole = self._made(batch)
        except Exception as error:
            if len(batch) == 1:
                stamp = None if batch.timestamps is None else batch.timestamps[0]
                assert batch.columns is not None
                row = batch.columns.take(pa.array([0]))  # a slice would be pickled with all of its batch
                if not self._dead.take(error, row, stamp, text=row_as_text(row)):
                    raise
                return
        else:
            if whole is not None:
                made.append(whole)
            return
        # Halving takes some log2(rows) runs for each row that fails, and one where none does.
        half = len(batch) // 2
        self._add_without_failing(batch.part(0, half), made)
        self._add_without_failing(batch.part(half, len(batch)), made)

    def _made(self, batch: Batch[Any]) -> Batch[Any] | None:
        assert batch.columns is not None
        data, stamps = self._transformed(batch.columns, batch.timestamps)
        if not data.num_rows:
            return None
        if data.schema != self._schema:
            data = self._fitted(data)
        return Batch.of_columns(data, stamps)

    @record_loop  # by itself, so that a message names this step and no other one of the chain
    def _transformed(self, data: pa.RecordBatch, stamps: Stamps) -> tuple[pa.RecordBatch, Stamps]:
        try:
            return self._apply(data, stamps)  # type: ignore[no-any-return]
        except pa.ArrowException as error:
            # Arrow's error has the value, and not the column that it was computed for.
            name = failing(self._transform, data)
            where = "" if name is None else f", column {name!r}"
            raise FunctionContractError(f"{self._word}() of step {self.step_name!r}{where}: {error}") from error

    def _fitted(self, data: Any) -> Any:
        """Return the rows with the columns that the step was declared to have."""
        try:
            return cast_exactly(data, self._schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise FunctionContractError(
                f"{self._word}() of step {self.step_name!r} made the columns {shown(data.schema)}, where it has "
                f"{shown(self._schema)}: {error}"
            ) from error
