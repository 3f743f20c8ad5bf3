"""Stopping a cluster, or a job, one task of which does not return from a call."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway.exit_codes import CANCELLED

PROGRAM = """
    import threading
    from pathlib import Path
    import sluiceway as sw
    from sluiceway.connector.lib import DiscardSink

    def enrich(value):
        Path({busy!r}).touch()
        threading.Event().wait()

    flow = sw.Pipeline("stuck")
    flow.from_collection([1]).rebalance().map(enrich).sink(DiscardSink())
"""
CALL = r"worker-1 \(process \d+\) was still in map\(enrich\)[^,]* \(1/1\) of stuck-1, at [^,]+, {}, and was killed"


@pytest.mark.parametrize("options", [[], pytest.param(["--keep-jobs"], marks=pytest.mark.slow)])
def test_a_stopping_cluster_kills_it_and_names_the_task(
    options: list[str], cluster: Any, write: Any, place: Path
) -> None:
    write("job.py", PROGRAM.format(busy=str(place / "busy")), head="")
    assert cluster("cluster", "start", "--workers", "1").returncode == 0
    assert cluster("submit", "job.py").returncode == 0
    cluster.until((place / "busy").exists)
    stopped = cluster("cluster", "stop", *options)
    assert (stopped.returncode, stopped.stdout) == (0, "cluster stopped\n"), stopped.stderr
    why = "5 s after it had been stopped" if options else "5 s after it had been cancelled"
    assert re.fullmatch(f"warning: {CALL.format(why)}\n", stopped.stderr), stopped.stderr


def test_ctrl_c_in_a_run_kills_it_and_names_the_task(start: Any, write: Any, place: Path) -> None:
    write("job.py", PROGRAM.format(busy=str(place / "busy")), head="")
    process = start("run", "--workers", "1", "job.py")
    until((place / "busy").exists)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENT_S)[1]
    assert process.returncode == CANCELLED, said
    assert re.search(CALL.format("5 s after it had been cancelled").replace("stuck-1", "stuck"), said), said


def test_a_cancelled_job_names_the_task_in_the_log(cluster: Any, write: Any, place: Path) -> None:
    write("job.py", PROGRAM.format(busy=str(place / "busy")), head="")
    assert cluster("cluster", "start", "--workers", "1").returncode == 0
    job = cluster("submit", "--cancellation-timeout", "300ms", "job.py").stdout.strip()
    cluster.until((place / "busy").exists)
    cluster("cancel", job)
    assert cluster.ended(job)["status"] == "canceled"
    said = cluster("logs", "jobmanager").stdout
    assert re.search(CALL.format(r"0\.3 s after it had been cancelled"), said), said
