"""Messages of a leader that is none any more, or about jobs that are not here, change nothing and are counted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_preparation import PreparedJob
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.resource_manager import ResourceManager
from sluiceway.runtime.cluster.worker_job import Program
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway.runtime.cluster.worker_process import WorkerProcess
from sluiceway.runtime.cluster.worker_settings import WorkerSettings
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointPlace
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.loop.blocking_io import Backgrounds, Inline
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.messages.tasks import CancelTask, DeployTasks, ReportTask, RequestSplit
from sluiceway.runtime.messages.workers import JobEnded, Register, StopWorker, SubmitJob
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage

PROGRAM = dump(Program("job", Settings()))
NO_PICKLE = Payload.received(b"no pickle")


@contextmanager
def make_worker(directory: Path, epoch: int = 0) -> Iterator[WorkerProcess]:
    ours, theirs = socket.socketpair()
    config = WorkerConfig(
        name="worker-1",
        manager="",
        directory=str(directory),
        secret="00",
        slots=1,
        transport="shm",
        segments=8,
        segment_bytes=1024,
        path=[],
        epoch=epoch,
    )
    process = WorkerProcess(config, theirs, PluginManager().services())
    yield process
    ours.close()
    process.run()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    with make_worker(tmp_path) as process:
        yield process


def tell(worker: WorkerProcess, *messages: Message) -> int:
    for message in messages:
        worker._message(worker._connection, message)
    return worker.rejected


def test_a_worker_listens_to_the_latest_leader_of_a_job_alone(worker: WorkerProcess) -> None:
    assert tell(worker, CancelTask("job", 1, "a"), JobEnded("job", 1)) == 2, "no such job"
    assert tell(worker, SubmitJob("job", 2, PROGRAM), CancelTask("job", 2, "a")) == 2
    assert tell(worker, DeployTasks("job", 1, ["a"], Payload.received(b"never opened")), JobEnded("job", 1)) == 4
    assert tell(worker, SubmitJob("job", 1, PROGRAM), CancelTask("job", 2, "a")) == 5
    assert tell(worker, SubmitJob("job", 3, PROGRAM), CancelTask("job", 3, "a")) == 5, "a new leader takes over"
    assert tell(worker, CancelTask("job", 2, "a")) == 6
    assert tell(worker, JobEnded("job", 3), JobEnded("job", 3)) == 7


def test_a_new_leader_of_one_job_leads_all_and_an_old_one_ends_nothing(worker: WorkerProcess) -> None:
    sent: list[Message] = []
    worker.send = sent.append  # type: ignore[method-assign]
    assert tell(worker, SubmitJob("job", 2, PROGRAM), SubmitJob("other", 3, PROGRAM)) == 0
    assert tell(worker, CancelTask("job", 2, "a")) == 1, "its leader has gone"
    assert tell(worker, SubmitJob("third", 2, PROGRAM)) == 2
    assert tell(worker, StopWorker(2)) == 3
    assert not worker._connection._closing
    assert tell(worker, SubmitJob("job", 3, PROGRAM), CancelTask("job", 3, "a")) == 3
    assert tell(worker, StopWorker(3)) == 3
    assert worker._connection._closing


def test_a_worker_listens_to_nobody_before_the_job_manager_that_it_was_started_for(tmp_path: Path) -> None:
    with make_worker(tmp_path, epoch=5) as worker:
        assert tell(worker, SubmitJob("job", 4, PROGRAM), StopWorker(4)) == 2
        assert tell(worker, SubmitJob("job", 5, PROGRAM), CancelTask("job", 5, "a")) == 2


def test_a_job_manager_takes_no_worker_that_was_started_for_another(tmp_path: Path) -> None:
    manager = JobManager(
        tmp_path,
        b"secret",
        PluginManager().services(),
        WorkerSettings("shm", most=1, slots=1, heartbeat_timeout_s=50),
        epoch=7,
    )
    asked: list[Message] = []
    manager.resources.register = lambda connection, message: asked.append(message)  # type: ignore[method-assign]

    class Peer:
        peer = "worker"
        closed = False

        def __init__(self) -> None:
            self.told: list[Message] = []

        def send(self, message: Message) -> None:
            self.told.append(message)

        def close(self) -> None:
            self.closed = True

    old, new = Peer(), Peer()
    manager._message(old, Register("worker-1", 1, 1, "", 6))  # type: ignore[arg-type]
    manager._message(new, Register("worker-1", 1, 1, "", 7))  # type: ignore[arg-type]
    assert (old.closed, new.closed, len(asked)) == (True, False, 1)
    assert old.told == [StopWorker(7)], "it is to end, and not to come again"
    manager.abandon()


def test_what_a_worker_cannot_unpack_fails_the_tasks_and_not_the_worker(worker: WorkerProcess) -> None:
    sent: list[Any] = []
    worker.send = sent.append  # type: ignore[method-assign]
    tell(worker, SubmitJob("job", 0, PROGRAM), DeployTasks("job", 0, ["a", "b"], NO_PICKLE))
    reports = [m for m in sent if isinstance(m, ReportTask)]
    assert [(m.attempt, m.state) for m in reports] == [("a", "failed"), ("b", "failed")]


def test_a_job_that_cannot_run_on_a_worker_fails_its_own_tasks_and_no_others(worker: WorkerProcess) -> None:
    sent: list[Any] = []
    worker.send = sent.append  # type: ignore[method-assign]
    assert tell(worker, SubmitJob("good", 1, PROGRAM), SubmitJob("bad", 1, b"no pickle")) == 0
    unknown = dump(Program("odd", Settings(state_backend="nowhere")))
    assert tell(worker, SubmitJob("odd", 1, unknown)) == 0
    assert tell(worker, DeployTasks("bad", 1, ["a", "b"], NO_PICKLE), DeployTasks("odd", 1, ["c"], NO_PICKLE)) == 0
    reports = [m for m in sent if isinstance(m, ReportTask)]
    assert [(m.job, m.attempt, m.state) for m in reports] == [
        ("bad", "a", "failed"),
        ("bad", "b", "failed"),
        ("odd", "c", "failed"),
    ]
    error = reports[-1].cause.open()
    assert "nowhere" in str(error)
    assert "while worker-1 made ready for job 'odd'" in error.__notes__
    assert tell(worker, CancelTask("good", 1, "x")) == 0, "it goes on"
    assert tell(worker, JobEnded("bad", 1)) == 0
    assert tell(worker, JobEnded("bad", 1)) == 1, "it is forgotten"
    assert tell(worker, SubmitJob("odd", 2, PROGRAM), CancelTask("odd", 2, "x")) == 1, "by another leader"


def test_a_job_master_ignores_workers_of_an_earlier_leader_and_late_reports(tmp_path: Path) -> None:
    clock = SystemClock()
    poller = SelectorPoller()
    loop = TaskletLoop(clock, poller)
    lost: list[str] = []
    resources = ResourceManager(
        loop,
        clock,
        on_registered=lost.append,
        on_lost=lambda name, why: lost.append(name),
        on_releasing=lambda name: None,
        on_released=lambda: None,
        heartbeat_timeout_s=50,
    )
    resources.slots.offer("worker-1", 1)
    services = PluginManager().services(clock)
    flow = sw.Pipeline("job")
    flow.from_collection([1]).print()
    graph = job_graph_of(flow.graph(), services)
    place = CheckpointPlace(TemporaryStorage(str(tmp_path / "checkpoints")), temporary=True)
    run = JobRun(
        PreparedJob("job", graph, Settings(), place, None, None),
        2,
        services,
        resources,
        loop=loop,
        backgrounds=Backgrounds(lambda: Inline(loop.soon)),
        late=lambda task: None,
        look_for_slots=lambda: None,
        make_room=lambda run, lacking: None,
    )
    run.start()
    attempt = run.master.executions.subtask(graph.vertices[0].id, 0).current.attempt_id
    run.take(ReportTask("job", 1, attempt, "finished"))
    run.take(RequestSplit("job", 3, 0, 0))
    assert run.rejected == 2
    assert run.status is JobStatus.RUNNING
    run.take(ReportTask("job", 2, attempt, "initializing"))
    run.take(ReportTask("job", 2, attempt, "running"))
    run.take(ReportTask("job", 2, attempt, "finished"))
    assert run.status is JobStatus.FINISHED
    run.take(ReportTask("job", 2, attempt, "failed"))
    run.take(ReportTask("job", 2, "nobody", "running"))
    assert run.status is JobStatus.FINISHED
    assert run.rejected == 2, "of this leader, only late"
    poller.close()
