"""Hosted jobs on Apache Hadoop YARN, of which an executor or the application is killed."""

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

from sluiceway.testing.exactly_once import NumberFiles

pytestmark = [pytest.mark.yarn, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

EXECUTOR, OURS = "YarnCoarseGrainedExecutorBackend", "sluiceway.entrypoint.worker"
HOSTED = ("--engine", "spark", "--hosted", "--workers", "2")
COUNT = 30_000


@contextmanager
def running(yarn: Any, *command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command whose driver runs here, in a process group of its own."""
    process = subprocess.Popen(
        [*command],
        cwd=cwd,
        env=yarn.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def job(yarn: Any, *options: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "sluiceway", "run", *HOSTED, "--checkpoint-interval", "200ms")
    with running(yarn, *command, "--checkpoints", "kept", *options, "numbers_flow.py", cwd=cwd) as process:
        yield process


def complete(place: Path) -> bool:
    return any("metadata.json" in files for _, _, files in os.walk(place))


@pytest.fixture
def where(kept_numbers: Callable[..., Path]) -> Path:
    """A directory with a program whose numbers wait in state, timers and windows."""
    return kept_numbers(COUNT).parent


@pytest.fixture(autouse=True)
def _nothing_is_left(yarn: Any) -> Iterator[None]:
    """Containers go with the job, a moment later; directories are looked at anyway."""
    yield
    yarn.until(lambda: not yarn.processes(EXECUTOR) + yarn.processes(OURS), "end of the containers", 120)


def test_an_executor_that_is_killed_costs_one_restart_and_loses_nothing(yarn: Any, where: Path) -> None:
    with job(yarn, "--restart", "fixed-delay:1:100ms", cwd=where) as process:
        yarn.until(lambda: complete(where / "kept") or process.poll() is not None, "checkpoint")
        pids = yarn.processes(EXECUTOR)
        assert pids, process.communicate()
        os.kill(pids[-1], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    report = NumberFiles(where / "out").report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    assert err.count("subtasks restart") == 1, err


def test_an_application_that_is_killed_ends_the_job_and_says_so(yarn: Any, where: Path) -> None:
    with job(yarn, "--restart", "fixed-delay:99:100ms", cwd=where) as process:
        yarn.until(lambda: complete(where / "kept") or process.poll() is not None, "checkpoint")
        (application,) = yarn.applications()
        yarn.kill(application)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 1, err
    assert re.search(rf"ended with Spark's application {application}: KILLED\. \S", err), err
    assert err.count("subtasks restart") <= 1, err
