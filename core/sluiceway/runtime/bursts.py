"""What time has made due in a chain, a part at a time, between which there may be a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from sluiceway.clock import Clock
from sluiceway.elements import Batch
from sluiceway.operators import Operator, TimedOperator
from sluiceway.runtime.inputs import TaskInput
from sluiceway.runtime.taskcheckpoints import TaskCheckpoints

__all__ = ["Concerned", "concerned", "interruptible", "look_for_barrier", "part_of", "seconds_to"]

Concerned: TypeAlias = "tuple[int, Operator, TimedOperator | None]"
"""An operator with its place in the chain, from the tail, and again if it has timers."""


def concerned(backward: Sequence[Operator]) -> list[Concerned]:
    """The operators to be asked before each batch: most have neither timers nor an outside.

    Args:
        backward: the chain from its tail.
    """
    found: list[Concerned] = []
    for index, operator in enumerate(backward):
        timed = operator if isinstance(operator, TimedOperator) else None
        if timed is not None or type(operator).blocked is not Operator.blocked:
            found.append((index, operator, timed))
    return found


def part_of(operator: TimedOperator, clock: Clock) -> Callable[[], None] | None:
    """The next part of what an operator has to do before it is given anything; None: it has nothing to do."""
    if operator.has_work:
        return operator.work
    due = operator.next_processing_time()
    if due is not None and due <= (now_ms := clock.now_ms()):
        return partial(operator.on_processing_time, now_ms)
    return None


def seconds_to(operators: Iterable[Operator], clock: Clock) -> float | None:
    """How long it is until time has come for one of the operators; None: that is not known."""
    times = [o.next_processing_time() for o in operators if isinstance(o, TimedOperator)]
    first = min((at for at in times if at is not None), default=None)
    return None if first is None else max(0, first - clock.now_ms()) / 1000


def interruptible(timed: Iterable[TimedOperator]) -> bool:
    """Whether a checkpoint may be taken before what they have begun is over."""
    return all(operator.interruptible for operator in timed if operator.has_work)


def look_for_barrier(source: TaskInput, checkpoints: TaskCheckpoints) -> Batch[Any] | None:
    """Take the barrier that comes next, or hear that none will come; a batch that is in front of it, or None."""
    element = source.look_ahead()
    if element is None or isinstance(element, Batch):
        return element
    checkpoints.came(element)
    return None
