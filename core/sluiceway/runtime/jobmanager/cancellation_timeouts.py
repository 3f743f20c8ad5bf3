"""Limits on the time that tasks take to end once they are cancelled."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sluiceway.runtime.loop.tasklet import Scheduled

__all__ = ["CancellationTimeouts", "LateTask"]


class LateTask(msgspec.Struct, frozen=True):
    """Task that has not ended within the limit after it was cancelled.

    Attributes:
        worker: name of its worker.
        name: name of the task, as ``'map(enrich)', subtask 1``.
        limit_s: the limit in seconds.
        ended: returns whether it has ended by now.
    """

    worker: str
    name: str
    limit_s: float
    ended: Callable[[], bool]


class CancellationTimeouts:
    """Timers of the tasks of a job that are being cancelled. From the job master's thread.

    Args:
        post: calls an action after a number of seconds.
        limit_s: the limit in seconds.
        late: called for each task that exceeds the limit; None: nothing can end it, and it has no limit.
    """

    def __init__(
        self,
        post: Callable[[Callable[[], None], float], Scheduled],
        limit_s: float,
        late: Callable[[LateTask], None] | None,
    ) -> None:
        self._post = post
        self._limit_s = limit_s
        self._late = late
        self._open: dict[str, tuple[Scheduled, str, str, Callable[[], bool]]] = {}

    def begin(self, attempt: str, worker: str, name: str, ended: Callable[[], bool]) -> None:
        """Start the timer of an attempt that is cancelled now; see :class:`LateTask` for the arguments."""
        if self._late is not None:
            timer = self._post(lambda: self._check(attempt), self._limit_s)
            self._open[attempt] = timer, worker, name, ended

    def ended(self, attempt: str) -> None:
        """Stop the timer of an attempt that has ended."""
        if attempt in self._open:
            self._open.pop(attempt)[0].cancel()

    def shorten(self, limit_s: float) -> None:
        """Lower the limit: to ``limit_s`` from now for tasks that are being cancelled already."""
        if limit_s < self._limit_s:
            self._limit_s = limit_s
            for attempt, (timer, worker, name, ended) in list(self._open.items()):
                timer.cancel()
                self.begin(attempt, worker, name, ended)

    def stop(self) -> None:
        """Stop all timers."""
        for attempt in list(self._open):
            self.ended(attempt)

    def _check(self, attempt: str) -> None:
        _, worker, name, ended = self._open.pop(attempt)
        if self._late is not None and not ended():
            self._late(LateTask(worker, name, self._limit_s, ended))
