"""``sluiceway cluster``, ``submit``, ``list``, ``cancel``: as a user uses them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ENDLESS = """
    import threading
    import sluiceway as sw

    def wait(value):
        threading.Event().wait(0.01)
        return value

    flow = sw.Pipeline("endless")
    flow.from_collection(range(1_000_000)).map(wait).print()
"""
QUICK = """
    import sluiceway as sw

    flow = sw.Pipeline("quick", parallelism=2)
    words = flow.from_collection("to be or not to be".split())
    words.key_by(lambda word: word).count().print()
"""


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    (place / "endless.py").write_text(dedent(ENDLESS))
    (place / "quick.py").write_text(dedent(QUICK))


def test_a_failure_with_half_a_surrogate_pair_ends_its_job_alone(cluster: Any, place: Path) -> None:
    (place / "half.py").write_text(
        dedent(
            """
            import sluiceway as sw

            def refuse(value):
                raise ValueError("no \\udcff")

            flow = sw.Pipeline("half")
            flow.from_collection([1]).map(refuse).print()
            """
        )
    )
    cluster("cluster", "start", "--workers", "1", "--slots", "2")
    cluster("submit", "endless.py")
    cluster("submit", "--restart", "none", "half.py")
    assert cluster.ended("half-2")["failure"].startswith("ValueError: no \\udcff\n")
    assert cluster.comes_to_be("endless-1", "running")
    assert "ValueError: no \\udcff" in cluster("list").stdout


def test_without_a_cluster_every_command_says_how_to_start_one(cluster: Any) -> None:
    for arguments in (
        "list",
        "cluster status",
        "cluster stop",
        "cancel x",
        "submit quick.py",
    ):
        result = cluster(*arguments.split())
        assert result.returncode == 3, result
        assert result.stderr == "error: no cluster is running: start one with sluiceway cluster start\n"


def test_jobs_are_submitted_listed_and_cancelled(cluster: Any, place: Path) -> None:
    started = cluster("cluster", "start", "--workers", "2", "--slots", "2")
    assert started.returncode == 0, started.stderr
    assert "with up to 2 workers of 2 slots" in started.stdout
    assert (place / "home" / "cluster.json").stat().st_mode & 0o777 == 0o600

    again = cluster("cluster", "start")
    assert again.returncode == 2
    assert "a cluster is running already" in again.stderr

    assert cluster("submit", "quick.py").stdout == "quick-1\n"
    done = cluster.comes_to_be("quick-1", "finished")
    assert (done["records_in"], done["records_out"]) == (6, 6)
    assert "('be', 2)" in cluster("logs", "quick-1").stdout

    submitted = cluster("submit", "endless.py")
    assert submitted.stdout == "endless-2\n", submitted.stderr
    cluster.comes_to_be("endless-2", "running")
    assert cluster("savepoint", "create", "endless-2").returncode == 2
    (place / "file").touch()
    assert cluster("savepoint", "create", "endless-2", "file/kept").returncode == 3
    assert cluster("submit", "--from", "nowhere", "quick.py").returncode == 3
    assert cluster("cancel", "endless-2").returncode == 0
    cluster.comes_to_be("endless-2", "canceled")
    late = cluster("cancel", "endless-2")
    assert "job 'endless-2' is canceled already" in late.stderr
    assert late.returncode == 2
    assert "there is no job 'nobody'" in cluster("cancel", "nobody").stderr
    assert "there is no directory 'chk-7', and there is no job 'chk-7'" in cluster("state", "size", "chk-7").stderr

    large = cluster("submit", "--parallelism", "50", "endless.py")
    assert "needs 50 slots, and this cluster has 4 (2 workers with 2 each)" in large.stderr
    assert large.returncode == 2

    status = cluster.json("cluster", "status")
    assert status["free_slots"] == status["slots"] > 0

    assert cluster("cluster", "stop").stdout == "cluster stopped\n"
    assert cluster("list").returncode == 3
