"""A cluster that stays: workers come and go, jobs wait for slots in order, failures are remembered."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.messages.clients import JobSampled, SampleJob

PROGRAMS = {
    "one": """
        import sluiceway as sw
        flow = sw.Pipeline("one")
        flow.generate(rate=1000).map(lambda v: v).print()
    """,
    "quick": """
        import sluiceway as sw
        flow = sw.Pipeline("quick", parallelism=2)
        flow.from_collection(range(10)).map(lambda v: v + 1).print()
    """,
    "gated": """
        import os, threading
        import sluiceway as sw

        def wait(value):
            while not os.path.exists("go"):
                threading.Event().wait(0.01)
            return value

        flow = sw.Pipeline("gated", parallelism=2)
        flow.from_collection(range(10)).map(wait).print()
    """,
    "half": """
        import sluiceway as sw
        flow = sw.Pipeline("half")
        flow.from_collection(range(10)).slot_sharing_group("short").print()
        flow.generate(rate=1000).slot_sharing_group("long").print()
    """,
    "flaky": """
        import sluiceway as sw

        class Flaky(sw.MapFunction):
            def open(self, context):
                self.attempt = context.attempt_number
            def map(self, value):
                if value == 7 and self.attempt < 2:
                    raise ValueError(f"attempt {self.attempt}")
                return value

        flow = sw.Pipeline("flaky")
        flow.from_collection(range(10)).map(Flaky()).name("shaky").print()
    """,
    "endless": """
        import sluiceway as sw
        flow = sw.Pipeline("endless", parallelism=2)
        flow.generate(rate=1000).key_by(lambda v: v % 2).count().print()
    """,
    "collects": """
        import sluiceway as sw
        flow = sw.Pipeline("collects")
        out = flow.from_collection(range(10)).collect()
    """,
    "locked": """
        import threading
        import sluiceway as sw
        lock = threading.Lock()
        flow = sw.Pipeline("locked")
        flow.from_collection(range(10)).map(lambda v: lock and v).name("careful").print()
    """,
}


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(dedent(text))


def test_idle_workers_are_released_and_come_again(cluster: Any, place: Path) -> None:
    assert "not a duration" in cluster("cluster", "start", "--release-after", "soon").stderr
    assert cluster("cluster", "start", "--release-after", "200ms").returncode == 0
    for number in (1, 2):
        job = cluster("submit", "quick.py").stdout.strip()
        assert job == f"quick-{number}"
        assert cluster.ended(job)["status"] == "finished"
        cluster.until(lambda: cluster.json("cluster", "status")["workers"] == [])
    assert cluster.json("cluster", "status")["slots"] == 0


def test_a_released_worker_is_not_asked_for_samples_of_the_job_that_it_has_worked_for(cluster: Any) -> None:
    cluster("cluster", "start", "--workers", "2", "--slots", "1", "--release-after", "200ms")
    job = cluster("submit", "half.py").stdout.strip()
    cluster.until(lambda: cluster.json("list")[0]["tasks"].get("finished"))
    cluster.until(lambda: len(cluster.json("cluster", "status")["workers"]) == 1)
    with ClusterClient() as client:
        sampled = client.request(lambda number: SampleJob(number, job, 0.1, 10.0))
    assert isinstance(sampled, JobSampled)
    assert (len(sampled.processes), sampled.problems) == (1, [])


def test_jobs_wait_for_slots_in_order_and_one_that_is_cancelled_holds_up_nobody(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1", "--slots", "2")
    gated = cluster("submit", "gated.py").stdout.strip()
    cluster.until(lambda: cluster.json("list")[0]["status"] == "running")
    second, third = (cluster("submit", "quick.py").stdout.strip() for _ in range(2))
    assert {j["job"]: j["status"] for j in cluster.json("list")} == {
        gated: "running",
        second: "waiting",
        third: "waiting",
    }
    assert cluster("why-slow", third).stdout == "The job is created: waiting for 2 slots.\n"
    assert cluster("cancel", second).returncode == 0
    (place / "go").touch()
    assert cluster.ended(gated)["status"] == "finished"
    assert cluster.ended(third)["status"] == "finished"
    assert cluster.ended(second)["status"] == "canceled"


def test_failures_are_remembered_and_a_killed_worker_is_replaced(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1")
    flaky = cluster("submit", "--restart", "fixed-delay:5:0ms", "flaky.py").stdout.strip()
    told = cluster.ended(flaky)
    assert told["status"] == "finished"
    assert [f["cause"].partition("\n")[0] for f in told["failures"]] == [
        "ValueError: attempt 0",
        "ValueError: attempt 1",
    ]
    assert told["restarts"] == 2
    for attempt, failure in enumerate(told["failures"]):
        assert failure["at_ms"] >= told["submitted_ms"]
        assert "shaky" in failure["task"]
        assert (failure["subtask"], failure["attempt"], failure["worker"]) == (0, attempt, "worker-1")
        assert (failure["restarted"], failure["delay_ms"]) == (1, 0)
        assert 'raise ValueError(f"attempt {self.attempt}")' in failure["traceback"]
    shown = cluster("list", flaky).stdout
    assert "subtask 1, attempt 1 on worker-1, failed; 1 subtask was restarted after 0 ms:\nTraceback" in shown
    assert shown.count("Traceback") == 2
    assert "there is no job 'nobody'" in cluster("list", "nobody").stderr

    gated = cluster("submit", "--restart", "fixed-delay:5:0ms", "gated.py").stdout.strip()
    worker = cluster.until(lambda: cluster.json("cluster", "status")["workers"])[0]
    os.kill(worker["pid"], signal.SIGKILL)
    (place / "go").touch()
    told = cluster.ended(gated)
    assert told["status"] == "finished"
    assert any("was killed by SIGKILL" in f["cause"] for f in told["failures"]), told


def test_a_job_that_is_stopped_finishes_what_was_read(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1")
    job = cluster("submit", "endless.py").stdout.strip()
    cluster.until(lambda: cluster.json("list")[0]["records_out"] > 0)
    assert cluster("stop", job).stderr == f"stopping {job}\n"
    told = cluster.ended(job)
    assert told["status"] == "finished"
    assert told["records_in"] == told["records_out"] > 0
    assert f"job {job!r} is finished already" in cluster("stop", job).stderr


def test_what_a_cluster_cannot_take_is_refused_at_once(cluster: Any, place: Path) -> None:
    cluster("cluster", "start")
    refused = cluster("submit", "collects.py")
    assert "and this job runs in a cluster: write to a sink" in refused.stderr
    refused = cluster("submit", "locked.py")
    assert "'careful'" in refused.stderr
    assert "variable 'lock' (lock) cannot be pickled" in refused.stderr
    assert cluster.json("list") == []


def test_after_a_cluster_that_was_killed_as_a_whole_the_next_tidies_up(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1")
    cluster("submit", "endless.py")
    before = cluster.until(lambda: (s := cluster.json("cluster", "status"))["workers"] and s)
    everybody = [before["pid"], *(w["pid"] for w in before["workers"])]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)  # so that none of them notices how the others end
    for pid in everybody:
        process = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([process], [], [], PATIENT_S)[0]
        os.close(process)
    assert cluster("list").returncode == 3
    (left,) = place.glob("sluiceway-*")
    assert (left / "manager").exists()
    assert cluster("cluster", "start").returncode == 0
    assert not left.exists()
    assert len(list(place.glob("sluiceway-*"))) == 1
    assert cluster.json("cluster", "status")["epoch"] == before["epoch"] + 1


def test_jobs_are_spread_over_workers_though_one_has_slots_for_all(cluster: Any, place: Path) -> None:
    assert cluster("cluster", "start", "--workers", "2", "--slots", "4").returncode == 0

    def at_work(job: str) -> set[str]:
        def look() -> set[str]:
            with ClusterClient() as client:
                return {task.worker for task in client.figures()[job].subtasks}

        return set(cluster.until(look))

    alone = [cluster("submit", "one.py").stdout.strip() for _ in range(2)]
    for job in alone:
        cluster.comes_to_be(job, "running")
    first, second = (at_work(job) for job in alone)
    assert len(first) == len(second) == 1
    assert first != second
    both = cluster("submit", "endless.py").stdout.strip()
    cluster.comes_to_be(both, "running")
    # The two of them are deployed one after the other.
    assert cluster.until(lambda: at_work(both) == first | second)
