"""Tasks that stand still until they hear of a checkpoint are told again, should they not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sluiceway.runtime.loop.tasklet import Scheduled

__all__ = ["NotificationRetry"]

_EVERY_S: Final = 5.0
_MOST: Final = 20


class NotificationRetry:
    """Says again what has become of a checkpoint, to those who have not done anything since.

    Args:
        later: has something called in this thread after a delay in seconds.
        tell: tells attempts that a checkpoint is complete, or is given up.
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
        """They have been told now, and are to end, or to go on."""
        self._waiting.update(dict.fromkeys(sorted(attempts), (checkpoint_id, completed)))
        self._left = _MOST
        self._ask()

    def heard_from(self, attempt: str, checkpoint_id: int | None = None) -> None:
        """An attempt has ended, or does its part of a checkpoint."""
        if attempt not in self._waiting:
            return
        told, completed = self._waiting[attempt]
        # Who waits to end may have done its part of a later one before; who was to go on shows by it that it has.
        if checkpoint_id is None or (not completed and checkpoint_id > told):
            del self._waiting[attempt]
            if not self._waiting:
                self.stop()

    def stop(self) -> None:
        """Remind nobody any more."""
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
