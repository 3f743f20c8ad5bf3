"""Operators between records and columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from sluiceway.columns.record_conversion import Encoder, decoder
from sluiceway.columns.schemas import from_outside, shown
from sluiceway.elements import ROWS_PER_RECORD, Batch
from sluiceway.errors import FunctionContractError
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.record_errors import record_loop
from sluiceway.steps.columns import ToColumnsStep, ToRecordsStep

__all__ = ["ToColumnsOperator", "ToRecordsOperator"]


class ToColumnsOperator(Operator):
    """Operator that makes columns of records."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ToColumnsStep)
        self._schema = step.schema
        self._encode = Encoder(step.schema, self.step_name).encode
        self._of_batches = step.batches
        self._rows = context.settings.batch_size * ROWS_PER_RECORD
        self._dead = DeadLetters(context)

    def process(self, batch: Batch[Any]) -> None:
        """Emit the columns of the records."""
        values, stamps = batch.values, batch.timestamps
        if self._of_batches is None and pa.RecordBatch in set(map(type, values)):
            at = 0
            for of_batches, some in groupby(values, lambda value: type(value) is pa.RecordBatch):
                part = list(some)
                times = None if stamps is None else stamps[at : at + len(part)]
                (self._emit_batches if of_batches else self._emit_records)(part, times)
                at += len(part)
        elif self._of_batches:
            self._emit_batches(values, stamps)
        else:
            self._emit_records(values, stamps)
        if self._dead.skipping:
            self._dead.give(self.output)

    def _emit_batches(self, values: list[Any], stamps: Sequence[int] | None) -> None:
        for at, data in enumerate(values):
            try:
                checked = self._checked(data)
            except Exception as error:
                if not self._dead.take(error, data, None if stamps is None else stamps[at]):
                    raise
                continue
            self._emit(checked, None if stamps is None else array("q", [stamps[at]]) * checked.num_rows)

    def _emit_records(self, values: list[Any], stamps: Sequence[int] | None) -> None:
        try:
            data = self._encoded(values)
        except Exception as error:
            if not self._dead.skipping:
                raise
            if len(values) == 1:
                if not self._dead.take(error, values[0], None if stamps is None else stamps[0]):
                    raise
                return
        else:
            self._emit(data, None if stamps is None else array("q", stamps))
            return
        # As for rows in columns: the records that fail are found by halving.
        half = len(values) // 2
        self._emit_records(values[:half], None if stamps is None else stamps[:half])
        self._emit_records(values[half:], None if stamps is None else stamps[half:])

    @record_loop
    def _encoded(self, values: list[Any]) -> pa.RecordBatch:
        return self._encode(values)

    @record_loop
    def _checked(self, data: Any) -> Any:
        if isinstance(data, pa.RecordBatch):
            data = from_outside(data)
        schema = getattr(data, "schema", None)
        if schema is None or not schema.equals(self._schema):
            raise FunctionContractError(
                f"step {self.step_name!r} expects record batches with the columns {shown(self._schema)}, and was "
                f"given {data!r:.200}"
            )
        return data

    def _emit(self, data: Any, stamps: Any) -> None:
        rows, most = data.num_rows, self._rows
        for start in range(0, rows, most):
            part = data if rows <= most else data.slice(start, most)
            self.output.emit(Batch.of_columns(part, None if stamps is None else stamps[start : start + most]))


class ToRecordsOperator(Operator):
    """Operator that makes records of columns."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ToRecordsStep)
        self._decode = (
            None if step.record_type is pa.RecordBatch else decoder(step.record_type, step.schema, self.step_name)
        )
        self._size = context.settings.batch_size

    def process(self, batch: Batch[Any]) -> None:
        """Emit the rows as records, as many at a time as a batch of records has; or as one record batch."""
        assert batch.columns is not None
        if self._decode is None:
            stamp = None if batch.timestamps is None else [batch.timestamps[-1]]
            self.output.emit(Batch([batch.columns], stamp))
            return
        rows, size = len(batch), self._size
        for start in range(0, rows, size):
            part = batch.part(start, start + size)
            stamps = part.timestamps
            assert part.columns is not None
            values = self._decoded(part.columns)
            self.output.emit(Batch(values, None if stamps is None else list(stamps)))

    @record_loop
    def _decoded(self, data: pa.RecordBatch) -> list[Any]:
        assert self._decode is not None
        return self._decode(data)
