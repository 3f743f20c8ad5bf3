"""Submission of programs to a dispatcher while it reads what they restore."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from clients import Client
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, ConnectorError
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster import job_preparation
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.dispatcher import Dispatcher
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import AskStatus, Done, Refused, ShutDown, Status, SubmitProgram
from sluiceway.runtime.messages.payload import Cause
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.messages.tasks import ReportTask


class SlowStorage:
    """Restore that waits until it is let go, and fails then if it is told to."""

    def __init__(self) -> None:
        self.begun = Event()
        self.let_go = Event()
        self.failure: Exception | None = None
        self.fast: str | None = None

    def restore(self, settings: Settings, *rest: object) -> None:
        if settings.from_checkpoint in (None, self.fast):
            return
        self.begun.set()
        assert self.let_go.wait(PATIENT_S)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStorage]:
    slow = SlowStorage()
    monkeypatch.setattr(job_preparation, "restore_from", slow.restore)
    yield slow
    slow.let_go.set()


@pytest.fixture
def dispatcher(tmp_path: Path, storage: SlowStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    (tmp_path / "cluster").mkdir()
    config = ClusterConfig(1, 1, "shm", str(tmp_path / "cluster"), "00" * 32)
    dispatcher = Dispatcher(config, default_manager().services())
    # Jobs that wait for slots stay as they are, and end at once when the cluster is stopped.
    monkeypatch.setattr(dispatcher._manager, "_start_workers", lambda wanted: None)
    yield dispatcher
    storage.let_go.set()
    dispatcher.abandon()


def program(key: str = "", restored: str | None = None, restart: str = "none") -> SubmitProgram:
    flow = sw.Pipeline("job")
    flow.from_collection(range(10)).print()
    graph = job_graph_of(flow.graph(), default_manager().services())
    return SubmitProgram(
        1, "job", dump((graph, Settings(from_checkpoint=restored, restart=restart))), sys.path, key=key
    )


def send(dispatcher: Dispatcher, message: Message) -> Client:
    client: Any = Client()
    dispatcher._message(client, message)
    return client


def answer(dispatcher: Dispatcher, client: Client) -> Any:
    while not client.answers:
        dispatcher._manager.turn()
    (told,) = client.answers
    return told


def jobs(dispatcher: Dispatcher) -> list[str]:
    status: Status = answer(dispatcher, send(dispatcher, AskStatus(2)))
    return [told.job for told in status.jobs]


def test_a_slow_restore_holds_up_nobody_else(dispatcher: Dispatcher, storage: SlowStorage) -> None:
    running = answer(dispatcher, send(dispatcher, program()))
    slow = send(dispatcher, program("a key", "/a/slow/place"))
    assert storage.begun.wait(PATIENT_S)
    assert jobs(dispatcher) == [running.job]
    # The client's connection breaks, and it asks again: that is no second job.
    again = send(dispatcher, program("a key", "/a/slow/place"))
    storage.let_go.set()
    assert answer(dispatcher, slow) == answer(dispatcher, again) == Done(1, "job-2")
    assert jobs(dispatcher) == [running.job, "job-2"]
    assert answer(dispatcher, send(dispatcher, program("a key", "/a/slow/place"))) == Done(1, "job-2")


def test_what_cannot_be_restored_is_refused(dispatcher: Dispatcher, storage: SlowStorage) -> None:
    storage.failure = CheckpointError("there is none")
    storage.let_go.set()
    refused = answer(dispatcher, send(dispatcher, program("a key", "/a/place")))
    assert refused == Refused(1, "there is none", "CheckpointError")
    assert isinstance(refused.error(), CheckpointError)
    assert jobs(dispatcher) == []
    # With the same key it may be tried again.
    storage.failure = None
    assert answer(dispatcher, send(dispatcher, program("a key", "/a/place"))) == Done(1, "job-2")


class BrokenReporter(MetricsReporter):
    def __init__(self) -> None:
        self.closed = False

    def open(self, job_name: str) -> None:
        raise OSError("no route to the collector")

    def report(self, metrics: JobMetrics) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_a_job_whose_reporter_cannot_be_opened_leaves_nothing_behind(
    dispatcher: Dispatcher, storage: SlowStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, broken = BrokenReporter(), BrokenReporter()
    monkeypatch.setattr(working, "open", lambda job_name: None)
    services = dispatcher._launcher._services
    monkeypatch.setattr(services, "metrics_reporters", lambda given: [working, broken])
    refused = answer(dispatcher, send(dispatcher, program("a key")))
    assert "no route to the collector" in refused.reason
    assert (jobs(dispatcher), dispatcher._manager.jobs) == ([], {})
    assert (working.closed, broken.closed) == (True, False)
    monkeypatch.setattr(services, "metrics_reporters", lambda given: [])
    assert answer(dispatcher, send(dispatcher, program("a key"))) == Done(1, "job-2")


def test_a_stop_refuses_what_is_being_restored(dispatcher: Dispatcher, storage: SlowStorage) -> None:
    slow = send(dispatcher, program("a key", "/a/slow/place"))
    assert storage.begun.wait(PATIENT_S)
    stop = send(dispatcher, ShutDown(3))
    dispatcher.serve()
    assert [type(told) for told in stop.answers] == [Done]
    (refused,) = slow.answers
    assert "the cluster is being stopped" in refused.reason


def test_a_slow_restore_holds_up_no_other_restore(dispatcher: Dispatcher, storage: SlowStorage) -> None:
    slow = send(dispatcher, program("a key", "/a/slow/place"))
    assert storage.begun.wait(PATIENT_S)
    storage.fast = "/a/fast/place"
    assert answer(dispatcher, send(dispatcher, program(restored=storage.fast))) == Done(1, "job-2")
    assert not slow.answers


def test_only_so_many_restores_wait(
    dispatcher: Dispatcher, storage: SlowStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway.runtime.cluster.job_submissions.MOST_PREPARED", 1)
    slow = send(dispatcher, program("a key", "/a/slow/place"))
    refused = answer(dispatcher, send(dispatcher, program()))
    assert "wait for storages that have not answered: submit it again later" in refused.reason
    storage.let_go.set()
    assert answer(dispatcher, slow) == Done(1, "job-1")
    assert answer(dispatcher, send(dispatcher, program())) == Done(1, "job-2")


def test_a_new_job_does_not_take_the_slot_that_a_job_needs_for_its_restart(dispatcher: Dispatcher) -> None:
    manager = dispatcher._manager
    pool = manager.resources.slots
    pool.offer("worker-1", 1)
    first = answer(dispatcher, send(dispatcher, program(restart="fixed-delay:1:1h"))).job
    manager.loop.run_ready()
    run = manager.jobs[first]
    (subtask,) = run.master.executions.subtasks()
    failure = Cause.received(Cause(ConnectorError("away")).encoded())
    for state, cause in (("initializing", None), ("running", None), ("failed", failure)):
        run.take(ReportTask(first, run.epoch, subtask.current.attempt_id, state, cause))
    assert (run.status, pool.available) == (JobStatus.RESTARTING, 1)
    second = manager.jobs[answer(dispatcher, send(dispatcher, program())).job]
    manager.loop.run_ready()
    assert manager.is_waiting(second)
    pool.offer("worker-2", 1)
    manager._start_what_can()
    assert not manager.is_waiting(second)
