"""Control socket of a job that runs by itself: answers to requests that end with the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from patience import PATIENT_S

from sluiceway.clock import SystemClock
from sluiceway.engine import Job, JobFailure, JobResult, JobStatus
from sluiceway.errors import SluicewayError
from sluiceway.metrics import JobMetrics
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.cluster_directory import held_directory
from sluiceway.runtime.cluster.home import Known
from sluiceway.runtime.cluster.job_server import JobServer


class Saved(Job):
    """A job whose savepoint is complete at once."""

    def __init__(self) -> None:
        self.now = JobStatus.RUNNING
        self.saved = threading.Event()

    def run(self) -> JobResult:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def metrics(self) -> JobMetrics:
        raise NotImplementedError

    @property
    def status(self) -> JobStatus:
        return self.now

    def failures(self) -> tuple[JobFailure, ...]:
        cause = ValueError("a record")
        return (JobFailure(0, "map", 0, 0, "local", cause, 0, None),) if self.now is JobStatus.FAILED else ()

    def savepoint(
        self, place: str | None, done: Callable[[str, BaseException | None], None], *, stop: bool = False
    ) -> None:
        done(f"{place}/savepoint-1", None)
        self.saved.set()


@pytest.fixture
def job() -> Saved:
    return Saved()


@pytest.fixture
def server(job: Saved) -> Iterator[JobServer]:
    with held_directory() as directory:
        server = JobServer(job, "job", SystemClock(), directory)
        server.start()
        yield server


def stop_with_savepoint(known: Known) -> str:
    with ClusterClient(known) as client:
        return client.savepoint("job", "/place", stop=True)


def test_who_ends_a_job_with_a_savepoint_is_answered_at_its_end(job: Saved, server: JobServer) -> None:
    with ThreadPoolExecutor(1) as threads, closing(server):
        answer = threads.submit(stop_with_savepoint, server.known)
        assert job.saved.wait(PATIENT_S)
        job.now = JobStatus.FINISHED
        server.job_ended()
        assert answer.result(PATIENT_S) == "/place/savepoint-1"


def test_a_job_that_fails_behind_its_savepoint_is_no_success(job: Saved, server: JobServer) -> None:
    with ThreadPoolExecutor(1) as threads, closing(server):
        answer = threads.submit(stop_with_savepoint, server.known)
        assert job.saved.wait(PATIENT_S)
        job.now = JobStatus.FAILED
        server.job_ended()
        with pytest.raises(SluicewayError, match="but the job failed: ValueError"):
            answer.result(PATIENT_S)
