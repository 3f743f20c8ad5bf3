"""Cost of the web process: answers about many jobs, and memory over many polls and streams. Times are reported."""

from __future__ import annotations

import gc
import http.client
import json
import time
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S
from plugins.web.test_security import OPTIONS, TOKEN, Fixed, serving

from sluiceway.metrics import SubtaskMetrics
from sluiceway.monitoring.infos import ClusterInfo, JobDescription, JobInfo
from sluiceway.runtime.jobmanager.job_metrics import JobMetrics
from sluiceway.runtime.messages.clients import Status
from sluiceway.runtime.messages.protocol import decode, encode

JOBS, TASKS = 100, 30


class Crowded(Fixed):
    """Monitor of a cluster with many jobs, whose status comes as the bytes of a message."""

    def __init__(self, parallelism: int) -> None:
        super().__init__()
        names = [f"job-{number}" for number in range(JOBS)]
        counts = {"running": TASKS * parallelism}
        jobs = [JobInfo(name, name, "running", 1, 0, 1, 5, 5, "", 0, [], counts) for name in names]
        told = Status(1, 1, 1, 1, 800, 0, 8, "shm", jobs, [])
        self.short = encode(told)
        self.told = msgspec.structs.replace(told, figures={n: _metrics(n, parallelism) for n in names})
        self.message = encode(self.told)
        self.described: list[str] = []

    def describe(self, job: str) -> JobDescription:
        self.described.append(job)
        return super().describe(job)

    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        told = decode(self.message if figures else self.short)
        assert isinstance(told, Status)
        return ClusterInfo(1, 1, 1, told.slots, 0, 8, "shm", told.jobs, [], told.figures)


def _metrics(job: str, parallelism: int) -> JobMetrics:
    subtasks = tuple(
        SubtaskMetrics(f"task {task}", subtask, "running", records_in=5, records_out=5, vertex_id=task, busy_s=1.0)
        for task in range(TASKS)
        for subtask in range(parallelism)
    )
    return JobMetrics(job, "running", 2.0, 5, 5, subtasks)


@pytest.mark.parametrize("parallelism", [1, 8])
def test_the_overview_of_many_jobs(parallelism: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.web import test_security

    monkeypatch.setattr(test_security, "Fixed", lambda: Crowded(parallelism))
    took = []
    with serving(OPTIONS) as served:
        for _ in range(3):
            began = time.perf_counter()
            status, _, body = served.ask("/jobs/overview", Authorization=f"Bearer {TOKEN}")
            took.append(time.perf_counter() - began)
            assert (status, body.count(b'"jid"')) == (200, JOBS)
        began = time.perf_counter()
        assert served.trusted("/live/jobs?once") == 200
        page = time.perf_counter() - began
    first, again = (f"{1000 * each:.0f} ms" for each in took[:2])
    print(f"parallelism {parallelism}: first {first}, within the same second {again}; page {1000 * page:.0f} ms")


def test_the_page_of_many_jobs_describes_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.web import test_security

    import sluiceway_web._sampler as sampler

    monkeypatch.setattr(sampler, "PERIOD_S", 0.001)  # each request is a reading of its own
    crowd = Crowded(1)
    monkeypatch.setattr(test_security, "Fixed", lambda: crowd)
    with serving(OPTIONS) as served:

        def page() -> list[dict[str, Any]]:
            status, _, body = served.ask("/live/jobs?once", Authorization=f"Bearer {TOKEN}")
            assert status == 200
            return list(json.loads(body)["jobs"])

        assert sum("summary" in job for job in page()) == 10
        for _ in range(9):
            rows = page()
        assert all(job["summary"] for job in rows)
        assert sorted(crowd.described) == sorted(job["job"] for job in rows), "each of them once"
        # One that has restarted comes before those that have waited longer.
        restarted = [
            msgspec.structs.replace(j, restarts=j.restarts + (j.job == "job-77")) for j in crowd.told.jobs
        ]
        crowd.message = encode(msgspec.structs.replace(crowd.told, jobs=restarted))
        crowd.described.clear()
        page()
        assert crowd.described[0] == "job-77"
        assert len(crowd.described) <= 10


@pytest.mark.slow
def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many polls and dropped streams as in an hour of two open pages, as fast as they are answered."""
    import sluiceway_web._sampler as sampler
    import sluiceway_web._security as security

    monkeypatch.setattr(security, "_MOST_PER_S", 1e9)
    monkeypatch.setattr(security, "_BURST", 1e9)
    monkeypatch.setattr(sampler, "PERIOD_S", 0.001)  # each request is a reading of its own
    with serving(OPTIONS) as served:

        def polls(times: int) -> None:
            for number in range(times):
                path = ("/jobs/overview", "/live/jobs?once", "/jobs/words-1", "/live/job?job=words-1&once")[
                    number % 4
                ]
                assert served.trusted(path) == 200
                if number % 10 == 0:
                    stream = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENT_S)
                    stream.request("GET", "/live/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
                    answer = stream.getresponse()
                    assert answer.status in (200, 503)  # so many at a time are open until the server notices
                    answer.fp.readline()
                    answer.close()
                    stream.close()

        polls(1000)
        gc.collect()
        before = len(gc.get_objects())
        polls(6200)
        gc.collect()
        assert len(gc.get_objects()) - before < 2000  # fewer than one for three requests
