"""Steps that join two keyed streams by key."""

from __future__ import annotations

from collections.abc import Callable
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
from sluiceway.types import element_type, parameter_type, union_of
from sluiceway.util.overriding import override

__all__ = ["AsOfJoinStep", "IntervalJoinStep", "TagStep"]


class _KeyedJoinStep(Step, frozen=True):
    """Base of the joins of two keyed streams.

    Attributes:
        fn: called for each pair.
        key: what the left input is keyed by.
        right_key: what the right input is keyed by.
        left_late: the side output for left records that come too late; None: they are dropped.
    """

    fn: Any
    key: Callable[[Any], Any] | KeySelector[Any, Any]
    right_key: Callable[[Any], Any] | KeySelector[Any, Any]
    left_late: OutputTag[Any] | None = None
    ports: ClassVar[int] = 2
    keyed: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """Key selectors of the left and the right input."""
        return self.key, self.right_key

    @property
    @override
    def event_time(self) -> bool:
        return True

    @property
    def late_tags(self) -> tuple[OutputTag[Any] | None, ...]:
        """Side outputs for late records, by port."""
        return (self.left_late,)

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Side outputs of late records."""
        return frozenset(tag.name for tag in self.late_tags if tag is not None)

    @property
    def gives_many(self) -> bool:
        """True if the function returns an iterable of results."""
        return isinstance(self.fn, FlatJoinFunction)

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the type of the first parameter for the left input, of the second for the right one."""
        return [parameter_type(self.fn, port, self.method_of(self.fn))]

    @override
    def output_type(self, *entering: Any) -> Any:
        returned = self.returned_type()
        return element_type(returned) if self.gives_many else returned

    @override
    def side_type(self, name: str, *entering: Any) -> Any:
        # One tag may stand for the late records of both inputs.
        return union_of(
            of for tag, of in zip(self.late_tags, entering, strict=False) if tag is not None and tag.name == name
        )

    def method_of(self, function: object) -> str | None:
        """Return the method ``join`` or ``process_element``."""
        if isinstance(function, ProcessJoinFunction):
            return "process_element"
        return "join" if isinstance(function, Function) else None


class IntervalJoinStep(_KeyedJoinStep, frozen=True):
    """Step that joins two keyed streams by key and by distance in event time.

    Attributes:
        lower: a right record may be this much later than the left one, at least, in ms; both bounds inclusive.
        upper: at most.
        with_context: whether ``fn`` is called with a context and gives an iterable of results.
        right_late: as ``left_late``, for right records.
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
    right_late: OutputTag[Any] | None = None
    kind: ClassVar[str] = "interval_join"

    @property
    @override
    def late_tags(self) -> tuple[OutputTag[Any] | None, ...]:
        return self.left_late, self.right_late

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Side outputs of late records; None if the function takes a context, which can emit to any."""
        return None if self.with_context else super().known_side_outputs

    @property
    @override
    def gives_many(self) -> bool:
        return self.with_context or super().gives_many


class AsOfJoinStep(_KeyedJoinStep, frozen=True):
    """Step that joins each record of a keyed stream with the latest one of another, as of its event time.

    Attributes:
        tolerance: how much older the right record may be, in ms; None: any age.
        how: ``left``: a left record without a right one is joined with None; ``inner``: it is dropped.
    """

    fn: JoinFunction[Any, Any, Any] | FlatJoinFunction[Any, Any, Any] | Callable[[Any, Any], Any]
    tolerance: int | None = None
    how: Literal["left", "inner"] = "left"
    kind: ClassVar[str] = "asof_join"


class TagStep(MapStep, frozen=True):
    """Step that tags each record with its stream, before two streams are united.

    Attributes:
        wanted: the types that what follows asks of the records, as far as hints say.
    """

    wanted: tuple[Any, ...] = ()
    kind: ClassVar[str] = "tag"

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the types of the key selector, and of the function that both streams lead to."""
        return list(self.wanted)
