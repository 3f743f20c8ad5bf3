"""World of a simulation: virtual time, random choices, and the event queue."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from random import Random

from sluiceway.clock import Clock
from sluiceway.testing.simulation.errors import SimulationError
from sluiceway.testing.simulation.trace import Event, Trace
from sluiceway.util.overriding import override

__all__ = ["SimulatedClock", "World"]


class SimulatedClock(Clock):
    """Clock in whole microseconds, so that rounding does not depend on earlier steps.

    Args:
        start_ms: wall-clock time at the start, ms since the epoch.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self.us = 0

    @override
    def now_ms(self) -> int:
        return self._start_ms + self.us // 1000

    @override
    def monotonic(self) -> float:
        return self.us / 1_000_000

    @override
    def steady_ms(self) -> int:
        return self.us // 1000


class World:
    """Event queue in the order of time; events of the same time are in random order.

    Args:
        seed: decides everything that is left to chance.
        start_ms: wall-clock time at the start, ms since the epoch.
        delay_us: the shortest and the longest time that something is on its way.
        most_steps: turns of all processes together, after which a job that goes on counts as endless.
        most_s: the same in virtual seconds.

    Attributes:
        chance: where every decision comes from.
        step: how many turns the processes have had together.
        before_step: called before each turn, with its number.
        trace: what has happened.
    """

    def __init__(
        self, seed: int, *, start_ms: int, delay_us: tuple[int, int], most_steps: int, most_s: float
    ) -> None:
        self.chance = Random(seed)
        self.clock = SimulatedClock(start_ms)
        self.trace = Trace()
        self.step = 0
        self.before_step: Callable[[int], None] = lambda step: None
        self.broken: SimulationError | None = None
        self._delay_us = delay_us
        self._most_steps = most_steps
        self._most_us = round(most_s * 1_000_000)
        self._events: list[tuple[int, float, int, Callable[[], None]]] = []
        self._count = 0

    def note(self, where: str, what: str) -> None:
        """Add an event to the trace."""
        self.trace.add(Event(self.clock.us, self.step, where, what))

    def delay_us(self) -> int:
        """Return a random delay: mostly short, sometimes long."""
        shortest, longest = self._delay_us
        return shortest + int((longest - shortest) * self.chance.random() ** 3)

    def after(self, us: int, action: Callable[[], None]) -> None:
        """Schedule an action after a number of microseconds."""
        self.at_us(self.clock.us + us, action)

    def at_us(self, us: int, action: Callable[[], None]) -> None:
        """Schedule an action at a time, or at once if the time has passed."""
        self._count += 1
        heapq.heappush(self._events, (max(us, self.clock.us), self.chance.random(), self._count, action))

    def us_of(self, monotonic_s: float) -> int:
        """Return the first microsecond at which the clock has reached a time."""
        us = math.ceil(round(monotonic_s * 1_000_000, 3))
        while us / 1_000_000 < monotonic_s:
            us += 1
        return us

    def run(self, until: Callable[[], bool], for_us: int | None = None) -> bool:
        """Let things happen until ``until()`` holds, for at most so long; whether it does.

        Raises:
            SimulationError: it never will, or something is not as it should be.
        """
        limit = None if for_us is None else self.clock.us + for_us
        while not until():
            self._check()
            if not self._events:
                if limit is None:
                    raise SimulationError("nothing is left that could happen, and the job has not ended")
                self.clock.us = limit
                return until()
            if limit is not None and self._events[0][0] > limit:
                self.clock.us = limit
                return until()
            us, _, _, action = heapq.heappop(self._events)
            self.clock.us = us
            action()
        self._check()
        return True

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.step > self._most_steps:
            raise SimulationError(
                f"the job has not ended after {self._most_steps} steps: does a source never end? Give it a count,"
                " or raise most_steps"
            )
        if self.clock.us > self._most_us:
            raise SimulationError(
                f"the job has not ended within {self._most_us / 1_000_000:g} s of virtual time: nothing wakes it,"
                " or a source never ends. Give that a count, or raise most_s"
            )
