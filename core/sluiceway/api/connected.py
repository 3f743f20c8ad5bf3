"""Two streams of different types that one step reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from sluiceway.api.arguments import check_function
from sluiceway.api.keyed import KeyedStream
from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.api.unknown_names import answer
from sluiceway.errors import GraphError
from sluiceway.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
)
from sluiceway.steps import CoFlatMapStep, CoMapStep, CoProcessStep, PerInput, Step

__all__ = ["ConnectedStreams"]

T1 = TypeVar("T1")
T2 = TypeVar("T2")
R = TypeVar("R")
S = TypeVar("S")
K = TypeVar("K")


class ConnectedStreams(Generic[T1, T2]):
    """Two streams that the next step reads together; returned by :meth:`DataStream.connect`.

    Every step here takes one function object with a method per stream, or two callables, the first for the
    records of the first stream. Nothing says in which order records of different streams come; the watermark
    is the lower one of both.

    The step has state and timers per key if both streams are keyed; then records of both with equal keys meet.
    """

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def key_by(
        self,
        key1: Callable[[T1], K] | KeySelector[T1, K],
        key2: Callable[[T2], K] | KeySelector[T2, K],
    ) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key, so that records with equal keys meet; see :meth:`DataStream.key_by`.

        Args:
            key1: computes the key of a record of the first stream.
            key2: the same for the second; both must return the same type.
        """
        return ConnectedStreams(self._first.key_by(key1), self._second.key_by(key2))

    @overload
    def map(self, fn: CoMapFunction[T1, T2, R], /) -> DataStream[R]: ...
    @overload
    def map(self, fn1: Callable[[T1], R], fn2: Callable[[T2], S], /) -> DataStream[R | S]: ...
    def map(self, *fns: Any) -> DataStream[Any]:
        """Emit one record per record: ``map1(value)`` or ``map2(value)``; or ``fn1(value)`` or ``fn2(value)``."""
        return self._then(CoMapStep, "map", fns, (CoMapFunction,), 1)

    @overload
    def flat_map(self, fn: CoFlatMapFunction[T1, T2, R], /) -> DataStream[R]: ...
    @overload
    def flat_map(
        self, fn1: Callable[[T1], Iterable[R]], fn2: Callable[[T2], Iterable[S]], /
    ) -> DataStream[R | S]: ...
    def flat_map(self, *fns: Any) -> DataStream[Any]:
        """Emit the elements of the iterable that ``flat_map1`` or ``flat_map2`` returns for each record."""
        return self._then(CoFlatMapStep, "flat_map", fns, (CoFlatMapFunction,), 1)

    @overload
    def process(
        self, fn: CoProcessFunction[T1, T2, R] | KeyedCoProcessFunction[Any, T1, T2, R], /
    ) -> DataStream[R]: ...
    @overload
    def process(
        self,
        fn1: Callable[[T1, KeyedProcessFunction.Context], Iterable[R] | None],
        fn2: Callable[[T2, KeyedProcessFunction.Context], Iterable[S] | None],
        /,
    ) -> DataStream[R | S]: ...
    def process(self, *fns: Any) -> DataStream[Any]:
        """Emit any records, also to side outputs: ``process_element1(value, ctx)`` or ``process_element2``.

        A :class:`KeyedCoProcessFunction` needs keyed streams; it has timers, and its context knows the key.
        """
        kinds: tuple[type, ...] = (CoProcessFunction, KeyedCoProcessFunction)
        if len(fns) == 1 and isinstance(fns[0], KeyedCoProcessFunction) and (missing := self._not_keyed()):
            raise GraphError(
                f"process() at {caller_location()}: {type(fns[0]).__name__} is a KeyedCoProcessFunction, but "
                f"{missing} not keyed: call key_by(key1, key2) before process(), or make it a CoProcessFunction"
            )
        return self._then(CoProcessStep, "process", fns, kinds, 2)

    # ---- inside -------------------------------------------------------------------------------------------

    def _keys(self) -> tuple[Any, Any] | None:
        """Return the key selectors of both streams, or None unless both are keyed."""
        first, second = self._first, self._second
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            return first._key, second._key
        return None

    def _not_keyed(self) -> str:
        """Return the subject of a message that names the unkeyed streams, or an empty str."""
        first, second = (isinstance(s, KeyedStream) for s in (self._first, self._second))
        if first or second:
            return "" if first and second else f"the {'second' if first else 'first'} stream is"
        return "the streams are"

    def _then(
        self, step: Callable[..., Step], word: str, fns: tuple[Any, ...], kinds: tuple[type, ...], arguments: int
    ) -> DataStream[Any]:
        fn = _function_of(word, fns, kinds, arguments)
        return self._first._then_with(self._second, step(fn, *(self._keys() or ())), word)

    def __repr__(self) -> str:
        return f"<ConnectedStreams of {self._first!r} and {self._second!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name)


def _function_of(word: str, fns: tuple[Any, ...], kinds: tuple[type, ...], arguments: int) -> Any:
    """Return the function of a step: an object, or a pair of callables. Raises TypeError for anything else."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if len(fns) == 2:
        for fn in fns:
            if isinstance(fn, kinds):
                raise TypeError(
                    f"{word}() at {caller_location()}: {type(fn).__name__} has a method for each of both streams, "
                    f"so give it alone: {word}(function)"
                )
            check_function(word, fn, (), arguments)
        return PerInput(*fns)
    if len(fns) != 1:
        raise TypeError(
            f"{word}() at {caller_location()} takes a {wanted}, or two callables, one per stream; it was given "
            f"{len(fns)} arguments"
        )
    (fn,) = fns
    if callable(fn) and not isinstance(fn, type | Function):
        raise TypeError(
            f"{word}() at {caller_location()} was given one callable for two streams: give it one for each, "
            f"{word}(fn1, fn2), or a {wanted}"
        )
    check_function(word, fn, kinds, arguments, objects_only=True)
    return fn
