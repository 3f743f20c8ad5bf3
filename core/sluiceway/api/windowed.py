"""Streams divided into windows, and the methods that evaluate them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from sluiceway.api.arguments import check_count, check_function, describe, is_field
from sluiceway.api.location import caller_location
from sluiceway.api.reductions import (
    BestBy,
    Count,
    Extreme,
    ExtremeField,
    ExtremeOf,
    SumField,
    SumOf,
    SumValues,
)
from sluiceway.api.stream import DataStream
from sluiceway.api.unknown_names import answer
from sluiceway.errors import GraphError
from sluiceway.functions import (
    AggregateFunction,
    AllWindowFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from sluiceway.graph import InputRef
from sluiceway.graph.identity import function_name
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.windows import CountEvictor, CountTrigger, GlobalWindows, NeverTrigger, PurgingTrigger
from sluiceway.windows.base import Evictor, MergingWindowAssigner, Trigger, WindowAssigner
from sluiceway.windows.durations import Duration, milliseconds

if TYPE_CHECKING:
    from typing import Self

__all__ = ["AllWindowedStream", "WindowedStream", "in_counts", "only_key"]

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class _Windowed(Generic[T]):
    """Settings and results common to keyed and unkeyed windowed streams."""

    _made_by = "window"
    _all_windows = False

    def __init__(self, stream: DataStream[T], key: Any, assigner: WindowAssigner) -> None:
        _check_is(f"{self._made_by}()", assigner, WindowAssigner, 'TumblingEventTimeWindows("10s")')
        self._stream = stream
        self._key = key
        self._assigner = assigner
        self._trigger: Trigger | None = None
        self._evictor: Evictor | None = None
        self._lateness_ms = 0
        self._late_tag: OutputTag[Any] | None = None

    # ---- settings -----------------------------------------------------------------------------------------

    def trigger(self, trigger: Trigger) -> Self:
        """Set when a window is evaluated, instead of by the assigner's default trigger.

        Raises:
            TypeError: not a Trigger, or one whose ``can_merge`` is a method.
            GraphError: the windows merge, and the trigger cannot.
        """
        _check_is("trigger()", trigger, Trigger, "CountTrigger(100)")
        if isinstance(self._assigner, MergingWindowAssigner) and not _can_merge(trigger):
            raise GraphError(
                f"trigger() at {caller_location()}: {trigger!r} cannot be used with {self._assigner!r}, whose "
                "windows merge: it has no on_merge(). Use another trigger, or give it can_merge and on_merge()"
            )
        changed = copy.copy(self)
        changed._trigger = trigger
        return changed

    def evictor(self, evictor: Evictor) -> Self:
        """Set which records are removed from a window before or after its evaluation.

        The window keeps every record then, also where these are reduced or aggregated.

        Raises:
            TypeError: not an Evictor.
        """
        _check_is("evictor()", evictor, Evictor, "CountEvictor(100)")
        changed = copy.copy(self)
        changed._evictor = evictor
        return changed

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Keep a window for ``lateness`` after its end; a late record within that time evaluates it again.

        Raises:
            ConfigurationError: no duration.
            GraphError: the windows are not of event time.
        """
        changed = copy.copy(self)
        changed._lateness_ms = milliseconds(f"allowed_lateness({lateness!r})", lateness)
        self._only_event_time("allowed_lateness")
        return changed

    def side_output_late_data(self, tag: OutputTag[T]) -> Self:
        """Send records that are too late to a side output, which ``get_side_output(tag)`` of the result returns.

        Without it they are dropped and counted by the metric ``numLateRecordsDropped``.

        Raises:
            TypeError: not an OutputTag.
            GraphError: the windows are not of event time.
        """
        _check_is("side_output_late_data()", tag, OutputTag, 'OutputTag("late")')
        self._only_event_time("side_output_late_data")
        changed = copy.copy(self)
        changed._late_tag = tag
        return changed

    def _only_event_time(self, method: str) -> None:
        if not self._assigner.event_time:
            raise GraphError(
                f"{method}() at {caller_location()}: no record is ever late for {self._assigner!r}, which do "
                "not go by event time"
            )

    # ---- results that need no window function --------------------------------------------------------------

    def min_by(self, field: int | str | Callable[[T], Any], *, first: bool = True) -> DataStream[T]:
        """Emit, for each window, the whole record in which ``field`` is smallest.

        Args:
            field: an index, a name, or a callable that computes what to compare.
            first: of records that are equal in it, whether the earliest or the latest one counts.
        """
        return self._best("min", field, first)

    def max_by(self, field: int | str | Callable[[T], Any], *, first: bool = True) -> DataStream[T]:
        """Emit, for each window, the whole record in which ``field`` is largest; else as :meth:`min_by`."""
        return self._best("max", field, first)

    def _best(self, word: str, field: Any, first: bool) -> DataStream[T]:
        by = f"{word}_by"
        shown = f"{by}({field})" if is_field(by, field) else by
        return self._then(WindowContents.REDUCED, shown, BestBy(word, field, first))

    def _sum(self, field: Any) -> DataStream[Any]:
        if field is None:
            return self._then(WindowContents.REDUCED, "sum", SumValues())
        if is_field("sum", field):
            return self._then(WindowContents.REDUCED, f"sum({field})", SumField(field))
        return self._then(WindowContents.AGGREGATED, "sum", SumOf(field), with_key=True)

    def _extreme(self, word: str, field: Any) -> DataStream[Any]:
        if field is None:
            return self._then(WindowContents.REDUCED, word, Extreme(word))
        if is_field(word, field):
            return self._then(WindowContents.REDUCED, f"{word}({field})", ExtremeField(word, field))
        return self._then(WindowContents.AGGREGATED, word, ExtremeOf(word, field), with_key=True)

    # ---- inside -------------------------------------------------------------------------------------------

    def _check_aggregate(self, fn: AggregateFunction[Any, Any, Any]) -> None:
        check_function("aggregate", fn, (AggregateFunction,), 1, objects_only=True)
        # With an evictor windows keep records, and accumulators never merge.
        merges = isinstance(self._assigner, MergingWindowAssigner) and self._evictor is None
        if merges and type(fn).merge is AggregateFunction.merge:
            raise GraphError(
                f"aggregate() at {caller_location()}: the windows of {self._assigner!r} merge, so "
                f"{type(fn).__name__} needs a merge(accumulator1, accumulator2)"
            )

    def _check_window_function(self, step: str, fn: object, allowed: tuple[type, ...]) -> None:
        check_function(step, fn, allowed, 2 if self._all_windows else 3)

    def _default_trigger(self, method: str) -> Trigger:
        trigger: object = self._assigner.default_trigger()
        if isinstance(trigger, Trigger):
            return trigger
        given = f"the class {trigger.__name__}" if isinstance(trigger, type) else describe(trigger)
        raise TypeError(
            f"{method}() at {caller_location()}: {type(self._assigner).__name__}.default_trigger() gave {given}; "
            "it must return an object of a subclass of Trigger, as in EventTimeTrigger()"
        )

    def _then(
        self,
        contents: WindowContents,
        shown: str,
        fn: Any = None,
        window_fn: Any = None,
        *,
        with_key: bool = False,
    ) -> DataStream[Any]:
        method = shown.partition("(")[0]
        if self._trigger is None and isinstance(self._default_trigger(method), NeverTrigger):
            raise GraphError(
                f"{method}() at {caller_location()}: {self._assigner!r} never evaluate a "
                "window by themselves: say when with trigger(...), as in trigger(CountTrigger(100))"
            )
        step = WindowStep(
            self._key,
            self._assigner,
            contents,
            fn,
            window_fn,
            trigger=self._trigger,
            evictor=self._evictor,
            allowed_lateness_ms=self._lateness_ms,
            late_tag=self._late_tag,
            with_key=with_key and not self._all_windows,
            all_windows=self._all_windows,
        )
        stream = self._stream
        t = stream._pipeline._add(step, stream._inputs, f"{self._title()}.{shown}")
        if self._all_windows:
            t.parallelism = 1
        return DataStream(stream._pipeline, (InputRef(t),), f"{method}()")

    def _title(self) -> str:
        assigner = self._assigner
        own = type(assigner).__repr__ is not object.__repr__
        return repr(assigner) if own else type(assigner).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._title()} from {self._stream!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in dir(DataStream) and not name.startswith("_"):
                raise AttributeError(
                    f"{type(self).__name__} has no {name}(): say first what to make of a window, as in "
                    f"reduce(...).{name}(...)"
                )
            answer(self, name)


class WindowedStream(_Windowed[T], Generic[T, K]):
    """Keyed stream divided into windows: returned by ``window()`` and ``count_window()``.

    The settings come first; each of them gives a new object. Then one of the other methods says what to make
    of a window. Results have the last ms of the window as their timestamps. Where a window is evaluated more
    than once, each result is emitted. A *field* is an index (tuples, lists), a key (mappings) or an attribute.
    """

    @overload
    def reduce(self, fn: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]: ...
    @overload
    def reduce(
        self,
        fn: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessWindowFunction[K, T, R]
        | WindowFunction[K, T, R]
        | Callable[[K, Any, list[T]], Iterable[R] | None],
    ) -> DataStream[R]: ...
    def reduce(self, fn: Any, window_function: Any = None) -> DataStream[Any]:
        """Reduce the records of a window to one, as they come.

        Args:
            fn: ``fn(reduced so far, value)``.
            window_function: is given the one record, with its key and window, and says what to emit; a plain
                callable as ``window_function(key, window, [reduced])``. None: emit the record.
        """
        check_function("reduce", fn, (ReduceFunction,), 2)
        if window_function is not None:
            self._check_window_function("reduce", window_function, (ProcessWindowFunction, WindowFunction))
        return self._then(WindowContents.REDUCED, _shown("reduce", fn, window_function), fn, window_function)

    @overload
    def aggregate(self, fn: AggregateFunction[T, Any, V]) -> DataStream[V]: ...
    @overload
    def aggregate(
        self,
        fn: AggregateFunction[T, Any, V],
        window_function: ProcessWindowFunction[K, V, R]
        | WindowFunction[K, V, R]
        | Callable[[K, Any, list[V]], Iterable[R] | None],
    ) -> DataStream[R]: ...
    def aggregate(self, fn: Any, window_function: Any = None) -> DataStream[Any]:
        """Add the records of a window to an accumulator, as they come.

        Args:
            fn: the aggregate function; with windows that merge it needs a ``merge()``.
            window_function: is given the result, with its key and window, and says what to emit; a plain
                callable as ``window_function(key, window, [result])``. None: emit the result.

        Raises:
            GraphError: the windows merge, and ``fn`` has no ``merge()``.
        """
        self._check_aggregate(fn)
        if window_function is not None:
            self._check_window_function("aggregate", window_function, (ProcessWindowFunction, WindowFunction))
        return self._then(WindowContents.AGGREGATED, _shown("aggregate", fn, window_function), fn, window_function)

    def process(
        self,
        fn: ProcessWindowFunction[K, T, R] | Callable[[K, Any, list[T]], Iterable[R] | None],
    ) -> DataStream[R]:
        """Keep all records of a window, and have a function say what to emit for them.

        Args:
            fn: a function object, which can have state and side outputs; or a plain callable,
                ``fn(key, window, elements)``.
        """
        self._check_window_function("process", fn, (ProcessWindowFunction,))
        return self._then(WindowContents.ELEMENTS, _shown("process", fn), window_fn=fn)

    def apply(
        self, fn: WindowFunction[K, T, R] | Callable[[K, Any, list[T]], Iterable[R] | None]
    ) -> DataStream[R]:
        """Keep all records of a window, and have ``fn(key, window, elements)`` say what to emit for them."""
        self._check_window_function("apply", fn, (WindowFunction,))
        return self._then(WindowContents.ELEMENTS, _shown("apply", fn), window_fn=fn)

    def count(self) -> DataStream[tuple[K, int]]:
        """Emit ``(key, number of records)`` for each window."""
        return self._then(WindowContents.AGGREGATED, "count", Count(), with_key=True)

    @overload
    def sum(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def sum(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def sum(self, field: Any = None) -> Any:
        """Emit the sum for each window.

        Args:
            field: none: the records are numbers. An index or name: emits a copy of the window's first record
                with the sum in that field. A callable: emits ``(key, sum of field(value))``.
        """
        return self._sum(field)

    @overload
    def min(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def min(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def min(self, field: Any = None) -> Any:
        """Emit the smallest value for each window; ``field`` as for :meth:`sum`."""
        return self._extreme("min", field)

    @overload
    def max(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def max(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def max(self, field: Any = None) -> Any:
        """Emit the largest value for each window; ``field`` as for :meth:`sum`."""
        return self._extreme("max", field)


class AllWindowedStream(_Windowed[T]):
    """Stream divided into windows over the records of all keys: returned by ``window_all()``.

    One subtask does it all, so it does not scale: where records can be told apart by a key, use ``key_by()``
    and ``window()``. Else as :class:`WindowedStream`, without the key.
    """

    _made_by = "window_all"
    _all_windows = True

    @overload
    def reduce(self, fn: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]: ...
    @overload
    def reduce(
        self,
        fn: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessAllWindowFunction[T, R]
        | AllWindowFunction[T, R]
        | Callable[[Any, list[T]], Iterable[R] | None],
    ) -> DataStream[R]: ...
    def reduce(self, fn: Any, window_function: Any = None) -> DataStream[Any]:
        """Reduce the records of a window to one, as they come.

        Args:
            fn: ``fn(reduced so far, value)``.
            window_function: is given the one record, with its window, and says what to emit; a plain callable
                as ``window_function(window, [reduced])``. None: emit the record.
        """
        check_function("reduce", fn, (ReduceFunction,), 2)
        if window_function is not None:
            self._check_window_function("reduce", window_function, (ProcessAllWindowFunction, AllWindowFunction))
        return self._then(WindowContents.REDUCED, _shown("reduce", fn, window_function), fn, window_function)

    @overload
    def aggregate(self, fn: AggregateFunction[T, Any, V]) -> DataStream[V]: ...
    @overload
    def aggregate(
        self,
        fn: AggregateFunction[T, Any, V],
        window_function: ProcessAllWindowFunction[V, R]
        | AllWindowFunction[V, R]
        | Callable[[Any, list[V]], Iterable[R] | None],
    ) -> DataStream[R]: ...
    def aggregate(self, fn: Any, window_function: Any = None) -> DataStream[Any]:
        """Add the records of a window to an accumulator, as they come.

        Args:
            fn: the aggregate function; with windows that merge it needs a ``merge()``.
            window_function: is given the result, with its window, and says what to emit; a plain callable as
                ``window_function(window, [result])``. None: emit the result.

        Raises:
            GraphError: the windows merge, and ``fn`` has no ``merge()``.
        """
        self._check_aggregate(fn)
        if window_function is not None:
            allowed = (ProcessAllWindowFunction, AllWindowFunction)
            self._check_window_function("aggregate", window_function, allowed)
        return self._then(WindowContents.AGGREGATED, _shown("aggregate", fn, window_function), fn, window_function)

    def process(
        self, fn: ProcessAllWindowFunction[T, R] | Callable[[Any, list[T]], Iterable[R] | None]
    ) -> DataStream[R]:
        """Keep all records of a window, and have a function say what to emit for them.

        Args:
            fn: a function object, which can have state and side outputs; or a plain callable,
                ``fn(window, elements)``.
        """
        self._check_window_function("process", fn, (ProcessAllWindowFunction,))
        return self._then(WindowContents.ELEMENTS, _shown("process", fn), window_fn=fn)

    def apply(self, fn: AllWindowFunction[T, R] | Callable[[Any, list[T]], Iterable[R] | None]) -> DataStream[R]:
        """Keep all records of a window, and have ``fn(window, elements)`` say what to emit for them."""
        self._check_window_function("apply", fn, (AllWindowFunction,))
        return self._then(WindowContents.ELEMENTS, _shown("apply", fn), window_fn=fn)

    def count(self) -> DataStream[int]:
        """Emit the number of records for each window."""
        return self._then(WindowContents.AGGREGATED, "count", Count())

    @overload
    def sum(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def sum(self, field: Callable[[T], V]) -> DataStream[V]: ...
    def sum(self, field: Any = None) -> Any:
        """Emit the sum for each window.

        Args:
            field: none: the records are numbers. An index or name: emits a copy of the window's first record
                with the sum in that field. A callable: emits the sum of ``field(value)``.
        """
        return self._sum(field)

    @overload
    def min(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def min(self, field: Callable[[T], V]) -> DataStream[V]: ...
    def min(self, field: Any = None) -> Any:
        """Emit the smallest value for each window; ``field`` as for :meth:`sum`."""
        return self._extreme("min", field)

    @overload
    def max(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def max(self, field: Callable[[T], V]) -> DataStream[V]: ...
    def max(self, field: Any = None) -> Any:
        """Emit the largest value for each window; ``field`` as for :meth:`sum`."""
        return self._extreme("max", field)


def only_key(value: Any) -> None:
    """Return None, the one key of all records of an unkeyed stream."""


def in_counts(method: str, windowed: Callable[[GlobalWindows], Any], size: int, slide: int | None) -> Any:
    """Return windows of ``size`` records, tumbling or sliding. Raises TypeError, ValueError."""
    check_count(f"{method}() size", size)
    if slide is None:
        return windowed(GlobalWindows()).trigger(PurgingTrigger(CountTrigger(size)))
    check_count(f"{method}() slide", slide)
    # The window never ends: the evictor bounds it.
    return windowed(GlobalWindows()).evictor(CountEvictor(size)).trigger(CountTrigger(slide))


def _check_is(where: str, value: object, kind: type, example: str) -> None:
    if isinstance(value, kind):
        return
    location = caller_location()
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(
            f"{where} at {location} was given the class {value.__name__}; give it an object: {value.__name__}(...)"
        )
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise TypeError(
        f"{where} at {location} takes {article} {kind.__name__}, as in {example}, not {describe(value)}"
    )


def _can_merge(trigger: Trigger) -> bool:
    can_merge: object = trigger.can_merge
    if callable(can_merge):
        raise TypeError(
            f"trigger() at {caller_location()}: can_merge of {type(trigger).__name__}, or of the trigger in it, "
            "is a method, and so always true: make it a property, with @property before it"
        )
    return bool(can_merge)


def _shown(method: str, *functions: object) -> str:
    names = [function_name(fn) for fn in functions if fn is not None]
    named = [name for name in names if not name.endswith("<lambda>")]
    return f"{method}({', '.join(named)})" if named else method
