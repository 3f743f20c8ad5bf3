"""Step that assigns records to windows and evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import msgspec

from sluiceway.functions import (
    AggregateFunction,
    AllWindowFunction,
    FunctionObject,
    KeySelector,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from sluiceway.steps.base import Step
from sluiceway.steps.keyed import key_type
from sluiceway.types import element_type, is_known, parameter_type, return_type
from sluiceway.util.overriding import override
from sluiceway.windows.base import Evictor, Trigger, WindowAssigner

__all__ = ["WindowContents", "WindowStep", "without_timestamps"]


class WindowContents(Enum):
    """Contents of a window at its evaluation; without an evictor also its stored contents."""

    REDUCED = "reduce"
    AGGREGATED = "aggregate"
    ELEMENTS = "process"


class WindowStep(Step, frozen=True):
    """Step that assigns records to windows per key, and evaluates a window when its trigger fires.

    Attributes:
        key: what the input stream is keyed by.
        assigner: says to which windows a record belongs.
        contents: what evaluations are made from.
        fn: the reduce or aggregate function (by ``contents``); None for ELEMENTS.
        window_fn: is given the result of ``fn``, or all the elements; None only beside an ``fn``. A plain
            callable takes key, window and elements, without the key if ``all_windows``.
        trigger: None for the assigner's own.
        evictor: takes out records before or after an evaluation, or None. With one a window keeps all its
            records, whatever ``contents`` is.
        allowed_lateness_ms: how long a window is kept after its end, for late records. Event time only.
        late_tag: the side output for records that are too late, or None to count and drop them.
        with_key: whether results are pairs of key and result. Only without ``window_fn``.
        all_windows: whether this is a stream without keys: one subtask, one key.
    """

    key: Callable[[Any], Any] | KeySelector[Any, Any]
    assigner: WindowAssigner
    contents: WindowContents
    fn: Callable[[Any, Any], Any] | ReduceFunction[Any] | AggregateFunction[Any, Any, Any] | None = None
    window_fn: (
        Callable[..., Any]
        | ProcessWindowFunction[Any, Any, Any]
        | WindowFunction[Any, Any, Any]
        | ProcessAllWindowFunction[Any, Any]
        | AllWindowFunction[Any, Any]
        | None
    ) = None
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness_ms: int = 0
    late_tag: OutputTag[Any] | None = None
    with_key: bool = False
    all_windows: bool = False
    kind: ClassVar[str] = "window"
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Side output of late records; None if the window function takes a context, which can emit to any."""
        if isinstance(self.window_fn, ProcessWindowFunction | ProcessAllWindowFunction):
            return None
        return frozenset() if self.late_tag is None else frozenset({self.late_tag.name})

    @property
    def event_time(self) -> bool:
        """True if its windows are of event time."""
        return self.assigner.event_time

    @property
    def function(self) -> object | None:
        """Function that takes the records."""
        return self.window_fn if self.fn is None else self.fn

    @property
    def functions(self) -> tuple[object, ...]:
        """Functions that take the records, and the windows."""
        return tuple(function for function in (self.fn, self.window_fn) if function is not None)

    def with_function(self, function: Any) -> Step:
        """Return the step with another function in place of :attr:`function`."""
        return (
            msgspec.structs.replace(self, window_fn=function)
            if self.fn is None
            else msgspec.structs.replace(self, fn=function)
        )

    def with_own_functions(self, own: Callable[[FunctionObject], object]) -> Step:
        """Return the step with ``own(function)`` in place of both functions."""
        step: Any = super().with_own_functions(own)
        if self.fn is None or not isinstance(self.window_fn, FunctionObject):
            return step  # type: ignore[no-any-return]
        changed: Step = msgspec.structs.replace(step, window_fn=own(self.window_fn))
        return changed

    @override
    def method_of(self, function: object) -> str | None:
        if isinstance(function, ReduceFunction):
            return "reduce"
        if isinstance(function, AggregateFunction):
            return "add"
        return _method(function)

    def returned_type(self) -> Any:
        """Return the result type of the last function, or of the aggregate."""
        if self.window_fn is not None:
            return return_type(self.window_fn, _method(self.window_fn))
        if isinstance(self.fn, AggregateFunction):
            return return_type(self.fn, "get_result")
        return super().returned_type()

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the types of both parameters of a reduction, of an aggregate's value, or of window elements."""
        if self.contents is WindowContents.REDUCED:
            first, second = (parameter_type(self.fn, i, self.method_of(self.fn)) for i in (0, 1))
            return [first] if first == second else [first, second]
        if self.contents is WindowContents.AGGREGATED:
            return super().wanted_types(port)
        # Arguments are key, window and elements, or without a key the last two.
        index = 1 if self.all_windows else 2
        return [element_type(parameter_type(self.window_fn, index, _method(self.window_fn)))]

    @override
    def output_type(self, *entering: Any) -> Any:
        returned = self.returned_type()
        if self.window_fn is not None:
            return element_type(returned)
        if self.contents is WindowContents.REDUCED and not is_known(returned):
            returned = entering[0]
        if not self.with_key:
            return returned
        return tuple[key_type(self.key) or Any, returned or Any]  # type: ignore[misc]

    @override
    def side_type(self, name: str, *entering: Any) -> Any:
        return entering[0] if self.late_tag is not None and name == self.late_tag.name else None


def _method(window_function: object) -> str | None:
    if isinstance(window_function, ProcessWindowFunction | ProcessAllWindowFunction):
        return "process"
    return "apply" if isinstance(window_function, WindowFunction | AllWindowFunction) else None


def without_timestamps(step: str, records: str = "its records") -> str:
    """Return the message about records without timestamps that enter the event-time step named ``step``."""
    return (
        f"step {step} goes by event time, but {records} have no timestamps: put "
        "assign_timestamps_and_watermarks(...) before it"
    )
