"""The steps at work: operators take elements and give them on, one chain of them per task."""

from sluiceway.operators.base import Operator, OperatorContext, OperatorSnapshot, Output, TimedOperator
from sluiceway.operators.build import build_operators, own_copy
from sluiceway.operators.calls import Call, CallCancelledError, Calls, Ended
from sluiceway.operators.feedback import IterationHeadOperator
from sluiceway.operators.sink import SinkOperator

__all__ = [
    "Call",
    "CallCancelledError",
    "Calls",
    "Ended",
    "IterationHeadOperator",
    "Operator",
    "OperatorContext",
    "OperatorSnapshot",
    "Output",
    "SinkOperator",
    "TimedOperator",
    "build_operators",
    "own_copy",
]
