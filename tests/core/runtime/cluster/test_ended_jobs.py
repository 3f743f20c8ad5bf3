"""A dispatcher tells of jobs that have ended, and keeps nothing else of them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import Client

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.dispatcher import KEPT, Dispatcher
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import (
    AskCheckpoints,
    AskStatus,
    CancelJob,
    Checkpoints,
    DescribeJob,
    Done,
    JobDescribed,
    Refused,
    Status,
    SubmitProgram,
)
from sluiceway.runtime.messages.pickling import dump


class Site:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        services = default_manager().services()
        flow = sw.Pipeline("job")
        flow.from_collection(range(10)).print()
        self.program = dump((job_graph_of(flow.graph(), services), Settings()))

    def ask(self, message: Message) -> Any:
        client: Any = Client()
        self.dispatcher._message(client, message)
        # Programs are prepared by a helper thread.
        while not client.answers:
            self.dispatcher._manager.turn()
        (answer,) = client.answers
        return answer

    def submit(self) -> str:
        answer = self.ask(SubmitProgram(1, "job", self.program, sys.path))
        assert isinstance(answer, Done), answer
        return answer.job


@pytest.fixture(params=[False, True], ids=["no store", "store"])
def site(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "cluster").mkdir()
    store = str(tmp_path / "jobs") if request.param else ""
    config = ClusterConfig(1, 1, "shm", str(tmp_path / "cluster"), "00" * 32, job_store=store)
    dispatcher = Dispatcher(config, default_manager().services())
    # Jobs that wait for slots end at once when they are cancelled.
    monkeypatch.setattr(dispatcher._manager, "_start_workers", lambda wanted: None)
    yield Site(dispatcher)
    dispatcher.abandon()


def test_nothing_but_what_is_told_is_kept_of_a_job_that_has_ended(site: Site) -> None:
    jobs = [site.submit() for _ in range(3)]
    runs = [weakref.ref(run) for run in site.dispatcher._manager.jobs.values()]
    for job in jobs:
        assert site.ask(CancelJob(2, job)) == Done(2, job)
    status: Status = site.ask(AskStatus(3, figures=True))
    assert [(told.job, told.status) for told in status.jobs] == [(job, "canceled") for job in jobs]
    assert all(told.ended_ms for told in status.jobs)
    assert status.figures == {}
    described = site.ask(DescribeJob(7, jobs[0]))
    assert isinstance(described, JobDescribed)
    assert described.description.metrics is not None
    assert described.description.metrics.status == "canceled"
    site.dispatcher._manager.loop.run_ready(1)
    gc.collect()
    assert [run() for run in runs] == [None] * 3
    asked = site.ask(AskCheckpoints(4, jobs[0]))
    assert isinstance(asked, Checkpoints)
    assert asked.checkpoints == []
    assert site.ask(CancelJob(5, jobs[0])) == Refused(
        5, f"job {jobs[0]!r} is canceled already", "ConfigurationError"
    )
    assert site.ask(AskCheckpoints(6, "none")) == Refused(6, "there is no job 'none'", "ConfigurationError")


def test_of_many_jobs_the_last_are_told_of(site: Site) -> None:
    for _ in range(KEPT + 5):
        site.ask(CancelJob(1, site.submit()))
        site.dispatcher._look_after_jobs()
    assert len(site.ask(AskStatus(2)).jobs) == KEPT
    store = site.dispatcher._store
    assert len(site.dispatcher._records._ended if store is None else store.history.files()) == KEPT
    assert site.ask(AskCheckpoints(3, "job-1")) == Refused(3, "there is no job 'job-1'", "ConfigurationError")
