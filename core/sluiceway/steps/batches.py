"""Steps whose functions take a batch of records at a time."""

from __future__ import annotations

import typing
from collections.abc import Callable
from types import NoneType
from typing import Any, ClassVar

from sluiceway.elements import Batch
from sluiceway.functions import BatchProcessFunction, KeyedBatchProcessFunction, KeySelector
from sluiceway.steps.base import Step
from sluiceway.types import element_type, members, parameter_type, union_of
from sluiceway.util.overriding import override

__all__ = ["BatchProcessStep", "KeyedBatchProcessStep"]


class BatchProcessStep(Step, frozen=True):
    """Step of a process function of batches."""

    fn: BatchProcessFunction[Any, Any]
    kind: ClassVar[str] = "process"
    side_outputs: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_batch"

    @override
    def wanted_types(self, port: int = 0) -> list[Any]:
        return _wanted(self)

    @override
    def output_type(self, *entering: Any) -> Any:
        return _made(self.returned_type())


class KeyedBatchProcessStep(Step, frozen=True):
    """Step of a keyed process function of batches. ``key`` is the key selector of the input."""

    fn: KeyedBatchProcessFunction[Any, Any, Any] | BatchProcessFunction[Any, Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    kind: ClassVar[str] = "process"
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_batch"
    stateful: ClassVar[bool] = True

    @override
    def wanted_types(self, port: int = 0) -> list[Any]:
        return _wanted(self)

    @override
    def output_type(self, *entering: Any) -> Any:
        return _made(self.returned_type())


def _wanted(step: Step) -> list[Any]:
    fn = step.function
    return [element_type(parameter_type(fn, 0, step.method_of(fn)))]


def _made(returned: Any) -> Any:
    made = []
    for one in members(returned):
        if typing.get_origin(one) is Batch:
            made.append(typing.get_args(one)[0])
        elif one is not NoneType:
            made.append(element_type(one))
    return union_of(made) if made else None
