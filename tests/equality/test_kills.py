"""What becomes of a job on Spark when processes are killed: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from equality_engines import HAS_MICRO_BATCHES
from equality_kills import BATCH, KEYS, MOMENTS, Killing, pipeline

from sluiceway.testing import NumberFiles

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

PROGRAM = Path(__file__).with_name("equality_kills.py")
LOCAL, TRIES = "local[2]", "local[2,4]"
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors with one core each, in processes of their own."""
COUNT = 24_000


def run(
    place: Path,
    master: str,
    kills: dict[str, tuple[str, int]],
    conf: dict[str, str] | None = None,
    *,
    chained: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    asked = json.dumps({"options": options, "conf": conf or {}, "kills": kills, "chained": chained})
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(place), master, str(COUNT), asked],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=place,
    )


Output = tuple[Counter[int], Counter[int]]


def output(place: Path) -> Output:
    """The lines of the files, and the sums of the windows."""
    lines = (file.read_text().split() for file in (place / "lines").glob("part-*"))
    with sqlite3.connect(place / "sums.db") as database:
        rows = database.execute("SELECT total FROM sums").fetchall()
    return Counter(int(line) for some in lines for line in some), Counter(total for (total,) in rows)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Output:
    """What comes of it in one process."""
    place = tmp_path_factory.mktemp("undisturbed")
    pipeline(place, COUNT, Killing(place, {})).run()
    return output(place)


def check(place: Path, undisturbed: Output) -> None:
    report = NumberFiles(place / "numbers").report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    assert {path.suffix for path in (place / "numbers").iterdir()} == {".done"}
    assert output(place) == undisturbed
    assert [path.name for path in (place / "lines").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("point", "victim"), [("key", "worker"), ("sink", "worker"), ("key", "executor")])
def test_a_batch_job_has_all_of_it_once(point: str, victim: str, tmp_path: Path, undisturbed: Output) -> None:
    done = run(tmp_path, CLUSTER if victim == "executor" else TRIES, {point: (victim, COUNT // 2)})
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "marks" / f"{point} {victim}").exists()
    check(tmp_path, undisturbed)


CHAINED = pytest.mark.parametrize("chained", [False, True], ids=["sinks apart", "chained sinks"])


@HAS_MICRO_BATCHES
@CHAINED
def test_micro_batches_have_all_of_it_once(tmp_path: Path, undisturbed: Output, chained: bool) -> None:
    """Workers are killed in a source, in the midst of keys and in a sink, and Spark tries again."""
    kills = {point: ("worker", COUNT * n // 4) for n, point in enumerate(("source", "key", "sink"), 1)}
    done = run(tmp_path, TRIES, kills, chained=chained, checkpoints=str(tmp_path / "runs"), restart="none")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "marks").iterdir())) == len(kills)
    check(tmp_path, undisturbed)


@HAS_MICRO_BATCHES
@CHAINED
def test_micro_batches_go_on_after_a_driver_whenever_it_was_killed(
    tmp_path: Path, undisturbed: Output, chained: bool
) -> None:
    runs = str(tmp_path / "runs")
    per_batch = 2 * BATCH
    kills = {moment: ("driver", number) for number, moment in enumerate(MOMENTS, 1)}
    kills["key"] = ("driver", per_batch * 6 + KEYS)
    option = {"checkpoints": runs}
    for times in range(len(kills)):
        done = run(tmp_path, LOCAL, kills, chained=chained, **option)
        assert done.returncode == -9, (times, done.stderr[-3000:])
        assert len(list((tmp_path / "marks").iterdir())) == times + 1
        option = {"from_checkpoint": runs}
    done = run(tmp_path, LOCAL, kills, chained=chained, **option)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, undisturbed)
    assert len(list(Path(runs).iterdir())) == 1


STREAMING = "org.apache.spark.sql.execution.streaming.checkpointing"
AS_SPARK_DOES = {
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileContextBasedCheckpointFileManager",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}
"""Settings of Spark where nothing is set, with which runs of earlier versions were written."""


@HAS_MICRO_BATCHES
def test_a_run_begun_without_our_settings_goes_on_with_them_and_without(
    tmp_path: Path, undisturbed: Output
) -> None:
    """State of either kind is read with either, and what the user has set stays as it is."""
    runs = str(tmp_path / "runs")
    per_batch = 2 * BATCH
    kills: dict[str, tuple[str, int]] = {
        "key": ("driver", per_batch * 2 + KEYS),
        "noted": ("driver", 4),
        "committed": ("driver", 6),
    }
    option = {"checkpoints": runs}
    state: list[set[str]] = []
    for times, conf in enumerate((AS_SPARK_DOES, {}, AS_SPARK_DOES)):
        done = run(tmp_path, LOCAL, kills, conf, **option)
        assert done.returncode == -9, (times, done.stderr[-3000:])
        state.append({path.suffix for path in Path(runs).glob("*/spark/state/0/0/*") if path.is_file()})
        option = {"from_checkpoint": runs}
    assert ".changelog" not in state[0]
    assert ".changelog" in state[1]
    done = run(tmp_path, LOCAL, kills, **option)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, undisturbed)
