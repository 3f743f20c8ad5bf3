"""Jobs on Apache Hadoop YARN, of which an executor, the application or its master is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S
from tests.plugins.spark.cluster_jobs import COUNT, check, complete, noted, running

pytestmark = [pytest.mark.yarn, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

EXECUTOR, OURS = "YarnCoarseGrainedExecutorBackend", "sluiceway.entrypoint.worker"
HOSTED = ("--engine", "spark", "--hosted", "--workers", "2")
MICRO = (sys.executable, "-m", "sluiceway", "run", "--engine", "spark", "-p", "2", "--max-parallelism", "4")


@contextmanager
def job(yarn: Any, *options: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "sluiceway", "run", *HOSTED, "--checkpoint-interval", "200ms")
    with running(yarn, *command, "--checkpoints", "kept", *options, "numbers_flow.py", cwd=cwd) as process:
        yield process


@pytest.fixture
def where(kept_numbers: Callable[..., Path]) -> Path:
    """A directory with a program whose numbers wait in state, timers and windows."""
    return kept_numbers(COUNT).parent


@pytest.fixture(autouse=True)
def _nothing_is_left(yarn: Any) -> Iterator[None]:
    """Containers go with the job, a moment later; directories are looked at anyway."""
    yield
    left = (EXECUTOR, OURS, "numbers_flow.py")
    yarn.until(lambda: not any(map(yarn.processes, left)), "end of the containers")


@pytest.mark.parametrize("victim", [EXECUTOR, "ExecutorLauncher"], ids=["executor", "application master"])
def test_what_is_killed_costs_one_restart_and_loses_nothing(yarn: Any, where: Path, victim: str) -> None:
    """YARN starts an application master once more, which has other executors."""
    with job(yarn, "--restart", "fixed-delay:1:100ms", cwd=where) as process:
        yarn.until(lambda: complete(where / "kept") or process.poll() is not None, "checkpoint")
        pids = yarn.processes(victim)
        assert pids, process.communicate()
        os.kill(pids[-1], signal.SIGKILL)
        _, err = process.communicate(timeout=2 * PATIENT_S)
    assert process.returncode == 0, err
    check(where)
    assert err.count("subtasks restart") == 1, err


def test_an_application_that_is_killed_ends_the_job_and_says_so(yarn: Any, where: Path) -> None:
    with job(yarn, "--restart", "fixed-delay:99:100ms", cwd=where) as process:
        yarn.until(lambda: complete(where / "kept") or process.poll() is not None, "checkpoint")
        (application,) = yarn.applications()
        yarn.kill(application)
        _, err = process.communicate(timeout=2 * PATIENT_S)
    assert process.returncode == 1, err
    assert re.search(rf"ended with Spark's application {application}: KILLED\. \S", err), err
    assert err.count("subtasks restart") <= 1, err


@pytest.mark.parametrize("victim", [EXECUTOR, "ApplicationMaster"], ids=["executor", "driver"])
@pytest.mark.parametrize("mode", ["hosted", "micro-batches"])
def test_deploy_mode_cluster_gets_over_the_loss_of(
    yarn: Any, kept_numbers: Callable[..., Path], tmp_path: Path, mode: str, victim: str
) -> None:
    """The driver is in the application master: a second attempt of it begins with the newest checkpoint."""
    kept = tmp_path / "kept"
    options = {"engine": "spark", "parallelism": 2, "max_parallelism": 4, "checkpoints": str(kept), "resume": True}
    if mode == "hosted":
        options |= {"hosted": True, "workers": 2, "checkpoint_interval": "200ms"}
    flow = kept_numbers(COUNT, rate=1500 if mode == "hosted" else 6000, **options)
    submit = str(Path(yarn.home, "bin", "spark-submit"))
    command = (submit, "--master", "yarn", "--deploy-mode", "cluster", "--py-files", "helper.py", flow.name)
    begun = complete if mode == "hosted" else noted
    with running(yarn, *command, cwd=tmp_path) as process:
        yarn.until(lambda: begun(kept) or process.poll() is not None, "checkpoint")
        pids = yarn.processes(victim)
        assert pids, process.communicate()
        os.kill(pids[-1], signal.SIGKILL)
        out, err = process.communicate(timeout=2 * PATIENT_S)
    assert process.returncode == 0, (out, err)
    check(tmp_path)


def test_micro_batches_get_over_the_loss_of_an_executor(
    yarn: Any, kept_numbers: Callable[..., Path], tmp_path: Path
) -> None:
    """Spark tries the tasks of the micro-batch again, on an executor that YARN gives in its place."""
    flow = kept_numbers(COUNT, rate=6000)
    with running(yarn, *MICRO, "--checkpoints", "kept", flow.name, cwd=tmp_path) as process:
        yarn.until(lambda: noted(tmp_path / "kept") or process.poll() is not None, "micro-batch")
        pids = yarn.processes(EXECUTOR)
        assert pids, process.communicate()
        os.kill(pids[-1], signal.SIGKILL)
        _, err = process.communicate(timeout=2 * PATIENT_S)
    assert process.returncode == 0, err
    check(tmp_path)


def test_micro_batches_go_on_with_another_driver(
    yarn: Any, kept_numbers: Callable[..., Path], tmp_path: Path
) -> None:
    flow = kept_numbers(COUNT, rate=6000)
    with running(yarn, *MICRO, "--checkpoints", "kept", flow.name, cwd=tmp_path) as process:
        yarn.until(lambda: noted(tmp_path / "kept") or process.poll() is not None, "micro-batch")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    yarn.until(lambda: not yarn.processes(EXECUTOR), "end of what it has left")
    with running(yarn, *MICRO, "--from", "kept", flow.name, cwd=tmp_path) as process:
        _, err = process.communicate(timeout=2 * PATIENT_S)
    assert process.returncode == 0, err
    check(tmp_path)
