"""Process of a simulation: its loop has a turn when the world schedules it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.operators import Calls
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.poller import Poller
from sluiceway.runtime.loop.tasklet import Scheduled, Tasklet, TaskletLoop
from sluiceway.runtime.task.task import Task
from sluiceway.testing.simulation.errors import SimulationError
from sluiceway.testing.simulation.world import World
from sluiceway.util.overriding import override

__all__ = ["NoEventLoop", "Node", "SimulatedLoop", "SimulatedPoller"]

_SHORTEST_STEP_US: Final = 5
_LONGEST_STEP_US: Final = 300


class Node:
    """Process of the simulated world.

    Args:
        world: world of the process.
        name: its name.

    Attributes:
        alive: whether it has not ended.
        hung_until_us: virtual time before which it has no turn.
        waits_inside: it is in a turn, and waits in it for an event of the world.
        on_turn: called after each turn.
        on_end: called when it ends, for any reason.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.hung_until_us = 0
        self.waits_inside = False
        self.on_turn: Callable[[], None] = lambda: None
        self.on_end: list[Callable[[bool], None]] = []
        self.poller = SimulatedPoller(self)
        self.loop = SimulatedLoop(self, world.clock, self.poller)
        # Some processes are slow, in some runs.
        self._slowness = world.chance.choice((1, 1, 1, 4, 20))
        self._turn_comes = False
        self._wakes_at: int | None = None

    @property
    def hung(self) -> bool:
        """True while it hangs."""
        return self.world.clock.us < self.hung_until_us

    def stir(self) -> None:
        """Schedule a turn."""
        if self.alive and not self._turn_comes:
            self._turn_comes = True
            chance = self.world.chance.random()
            took = _SHORTEST_STEP_US + int((_LONGEST_STEP_US - _SHORTEST_STEP_US) * chance**4)
            self.world.after(took * self._slowness, self._turn)

    def end(self, cleanly: bool) -> None:
        """End the process: in order, or at once."""
        if self.alive:
            self.alive = False
            for told in self.on_end:
                told(cleanly)

    def _turn(self) -> None:
        if not self.alive:
            return
        world = self.world
        if self.hung:
            world.at_us(self.hung_until_us, self._turn)
            return
        self._turn_comes = False
        if self.waits_inside or not self.loop.has_work:
            return
        world.step += 1
        world.before_step(world.step)
        # What is due at this step may have been the crash of this process.
        if not self._has_ended() and not self.hung:
            self.loop.turn()
            if not self._has_ended():
                self.on_turn()
        self.go_on()

    def _has_ended(self) -> bool:
        return not self.alive

    def go_on(self) -> None:
        """Schedule its next turn, if there is work."""
        if not self.alive:
            return
        if self.loop.has_work:
            self.stir()
            return
        deadline = self.loop.next_deadline()
        if deadline is None:
            return
        us = self.world.us_of(deadline)
        if self._wakes_at is None or us < self._wakes_at or self._wakes_at <= self.world.clock.us:
            self._wakes_at = us
            self.world.at_us(us, self._deadline)

    def _deadline(self) -> None:
        if self._wakes_at is not None and self._wakes_at <= self.world.clock.us:
            self._wakes_at = None
        if self.alive and not self.waits_inside:
            if self.loop.has_work:
                self.stir()
            else:
                self.go_on()


class SimulatedLoop(TaskletLoop):
    """Loop that runs one random ready tasklet per turn."""

    def __init__(self, node: Node, clock: Clock, poller: Poller) -> None:
        super().__init__(clock, poller)
        self._node = node
        self._thread = threading.get_ident()

    @property
    def has_work(self) -> bool:
        """Return whether a turn would do anything."""
        if self._mails or self._ready:
            return True
        deadline = self.next_deadline()
        return deadline is not None and deadline <= self._monotonic()

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to run."""
        return not self._alive and not self._mails

    def turn(self) -> None:
        """Process the mails, do what is due, and step one tasklet."""
        while self._mails:
            self._mails.popleft()()
        self._fire_deadlines()
        ready = self._ready
        if ready:
            index = self._node.world.chance.randrange(len(ready))
            # Takes one out of the middle; the others keep their order.
            ready.rotate(-index)
            tasklet = ready.popleft()
            ready.rotate(index)
            if isinstance(tasklet, Task):
                d = tasklet.deployment
                self._node.world.note(self._node.name, f"runs {d.vertex.name} [{d.subtask}] attempt {d.attempt}")
            self._step(tasklet)

    def mail(self, action: Callable[[], None]) -> None:
        """Call an action between steps; raises SimulationError in another thread."""
        if threading.get_ident() != self._thread:
            # Raised where the world runs: here it would only end the other thread.
            self._node.world.broken = SimulationError(
                f"a step, source or sink in {self._node.name} has work done by a thread of its own"
                f" ({threading.current_thread().name!r}): nobody can tell when such a thread runs, so it cannot be"
                " simulated. Put something in its place that works in the reader's or writer's own calls"
            )
            return
        super().mail(action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call an action between steps."""
        super().soon(action)
        self._node.stir()

    def defect(self, where: str, error: Exception) -> None:
        """Raise the error: a simulation must not hide contained errors."""
        raise error

    @override
    def wake(self, tasklet: Tasklet) -> None:
        super().wake(tasklet)
        self._node.stir()

    def _schedule(self, deadline: float, scheduled: Scheduled) -> None:
        super()._schedule(deadline, scheduled)
        self._node.go_on()


class SimulatedPoller(Poller):
    """Poller of the simulation's connections; any other file descriptor is a real file."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._readable: dict[int, Callable[[], bool]] = {}
        self._watches: dict[int, list[tuple[object, Callable[[], None]]]] = {}
        self._kept: dict[int, Callable[[], None]] = {}

    def open(self, fileno: int, readable: Callable[[], bool]) -> None:
        """Register an open connection of this process."""
        self._readable[fileno] = readable

    def shut(self, fileno: int) -> None:
        """Remove a closed connection."""
        self._readable.pop(fileno, None)
        self._watches.pop(fileno, None)

    def came(self, fileno: int) -> None:
        """Mark a connection as readable."""
        kept = self._kept.get(fileno)
        if kept is not None:
            self._node.loop.soon(kept)
        for _, ready in self._watches.pop(fileno, []):
            ready()

    def watch(self, owner: object, wait: Wait, ready: Callable[[], None]) -> None:
        """Call ``ready`` when there is something to read; to write, there is always room."""
        readable = self._readable.get(-1 if wait.fileno is None else wait.fileno)
        if readable is None:
            self._node.world.broken = SimulationError(
                f"a step, source or sink in {self._node.name} waits for file descriptor {wait.fileno}: what comes"
                " from outside cannot be simulated. Put a source or sink in its place that has its records itself"
            )
            return
        assert wait.fileno is not None
        if wait.write or readable():
            ready()
        else:
            self._watches.setdefault(wait.fileno, []).append((owner, ready))

    @override
    def forget(self, owner: object) -> None:
        for fileno, watches in list(self._watches.items()):
            self._watches[fileno] = [w for w in watches if w[0] is not owner]

    @override
    def keep(self, fileno: int, write: bool, ready: Callable[[], None]) -> None:
        self._kept[fileno] = ready

    @override
    def drop(self, fileno: int, write: bool) -> None:
        self._kept.pop(fileno, None)

    def watching(self) -> bool:
        """Return whether a poll has anything to check."""
        return False

    def poll(self, timeout_s: float | None) -> None:
        """Run the world until this loop has work; for a caller that runs this loop from outside."""
        node = self._node
        deadline = node.loop.next_deadline()
        waits_us = [round(s * 1_000_000) + 1 for s in (timeout_s,) if s is not None]
        if deadline is not None:
            waits_us.append(max(0, node.world.us_of(deadline) - node.world.clock.us))
        before, node.waits_inside = node.waits_inside, True
        try:
            node.world.run(lambda: node.loop.has_work, min(waits_us, default=None))
        finally:
            node.waits_inside = before

    def wake(self) -> None:
        """Schedule a turn for a mail."""
        self._node.stir()

    @override
    def close(self) -> None:
        pass


class NoEventLoop(EventLoop):
    """Event loop that refuses coroutines."""

    def calls(self, wake: Callable[[], None]) -> Calls:
        """Raise SimulationError."""
        raise SimulationError(
            "steps that call coroutines cannot be simulated: leave them out, or put a map() there"
        )

    @override
    def close(self) -> None:
        pass
