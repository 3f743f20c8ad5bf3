"""Operators of process functions, keyed and not, with side outputs."""

from __future__ import annotations

from typing import Any

from sluiceway.elements import Batch
from sluiceway.functions import KeyedProcessFunction, ProcessFunction
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.process_base import (
    Called,
    FunctionOperator,
    KeyedProcessOperatorBase,
    ProcessOperatorBase,
)
from sluiceway.operators.process_context import ProcessContext
from sluiceway.util.overriding import override

__all__ = ["KeyedProcessOperator", "ProcessOperator"]


class ProcessOperator(FunctionOperator, ProcessOperatorBase):
    """Operator of process functions on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._call = _called(self._fn)
        self._ctx = ProcessContext(self)

    @override
    def process(self, batch: Batch[Any]) -> None:
        self._without_keys(self._call, self._ctx, batch)


class KeyedProcessOperator(KeyedProcessOperatorBase):
    """Operator of keyed process functions, with state bound to the record's key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._call = _called(self._fn)

    @override
    def process(self, batch: Batch[Any]) -> None:
        self._with_keys(self._call, self._key, batch)


def _called(fn: Any) -> Called:
    called: Called = fn.process_element if isinstance(fn, KeyedProcessFunction | ProcessFunction) else fn
    return called
