"""Recovery of jobs by the next dispatcher, while the storage of one of them does not answer."""

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
from sluiceway.checkpoint import METADATA, SAVEPOINT, CheckpointMetadata, encode_metadata
from sluiceway.config.settings import Settings
from sluiceway.errors import CheckpointError
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster import job_recovery
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.dispatcher import Dispatcher
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.jobmanager.newest_checkpoint import find_newest
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import (
    AskStatus,
    CancelJob,
    Done,
    Refused,
    SavepointTaken,
    ShutDown,
    Status,
    StopJob,
    SubmitProgram,
    TakeSavepoint,
)
from sluiceway.runtime.messages.pickling import dump


class Site:
    """A job manager with three jobs, and the next one, in which the storage of the second does not answer."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.monkeypatch = monkeypatch
        self.begun = Event()
        self.let_go = Event()
        self.failure: Exception | None = None
        self.dispatcher = self.begin()
        for _ in range(3):
            self.answer(self.ask(program()))
        self.dispatcher.abandon()
        self.dispatcher = self.begin()
        prepare = self.dispatcher._manager.prepare

        def slow(job: str, *rest: Any) -> Any:
            if job == "job-2":
                self.begun.set()
                assert self.let_go.wait(PATIENT_S)
                if self.failure is not None:
                    raise self.failure
            return prepare(job, *rest)

        monkeypatch.setattr(self.dispatcher._manager, "prepare", slow)

    def begin(self) -> Dispatcher:
        place = self.directory / "cluster"
        place.mkdir()
        config = ClusterConfig(1, 4, "shm", str(place), "00" * 32, job_store=str(self.directory / "jobs"))
        dispatcher = Dispatcher(config, default_manager().services())
        # Jobs that wait for slots stay as they are, and end at once when the cluster is stopped.
        self.monkeypatch.setattr(dispatcher._manager, "_start_workers", lambda wanted: None)
        return dispatcher

    def recover(self) -> None:
        """Begin with the recovery, until all jobs are there but one that is held up."""
        self.dispatcher._recovery.start()
        assert self.begun.wait(PATIENT_S)
        # Not held up, it may be there before another one.
        while len(self.dispatcher._recovery.jobs) > (not self.let_go.is_set()):
            self.dispatcher._manager.turn()

    def ask(self, message: Message) -> Client:
        client: Any = Client()
        self.dispatcher._message(client, message)
        return client

    def answer(self, client: Client) -> Any:
        while not client.answers:
            self.dispatcher._manager.turn()
        (told,) = client.answers
        return told

    def close(self) -> None:
        self.let_go.set()
        self.dispatcher.abandon()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path, monkeypatch)
    yield site
    site.close()


def program() -> SubmitProgram:
    flow = sw.Pipeline("job")
    flow.from_collection(range(10)).print()
    graph = job_graph_of(flow.graph(), default_manager().services())
    return SubmitProgram(1, "job", dump((graph, Settings())), sys.path)


def statuses(told: Status) -> dict[str, str]:
    return {job.job: job.status for job in told.jobs}


def test_clients_are_answered_when_all_jobs_are_there(site: Site) -> None:
    site.recover()
    asked = site.ask(AskStatus(2))
    assert not asked.answers
    site.let_go.set()
    told = site.answer(asked)
    assert statuses(told) == {"job-1": "waiting", "job-2": "waiting", "job-3": "waiting"}
    assert (sorted(told.recovered), told.problems) == (["job-1", "job-2", "job-3"], [])


def test_after_a_while_only_those_wait_that_ask_about_a_job_that_is_not_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_recovery, "_ALL_WAIT_S", 0.01)
    site.recover()
    told = site.answer(site.ask(AskStatus(2)))
    assert statuses(told) == {"job-1": "waiting", "job-2": "created", "job-3": "waiting"}
    assert told.problems == ["job 'job-2' is still being recovered: it waits for its checkpoints"]
    assert site.answer(site.ask(program())) == Done(1, "job-4")
    assert site.answer(site.ask(StopJob(3, "job-1"))) == Done(3, "job-1")
    waits = site.ask(StopJob(4, "job-2"))
    gone = site.ask(StopJob(5, "job-2"))
    site.dispatcher._gone(gone)  # type: ignore[arg-type]
    assert not waits.answers
    site.let_go.set()
    assert site.answer(waits) == Done(4, "job-2")
    assert not gone.answers


def test_a_job_is_cancelled_while_it_is_recovered(site: Site) -> None:
    site.recover()
    waits = site.ask(StopJob(5, "job-1"))
    assert site.answer(site.ask(CancelJob(2, "job-2"))) == Done(2, "job-2")
    assert waits.answers == [Done(5, "job-1")], "nothing is left to wait for"
    assert statuses(site.answer(site.ask(AskStatus(3)))) == {
        "job-1": "waiting",
        "job-2": "canceled",
        "job-3": "waiting",
    }
    site.let_go.set()
    site.dispatcher._manager.turn()
    refused = Refused(4, "job 'job-2' is canceled already", "ConfigurationError")
    assert site.answer(site.ask(StopJob(4, "job-2"))) == refused
    assert len(site.dispatcher._manager.jobs) == 2


def test_a_job_that_cannot_go_on_is_told_of_and_stays_in_the_store(site: Site) -> None:
    site.failure = CheckpointError("it is damaged")
    site.recover()
    waits = site.ask(StopJob(2, "job-2"))
    site.let_go.set()
    assert site.answer(waits) == Refused(2, "job 'job-2' is failed already", "ConfigurationError")
    (problem,) = site.answer(site.ask(AskStatus(3))).problems
    assert problem.startswith("job 'job-2' cannot be recovered: CheckpointError: it is damaged")


def test_the_place_of_a_last_savepoint_is_forgotten_when_no_stop_is_under_way(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.let_go.set()
    site.recover()
    asked: list[Any] = []
    monkeypatch.setattr(JobRun, "savepoint", lambda run, place, stops, done: asked.append(done))
    records, place = site.dispatcher._records, str(site.directory / "kept")
    for number in range(2):
        site.ask(TakeSavepoint(number, "job-1", place, stop=True))
    site.ask(TakeSavepoint(2, "job-1", place, stop=False))
    for done in (asked[2], asked[0]):
        done("", CheckpointError("the disk is full"))
        assert records.of("job-1").savepoint == place, "one is under way"
    asked[1]("", CheckpointError("the disk is full"))
    assert records.of("job-1").savepoint == ""


def test_a_job_that_goes_on_without_its_last_savepoint_is_not_recovered_from_it_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.let_go.set()
    site.recover()
    monkeypatch.setattr(JobRun, "savepoint", lambda run, place, stops, done: None)
    site.ask(TakeSavepoint(1, "job-1", str(site.directory / "kept"), stop=True))
    site.dispatcher.abandon()
    site.dispatcher = site.begin()
    assert site.dispatcher._records.load()[0].savepoint != ""
    site.dispatcher._recovery.start()
    while site.dispatcher._recovery.jobs:
        site.dispatcher._manager.turn()
    assert site.dispatcher._records.load()[0].savepoint == ""


def test_a_savepoint_that_a_recovered_job_goes_back_behind_is_not_begun_with(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.let_go.set()
    site.recover()
    kept = site.directory / "kept"
    location = kept / "savepoint-job-1-100-7"
    location.mkdir(parents=True)
    saved = CheckpointMetadata(
        job_name="job",
        job_id="job-1",
        checkpoint_id=7,
        kind=SAVEPOINT,
        triggered_ms=1,
        completed_ms=2,
        vertices=(),
    )
    (location / METADATA).write_bytes(encode_metadata(saved))

    def savepoint(run: JobRun, place: str, stops: bool, done: Any) -> None:
        run.master.checkpoints.since.append(str(location))
        done(str(location), None)

    monkeypatch.setattr(JobRun, "savepoint", savepoint)
    assert site.ask(TakeSavepoint(1, "job-1", str(kept), stop=False)).answers == [SavepointTaken(1, str(location))]
    storage = default_manager().checkpoint_storage(str(kept))
    assert find_newest(storage, "")[0] == location.name
    site.dispatcher.abandon()
    site.dispatcher = site.begin()
    site.dispatcher._recovery.start()
    while site.dispatcher._recovery.jobs:
        site.dispatcher._manager.turn()
    with pytest.raises(CheckpointError, match="there are only savepoints whose run has failed after them"):
        find_newest(storage, "")
    assert site.dispatcher._records.of("job-1").since == []


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_does_not_wait_for_the_recovery(keep: bool, site: Site) -> None:
    monkeypatch, dispatcher = site.monkeypatch, site.dispatcher
    stop: list[Client] = []
    status: list[Client] = []

    def look_after_jobs() -> None:
        if site.begun.is_set() and not status:
            status.append(site.ask(AskStatus(2)))
            stop.append(site.ask(ShutDown(3, keep=keep)))
        original()

    original = dispatcher._look_after_jobs
    monkeypatch.setattr(dispatcher, "_look_after_jobs", look_after_jobs)
    dispatcher.serve()
    assert [type(told) for told in stop[0].answers] == [Done]
    site.let_go.set()
    site.begun.clear()
    again = site.dispatcher = site.begin()
    again._recovery.start()
    while again._recovery.jobs:
        again._manager.turn()
    expected = "waiting" if keep else "canceled"
    assert set(statuses(site.answer(site.ask(AskStatus(2)))).values()) == {expected}
