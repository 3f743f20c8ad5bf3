"""A job store that cannot be written for a while, as on a full disk."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import Client

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster import job_store
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.dispatcher import Dispatcher
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import (
    AskStatus,
    CancelJob,
    Done,
    Refused,
    StopJob,
    SubmitProgram,
    TakeSavepoint,
)
from sluiceway.runtime.messages.pickling import dump


class Site:
    """A job manager, and the next one, with a disk that may be full."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.store = directory / "jobs"
        self.monkeypatch = monkeypatch
        self.full = False
        self.room_for_entries = False
        write = job_store.write_file

        def written(file: Path, data: bytes) -> None:
            freed = self.room_for_entries and not (file.parent / "program").exists()
            if self.full and not freed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(file, data)

        monkeypatch.setattr(job_store, "write_file", written)
        self.begin()

    def begin(self) -> None:
        place = self.directory / "cluster"
        place.mkdir()
        config = ClusterConfig(1, 4, "shm", str(place), "00" * 32, job_store=str(self.store))
        self.dispatcher = Dispatcher(config, default_manager().services())
        # Jobs that wait for slots end at once when they are cancelled.
        self.monkeypatch.setattr(self.dispatcher._manager, "_start_workers", lambda wanted: None)

    def next(self) -> None:
        """Kill the job manager; the next one recovers what is in the store."""
        self.dispatcher.abandon()
        self.begin()
        self.dispatcher._recovery.start()
        while self.dispatcher._recovery.jobs:
            self.dispatcher._manager.turn()

    def ask(self, message: Message) -> Any:
        client: Any = Client()
        self.dispatcher._message(client, message)
        while not client.answers:
            self.dispatcher._manager.turn()
        (answer,) = client.answers
        return answer

    def submit(self, **settings: Any) -> str:
        flow = sw.Pipeline("job")
        flow.from_collection(range(10)).print()
        graph = job_graph_of(flow.graph(), default_manager().services())
        answer = self.ask(SubmitProgram(1, "job", dump((graph, Settings(**settings))), sys.path))
        assert isinstance(answer, Done), answer
        return answer.job

    def statuses(self) -> dict[str, str]:
        return {job.job: job.status for job in self.ask(AskStatus(9)).jobs}

    def checkpoints(self, job: str) -> Path:
        """Make a directory of checkpoints in the store, as a job that has begun there has one."""
        stored = self.dispatcher._records.of(job)
        place = self.store / "checkpoints" / stored.checkpoints
        assert stored.checkpoints
        place.mkdir(parents=True, exist_ok=True)
        return place


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path, monkeypatch)
    yield site
    site.dispatcher.abandon()


def test_a_job_is_cancelled_and_not_recovered(site: Site) -> None:
    job = site.submit(checkpoint_interval_ms=1000)
    kept = site.checkpoints(job)
    site.full = site.room_for_entries = True
    assert site.ask(CancelJob(2, job)) == Done(2, job)
    assert site.statuses() == {job: "canceled"}
    assert not kept.exists()
    site.next()
    assert site.statuses() == {job: "canceled"}


def test_an_end_is_written_as_soon_as_there_is_room(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    job = site.submit(restart="fixed-delay:3:1s")
    site.full = True
    assert site.ask(CancelJob(2, job)) == Done(2, job)
    assert site.statuses() == {job: "canceled"}
    store = site.dispatcher._store
    assert store is not None
    site.dispatcher._keep_leading(store)
    assert caplog.text.count("its end cannot be written into the job store") == 1
    site.full = False
    site.dispatcher._keep_leading(store)
    site.next()
    assert site.statuses() == {job: "canceled"}


def test_a_job_that_has_ended_is_not_run_again_if_there_never_is_room(site: Site) -> None:
    job = site.submit(restart="fixed-delay:3:1s")
    site.full = True
    assert site.ask(CancelJob(2, job)) == Done(2, job)
    assert site.statuses() == {job: "canceled"}
    site.next()
    assert site.statuses() == {job: "failed"}
    (problem,) = site.ask(AskStatus(3)).problems
    assert problem.startswith(f"job {job!r} cannot be recovered: JobStoreError: {site.store}/job-{job}/program")


def test_what_cannot_be_written_is_refused_and_forgotten(site: Site) -> None:
    job = site.submit(restart="fixed-delay:3:1s")
    site.full = True
    refused = (
        f"job {job!r} is not stopped: that cannot be written into the job store {site.store}: "
        "No space left on device. Make it writable again, or cancel the job"
    )
    assert site.ask(StopJob(2, job)) == Refused(2, refused, "JobStoreError")
    assert site.ask(TakeSavepoint(3, job, str(site.directory / "kept"), True)) == Refused(
        3, refused, "JobStoreError"
    )
    stored = site.dispatcher._records.of(job)
    assert (stored.wanted, stored.savepoint) == ("", "")
    site.full = False
    assert site.ask(StopJob(4, job)) == Done(4, job)
