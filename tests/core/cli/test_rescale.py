"""Jobs of a cluster get another parallelism: by the command, and with the job manager killed in the middle."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections import defaultdict
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.runtime.cluster.client import ClusterClient

PROGRAMS = {
    "counting": """
        import sluiceway as sw
        from sluiceway_files import FilesSink

        flow = sw.Pipeline("counting")
        numbers = flow.generate(rate=2000)
        numbers.key_by(lambda v: v % 10).count().name("count").uid("counts").sink(FilesSink.json_lines("out"))
    """,
    "plain": """
        import sluiceway as sw
        flow = sw.Pipeline("plain")
        flow.generate(rate=100).rebalance().map(lambda v: v).print()
    """,
}


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(dedent(text))


def read(cluster: Any, job: str, records: int) -> None:
    """Wait until a job has read so many more records."""

    def read_now() -> int:
        return int(next(j["records_in"] for j in cluster.json("list") if j["job"] == job))

    wanted = read_now() + records
    cluster.until(lambda: read_now() >= wanted)


def check_counts(place: Path) -> int:
    """Every key's counts are in the files without a gap or a double; returns how many."""
    counts: dict[int, list[int]] = defaultdict(list)
    for file in (place / "out").rglob("*"):
        if file.is_file() and not file.name.startswith((".", "_")):
            for line in file.read_text().splitlines():
                key, count = json.loads(line)
                counts[key].append(count)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"key {key}"
    return sum(map(len, counts.values()))


def test_a_job_of_a_cluster(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "2", "--slots", "2")
    assert cluster("submit", "counting.py", "--checkpoint-interval", "100ms", "--transport", "shm").returncode
    job = cluster("submit", "counting.py", "--checkpoint-interval", "100ms").stdout.strip()
    cluster.comes_to_be(job, "running")
    read(cluster, job, 500)
    done = cluster("rescale", "counting", "--parallelism", "4")
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == ["1 -> 4", "1 -> 4"]
    assert f"{job} was stopped for " in done.stderr
    told = next(j for j in cluster.json("list") if j["job"] == job)
    assert (told["needs_slots"], told["restarts"], told["failures"]) == (4, 0, [])
    done = cluster("rescale", "counting", "--parallelism", "4")
    assert (done.returncode, done.stderr.strip()) == (0, f"{job} has that parallelism already")

    refused = cluster("rescale", "counting", "--parallelism", "5")
    assert refused.returncode == 2
    assert "needs 5 slots for that parallelism, and this cluster has 4 (2 workers with 2 each)" in refused.stderr
    assert "there is no step 'counts2'" in cluster("rescale", job, "--step", "counts2=2").stderr
    assert "is not NAME=N" in cluster("rescale", job, "--step", "count").stderr
    assert "give --parallelism N" in cluster("rescale", job).stderr
    done = cluster("rescale", job, "--step", "count=2")
    assert "1 -> " not in done.stdout
    assert "4 -> 2" in done.stdout
    read(cluster, job, 500)

    # A second job, which waits, has what the first lets go of; more is not there.
    second = cluster("submit", "plain.py", "--parallelism", "3").stdout.strip()
    cluster.comes_to_be(second, "waiting")
    done = cluster("rescale", job, "-p", "1")
    assert done.returncode == 0, done.stderr
    cluster.comes_to_be(second, "running")
    refused = cluster("rescale", job, "-p", "4")
    assert "and this cluster has 4 (2 workers with 2 each), of which other jobs have taken 3" in refused.stderr
    # One that waits for slots begins with as many as it is given.
    third = cluster("submit", "plain.py", "--parallelism", "4").stdout.strip()
    cluster.comes_to_be(third, "waiting")
    assert cluster("rescale", third, "-p", "1").returncode == 0
    cluster("cancel", second)
    cluster.comes_to_be(third, "running")
    cluster("stop", job)
    cluster.ended(job)
    assert check_counts(place) > 1000
    assert "finished already" in cluster("rescale", job, "-p", "1").stderr
    with ClusterClient() as client:
        description = client.describe(job)
    assert [(r.status, sorted(r.after.values())) for r in description.rescales] == [
        ("completed", [4, 4]),
        ("completed", [2, 4]),
        ("completed", [1, 1]),
    ]


def test_a_job_without_an_interval_goes_on_from_the_checkpoint_of_its_rescale(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "2", "--slots", "1")
    job = cluster("submit", "plain.py", "--restart", "fixed-delay:3:0ms").stdout.strip()
    cluster.comes_to_be(job, "running")
    done = cluster("rescale", job, "-p", "2")
    assert done.returncode == 0, done.stderr
    cluster("cluster", "stop", "--keep-jobs")
    cluster("cluster", "start", "--workers", "2", "--slots", "1")
    cluster.comes_to_be(job, "running")
    assert f"{job}] sluiceway.jobs: goes on from checkpoint 1\n" in cluster("logs").stdout


@pytest.mark.slow
def test_the_job_manager_is_killed_in_the_middle(cluster: Any, place: Path) -> None:
    """The next one has the job at the parallelism that the job store has, and nothing is lost or doubled."""
    cluster("cluster", "start", "--workers", "2", "--slots", "2")
    job = cluster("submit", "counting.py", "--checkpoint-interval", "50ms").stdout.strip()
    read(cluster, job, 100)
    parallelism = 1
    for after_s, wanted in ((0.0, 4), (0.02, 3), (0.06, 4), (0.1, 2), (0.2, 3)):
        pid = cluster.json("cluster", "status")["pid"]
        process = os.pidfd_open(pid)
        killing = threading.Timer(after_s, os.kill, (pid, signal.SIGKILL))
        killing.start()
        told = cluster("rescale", job, "-p", f"{wanted}")
        killing.join()
        assert select.select([process], [], [], PATIENT_S)[0]
        os.close(process)
        stored = stored_parallelism(place, job) or {1}
        assert stored in ({parallelism}, {wanted}), "one of them, for all steps"
        if told.returncode == 0:
            assert stored == {wanted}, "nobody is told before it is written"
        cluster("cluster", "start", "--workers", "2", "--slots", "2")
        cluster.comes_to_be(job, "running")
        (parallelism,) = stored
        with ClusterClient() as client:
            assert {vertex.parallelism for vertex in client.describe(job).vertices} == stored
        read(cluster, job, 300)
    done = cluster("rescale", job, "-p", "1")
    assert done.returncode == 0, done.stderr
    read(cluster, job, 300)
    cluster("stop", job)
    assert cluster.ended(job)["status"] == "finished"
    assert check_counts(place) > 1000


def stored_parallelism(place: Path, job: str) -> set[int]:
    """What the job store says; empty: that of the program."""
    (told,) = (place / "home").rglob(f"job-{job}/job.json")
    return set(json.loads(told.read_bytes())["parallelism"].values())
