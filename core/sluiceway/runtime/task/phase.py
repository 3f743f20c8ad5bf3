"""Phases of a task and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["TRANSITIONS", "Phase"]


class Phase(Enum):
    """Phase of a task, which decides what a step of it does."""

    NEW = "new"
    """Restore state and open the operators."""
    RUNNING = "running"
    """Process elements and take checkpoints."""
    FINISHING = "finishing"
    """Finish the operators: the input has ended."""
    AWAITING_FINAL_CHECKPOINT = "awaiting the final checkpoint"
    """Take part in checkpoints until one is complete that holds the state at the end of the input."""
    SUSPENDED_FOR_SAVEPOINT = "suspended for the savepoint that the job ends with"
    """Process nothing until that savepoint is complete or aborted: its successor would process it again."""
    DRAINING = "draining"
    """Wait until sinks and loops have passed on everything."""
    ENDED = "ended"
    """Closed; does nothing any more."""


TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.NEW: frozenset({Phase.RUNNING}),
    # Directly to the last two if the restored state is that of a finished task.
    Phase.RUNNING: frozenset(
        {Phase.FINISHING, Phase.SUSPENDED_FOR_SAVEPOINT, Phase.AWAITING_FINAL_CHECKPOINT, Phase.DRAINING}
    ),
    Phase.SUSPENDED_FOR_SAVEPOINT: frozenset({Phase.RUNNING, Phase.DRAINING}),
    Phase.FINISHING: frozenset({Phase.AWAITING_FINAL_CHECKPOINT, Phase.DRAINING}),
    Phase.AWAITING_FINAL_CHECKPOINT: frozenset({Phase.DRAINING}),
    Phase.DRAINING: frozenset(),
    Phase.ENDED: frozenset(),
}
"""Phases that may follow each phase; ENDED may follow any, after a failure or a cancellation."""
