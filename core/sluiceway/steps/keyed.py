"""Steps with state per key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sluiceway.functions import AggregateFunction, KeyedProcessFunction, KeySelector, ReduceFunction
from sluiceway.steps.base import Step
from sluiceway.steps.stateless import BranchStep, FilterStep, FlatMapStep, MapStep
from sluiceway.types import element_type, is_known, parameter_type, return_type
from sluiceway.util.overriding import override

__all__ = [
    "KeyedAggregateStep",
    "KeyedBranchStep",
    "KeyedCountStep",
    "KeyedFilterStep",
    "KeyedFlatMapStep",
    "KeyedMapStep",
    "KeyedProcessStep",
    "KeyedReduceStep",
]


class KeyedMapStep(MapStep, frozen=True):
    """Map step whose function object may have state per key."""

    key: Callable[[Any], Any] | KeySelector[Any, Any]
    record_wise: ClassVar[bool] = False
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True


class KeyedFlatMapStep(FlatMapStep, frozen=True):
    """Flat-map step whose function object may have state per key."""

    key: Callable[[Any], Any] | KeySelector[Any, Any]
    record_wise: ClassVar[bool] = False
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True


class KeyedFilterStep(FilterStep, frozen=True):
    """Filter step whose function object may have state per key."""

    key: Callable[[Any], Any] | KeySelector[Any, Any]
    record_wise: ClassVar[bool] = False
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True


class KeyedBranchStep(BranchStep, frozen=True):
    """Branch step whose function object may have state per key."""

    key: Callable[[Any], Any] | KeySelector[Any, Any]
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True


class KeyedReduceStep(Step, frozen=True):
    """Step of a running reduction per key; emits the new value for every record.

    ``key`` is what the input stream is keyed by.
    """

    fn: Callable[[Any, Any], Any] | ReduceFunction[Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    kind: ClassVar[str] = "reduce"
    keyed: ClassVar[bool] = True
    skips: ClassVar[bool] = True
    method: ClassVar[str | None] = "reduce"
    stateful: ClassVar[bool] = True

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the types of both parameters."""
        first, second = (parameter_type(self.fn, i, self.method_of(self.fn)) for i in (0, 1))
        return [first] if first == second else [first, second]

    def output_type(self, *entering: Any) -> Any:
        """Return the type of the reduced values."""
        returned = self.returned_type()
        return returned if is_known(returned) else entering[0]


class KeyedAggregateStep(Step, frozen=True):
    """Step of a running aggregate per key; emits a result for every record.

    ``with_key`` makes that a pair of key and result.
    """

    fn: AggregateFunction[Any, Any, Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    with_key: bool = False
    kind: ClassVar[str] = "aggregate"
    keyed: ClassVar[bool] = True
    skips: ClassVar[bool] = True
    method: ClassVar[str | None] = "add"
    stateful: ClassVar[bool] = True

    @override
    def returned_type(self) -> Any:
        return return_type(self.fn, "get_result")

    def output_type(self, *entering: Any) -> Any:
        """Return the type of the result, or of the pair of key and result."""
        returned = self.returned_type()
        if not self.with_key:
            return returned
        return tuple[key_type(self.key) or Any, returned or Any]  # type: ignore[misc]


class KeyedCountStep(KeyedAggregateStep, frozen=True):
    """Step that counts records per key: the accumulator is a number, the result a pair of key and number."""


class KeyedProcessStep(Step, frozen=True):
    """Step of a keyed process function."""

    fn: KeyedProcessFunction[Any, Any, Any] | Callable[[Any, KeyedProcessFunction.Context], Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    kind: ClassVar[str] = "process"
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    skips: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_element"
    stateful: ClassVar[bool] = True

    @override
    def output_type(self, *entering: Any) -> Any:
        return element_type(self.returned_type())


def key_type(key: object) -> Any:
    """Return the key type of a key selector, or None."""
    return return_type(key, "get_key" if isinstance(key, KeySelector) else None)
