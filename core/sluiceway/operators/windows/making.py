"""Construction of the operator of a window step."""

from __future__ import annotations

from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.windows.factory import sliced_operator
from sluiceway.operators.windows.merging import MergingWindowOperator
from sluiceway.operators.windows.sessions import SessionWindowOperator, works_on_sessions
from sluiceway.operators.windows.window_operator import WindowOperator
from sluiceway.steps import WindowStep
from sluiceway.windows.base import MergingWindowAssigner

__all__ = ["make_window_operator"]


def make_window_operator(context: OperatorContext) -> Operator:
    """Return the operator for a window step: in slices where possible, else the general one."""
    step = context.node.step
    assert isinstance(step, WindowStep)
    if isinstance(step.assigner, MergingWindowAssigner):
        return (SessionWindowOperator if works_on_sessions(step) else MergingWindowOperator)(context)
    return sliced_operator(context) or WindowOperator(context)
