"""How window functions of any kind are called."""

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
from sluiceway.operators.tagged import may_yield_tags, splitting
from sluiceway.windows.base import Window

__all__ = ["WindowCall", "caller", "clear_of", "wants_context"]

WindowCall: TypeAlias = Callable[[Any, Window, list[Any]], Any]
"""With a key, a window and its elements."""


def wants_context(function: object) -> bool:
    """Whether it is given more than a key, a window and elements."""
    return isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction)


def clear_of(function: object) -> Callable[[Any], None] | None:
    """What is called with the context when a window is over; None where that would do nothing."""
    for kind in (ProcessWindowFunction, ProcessAllWindowFunction):
        if isinstance(function, kind) and type(function).clear is not kind.clear:
            return function.clear
    return None


def caller(function: Any, ctx: WindowContext | None, all_windows: bool) -> WindowCall | None:
    """How to call a window function; None where there is none.

    Args:
        function: of any kind.
        ctx: for one that wants it.
        all_windows: whether it is one for streams without keys.
    """
    if function is None:
        return None
    call = _caller(function, ctx, all_windows)
    return splitting(call, ctx.output) if ctx is not None and may_yield_tags(function) else call


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
