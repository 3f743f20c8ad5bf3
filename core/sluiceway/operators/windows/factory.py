"""Choice of the operator for a window step, and its construction."""

from __future__ import annotations

from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.windows.merging import MergingWindowOperator
from sluiceway.operators.windows.processing_time import (
    SlidingProcessingTimeOperator,
    TumblingProcessingTimeOperator,
)
from sluiceway.operators.windows.sessions import SessionWindowOperator, works_on_sessions
from sluiceway.operators.windows.slice_choice import slices_of
from sluiceway.operators.windows.sliced_window_operator import SlicedWindowOperator
from sluiceway.operators.windows.sliding import SlidingOperator
from sluiceway.operators.windows.tumbling import TumblingOperator
from sluiceway.operators.windows.window_operator import WindowOperator
from sluiceway.steps import WindowStep
from sluiceway.windows.base import MergingWindowAssigner

__all__ = ["make_window_operator", "sliced_operator"]


def make_window_operator(context: OperatorContext) -> Operator:
    """Return the operator for a window step: in slices where possible, else the general one."""
    step = context.node.step
    assert isinstance(step, WindowStep)
    if isinstance(step.assigner, MergingWindowAssigner):
        return (SessionWindowOperator if works_on_sessions(step) else MergingWindowOperator)(context)
    return sliced_operator(context) or WindowOperator(context)


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
