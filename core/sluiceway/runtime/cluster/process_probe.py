"""Probe of this process: figures at most once a second, and thread dumps, for those who ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluiceway.clock import Clock
from sluiceway.monitoring.processes import ProcessFigures, ThreadDump
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.taskmanager.process_meter import ProcessMeter
from sluiceway.runtime.taskmanager.thread_dump import dump_threads

__all__ = ["ProcessProbe"]

_FRESH_S: Final = 1.0
_STALE_S: Final = 30.0
"""Seconds after which the CPU share since the last figures is too old to describe the present."""
_FIRST_S: Final = 0.2


class ProcessProbe:
    """Probe of this process. From the loop's thread only.

    Args:
        name: name of the process.
        loop: for the end of the first interval.
        clock: the machine's.
    """

    def __init__(self, name: str, loop: TaskletLoop, clock: Clock) -> None:
        self._name = name
        self._loop = loop
        self._clock = clock
        self._meter = ProcessMeter(name, clock)
        self._last: ProcessFigures | None = None
        self._taken = float("-inf")
        self._waiting: list[Callable[[ProcessFigures], None]] = []

    def figures(self, done: Callable[[ProcessFigures], None]) -> None:
        """Call ``done`` with figures no older than a second; after a first interval of 0.2 s if need be."""
        age = self._clock.monotonic() - self._taken
        if self._last is not None and age < _FRESH_S:
            done(self._last)
        # An interval is being measured: its figures are for all who wait.
        elif self._waiting:
            self._waiting.append(done)
        # The time since the last figures is the interval.
        elif age < _STALE_S:
            done(self._take())
        else:
            self._meter.begin()
            self._waiting.append(done)
            self._loop.at(self._clock.monotonic() + _FIRST_S, self._end_interval)

    def threads(self) -> ThreadDump:
        """Return the stacks of the threads of this process."""
        return dump_threads(self._name, self._clock)

    def close(self) -> None:
        """Stop measuring."""
        self._waiting.clear()
        self._meter.close()

    def _end_interval(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            figures = self._take()
            for done in waiting:
                done(figures)

    def _take(self) -> ProcessFigures:
        self._last = self._meter.take()
        self._taken = self._clock.monotonic()
        return self._last
