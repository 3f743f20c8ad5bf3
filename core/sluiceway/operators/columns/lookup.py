"""Operator of look-ups of columns by coroutine functions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluiceway.columns.exact import cast_exactly
from sluiceway.columns.ipc import decode, encode
from sluiceway.columns.schemas import shown
from sluiceway.columns.times import as_numpy
from sluiceway.columns.transforms import Lookup, as_batch, comparable, repeats
from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.operators.async_queues import Entry
from sluiceway.operators.asynchronous import AsyncOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.record_errors import record_loop
from sluiceway.steps.column_lookup import ColumnLookupStep

__all__ = ["ColumnLookupOperator"]

_NOTHING: Any = []


class ColumnLookupOperator(AsyncOperator):
    """Operator that calls a coroutine function for the values of a column in a batch, each of them once.

    The unit of the queue is a batch: its rows are emitted together, and are in a snapshot as long as its call is
    under way.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnLookupStep)
        self._step = step
        self._others = [name for name in step.found.names if name != step.name]

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Restore the batches whose calls were under way."""
        super().initialize_state(
            [replace(one, pending=tuple((_decoded(rows), None) for rows, _ in one.pending)) for one in restored]
        )

    def snapshot(self) -> OperatorSnapshot:
        """Return the batches whose calls are under way, as Arrow IPC streams."""
        pending = tuple((_encoded(*entry.value), None) for entry in self._queue.entries())
        return OperatorSnapshot(self.context.node.uid, pending=pending)

    def process(self, batch: Batch[Any]) -> None:
        """Start a call for the values in the batch."""
        self._accept([((batch.columns, batch.timestamps), None)])
        self._start()

    def _call(self, entries: list[Entry]) -> None:
        """Start calls, but for batches without a value: nothing is to be found for them."""
        asked = []
        for entry in entries:
            data, _ = entry.value
            if data.column(self._step.name).null_count < data.num_rows:
                asked.append(entry)
                continue
            entry.result = _NOTHING
            self._queue.done(entry)
            self._more = True
        super()._call(asked)

    def _lent(self, entry: Entry) -> Any:
        data, _ = entry.value
        values = comparable(data.column(self._step.name)).unique().drop_null()
        return values.to_pylist() if self._step.listed else values

    def _list(self, entry: Entry, result: Any) -> Any:
        return result  # of an AsyncFunction, too, it is a table: of all rows that were found

    def _emit(self, entries: list[Entry]) -> None:
        for entry in entries:
            data, stamps = self._joined(entry)
            if data.num_rows:
                self.output.emit(Batch.of_columns(data, stamps))

    @record_loop
    def _joined(self, entry: Entry) -> Any:
        data, stamps = entry.value
        found = self._found(entry.result)
        step = self._step
        lookup = Lookup(step.name, comparable(found.column(step.name)), found.select(self._others), step.outer)
        made, stamps = lookup.apply(data, stamps)
        return pa.RecordBatch.from_arrays(made.columns, schema=step.schema), stamps

    def _found(self, result: Any) -> Any:
        """Return what the function has found, with the columns that the step was given.

        Raises:
            FunctionContractError: it is no table, has other columns, or a value twice.
        """
        step = self._step
        if isinstance(result, list | tuple):
            result = self._table_of(result)
        found: Any = as_batch(result, self.step_name)
        try:
            found = cast_exactly(found, step.found)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise FunctionContractError(
                f"the function of step {self.step_name!r} returned the columns {shown(found.schema)}, where it "
                f"is said to have {shown(step.found)}: {error}"
            ) from error
        if repeats(comparable(found.column(step.name))):
            raise FunctionContractError(
                f"the function of step {self.step_name!r} returned several rows for one value of {step.name!r}; a "
                "look-up has one at most"
            )
        return found

    def _table_of(self, rows: Sequence[Any]) -> Any:
        names = set(self._step.found.names)
        for row in rows:
            if not isinstance(row, dict) or row.keys() != names:
                raise FunctionContractError(
                    f"the function of step {self.step_name!r} returned {row!r:.200} in a list, of which each "
                    f"element is a dict with {', '.join(self._step.found.names)}"
                )
        try:
            return pa.Table.from_pylist(list(rows), self._step.found)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise FunctionContractError(
                f"the function of step {self.step_name!r} returned values that are none of the types in schema=, "
                f"{shown(self._step.found)}: {error}"
            ) from error


def _encoded(data: Any, stamps: Any) -> tuple[bytes, bytes | None]:
    return bytes(encode(data)), None if stamps is None else as_numpy(stamps).tobytes()


def _decoded(encoded: tuple[bytes, bytes | None]) -> tuple[Any, Any]:
    rows, stamps = encoded
    return decode(rows), None if stamps is None else array("q", stamps)
