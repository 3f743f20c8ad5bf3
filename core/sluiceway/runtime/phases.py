"""Where a task is in its life."""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """Each step of the task does what its phase says."""

    NEW = "new"
    RUNNING = "running"
    FINISHING = "finishing"
    AWAITING = "awaiting the final checkpoint"
    STANDING = "standing still until the savepoint is complete that the job ends with"
    DRAINING = "draining"
    ENDED = "ended"
