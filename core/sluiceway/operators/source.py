"""First step of a chain that reads a source."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sluiceway.elements import Batch, Element, Rejected
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.record_errors import record_loop
from sluiceway.util.overriding import override

__all__ = ["SourceOperator"]


class SourceOperator(Operator):
    """Operator that passes on the batches of a source's reader, which the task polls."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._dead = DeadLetters(context)
        self._schema: Any = None  # that of the rows before, which were fit to enter

    @override
    def process(self, batch: Batch[Any]) -> None:
        data = batch.columns
        if data is not None and (
            self._schema is None or not data.schema.equals(self._schema, check_metadata=True)
        ):
            from sluiceway.columns.schemas import from_outside  # pyarrow is optional

            entered = from_outside(data)
            self._schema = entered.schema
            if entered is not data:
                batch = Batch.of_columns(entered, batch.timestamps)
        self.output.emit(batch)

    def control(self, element: Element) -> None:
        """Make dead letters of records that the task has rejected; pass everything else on."""
        if type(element) is Rejected:
            self._skip(element)
            self._dead.give(self.output)
        else:
            super().control(element)

    @record_loop
    def _skip(self, rejected: Rejected) -> None:
        for value, error, timestamp, text in rejected.records:
            if not self._dead.take(error, value, timestamp, text=text, undecoded=rejected.undecoded):
                # Without the frames of the task, whose current record is another one by now.
                raise error.with_traceback(_of_user(error))


def _of_user(error: Exception) -> TracebackType | None:
    raised = error.__traceback__
    while raised is not None and raised.tb_frame.f_globals.get("__name__", "").startswith("sluiceway."):
        raised = raised.tb_next
    return raised
