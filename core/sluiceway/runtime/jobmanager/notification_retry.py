"""Retry of notifications to tasks that are blocked on a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sluiceway.runtime.loop.tasklet import Scheduled

__all__ = ["NotificationRetry"]

# Reminders for 100 s after a notification.
_EVERY_S: Final = 5.0
_MOST: Final = 20


class NotificationRetry:
    """Re-sender of notifications to attempts that have shown no reaction.

    Args:
        later: calls an action in this thread after a delay in seconds.
        tell: notifies attempts that a checkpoint is complete, or was aborted.
    """

    def __init__(
        self,
        later: Callable[[Callable[[], None], float], Scheduled],
        tell: Callable[[list[str], int, bool], None],
    ) -> None:
        self._later = later
        self._tell = tell
        self._waiting: dict[str, tuple[int, bool]] = {}
        self._left = 0
        self._timer: Scheduled | None = None

    def expect(self, attempts: Iterable[str], checkpoint_id: int, *, completed: bool) -> None:
        """Record notified attempts, which are expected to end, or to continue."""
        self._waiting.update(dict.fromkeys(sorted(attempts), (checkpoint_id, completed)))
        # Notifications may be lost with a connection, and the tasks would wait for ever.
        self._left = _MOST
        self._ask()

    def heard_from(self, attempt: str, checkpoint_id: int | None = None) -> None:
        """Record the reaction of an attempt: it has ended, or takes part in a checkpoint."""
        if attempt not in self._waiting:
            return
        told, completed = self._waiting[attempt]
        # A task that waits to end may have acknowledged a later checkpoint before; one that was to continue proves
        # by it that it has.
        if checkpoint_id is None or (not completed and checkpoint_id > told):
            del self._waiting[attempt]
            if not self._waiting:
                self.stop()

    def stop(self) -> None:
        """Stop all retries."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        if self._waiting and self._left and self._timer is None:
            self._timer = self._later(self._remind, _EVERY_S)

    def _remind(self) -> None:
        self._timer = None
        self._left -= 1
        by_checkpoint: dict[tuple[int, bool], list[str]] = {}
        for attempt, what in self._waiting.items():
            by_checkpoint.setdefault(what, []).append(attempt)
        for (checkpoint_id, completed), attempts in by_checkpoint.items():
            self._tell(attempts, checkpoint_id, completed)
        self._ask()
