"""Packing of a subtask's output into rows of a few megabytes, and the limit of what waits to be packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sluiceway.elements import Batch, Element
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.row_format import Row

__all__ = ["FULL", "MANY", "RowPacker"]

MANY: Final = 1 << 16
"""Records that may wait to be given to others."""

FULL: Final = 1 << 12
"""Records that make a row of a good size."""

_FIRST: Final = 1 << 10
_HELD: Final = 32 << 20


class RowPacker:
    """Packer of the output of subtasks.

    Attributes:
        many: number of records that may wait to be packed: some megabytes by the size of recent ones.
    """

    def __init__(self, plan: SteppedPlan) -> None:
        self.many = _FIRST
        self._plan = plan
        self._records = 0
        self._size = 0

    def pack(self, stage: int, target: int, sender: int, seq: int, elements: Sequence[Element]) -> Iterator[Row]:
        """Yield rows with a part of :meth:`SteppedTask.take`. Raises SerializationError."""
        size = 0
        for place, payload in self._plan.pack_in_parts(sender, elements):
            size += len(payload)
            yield Row(stage, target, sender, seq + place, payload)
        self.learn(elements, size)

    def learn(self, elements: Sequence[Element], size: int) -> None:
        """Adjust the limit to elements that made so many bytes; 0: they were passed on as they are."""
        self._records += sum(len(element) for element in elements if type(element) is Batch)
        self._size += size
        if not self._records:
            return
        self.many = max(1, min(MANY, self._records * _HELD // max(1, self._size)))
        if self._records >= MANY:  # those of long ago count less and less
            self._records //= 2
            self._size //= 2
