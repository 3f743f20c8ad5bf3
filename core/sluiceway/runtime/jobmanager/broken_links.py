"""Failures by broken links, held until their reason is known: most often a worker at the other end was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluiceway.graph import ExecutionVertex
from sluiceway.runtime.loop.tasklet import Scheduled

__all__ = ["BrokenLinks"]

_REASON_S: Final = 0.5
"""Seconds after a broken link in which the loss of a worker may still become known as its cause."""


class BrokenLinks:
    """Attempts that have failed by a broken link and are not reported yet. From the job master's thread.

    Args:
        post: calls an action in this thread after a delay in seconds.
        awaits_reason: returns whether the reason is still to come after the delay.
        report: called with the subtask and its failure when no better reason has come.
    """

    def __init__(
        self,
        post: Callable[[Callable[[], None], float], Scheduled],
        awaits_reason: Callable[[], bool],
        report: Callable[[ExecutionVertex, BaseException], None],
    ) -> None:
        self._post = post
        self._awaits_reason = awaits_reason
        self._report = report
        self._held: dict[str, tuple[ExecutionVertex, BaseException]] = {}

    def __bool__(self) -> bool:
        """Return whether a failure is held."""
        return bool(self._held)

    def hold(self, attempt_id: str, vertex: ExecutionVertex, cause: BaseException) -> None:
        """Hold the failure of an attempt, for a time."""
        self._held[attempt_id] = vertex, cause
        self._report_later(attempt_id)

    def report_all(self) -> None:
        """Report all failures now, except while the reason is still to come."""
        for attempt_id in list(self._held):
            self._report_now(attempt_id)

    def drop(self, explained: Callable[[ExecutionVertex], bool]) -> None:
        """Drop the failures of the subtasks for which ``explained`` returns True: they need no reason."""
        self._held = {attempt: held for attempt, held in self._held.items() if not explained(held[0])}

    def clear(self) -> None:
        """Drop all failures."""
        self._held.clear()

    def _report_later(self, attempt_id: str) -> None:
        self._post(lambda: self._report_now(attempt_id), _REASON_S)

    def _report_now(self, attempt_id: str) -> None:
        if attempt_id not in self._held:
            return
        if self._awaits_reason():
            self._report_later(attempt_id)
        else:
            self._report(*self._held.pop(attempt_id))
