"""Steps that process one record at a time without state."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, ClassVar, Final

from sluiceway.functions import FilterFunction, FlatMapFunction, MapFunction, ProcessFunction
from sluiceway.functions.base import engine_tag
from sluiceway.steps.base import Step
from sluiceway.types import element_type, members
from sluiceway.util.overriding import override

__all__ = ["REST", "BranchStep", "FilterStep", "FlatMapStep", "InspectStep", "MapStep", "ProcessStep"]


REST: Final = engine_tag("rest")
"""Side output of a :class:`BranchStep`."""


class MapStep(Step, frozen=True):
    """Step that emits one record for each record."""

    fn: Callable[[Any], Any] | MapFunction[Any, Any]
    kind: ClassVar[str] = "map"
    method: ClassVar[str | None] = "map"
    record_wise: ClassVar[bool] = True
    skips: ClassVar[bool] = True


class FlatMapStep(Step, frozen=True):
    """Step that emits any number of records for each record."""

    fn: Callable[[Any], Any] | FlatMapFunction[Any, Any]
    kind: ClassVar[str] = "flat_map"
    method: ClassVar[str | None] = "flat_map"
    record_wise: ClassVar[bool] = True
    skips: ClassVar[bool] = True

    @override
    def output_type(self, *entering: Any) -> Any:
        return element_type(self.returned_type())


class FilterStep(Step, frozen=True):
    """Step that keeps the records for which the function is true."""

    fn: Callable[[Any], Any] | FilterFunction[Any]
    kind: ClassVar[str] = "filter"
    method: ClassVar[str | None] = "filter"
    record_wise: ClassVar[bool] = True
    skips: ClassVar[bool] = True

    def output_type(self, *entering: Any) -> Any:
        """Return the type of its input, or of a TypeGuard; None if the predicate may narrow it."""
        guard = self.returned_type()
        if typing.get_origin(guard) is typing.TypeGuard:
            return typing.get_args(guard)[0]
        alternatives = members(entering[0])
        if len(alternatives) != 1:
            return None
        cls = typing.get_origin(entering[0]) or entering[0]
        # An isinstance() in the filter can pick out a subclass, where there is one.
        narrower = isinstance(cls, type) and cls.__module__ != "builtins" and bool(type.__subclasses__(cls))
        return None if narrower else entering[0]


class InspectStep(FilterStep, frozen=True):
    """Step that calls the function with each record, and emits the record."""

    kind: ClassVar[str] = "inspect"

    @override
    def output_type(self, *entering: Any) -> Any:
        return entering[0]


class BranchStep(FilterStep, frozen=True):
    """Step that emits the records for which the function is false, too, to the side output :data:`REST`."""

    kind: ClassVar[str] = "branch"
    record_wise: ClassVar[bool] = False
    side_outputs: ClassVar[bool] = True

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Empty set, as the other output has no name that a program could ask for."""
        return frozenset()

    @override
    def side_type(self, name: str, *entering: Any) -> Any:
        # What a TypeGuard excludes has no name.
        guarded = typing.get_origin(self.returned_type()) is typing.TypeGuard
        return None if guarded else self.output_type(*entering)


class ProcessStep(Step, frozen=True):
    """Step of a process function, with side outputs."""

    fn: ProcessFunction[Any, Any] | Callable[[Any, ProcessFunction.Context], Any]
    kind: ClassVar[str] = "process"
    side_outputs: ClassVar[bool] = True
    skips: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_element"

    @override
    def output_type(self, *entering: Any) -> Any:
        return element_type(self.returned_type())
