"""Joins of two keyed streams by event time: interval joins and as-of joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Number
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from sluiceway.api.arguments import check_function, describe
from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.api.unknown_names import answer
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.functions import FlatJoinFunction, JoinFunction, OutputTag, ProcessJoinFunction
from sluiceway.steps import AsOfJoinStep, IntervalJoinStep, key_type
from sluiceway.types import is_assignable, type_name
from sluiceway.windows.durations import Duration, milliseconds, offset_milliseconds

if TYPE_CHECKING:
    from sluiceway.api.keyed import KeyedStream

__all__ = ["AsOfJoin", "IntervalJoin", "IntervalJoined", "WantsApply", "asof_join", "check_same_keys"]

L = TypeVar("L")
R = TypeVar("R")
OUT = TypeVar("OUT")


class IntervalJoin(Generic[L, R]):
    """Two keyed streams without the bounds of their interval; returned by :meth:`KeyedStream.interval_join`."""

    def __init__(self, left: KeyedStream[L, Any], right: KeyedStream[R, Any]) -> None:
        self._left = left
        self._right = right

    def between(self, lower: Duration, upper: Duration) -> IntervalJoined[L, R]:
        """Join a left record at ``t`` with the right ones from ``t + lower`` to ``t + upper``, both included.

        Args:
            lower: a timedelta, ms, or a text (``"5min"``, ``"-5min"``); negative: before the left record.
            upper: the same; not below ``lower``.

        Raises:
            ConfigurationError: not a duration, or ``lower`` is above ``upper``.
        """
        where = f"between({lower!r}, {upper!r}) at {caller_location()}"
        low, high = offset_milliseconds(where, lower), offset_milliseconds(where, upper)
        if low > high:
            raise ConfigurationError(f"{where}: the lower bound is above the upper one")
        return IntervalJoined(self._left, self._right, low, high)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in ("process", "apply"):
                raise AttributeError(f"IntervalJoin has no {name}() yet: call between(lower, upper) first")
            answer(self, name)


class WantsApply:
    """Join without a function: attributes of a stream raise AttributeError that names ``apply``."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in dir(DataStream) and not name.startswith("_"):
                raise AttributeError(
                    f"{type(self).__name__} has no {name}(): say first what to make of records that belong "
                    f"together, as in apply(fn).{name}(...)"
                )
            answer(self, name)


@dataclass(frozen=True)
class IntervalJoined(WantsApply, Generic[L, R]):
    """Interval join with bounds. Every method but ``apply`` and ``process`` returns a new object.

    Each pair of records with equal keys that are not too far apart in event time gives its results as soon as
    the second of them is there, with the later one's timestamp. A record is kept until the watermark says that
    nothing can match it any more. One that comes when the watermark has passed it is late: it is joined with
    nothing, and goes to a side output if there is one for it; else it is dropped, and counted in the metric
    ``numLateRecordsDropped``.
    """

    _left: KeyedStream[L, Any]
    _right: KeyedStream[R, Any]
    _lower: int
    _upper: int
    _exclusive: tuple[bool, bool] = (False, False)
    _left_late: OutputTag[Any] | None = None
    _right_late: OutputTag[Any] | None = None

    def lower_bound_exclusive(self) -> IntervalJoined[L, R]:
        """Exclude right records exactly at the lower bound."""
        return replace(self, _exclusive=(True, self._exclusive[1]))

    def upper_bound_exclusive(self) -> IntervalJoined[L, R]:
        """Exclude right records exactly at the upper bound."""
        return replace(self, _exclusive=(self._exclusive[0], True))

    def side_output_left_late_data(self, tag: OutputTag[L]) -> IntervalJoined[L, R]:
        """Emit late left records to a side output of the result, with their timestamps. Raises TypeError."""
        return replace(self, _left_late=_checked_tag("side_output_left_late_data", tag))

    def side_output_right_late_data(self, tag: OutputTag[R]) -> IntervalJoined[L, R]:
        """Emit late right records to a side output of the result, with their timestamps. Raises TypeError."""
        return replace(self, _right_late=_checked_tag("side_output_right_late_data", tag))

    def apply(
        self, fn: JoinFunction[L, R, OUT] | FlatJoinFunction[L, R, OUT] | Callable[[L, R], OUT]
    ) -> DataStream[OUT]:
        """Emit ``fn(left, right)`` for each pair; any number of results with a :class:`FlatJoinFunction`.

        Raises:
            TypeError: ``fn`` cannot be called so.
            ConfigurationError: exclusive bounds leave nothing between them.
        """
        check_function("apply", fn, (JoinFunction, FlatJoinFunction), 2)
        return self._then(fn, with_context=False)

    def process(
        self,
        fn: ProcessJoinFunction[L, R, OUT] | Callable[[L, R, ProcessJoinFunction.Context], Iterable[OUT] | None],
    ) -> DataStream[OUT]:
        """Emit any results for each pair, also to side outputs: ``fn(left, right, ctx)`` yields them.

        It may return an iterable of them or None as well; where each pair has one result, :meth:`apply` is
        simpler.

        Raises:
            TypeError: ``fn`` cannot be called so.
            ConfigurationError: exclusive bounds leave nothing between them.
        """
        try:
            check_function("process", fn, (ProcessJoinFunction,), 3)
        except TypeError as error:
            if isinstance(fn, JoinFunction | FlatJoinFunction) or "with 3 arguments" in str(error):
                raise TypeError(f"{error}; use apply(fn) for a function of left and right alone") from None
            raise
        return self._then(fn, with_context=True)

    def _then(self, fn: Any, *, with_context: bool) -> DataStream[Any]:
        # Times are whole ms: without its bounds the interval is 1 ms shorter at either end.
        lower, upper = self._lower + self._exclusive[0], self._upper - self._exclusive[1]
        if lower > upper:
            raise ConfigurationError(
                f"interval_join() at {caller_location()}: between {self._lower} ms and {self._upper} ms there is "
                "nothing if bounds are exclusive; make the interval longer or the bounds inclusive"
            )
        step = IntervalJoinStep(
            fn,
            self._left._key,
            self._right._key,
            lower=lower,
            upper=upper,
            with_context=with_context,
            left_late=self._left_late,
            right_late=self._right_late,
        )
        return self._left._then_with(self._right, step, "interval_join")


@dataclass(frozen=True)
class AsOfJoin(WantsApply, Generic[L, R]):
    """As-of join without a function; returned by :meth:`KeyedStream.asof_join`."""

    _left: KeyedStream[L, Any]
    _right: KeyedStream[R, Any]
    _tolerance: int | None
    _how: Literal["left", "inner"]
    _left_late: OutputTag[Any] | None = None

    def side_output_left_late_data(self, tag: OutputTag[L]) -> AsOfJoin[L, R]:
        """Emit late left records to a side output of the result, with their timestamps. Raises TypeError."""
        return replace(self, _left_late=_checked_tag("side_output_left_late_data", tag))

    def apply(
        self, fn: JoinFunction[L, Any, OUT] | FlatJoinFunction[L, Any, OUT] | Callable[[L, Any], OUT]
    ) -> DataStream[OUT]:
        """Emit ``fn(left, right)`` for each left record; any number with a :class:`FlatJoinFunction`.

        ``right`` is None where there is none, unless the join is an inner one. Raises TypeError.
        """
        check_function("apply", fn, (JoinFunction, FlatJoinFunction), 2)
        step = AsOfJoinStep(
            fn,
            self._left._key,
            self._right._key,
            tolerance=self._tolerance,
            how=self._how,
            left_late=self._left_late,
        )
        return self._left._then_with(self._right, step, "asof_join")


def asof_join(
    left: KeyedStream[L, Any],
    right: KeyedStream[R, Any],
    tolerance: Duration | None,
    how: Literal["left", "inner"],
) -> AsOfJoin[L, R]:
    """Check the arguments of :meth:`KeyedStream.asof_join` and return its result."""
    if how not in ("left", "inner"):
        raise ConfigurationError(f"asof_join(how={how!r}) at {caller_location()}: how is 'left' or 'inner'")
    where = f"asof_join(tolerance={tolerance!r}) at {caller_location()}"
    ms = None if tolerance is None else milliseconds(where, tolerance)
    return AsOfJoin(left, right, ms, how)


def check_same_keys(word: str, left: object, right: object) -> None:
    """Raise GraphError if the hints of two key selectors say that no two of their keys can be equal."""
    one, other = key_type(left), key_type(right)
    if is_assignable(one, other) or is_assignable(other, one):
        return
    if all(isinstance(t, type) and issubclass(t, Number) for t in (one, other)):
        return  # 1 and Decimal(1) are equal
    raise GraphError(
        f"{word}() at {caller_location()}: the keys of the first stream are {type_name(one)}, those of the other "
        f"{type_name(other)}, so no two of them are equal; have both key selectors return the same type"
    )


def _checked_tag(method: str, tag: object) -> OutputTag[Any]:
    if not isinstance(tag, OutputTag):
        raise TypeError(
            f'{method}() at {caller_location()} takes an OutputTag, as in OutputTag("late"), not {describe(tag)}'
        )
    return tag
