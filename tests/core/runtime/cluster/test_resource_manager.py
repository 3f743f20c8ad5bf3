"""Which workers count as lost, by a clock that the test turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from sluiceway.clock import Clock
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.resource_manager import ResourceManager, WorkerLostError
from sluiceway.runtime.cluster.worker_launcher import WorkerHandle
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.workers import Register

TIMEOUT_S = 10.0
CHECK_S = 1.0


class TurnedClock(Clock):
    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class Process:
    """A worker process that does as it is told."""

    pid = 4711
    reason_within_s = 5.0

    def __init__(self, group: str = "") -> None:
        self.beats = True
        self.at_work = False
        self.killed = False
        self.how = ""
        self.group = group

    def ended(self, within_s: float = 0.0) -> bool:
        assert within_s == 0, "all jobs would wait"
        return self.how != ""

    def how_it_ended(self) -> str:
        return self.how

    def ends_with(self, other: Any) -> bool:
        return self is other or (self.group != "" and self.group == other.group)

    def heard(self) -> bool:
        return self.beats

    def is_at_work(self) -> bool:
        return self.at_work

    def kill(self) -> None:
        self.killed = True

    def is_hopeless(self) -> bool:
        return False

    def what_it_said(self) -> str:
        return ""


class Line:
    def send(self, message: Any) -> None:
        pass

    def close(self) -> None:
        pass


class World:
    def __init__(self, idle_s: float | None = None) -> None:
        self.releasing: list[str] = []
        self.released = 0
        self.clock = TurnedClock()
        self.poller = SelectorPoller()
        self.loop = TaskletLoop(self.clock, self.poller)
        self.process = Process()
        self.lost: list[WorkerLostError] = []
        self.names: list[list[str]] = []
        self.resources = ResourceManager(
            self.loop,
            self.clock,
            on_registered=lambda name: None,
            on_lost=self._on_lost,
            on_releasing=self.releasing.append,
            on_released=self._on_released,
            heartbeat_timeout_s=TIMEOUT_S,
            idle_s=idle_s,
        )
        self.line = self.comes("worker-1", self.process)

    def comes(self, name: str, process: Process) -> Connection:
        self.resources.expect(name, cast("WorkerHandle", process))
        line = cast("Connection", Line())
        self.resources.register(line, Register(name, 4711, 1, "there"))
        return line

    def _on_released(self) -> None:
        self.released += 1

    def _on_lost(self, names: Sequence[str], why: WorkerLostError) -> None:
        self.names.append(list(names))
        self.lost.append(why)

    def passes(self, seconds: float, step_s: float = CHECK_S) -> None:
        """Time goes by, and the loop turns as often as it would."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + step_s)
            self.loop.run_ready()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.poller.close()


def test_a_worker_that_is_silent_for_too_long_is_killed_and_lost(world: World) -> None:
    world.passes(100)
    assert world.lost == []
    world.process.beats = False
    world.passes(TIMEOUT_S - 2)
    assert world.lost == []
    world.passes(4)
    (why,) = world.lost
    assert str(why) == "worker 'worker-1' (process 4711) sent no heartbeat for 10 s and was killed"
    assert world.process.killed


def test_a_worker_that_uses_the_processor_is_not_lost_however_silent(world: World) -> None:
    world.process.beats = False
    world.process.at_work = True
    world.passes(100)
    assert world.lost == []
    world.process.at_work = False
    world.passes(TIMEOUT_S + 2)
    assert len(world.lost) == 1


def test_time_in_which_the_job_manager_itself_was_stopped_counts_for_nobody(world: World) -> None:
    world.passes(5)
    world.process.beats = False  # frozen together: it has sent nothing, and sends nothing before it is awake
    world.passes(1000, step_s=1000)
    assert world.lost == []
    world.passes(TIMEOUT_S / 2)
    assert world.lost == [], "it has time to come to itself"
    world.process.beats = True
    world.passes(50)
    assert world.lost == []
    world.process.beats = False
    world.passes(TIMEOUT_S + 2)
    assert len(world.lost) == 1, "later it is watched as before"


def test_workers_that_end_together_are_lost_at_once_with_the_reason_of_the_first(world: World) -> None:
    stage = [Process("stage"), Process("stage")]
    line = world.comes("worker-2", stage[0])
    world.comes("worker-3", stage[1])
    assert world.resources.slots.available == 3
    world.resources.closed(line, None)
    assert world.resources.slots.available == 1, "nothing may be deployed on either"
    assert world.resources.awaits_reason
    assert world.names == [], "the reason is still to come"
    stage[0].how = "was lost: executor 1 was killed for its memory"
    world.passes(0.1, step_s=0.05)
    assert world.names == [["worker-2", "worker-3"]]
    assert str(world.lost[0]).startswith(
        "worker 'worker-2' (process 4711) was lost: executor 1 was killed for its"
    )
    assert stage[1].killed
    assert not world.process.killed
    assert not world.resources.awaits_reason
    world.passes(100)
    assert len(world.lost) == 1


def test_free_slots_of_a_worker_are_told(world: World) -> None:
    world.comes("worker-2", Process())
    world.resources.slots.allocate(1, before=["worker-1"])
    told = {worker.name: (worker.slots, worker.free_slots) for worker in world.resources.infos()}
    assert told == {"worker-1": (1, 0), "worker-2": (1, 1)}


def test_a_worker_whose_end_nobody_reports_is_lost_in_time(world: World) -> None:
    world.resources.closed(world.line, None)
    world.passes(4.9, step_s=0.05)
    assert world.names == []
    world.passes(0.2, step_s=0.05)
    assert world.names == [["worker-1"]]
    assert "has left without ending and was killed" in str(world.lost[0])


@pytest.fixture
def idle_world() -> Iterator[World]:
    """A world whose worker has been asked to end, as it was idle."""
    made = World(idle_s=5.0)
    made.passes(6.5)
    made.resources.closed(made.line, None)
    yield made
    made.poller.close()


def test_a_released_worker_may_take_a_while_to_end(idle_world: World) -> None:
    idle_world.passes(0.5, step_s=0.05)
    assert (idle_world.releasing, idle_world.released) == (["worker-1"], 0)
    assert idle_world.resources.starting == []
    idle_world.process.how = "ended with exit code 0"
    idle_world.passes(0.1, step_s=0.05)
    assert (idle_world.released, idle_world.process.killed) == (1, False)
    idle_world.passes(100)
    assert (idle_world.releasing, idle_world.released, idle_world.lost) == (["worker-1"], 1, [])


def test_a_released_worker_that_stays_is_killed(idle_world: World) -> None:
    idle_world.passes(0.9, step_s=0.05)
    assert not idle_world.process.killed
    idle_world.passes(0.2, step_s=0.05)
    assert (idle_world.released, idle_world.process.killed, idle_world.lost) == (1, True, [])


def test_a_released_worker_is_not_killed_by_a_stop(idle_world: World) -> None:
    idle_world.resources.stop()
    assert not idle_world.process.killed
    idle_world.process.how = "ended with exit code 0"
    idle_world.resources.end_processes(0.0)
    idle_world.passes(5, step_s=0.05)
    assert idle_world.released == 0
