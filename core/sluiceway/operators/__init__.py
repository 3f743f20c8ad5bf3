"""Operators: one class per kind of step, with keyed state, timers and generated loops."""

from sluiceway.operators.async_calls import Call, CallCancelledError, Calls, Ended
from sluiceway.operators.base import Operator, Output, TimedOperator
from sluiceway.operators.build import build_operators, copied_function, own_copy
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.feedback import IterationHeadOperator
from sluiceway.operators.sink import SinkOperator
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.timestamps import TimestampsOperator
from sluiceway.operators.watermarking import GeneratorWatch, Stamper

__all__ = [
    "Call",
    "CallCancelledError",
    "Calls",
    "Ended",
    "GeneratorWatch",
    "IterationHeadOperator",
    "Operator",
    "OperatorContext",
    "OperatorSnapshot",
    "Output",
    "SinkOperator",
    "Stamper",
    "TimedOperator",
    "TimestampsOperator",
    "build_operators",
    "copied_function",
    "own_copy",
]
