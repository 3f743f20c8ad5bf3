"""Checks of the arguments of ``async_map``."""

from __future__ import annotations

import inspect
from typing import Any

from sluiceway.api.arguments import check_arity, check_count, check_function, check_methods, describe
from sluiceway.api.location import caller_location
from sluiceway.config.options import duration_ms
from sluiceway.functions import AsyncFunction, AsyncRetryStrategy
from sluiceway.steps import AsyncStep

__all__ = ["async_step"]


def async_step(method: str, fn: Any, timeout: Any, capacity: Any, ordered: bool, retry: Any) -> AsyncStep:
    """Check the arguments of an asynchronous step and return the step.

    Args:
        method: the method that the user called, for messages.
        fn: an AsyncFunction or a coroutine function.
        timeout: a duration, or None.
        capacity: at least 1.
        ordered: whether results keep the order of the records.
        retry: a retry strategy, or None.

    Raises:
        TypeError: something of the wrong type.
        ValueError: a number or a duration is too small.
    """
    where = f"{method}() at {caller_location()}"
    _check_async(method, where, fn)
    if retry is not None and not isinstance(retry, AsyncRetryStrategy):
        raise TypeError(
            f"{where}: retry takes a strategy, as in AsyncRetryStrategy.fixed_delay(3, '100ms'), not "
            f"{describe(retry)}"
        )
    if not isinstance(ordered, bool):
        raise TypeError(f"{where}: ordered is True or False, not {describe(ordered)}")
    count = check_count(f"{method}(capacity=)", capacity)
    return AsyncStep(fn, _timeout_ms(where, timeout), count, ordered, retry)


def _check_async(method: str, where: str, fn: Any) -> None:
    if isinstance(fn, AsyncFunction):
        if not inspect.iscoroutinefunction(fn.async_invoke):
            raise TypeError(
                f"{where}: {type(fn).__name__}.async_invoke is not a coroutine function: declare it as "
                "'async def async_invoke(self, value)' and return an iterable of results"
            )
        for name in ("open", "close"):
            if not inspect.iscoroutinefunction(getattr(fn, name)):
                raise TypeError(f"{where}: declare {type(fn).__name__}.{name} as 'async def': it is awaited")
        check_methods(where, fn)
        return
    called = getattr(fn, "__call__", fn)  # noqa: B004 (an object with an "async def __call__")
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called):
        check_arity(where, fn, 1)
        return
    if inspect.isasyncgenfunction(fn) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"{where} was given an async generator; for any number of results give it an AsyncFunction, whose "
            "async_invoke() returns a list"
        )
    check_function(method, fn, (AsyncFunction,), 1)
    name = getattr(fn, "__qualname__", type(fn).__name__)
    raise TypeError(
        f"{where} takes an async function (async def) or an AsyncFunction; {name} is a plain function: declare it "
        "as 'async def', or use map() if it waits for nothing"
    )


def _timeout_ms(where: str, timeout: Any) -> int | None:
    if timeout is None:
        return None
    try:
        ms = duration_ms(timeout)
    except ValueError as error:
        raise ValueError(f"{where}: timeout: {error}; None is for no limit") from None
    if ms < 1:
        raise ValueError(f"{where}: timeout must be at least 1 ms, not {timeout!r}; None is for no limit")
    return ms
