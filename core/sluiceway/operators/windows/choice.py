"""Which operator runs which windows."""

from __future__ import annotations

from sluiceway.functions import AggregateFunction
from sluiceway.operators.base import OperatorContext
from sluiceway.operators.windows.sliced import SlicedWindowOperator
from sluiceway.operators.windows.slices import Slices
from sluiceway.operators.windows.sliding import SlidingOperator
from sluiceway.operators.windows.tumbling import TumblingOperator, TumblingProcessingTimeOperator
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.windows import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["sliced_operator"]

_MANY_SLICES = 64
"""A slide that falls into more slices than this gains nothing by them."""


def sliced_operator(context: OperatorContext) -> SlicedWindowOperator | None:
    """The operator that keeps the step's windows in slices, or None if they need the general one."""
    step = context.node.step
    assert isinstance(step, WindowStep)
    assigner = step.assigner
    if step.contents is WindowContents.ELEMENTS or step.window_fn is not None or step.evictor is not None:
        return None
    if step.trigger is not None and type(step.trigger) is not type(assigner.default_trigger()):
        return None
    if type(assigner) is TumblingEventTimeWindows:
        return TumblingOperator(context, Slices(assigner.size_ms, assigner.size_ms, assigner.offset_ms))
    if type(assigner) is TumblingProcessingTimeWindows:
        slices = Slices(assigner.size_ms, assigner.size_ms, assigner.offset_ms)
        return TumblingProcessingTimeOperator(context, slices)
    if type(assigner) is not SlidingEventTimeWindows:
        return None
    slices = Slices(assigner.size_ms, assigner.slide_ms, assigner.offset_ms)
    if slices.size == slices.slide:
        return TumblingOperator(context, slices)
    if (
        slices.slide > slices.size
        or slices.slide > _MANY_SLICES * slices.width
        or step.allowed_lateness_ms
        or not _can_merge(step.fn)
    ):
        return None
    return SlidingOperator(context, slices)


def _can_merge(function: object) -> bool:
    return not isinstance(function, AggregateFunction) or type(function).merge is not AggregateFunction.merge
