"""A worker that is lost breaks its links: whoever is told first, the worker is the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import SubtaskEntry
from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.connector.lib.collect import Collected
from sluiceway.engine import JobStatus
from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.job_preparation import PreparedJob
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.resource_manager import ResourceManager, WorkerLostError
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointPlace
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.loop.blocking_io import Backgrounds, Inline
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.payload import Cause, Payload
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.messages.tasks import AcknowledgeCheckpoint, ReportTask, StoreStatePart
from sluiceway.runtime.messages.workers import HoldResults, Results, SubmitJob, WorkerAddresses
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage
from sluiceway.transport.carrier import LinkLostError


class TurnedClock(Clock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)


class NoPoller:
    def wake(self) -> None:
        pass


@dataclass
class Job:
    run: JobRun
    clock: TurnedClock
    loop: TaskletLoop

    def at(self, subtask: int) -> str:
        vertex = self.run.graph.vertices[0].id
        return self.run.master.executions.subtask(vertex, subtask).current.attempt_id

    def place(self, subtask: int) -> str:
        return self.run.master.place_of(self.at(subtask)) or ""

    def passes(self, seconds: float) -> None:
        self.loop.run_ready()
        self.clock.now += seconds
        self.loop.run_ready()

    def causes(self) -> list[Any]:
        return [failure.cause for failure in self.run.master.failures]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return made_job(tmp_path)


def made_job(place: Path, restart: str = "fixed-delay:9:60s", one_region: bool = True, pipelines: int = 1) -> Job:
    clock: Any = TurnedClock()
    poller: Any = NoPoller()
    loop = TaskletLoop(clock, poller)
    resources = ResourceManager(
        loop,
        clock,
        on_registered=lambda name: None,
        on_lost=lambda name, why: None,
        on_releasing=lambda name: None,
        on_released=lambda: None,
        heartbeat_timeout_s=50,
    )
    resources.slots.offer("worker-1", 1)
    resources.slots.offer("worker-2", 1)
    services = PluginManager().services(clock)
    flow = sw.Pipeline("job", parallelism=2)
    for _ in range(pipelines):
        numbers = flow.from_collection(range(10))
        (numbers.rebalance() if one_region else numbers).map(lambda v: v).print()
    graph = job_graph_of(flow.graph(), services)
    storage = TemporaryStorage(str(place / "checkpoints"))
    settings = Settings(parallelism=2, restart=restart)
    run = JobRun(
        PreparedJob("job", graph, settings, CheckpointPlace(storage, temporary=True, shared=False), None, None),
        1,
        services,
        resources,
        loop=loop,
        backgrounds=Backgrounds(lambda: Inline(loop.soon)),
        late=lambda task: None,
        look_for_slots=lambda: None,
        make_room=lambda run, lacking: None,
    )
    run.start()
    made = Job(run, clock, loop)
    for subtask in (0, 1):
        for state in ("initializing", "running"):
            run.take(ReportTask("job", 1, made.at(subtask), state))
    return made


BROKEN = Cause.received(Cause(LinkLostError("the link has broken")).encoded())
LOST = WorkerLostError("worker was killed by SIGKILL")


def test_a_worker_that_is_lost_in_the_next_moment_is_the_reason(job: Job) -> None:
    job.run.take(ReportTask("job", 1, job.at(0), "failed", BROKEN))
    assert job.causes() == []
    job.passes(0.4)
    job.run.workers_lost([job.place(1)], LOST)
    assert job.causes() == [LOST]
    job.passes(1)
    assert job.causes() == [LOST], "once"
    assert job.run.master.restarts == 1


@pytest.mark.parametrize("one_region", [True, False])
def test_workers_that_are_lost_together_cost_one_restart(one_region: bool, tmp_path: Path) -> None:
    job = made_job(tmp_path, "fixed-delay:1:60s", one_region)
    job.run.workers_lost([job.place(1), job.place(0)], LOST)
    assert set(job.causes()) == {LOST}
    assert job.run.status is JobStatus.RESTARTING
    job.run.workers_lost([job.place(0)], LOST)
    assert job.run.status is JobStatus.RESTARTING, "what restarts belongs to the failure before"


def test_a_link_that_broke_by_itself_is_its_own_reason(job: Job) -> None:
    job.run.take(ReportTask("job", 1, job.at(0), "failed", BROKEN))
    job.passes(0.6)
    (cause,) = job.causes()
    assert isinstance(cause, LinkLostError)
    assert job.run.master.restarts == 1
    assert job.run.status is JobStatus.RESTARTING


def test_a_job_that_is_cancelled_meanwhile_is_cancelled(job: Job) -> None:
    job.run.take(ReportTask("job", 1, job.at(0), "failed", BROKEN))
    job.run.cancel()
    job.run.workers_lost([job.place(1)], LOST)
    for vertex in job.run.master.executions.subtasks():
        job.run.take(ReportTask("job", 1, vertex.current.attempt_id, "canceled"))
    job.passes(1)
    assert job.run.status is JobStatus.CANCELED


# ---- what a worker sends that cannot be read ---------------------------------------------------------------


def test_an_acknowledgement_that_cannot_be_read_is_none(job: Job) -> None:
    for subtask in job.run.master.executions.subtasks():
        for state in ("initializing", "running"):
            job.run.take(ReportTask("job", 1, subtask.current.attempt_id, state))
    coordinator = job.run.master.checkpoints.coordinator
    answers: list[tuple[str, BaseException | None]] = []
    job.run.savepoint("memory://place", False, lambda where, why: answers.append((where, why)))
    (number,) = coordinator.pending
    entry = SubtaskEntry(index=0, operators=())
    nonsense = Payload.received(b"nonsense")
    job.run.take(AcknowledgeCheckpoint("job", 1, job.at(0), number, entry, "", False, nonsense))
    job.passes(0)
    ((_, why),) = answers
    assert "while the job manager unpickled what a task has acknowledged" in "".join(getattr(why, "__notes__", ()))
    assert job.run.status is JobStatus.RUNNING


def test_state_of_which_a_part_is_missing_declines_its_checkpoint(job: Job, tmp_path: Path) -> None:
    for subtask in job.run.master.executions.subtasks():
        for state in ("initializing", "running"):
            job.run.take(ReportTask("job", 1, subtask.current.attempt_id, state))
    answers: list[tuple[str, BaseException | None]] = []
    job.run.savepoint("memory://place", False, lambda where, why: answers.append((where, why)))
    (number,) = job.run.master.checkpoints.coordinator.pending

    def part(name: str, offset: int, data: bytes, last: bool = False) -> StoreStatePart:
        return StoreStatePart("job", 1, job.at(0), number, name, offset, data, last)

    job.run.take(part("chk-1/0-0-0.state", 0, b"abc"))
    job.run.take(part("chk-1/0-0-0.state", 3, b"def", last=True))
    assert not answers
    assert (tmp_path / "checkpoints" / "chk-1" / "0-0-0.state").read_bytes() == b"abcdef"
    job.run.take(part("chk-2/0-0-0.state", 0, b"abc"))
    job.run.take(part("chk-2/0-0-0.state", 4, b"efg"))
    job.passes(0)
    ((_, why),) = answers
    assert re.search("chk-2/0-0-0.state: 3 bytes of it have come, 4 should have", str(why))
    # What is not continued goes with the next of its subtask, also a begun file of an earlier attempt.
    job.run.take(part("chk-3/0-0-1.state", 0, b""))
    assert sorted(os.listdir(tmp_path / "checkpoints" / "chk-2")) == []
    job.run.take(part("../outside", 0, b"abc", last=True))
    assert not list(tmp_path.glob("outside*"))
    job.run.take(StoreStatePart("job", 1, "of nobody", number, "chk-4/x", 0, b"abc", True))
    assert not (tmp_path / "checkpoints" / "chk-4").exists()
    assert job.run.status is JobStatus.RUNNING


def test_results_that_cannot_be_read_fail_their_job(job: Job) -> None:
    results: Collected[int] = Collected()
    job.run.take(Results("job", 1, results.number, b"nonsense"))
    assert job.run.failure is not None
    assert job.run.failure.__notes__ == ["while the program unpickled results of the job"]


# ---- workers that are still needed, and that come later -----------------------------------------------------


@pytest.mark.parametrize(("one_region", "free"), [(True, 0), (False, 1)])
def test_slots_of_finished_subtasks_are_held_until_their_region_has_ended(
    one_region: bool, free: int, tmp_path: Path
) -> None:
    """Their output may still wait in a worker, which is stopped when none of its slots is taken."""
    job = made_job(tmp_path, one_region=one_region)
    *others, last = [subtask.current.attempt_id for subtask in job.run.master.executions.subtasks()]
    for attempt in (*others, last):
        for state in ("initializing", "running"):
            job.run.take(ReportTask("job", 1, attempt, state))
    for attempt in others:
        job.run.take(ReportTask("job", 1, attempt, "finished"))
    assert job.run.status is JobStatus.RUNNING
    assert job.run.resources.slots.available == free
    job.run.take(ReportTask("job", 1, last, "finished"))
    assert job.run.status is JobStatus.FINISHED
    assert job.run.resources.slots.available == 2


def test_no_region_restarts_in_the_slot_of_a_worker_that_is_lost(tmp_path: Path) -> None:
    """Two regions share the slots, and the second one has not ended when the first one restarts."""
    job = made_job(tmp_path, "fixed-delay:9:1s", pipelines=2)
    master, slots = job.run.master, job.run.resources.slots
    regions = master._failover.regions
    first = {s.current.attempt_id for s in regions[0]}
    assert len(regions) == 2
    slots.withdraw("worker-1")
    slots.offer("worker-3", 1)
    left = [attempt for attempt in first if master.place_of(attempt) == "worker-2"]
    job.run.workers_lost(["worker-1"], LOST)
    for attempt in left:
        job.run.take(ReportTask("job", 1, attempt, "canceled"))
    job.passes(1.5)
    places = {master.place_of(s.current.attempt_id) for s in regions[0]}
    assert places == {"worker-2", "worker-3"}


class Full(Collected[int]):
    """Has as many results as the program wants for now."""

    full = True

    def when_wanted(self, action: Callable[[], None]) -> None:
        """Never."""


def test_a_worker_that_joins_while_results_are_held_is_told_so(job: Job) -> None:
    results = Full()
    job.run.take(Results("job", 1, results.number, dump([1])))
    sent: list[Any] = []
    job.run.resources.send = lambda worker, message: sent.append(message)  # type: ignore[method-assign]
    job.run.prepare_worker("worker-3")
    assert [message for message in sent if isinstance(message, HoldResults)] == [
        HoldResults("job", 1, results.number, True)
    ]
    job.run.prepare_worker("worker-3")
    assert [type(message) for message in sent] == [SubmitJob, HoldResults, WorkerAddresses, WorkerAddresses]
