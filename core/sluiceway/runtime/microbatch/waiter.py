"""Blocking wait for one reader."""

from __future__ import annotations

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.runtime.loop.poller import SelectorPoller

__all__ = ["Waiter"]


class Waiter:
    """Blocking wait for the file descriptor, the time or the wake-up that a reader waits for.

    Args:
        clock: clock of the reader.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._poller = SelectorPoller()
        self._woken = False

    def wake(self) -> None:
        """End the current sleep, or the next one. May be called from any thread."""
        self._woken = True
        self._poller.wake()

    def sleep(self, wait: Wait, until: float) -> bool:
        """Sleep at most until ``clock.monotonic()`` reaches ``until``; return whether to poll the reader again."""
        ready: list[bool] = []
        ends = until if wait.until is None else min(until, wait.until)
        if wait.fileno is not None:
            self._poller.watch(self, wait, lambda: ready.append(True))
        try:
            while not (ready or self._woken):
                now = self._clock.monotonic()
                if now >= ends:
                    return wait.until is not None and now >= wait.until
                self._poller.poll(ends - now)
        finally:
            self._poller.forget(self)
        self._woken = False
        return True

    def close(self) -> None:
        """Close the poller."""
        self._poller.close()
