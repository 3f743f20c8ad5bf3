"""Context of a log line: the tasklet whose step, coroutine or thread is running."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["LogOrigin", "TaskFields", "stepping"]


class TaskFields(msgspec.Struct, frozen=True):
    """Fields of a log line of a task.

    Attributes:
        job: id of the job.
        operator: name of the step; of the chain, where the step is not known.
        subtask: its index, from 0.
        parallelism: number of subtasks.
        attempt: number of the attempt, from 0.
    """

    job: str
    operator: str
    subtask: int
    parallelism: int
    attempt: int


@runtime_checkable
class LogOrigin(Protocol):
    """Tasklet whose log lines carry fields."""

    def log_fields(self, operator: str | None) -> TaskFields:
        """Return the fields of a line.

        Args:
            operator: name of the step in whose loop the line was logged; None: it is in no loop of a step.
        """
        ...


stepping: ContextVar[object | None] = ContextVar("sluiceway_stepping", default=None)
"""The tasklet whose step, coroutine or thread is under way in this context; None: none is."""
