"""Choice of slices for a window step: whether its windows can be stored in slices, and in which."""

from __future__ import annotations

from typing import Any

from sluiceway.functions import AggregateFunction
from sluiceway.operators.opened_functions import may_ask_for_state
from sluiceway.operators.windows.slices import Slices
from sluiceway.steps import WindowStep
from sluiceway.windows import (
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["can_merge", "slices_of"]

_MANY_SLICES = 64
"""Most slices of a slide: with more, slices bring no gain."""


def slices_of(step: WindowStep) -> Slices | None:
    """Return the slices in which the step's windows are kept, or None if they need the general operator."""
    assigner: Any = step.assigner
    if step.evictor is not None:
        return None
    if may_ask_for_state(step.fn):
        return None  # operators in slices set no current key while records are added and merged
    if step.trigger is not None and type(step.trigger) is not type(assigner.default_trigger()):
        return None
    # A subclass may assign differently.
    if type(assigner) in (TumblingEventTimeWindows, TumblingProcessingTimeWindows):
        slices = Slices(assigner.size_ms, assigner.size_ms, assigner.offset_ms)
    elif type(assigner) in (SlidingEventTimeWindows, SlidingProcessingTimeWindows):
        slices = Slices(assigner.size_ms, assigner.slide_ms, assigner.offset_ms)
    else:
        return None
    # Sliding windows need slices without gaps, few enough to pay, windows that are evaluated once, and a merge().
    if slices.size != slices.slide and (
        slices.slide > slices.size
        or slices.slide > _MANY_SLICES * slices.width
        or step.allowed_lateness_ms
        or not can_merge(step.fn)
    ):
        return None
    return slices


def can_merge(function: object) -> bool:
    """Return whether what a function has made of some records can be merged with what it has made of others."""
    return not isinstance(function, AggregateFunction) or type(function).merge is not AggregateFunction.merge
