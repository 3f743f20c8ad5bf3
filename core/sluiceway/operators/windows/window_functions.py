"""Calls of window functions of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sluiceway.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowContext,
    WindowFunction,
)
from sluiceway.operators.tagged import splitting
from sluiceway.windows.base import Window

__all__ = ["WindowCall", "caller", "clear_of", "wants_context"]

WindowCall: TypeAlias = Callable[[Any, Window, list[Any]], Any]
"""Window function of a key, a window and its elements."""


def wants_context(function: object) -> bool:
    """Return whether a window function takes more than a key, a window and elements."""
    return isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction)


def clear_of(function: object) -> Callable[[Any], None] | None:
    """Return the function to call with the context when a window is over; None if it would do nothing."""
    for kind in (ProcessWindowFunction, ProcessAllWindowFunction):
        if isinstance(function, kind) and type(function).clear is not kind.clear:
            return function.clear
    return None


def caller(function: Any, ctx: WindowContext | None, all_windows: bool) -> WindowCall | None:
    """Return a caller of a window function; None without one.

    Args:
        function: a window function of any kind.
        ctx: context for a function that takes one.
        all_windows: True for a function of a stream without keys.
    """
    if function is None:
        return None
    call = _caller(function, ctx, all_windows)
    return call if ctx is None else splitting(call, ctx.output)


def _caller(function: Any, ctx: WindowContext | None, all_windows: bool) -> WindowCall:
    if isinstance(function, ProcessWindowFunction):
        process = function.process
        assert ctx is not None
        return lambda key, window, elements: process(key, ctx, elements)
    if isinstance(function, ProcessAllWindowFunction):
        process_all = function.process
        assert ctx is not None
        return lambda key, window, elements: process_all(ctx, elements)
    apply: Callable[..., Any] = (
        function.apply if isinstance(function, WindowFunction | AllWindowFunction) else function
    )
    if all_windows:
        return lambda key, window, elements: apply(window, elements)
    return apply
