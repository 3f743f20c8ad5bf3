"""``sluiceway cluster``, ``submit``, ``list``, ``cancel``: as a user uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

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


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    environ = {**os.environ, "SLUICEWAY_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sluiceway", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    (tmp_path / "endless.py").write_text(dedent(ENDLESS))
    (tmp_path / "quick.py").write_text(dedent(QUICK))
    yield run
    run("cluster", "stop")


def until(command: Command, job: str, status: str) -> dict[str, Any]:
    pause = threading.Event()
    for _ in range(600):
        jobs = {j["job"]: j for j in json.loads(command("list", "--json").stdout)}
        if jobs[job]["status"] == status:
            return dict(jobs[job])
        pause.wait(0.05)
    pytest.fail(f"{job} never came to be {status}")


def test_without_a_cluster_every_command_says_how_to_start_one(command: Command) -> None:
    for arguments in (
        "list",
        "cluster status",
        "cluster stop",
        "cancel x",
        "submit quick.py",
    ):
        result = command(*arguments.split())
        assert result.returncode == 3, result
        assert result.stderr == "error: no cluster is running: start one with sluiceway cluster start\n"


def test_jobs_are_submitted_listed_and_cancelled(command: Command, tmp_path: Path) -> None:
    started = command("cluster", "start", "--workers", "2", "--slots", "2")
    assert started.returncode == 0, started.stderr
    assert "with up to 2 workers of 2 slots" in started.stdout
    assert (tmp_path / "home" / "cluster.json").stat().st_mode & 0o777 == 0o600

    again = command("cluster", "start")
    assert again.returncode == 2
    assert "a cluster is running already" in again.stderr

    assert command("submit", "quick.py").stdout == "quick-1\n"
    done = until(command, "quick-1", "finished")
    assert (done["records_in"], done["records_out"]) == (6, 6)
    assert "('be', 2)" in command("logs", "quick-1").stdout

    submitted = command("submit", "endless.py")
    assert submitted.stdout == "endless-2\n", submitted.stderr
    until(command, "endless-2", "running")
    assert command("cancel", "endless-2").returncode == 0
    until(command, "endless-2", "canceled")
    late = command("cancel", "endless-2")
    assert "job 'endless-2' is canceled already" in late.stderr
    assert "there is no job 'nobody'" in command("cancel", "nobody").stderr

    large = command("submit", "--parallelism", "50", "endless.py")
    assert "needs 50 slots, and this cluster has 4 (2 workers with 2 each)" in large.stderr

    status = json.loads(command("cluster", "status", "--json").stdout)
    assert status["free_slots"] == status["slots"] > 0

    assert command("cluster", "stop").stdout == "cluster stopped\n"
    assert command("list").returncode == 3
    pause = threading.Event()
    for _ in range(200):
        if not [p for p in tmp_path.iterdir() if p.name.startswith("sluiceway-")]:
            break
        pause.wait(0.05)
    assert [p for p in tmp_path.iterdir() if p.name.startswith("sluiceway-")] == []
