"""What becomes of a job on Spark when processes are killed: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluiceway.testing import NumberFiles

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("equality_kills.py")
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors with one core each, in processes of their own."""
COUNT = 24_000


def run(place: Path, master: str, dies: dict[str, int], **options: Any) -> subprocess.CompletedProcess[str]:
    asked = json.dumps({"options": options, "dies": dies})
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(place), master, str(COUNT), asked],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=place,
    )


def check(place: Path) -> None:
    report = NumberFiles(place / "out").report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    assert {path.suffix for path in (place / "out").iterdir()} == {".done"}


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_batch_job_has_all_of_it_once(victim: str, tmp_path: Path) -> None:
    done = run(tmp_path, CLUSTER if victim == "executor" else "local[2,4]", {victim: COUNT // 2})
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "marks" / victim).exists()
    check(tmp_path)
