"""Clocks: the system's, and virtual ones for tests."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from sluiceway.util.overriding import override

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class Clock(ABC):
    """Source of time for the runtime. Both methods may be taken from any thread."""

    @abstractmethod
    def now_ms(self) -> int:
        """Wall-clock time in ms since the epoch: processing time."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back: for durations and deadlines."""

    def steady_ms(self) -> int:
        """Whole ms from an arbitrary start, which no step of the wall clock moves.

        For deadlines that are checked among timers of processing time: it stands still where :meth:`now_ms` is
        held.
        """
        return int(self.monotonic() * 1000)


class SystemClock(Clock):
    """The machine's clocks."""

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of :func:`time.monotonic`."""
        return time.monotonic()

    @override
    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class VirtualClock(Clock):
    """A clock that stands still until it is told to go on.

    Args:
        start_ms: the first reading, ms since the epoch.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._start_ms = start_ms
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Return the time it was last set to, ms since the epoch."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds since the start."""
        return (self._now_ms - self._start_ms) / 1000

    @override
    def steady_ms(self) -> int:
        return self._now_ms - self._start_ms

    def advance(self, ms: int) -> int:
        """Go on by ``ms`` and return the new time. Raises ValueError for a step back."""
        if ms < 0:
            raise ValueError(f"a clock cannot go back ({ms} ms)")
        self._now_ms += ms
        return self._now_ms

    def set_wall_clock(self, ms: int) -> None:
        """Set the wall clock forward by ``ms``, or back where negative, as if corrected: no time passes."""
        self._now_ms += ms
        self._start_ms += ms
