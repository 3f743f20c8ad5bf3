"""How pipelines in micro-batches on Spark are ended: with what was read, behind a micro-batch, or with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.engine import Job, JobStatus
from sluiceway.errors import CheckpointError, ConfigurationError, NotBuiltYetError
from sluiceway.testing import KeySequence, NumberFiles
from sluiceway.windows import TumblingEventTimeWindows

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

STAMPED: Any = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


@contextmanager
def doing(when: Callable[[], object], what: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread once something holds."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            if when():
                what()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def prepared(flow: sw.Pipeline, place: Path, **options: Any) -> Job:
    return flow.prepare(Settings(engine="spark", checkpoints=str(place), checkpoint_interval_ms=100, **options))


def test_a_job_that_is_stopped_finishes_what_was_read(spark: Any, tmp_path: Path) -> None:
    """As on any engine: windows that are open fire, and nothing is left to go on with."""
    flow = sw.Pipeline("stopped", parallelism=2, max_parallelism=2)
    numbers = flow.generate(rate=500).assign_timestamps_and_watermarks(STAMPED)
    seen = numbers.collect()
    sums = numbers.key_by(lambda n: n % 3).window(TumblingEventTimeWindows.of(HOUR_MS)).count().collect()
    job = prepared(flow, tmp_path)
    told: set[str] = set()

    def much_has_come() -> bool:
        told.add(job.metrics().doing)
        return len(seen) > 50

    with doing(much_has_come, job.stop):
        result = job.run()
    assert result.status is JobStatus.FINISHED
    assert "the first micro-batch" in told
    assert result.metrics.doing == ""
    for lane in range(2):
        mine = sorted(n for n in seen if n % 2 == lane)
        assert mine == list(range(lane, 2 * len(mine), 2))
    assert dict(sums) == Counter(n % 3 for n in seen)
    [run] = tmp_path.iterdir()
    assert (run / "finished.json").exists()


def test_a_job_stands_still_behind_a_micro_batch_and_goes_on_from_there(spark: Any, tmp_path: Path) -> None:
    count = 6000

    def pipeline() -> sw.Pipeline:
        flow = sw.Pipeline("paused", parallelism=2, max_parallelism=2)
        numbers = flow.generate(count=count, rate=800).uid("numbers")
        numbers.key_by(lambda n: n % 4).map(KeySequence(4)).uid("checked").sink(files).uid("files")
        return flow

    files = NumberFiles(tmp_path / "out")
    place = tmp_path / "runs"
    job = prepared(pipeline(), place)
    with pytest.raises(NotBuiltYetError, match="micro-batches on Spark leave no savepoints behind while they go"):
        job.savepoint(None, lambda location, problem: None)
    with pytest.raises(ConfigurationError, match=r"in the directory of the run, in .*runs, and cannot be put in"):
        job.savepoint(str(tmp_path / "other"), lambda location, problem: None, stop=True)
    endless = sw.Pipeline("endless")
    endless.generate().print()
    temporary = endless.prepare(Settings(engine="spark"))
    with pytest.raises(ConfigurationError, match=r"this one has none that stays: name .*runs with --checkpoints"):
        temporary.check_savepoint(str(place))
    said: list[tuple[str, BaseException | None]] = []

    def pause() -> None:
        job.savepoint(str(place), lambda *told: said.append(told), stop=True)

    with doing(lambda: (tmp_path / "out").exists() and files.report().received > 50, pause):
        result = job.run()
    assert result.status is JobStatus.FINISHED
    [run] = place.iterdir()
    assert said == [(str(run), None)]
    assert not (run / "finished.json").exists()
    assert (run / "spark" / "commits" / str(result.metrics.micro_batches - 1)).exists(), "Spark knows, too"
    so_far = files.report()
    assert (so_far.received, so_far.duplicates) == (result.metrics.records_in, 0)
    assert so_far.received < count
    settings = Settings(engine="spark", from_checkpoint=str(run))
    assert pipeline().prepare(settings).run().status is JobStatus.FINISHED
    report = files.report(count)
    assert (report.received, report.lost, report.duplicates) == (count, 0, 0)
    job.savepoint(None, lambda *told: said.append(told), stop=True)
    assert isinstance(said[-1][1], CheckpointError)


def test_a_run_that_was_moved_says_where_it_has_begun(spark: Any, tmp_path: Path) -> None:
    """Spark's checkpoint names files by their whole path; a link to the new place is enough for it."""
    numbers = 4000
    begun, moved = tmp_path / "runs", tmp_path / "else where" / "runs"
    files = NumberFiles(tmp_path / "out")

    def pipeline() -> sw.Pipeline:
        flow = sw.Pipeline("moved", parallelism=2, max_parallelism=2)
        keyed = flow.generate(count=numbers, rate=1000).uid("numbers").key_by(lambda n: n % 4)
        keyed.map(KeySequence(4)).uid("checked").sink(files).uid("files")
        return flow

    job = prepared(pipeline(), begun)
    with doing(
        lambda: job.metrics().micro_batches > 0,
        lambda: job.savepoint(str(begun), lambda location, problem: None, stop=True),
    ):
        job.run()
    [run] = begun.iterdir()
    moved.parent.mkdir()
    begun.rename(moved)
    again = Settings(engine="spark", from_checkpoint=str(moved))
    with pytest.raises(CheckpointError, match=rf"begun in {run}, and Spark.*Move the directory back, or link it"):
        pipeline().prepare(again)
    begun.symlink_to(moved)
    assert pipeline().prepare(again).run().status is JobStatus.FINISHED
    report = files.report(numbers)
    assert (report.received, report.lost, report.duplicates) == (numbers, 0, 0)


CONF = """\
spark.master local[2]
spark.ui.enabled false
spark.python.authenticate.socketTimeout 120s
"""

FLOW = """
import sluiceway as sw
from sluiceway.testing import KeySequence, NumberFiles

flow = sw.Pipeline("numbers", parallelism=2, max_parallelism=2)
numbers = flow.generate(count={count}, rate=400).uid("numbers").key_by(lambda n: n % 4)
numbers.map(KeySequence(4)).uid("checked").sink(NumberFiles({out!r})).uid("files")
"""


@pytest.mark.parametrize("saves", [False, True], ids=["cancelled", "with a savepoint"])
def test_ctrl_c_says_where_to_go_on(
    tmp_path: Path, until: Any, saves: bool, request: pytest.FixtureRequest
) -> None:
    count = 8000
    (tmp_path / "flow.py").write_text(FLOW.format(count=count, out=str(tmp_path / "out")))
    kept = tmp_path / "kept"
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(CONF)
    command = [sys.executable, "-m", "sluiceway", "run", "--engine", "spark"]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(conf)}

    def start(*options: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [*command, *options, "flow.py"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        request.addfinalizer(lambda: _end(started))
        return started

    if saves:
        _, err = start("--checkpoints", str(kept), "--savepoint", "other").communicate(timeout=PATIENT_S)
        assert f"in {kept}, and cannot be put in {tmp_path / 'other'}: name {kept}, or run it with --hosted" in err
    process = start("--checkpoints", str(kept), *(["--savepoint", "kept"] if saves else []))
    until(lambda: any(kept.glob("*/commits/1")) or process.poll() is not None, "micro-batch")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == (0 if saves else 130), err
    assert ("ending with a savepoint" if saves else "cancelling") in err
    assert "Traceback" not in err
    assert "StackOverflowError" not in err
    [run] = kept.iterdir()
    assert (f"savepoint: {run}\n" if saves else f"to resume this run: --from {run}\n") in err
    so_far = NumberFiles(tmp_path / "out").report()
    assert so_far.duplicates == 0
    assert 0 < so_far.received < count
    process = start("--from", str(run))
    _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    assert "--from" not in err
    report = NumberFiles(tmp_path / "out").report(count)
    assert (report.received, report.lost, report.duplicates) == (count, 0, 0), report


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what a test that has failed has left, with the JVM of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
