"""The first step of a chain that reads a source: what the reader gave goes on as it is."""

from __future__ import annotations

from typing import Any

from sluiceway.elements import Batch
from sluiceway.operators.base import Operator

__all__ = ["SourceOperator"]


class SourceOperator(Operator):
    """Stands for the source in its chain; the task does the reading."""

    def process(self, batch: Batch[Any]) -> None:
        """Pass the batch on."""
        self.output.emit(batch)
