"""Choice of the operator for a window step."""

from __future__ import annotations

from typing import Any

from sluiceway.functions import AggregateFunction
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.opened import may_ask_for_state
from sluiceway.operators.windows.sliced import SlicedWindowOperator
from sluiceway.operators.windows.slices import Slices
from sluiceway.operators.windows.sliding import SlidingOperator
from sluiceway.operators.windows.tumbling import TumblingOperator
from sluiceway.operators.windows.wallclock import SlidingProcessingTimeOperator, TumblingProcessingTimeOperator
from sluiceway.steps import WindowStep
from sluiceway.windows import (
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["sliced_operator", "slices_of"]

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
        or not _can_merge(step.fn)
    ):
        return None
    return slices


def sliced_operator(context: OperatorContext) -> SlicedWindowOperator | None:
    """Return the operator that stores the step's windows in slices, or None if they need the general one."""
    step = context.node.step
    assert isinstance(step, WindowStep)
    slices = slices_of(step)
    if slices is None:
        return None
    if slices.size == slices.slide:
        return (TumblingOperator if step.event_time else TumblingProcessingTimeOperator)(context, slices)
    return (SlidingOperator if step.event_time else SlidingProcessingTimeOperator)(context, slices)


def _can_merge(function: object) -> bool:
    return not isinstance(function, AggregateFunction) or type(function).merge is not AggregateFunction.merge
