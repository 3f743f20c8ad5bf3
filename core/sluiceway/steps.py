"""What the steps of a pipeline mean, apart from any engine: one small class per kind of step.

The API makes them, the graph carries them, an engine turns them into whatever runs. Functions in them are
what the user gave: plain callables or function objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sluiceway.connector import Sink, Source
from sluiceway.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)

__all__ = [
    "FilterStep",
    "FlatMapStep",
    "IterationHeadStep",
    "KeyedAggregateStep",
    "KeyedProcessStep",
    "KeyedReduceStep",
    "MapStep",
    "ProcessStep",
    "SinkStep",
    "SourceStep",
    "Step",
]


@dataclass(frozen=True)
class Step:
    """Base of all steps.

    Attributes:
        kind: the word for the step in plans and messages.
        stateful: whether it keeps state that a checkpoint would hold.
        record_wise: whether it can be fused with its neighbours into one loop.
        keyed: whether its input must come by a hash exchange; such a step has a ``key``.
        side_outputs: whether its function may emit to side outputs.
        method: what the function is called by where it is a function object, or None.
    """

    kind: ClassVar[str]
    stateful: ClassVar[bool] = False
    record_wise: ClassVar[bool] = False
    keyed: ClassVar[bool] = False
    side_outputs: ClassVar[bool] = False
    method: ClassVar[str | None] = None

    @property
    def function(self) -> object | None:
        """The user's function, if the step has one."""
        return getattr(self, "fn", None)

    def with_function(self, function: object) -> Step:
        """The same step with another function. Only for steps that have one."""
        step: Any = self
        changed: Step = replace(step, fn=function)
        return changed


@dataclass(frozen=True)
class SourceStep(Step):
    """Reads a source."""

    source: Source[Any]
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True


@dataclass(frozen=True)
class MapStep(Step):
    """One record in, one out."""

    fn: Callable[[Any], Any] | MapFunction[Any, Any]
    kind: ClassVar[str] = "map"
    method: ClassVar[str | None] = "map"
    record_wise: ClassVar[bool] = True


@dataclass(frozen=True)
class FlatMapStep(Step):
    """One record in, any number out."""

    fn: Callable[[Any], Any] | FlatMapFunction[Any, Any]
    kind: ClassVar[str] = "flat_map"
    method: ClassVar[str | None] = "flat_map"
    record_wise: ClassVar[bool] = True


@dataclass(frozen=True)
class FilterStep(Step):
    """Keeps the records for which the function is true."""

    fn: Callable[[Any], Any] | FilterFunction[Any]
    kind: ClassVar[str] = "filter"
    method: ClassVar[str | None] = "filter"
    record_wise: ClassVar[bool] = True


@dataclass(frozen=True)
class ProcessStep(Step):
    """A process function, with side outputs."""

    fn: ProcessFunction[Any, Any] | Callable[[Any, ProcessFunction.Context], Any]
    kind: ClassVar[str] = "process"
    side_outputs: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_element"


@dataclass(frozen=True)
class KeyedReduceStep(Step):
    """A running reduction per key; emits the new value for every record.

    ``key`` is what the input stream is keyed by.
    """

    fn: Callable[[Any, Any], Any] | ReduceFunction[Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    kind: ClassVar[str] = "reduce"
    keyed: ClassVar[bool] = True
    method: ClassVar[str | None] = "reduce"
    stateful: ClassVar[bool] = True


@dataclass(frozen=True)
class KeyedAggregateStep(Step):
    """A running aggregate per key; emits a result for every record.

    ``with_key`` makes that a pair of key and result.
    """

    fn: AggregateFunction[Any, Any, Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    with_key: bool = False
    kind: ClassVar[str] = "aggregate"
    keyed: ClassVar[bool] = True
    method: ClassVar[str | None] = "add"
    stateful: ClassVar[bool] = True


@dataclass(frozen=True)
class KeyedProcessStep(Step):
    """A keyed process function."""

    fn: KeyedProcessFunction[Any, Any, Any] | Callable[[Any, KeyedProcessFunction.Context], Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    kind: ClassVar[str] = "process"
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    method: ClassVar[str | None] = "process_element"
    stateful: ClassVar[bool] = True


@dataclass(frozen=True)
class IterationHeadStep(Step):
    """Where a feedback loop begins: passes on its input and what comes back on its feedback edges."""

    kind: ClassVar[str] = "iterate"


@dataclass(frozen=True)
class SinkStep(Step):
    """Writes to a sink."""

    sink: Sink[Any]
    kind: ClassVar[str] = "sink"
