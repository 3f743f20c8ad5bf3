"""Late records of an operator: sent to a side output, or dropped and counted."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.functions import OutputTag
from sluiceway.operators.base import Operator

__all__ = ["LATE_RECORDS", "LateRecords", "count_late", "give_late"]

LATE_RECORDS: Final = "numLateRecordsDropped"
"""Name of the counter of late records that were dropped."""


def count_late(operator: Operator, number: int) -> None:
    """Count records that are dropped."""
    operator.context.metrics.counter(LATE_RECORDS).inc(number)


def give_late(operator: Operator, tag: OutputTag[Any] | None, values: list[Any], stamps: list[int]) -> None:
    """Send records to the side output of a tag; None: drop and count them."""
    if tag is None:
        count_late(operator, len(values))
    else:
        operator.output.side(tag.name, Batch(values, stamps))


class LateRecords:
    """Late records of one input, collected until a loop over a batch has ended.

    Args:
        operator: the operator that they are late for.
        tag: of the side output; None: they are dropped and counted.
    """

    def __init__(self, operator: Operator, tag: OutputTag[Any] | None) -> None:
        self._operator = operator
        self._tag = tag
        self._values: list[Any] = []
        self._stamps: list[int] = []

    def add(self, value: Any, timestamp: int) -> None:
        """Add a late record."""
        self._values.append(value)
        self._stamps.append(timestamp)

    def emit(self) -> None:
        """Send or count the records added since the last call."""
        if self._values:
            values, self._values = self._values, []
            stamps, self._stamps = self._stamps, []
            give_late(self._operator, self._tag, values, stamps)
