"""Jobs that tests start on a cluster of Spark's, as commands, and the output of ``numbers_flow.py``."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sluiceway.testing.exactly_once import NumberFiles

__all__ = ["COUNT", "check", "complete", "noted", "running"]

COUNT = 30_000
"""Numbers of a job: enough that a process of it can be killed while it runs."""


@contextmanager
def running(cluster: Any, *command: str, cwd: Path, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose driver is on this machine, in a process group that ends with the test.

    Args:
        cluster: has the environment of the command.
        command: program and arguments.
        cwd: working directory.
        log: file for its output; None: ``communicate()`` returns it.
    """
    with nullcontext(subprocess.PIPE) if log is None else log.open("wb") as out:
        process = subprocess.Popen(
            [*command], cwd=cwd, env=cluster.environment, stdout=out, stderr=out, text=True, process_group=0
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                print(*process.communicate())  # pytest shows it: the test has waited in vain
            process.communicate()


def complete(kept: Path) -> bool:
    """Return True once a checkpoint is complete. Others are written and removed meanwhile."""
    return any("metadata.json" in files for _, _, files in os.walk(kept))


def noted(kept: Path) -> bool:
    """Return True once a micro-batch was committed."""
    return any(kept.glob("*/commits/0"))


def check(place: Path, count: int = COUNT) -> None:
    """Check that each number was written once, below ``out``."""
    report = NumberFiles(place / "out").report(count)
    assert (report.received, report.lost, report.duplicates) == (count, 0, 0), report
