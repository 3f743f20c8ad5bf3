"""Flink's names for ``async_map``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar, overload

from sluiceway.api.arguments import describe
from sluiceway.api.async_arguments import async_step
from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.functions import AsyncFunction, AsyncRetryStrategy

__all__ = ["AsyncDataStream"]

T = TypeVar("T")
R = TypeVar("R")


class AsyncDataStream:
    """Static methods that call :meth:`DataStream.async_map` under Flink's names."""

    @overload
    @staticmethod
    def ordered_wait(
        stream: DataStream[T],
        fn: AsyncFunction[T, R],
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    @overload
    @staticmethod
    def ordered_wait(
        stream: DataStream[T],
        fn: Callable[[T], Coroutine[Any, Any, R]],
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    @staticmethod
    def ordered_wait(
        stream: DataStream[Any],
        fn: Any,
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[Any]:
        """Emit results in the order of the records: ``stream.async_map(fn, ordered=True, ...)``.

        Arguments and errors are those of :meth:`DataStream.async_map`; ``timeout=None`` is for no limit.
        """
        return _wait("ordered_wait", stream, fn, timeout, capacity, True, retry)

    @overload
    @staticmethod
    def unordered_wait(
        stream: DataStream[T],
        fn: AsyncFunction[T, R],
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    @overload
    @staticmethod
    def unordered_wait(
        stream: DataStream[T],
        fn: Callable[[T], Coroutine[Any, Any, R]],
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    @staticmethod
    def unordered_wait(
        stream: DataStream[Any],
        fn: Any,
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[Any]:
        """Emit results as they complete, none past a watermark: ``stream.async_map(fn, ordered=False, ...)``.

        Arguments and errors are those of :meth:`DataStream.async_map`; ``timeout=None`` is for no limit.
        """
        return _wait("unordered_wait", stream, fn, timeout, capacity, False, retry)


def _wait(
    method: str, stream: object, fn: Any, timeout: Any, capacity: Any, ordered: bool, retry: Any
) -> DataStream[Any]:
    if not isinstance(stream, DataStream):
        raise TypeError(f"{method}() at {caller_location()} takes a stream first, not {describe(stream)}")
    return stream._then(async_step(method, fn, timeout, capacity, ordered, retry), method)
