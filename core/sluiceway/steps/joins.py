"""Steps that bring together what two keyed streams have of one key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sluiceway.functions import (
    FlatJoinFunction,
    Function,
    JoinFunction,
    KeySelector,
    OutputTag,
    ProcessJoinFunction,
)
from sluiceway.steps.base import Step
from sluiceway.steps.stateless import MapStep
from sluiceway.types import element_type, parameter_type

__all__ = ["AsOfJoinStep", "IntervalJoinStep", "TagStep"]


@dataclass(frozen=True)
class _KeyedJoinStep(Step):
    """What the joins of two keyed streams have in common.

    Attributes:
        fn: called for each pair.
        key: what the left input is keyed by.
        right_key: what the right input is keyed by.
        left_late: the side output for left records that come too late; None: they are dropped.
    """

    fn: Any
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    right_key: Callable[[Any], Any] | KeySelector[Any, Any]
    ports: ClassVar[int] = 2
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """What the left and the right input are keyed by."""
        return self.key, self.right_key

    @property
    def event_time(self) -> bool:
        """To know what it may forget, if not what it may give out."""
        return True

    @property
    def gives_many(self) -> bool:
        """Whether what the function returns is an iterable of results."""
        return isinstance(self.fn, FlatJoinFunction)

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Of the function's first parameter for the left input, of its second for the right one."""
        return [parameter_type(self.fn, port, self.method_of(self.fn))]

    def output_type(self, *entering: Any) -> Any:
        """That of one result."""
        returned = self.returned_type()
        return element_type(returned) if self.gives_many else returned

    def method_of(self, function: object) -> str | None:
        """``join``, or ``process_element``."""
        if isinstance(function, ProcessJoinFunction):
            return "process_element"
        return "join" if isinstance(function, Function) else None


@dataclass(frozen=True)
class IntervalJoinStep(_KeyedJoinStep):
    """Joins two keyed streams by key and by distance in event time.

    Attributes:
        lower: a right record may be this much later than the left one, at least, in ms; both bounds inclusive.
        upper: at most.
        with_context: whether ``fn`` is called with a context and gives an iterable of results.
        left_late: the side output for left records that come too late; None: they are dropped.
        right_late: the same for right records.
    """

    fn: (
        JoinFunction[Any, Any, Any]
        | FlatJoinFunction[Any, Any, Any]
        | ProcessJoinFunction[Any, Any, Any]
        | Callable[..., Any]
    )
    lower: int = 0
    upper: int = 0
    with_context: bool = False
    left_late: OutputTag[Any] | None = None
    right_late: OutputTag[Any] | None = None
    kind: ClassVar[str] = "interval_join"

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Those for late records, unless the function is given a context, by which it may emit to any."""
        if self.with_context:
            return None
        return frozenset(tag.name for tag in (self.left_late, self.right_late) if tag is not None)

    @property
    def gives_many(self) -> bool:
        """Whether what the function returns is an iterable of results."""
        return self.with_context or super().gives_many


@dataclass(frozen=True)
class AsOfJoinStep(_KeyedJoinStep):
    """Joins each record of a keyed stream with the latest record of another, as of the first one's time.

    Attributes:
        tolerance: how much older the right record may be, in ms; None: any age.
        how: ``left``: a left record without a right one is joined with None; ``inner``: it is dropped.
        left_late: the side output for left records that come too late; None: they are dropped.
    """

    fn: JoinFunction[Any, Any, Any] | FlatJoinFunction[Any, Any, Any] | Callable[[Any, Any], Any]
    tolerance: int | None = None
    how: Literal["left", "inner"] = "left"
    left_late: OutputTag[Any] | None = None
    kind: ClassVar[str] = "asof_join"

    @property
    def known_side_outputs(self) -> frozenset[str]:
        """That for late left records."""
        return frozenset() if self.left_late is None else frozenset({self.left_late.name})


@dataclass(frozen=True)
class TagStep(MapStep):
    """Says of each record which of two streams it is from, before these become one.

    Attributes:
        wanted: the types that what follows asks of the records, as far as hints say.
    """

    wanted: tuple[Any, ...] = ()
    kind: ClassVar[str] = "tag"

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Of the key selector, and of the function that both streams go to."""
        return list(self.wanted)
