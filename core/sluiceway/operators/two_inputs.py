"""Base of operators with two inputs: a receiver per input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.elements import Batch
from sluiceway.functions import KeySelector
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.util.overriding import override

__all__ = ["TwoInputOperator"]


class TwoInputOperator(Operator):
    """Base of the operators with two inputs; put it before a keyed one among the bases.

    Control elements arrive merged: the watermark is the minimum of both inputs. A keyed operator has the key
    function of its first input in ``_key`` and that of its second in ``_key2``; either may be None.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        second: Any = context.node.step.keys[1]
        self._key2: Callable[[Any], Any] = second.get_key if isinstance(second, KeySelector) else second

    @abstractmethod
    def process1(self, batch: Batch[Any]) -> None:
        """Process a batch of the first input and emit its results."""

    @abstractmethod
    def process2(self, batch: Batch[Any]) -> None:
        """Process a batch of the second input and emit its results."""

    @override
    def process(self, batch: Batch[Any]) -> None:
        self.process1(batch)

    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        """Return the functions of both inputs."""
        return (self.process1, self.process2)
