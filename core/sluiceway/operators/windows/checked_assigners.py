"""Checks of the windows that users' own assigners return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sluiceway.errors import FunctionContractError
from sluiceway.util.instants import instant_ms
from sluiceway.windows.base import (
    AssignerContext,
    GlobalWindow,
    MergingWindowAssigner,
    TimeWindow,
    Window,
    WindowAssigner,
)

__all__ = ["assign_by"]

Assign: TypeAlias = Callable[[Any, int, AssignerContext], Sequence[Window]]


def assign_by(assigner: WindowAssigner, step: str) -> Assign:
    """Return the assigner's method ``assign``, with a check of its results.

    Args:
        assigner: the assigner; built-in ones are not checked.
        step: name of the step, for messages.

    Raises:
        FunctionContractError: by the returned function, for a result that is no sequence of windows.
    """
    if type(assigner).__module__.startswith("sluiceway.windows."):
        return assigner.assign
    merges = isinstance(assigner, MergingWindowAssigner)

    def assign(value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        given: Any = assigner.assign(value, timestamp, context)
        if isinstance(given, TimeWindow) or not isinstance(given, Sequence):
            raise _wrong(assigner, step, given, "a list of windows, which may be empty")
        other = False
        for window in given:
            if isinstance(window, TimeWindow):
                if not (type(window.start) is type(window.end) is int and window.start < window.end):
                    other = True
            elif merges or not isinstance(window, GlobalWindow):
                kind = "TimeWindow" if merges else "TimeWindow or GlobalWindow"
                raise _wrong(assigner, step, window, f"windows of type {kind}")
        return [converted(window) for window in given] if other else given

    def converted(window: Window) -> Window:
        if not isinstance(window, TimeWindow):
            return window
        try:
            exact = TimeWindow(instant_ms(window.start), instant_ms(window.end))
        except ValueError as error:
            hint = f"; {error}" if str(error) else ""
            raise _wrong(assigner, step, window, f"windows from one ms, an int, to a later one{hint}") from None
        if exact.start >= exact.end:
            raise _wrong(assigner, step, window, "windows from one ms, an int, to a later one")
        return exact

    return assign


def _wrong(assigner: WindowAssigner, step: str, given: object, wanted: str) -> FunctionContractError:
    return FunctionContractError(
        f"{type(assigner).__name__}.assign() of step {step!r} gave {given!r:.80} ({type(given).__name__}); "
        f"it must return {wanted}"
    )
