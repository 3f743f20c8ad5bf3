"""Steps of two connected streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import msgspec

from sluiceway.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedCoProcessFunction,
    KeySelector,
)
from sluiceway.steps.base import Step
from sluiceway.types import element_type, parameter_type, return_type, union_of
from sluiceway.util.overriding import override

__all__ = ["CoFlatMapStep", "CoMapStep", "CoProcessStep", "ConnectedStep", "PerInput", "elements"]


class PerInput(msgspec.Struct, frozen=True):
    """Pair of plain callables in place of a function object: one per input."""

    first: Callable[..., Any]
    second: Callable[..., Any]


class ConnectedStep(Step, frozen=True):
    """Base of the steps that call a function per input.

    Attributes:
        fn: a function object with a method per input, called ``method`` and the number of the input; or one
            callable per input.
        key: what the first input is keyed by; None: it is not.
        key2: what the second input is keyed by. A step is keyed if both are.
    """

    fn: Any
    key: Callable[[Any], Any] | KeySelector[Any, Any] | None = None
    key2: Callable[[Any], Any] | KeySelector[Any, Any] | None = None
    ports: ClassVar[int] = 2
    skips: ClassVar[bool] = True

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """True if both inputs are keyed."""
        return self.key is not None and self.key2 is not None

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        """True if the function may have state: a function object of keyed streams."""
        return self.keyed and isinstance(self.fn, Function)

    @property
    def keys(self) -> tuple[Any, ...]:
        """Key selectors of both inputs, or none."""
        return (self.key, self.key2) if self.keyed else (None, None)

    def function_of(self, port: int) -> tuple[Any, str | None]:
        """Return the callable of an input: an object and the name of its method, or a callable."""
        if isinstance(self.fn, PerInput):
            return (self.fn.first, self.fn.second)[port], None
        return self.fn, f"{self.method}{port + 1}"

    @property
    def functions(self) -> tuple[object, ...]:
        """The function object, or a callable per input."""
        return (self.fn.first, self.fn.second) if isinstance(self.fn, PerInput) else (self.fn,)

    def returned_types(self) -> list[Any]:
        """Return the result types per input according to the hints, or None."""
        return [return_type(*self.function_of(port)) for port in range(self.ports)]

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the record type that the input's method takes."""
        fn, method = self.function_of(port)
        return [parameter_type(fn, 0, method)]

    def returned_type(self) -> Any:
        """Return the union of the result types of both methods."""
        return union_of(self.returned_types())


class CoMapStep(ConnectedStep, frozen=True):
    """Step that emits one record for each record of two inputs."""

    fn: CoMapFunction[Any, Any, Any] | PerInput
    kind: ClassVar[str] = "co_map"
    method: ClassVar[str | None] = "map"


class CoFlatMapStep(ConnectedStep, frozen=True):
    """Step that emits any number of records for each record of two inputs."""

    fn: CoFlatMapFunction[Any, Any, Any] | PerInput
    kind: ClassVar[str] = "co_flat_map"
    method: ClassVar[str | None] = "flat_map"

    @override
    def output_type(self, *entering: Any) -> Any:
        return elements(self.returned_types())


class CoProcessStep(ConnectedStep, frozen=True):
    """Step of a process function of two inputs, with side outputs, and with timers if both are keyed."""

    fn: CoProcessFunction[Any, Any, Any] | KeyedCoProcessFunction[Any, Any, Any, Any] | PerInput
    kind: ClassVar[str] = "co_process"
    side_outputs: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_element"

    @override
    def output_type(self, *entering: Any) -> Any:
        return elements(self.returned_types())

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        """True if both inputs are keyed: callables may set timers, too."""
        return self.keyed


def elements(returned: Iterable[Any]) -> Any:
    """Return the element type of iterables of these types, or None."""
    return union_of(element_type(t) for t in returned if t is not type(None))
