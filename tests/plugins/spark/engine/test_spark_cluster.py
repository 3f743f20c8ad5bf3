"""Jobs of all modes on a cluster of Spark's, a master and two workers on loopback, and what becomes of kills."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S
from tests.plugins.spark.cluster_jobs import COUNT, check, complete, noted, running

from sluiceway.testing.exactly_once import NumberFiles

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

EXAMPLE = Path(__file__).parents[4] / "examples" / "wordcount_files.py"
HOSTED = ("--engine", "spark", "--hosted", "--workers", "2")
MICRO = BATCH = ("--engine", "spark")

NUMBERS = """
import sys
import sluiceway as sw
from helper import keyed
from sluiceway.testing.exactly_once import KeySequence, NumberFiles

flow = sw.Pipeline("numbers")
numbers = flow.generate(count={count}, rate=1500).uid("numbers")
keyed(numbers).map(KeySequence(10)).uid("sequence").sink(NumberFiles({out!r})).uid("files")
"""
WATCHING = """
import sluiceway as sw
from sluiceway.testing.exactly_once import KeySequence, NumberFiles
from sluiceway_files import FilesSource

flow = sw.Pipeline("numbers")
numbers = flow.source(FilesSource.text({into!r}, watch="1s")).uid("numbers").map(int)
numbers.key_by(lambda n: n % 10).map(KeySequence(10)).uid("sequence").sink(NumberFiles({out!r})).uid("files")
"""
HELPER = "def keyed(numbers): return numbers.key_by(lambda n: n % 10)\n"


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A pipeline in a file, with a module beside it."""
    (tmp_path / "helper.py").write_text(HELPER)
    flow = tmp_path / "numbers_flow.py"
    flow.write_text(NUMBERS.format(count=COUNT, out=str(tmp_path / "out")))
    return flow


@pytest.fixture(autouse=True)
def _nothing_is_left(spark_cluster: Any, until: Any) -> Iterator[None]:
    """Executors and workers of ours go with the job, a moment later; directories are looked at anyway."""
    yield
    until(lambda: not (spark_cluster.workers() or spark_cluster.executors()), "end of the executors")


@contextmanager
def job(
    cluster: Any, *arguments: str, cwd: Path, engine: Sequence[str] = HOSTED, log: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """``sluiceway run ...`` on the cluster."""
    command = (sys.executable, "-m", "sluiceway", "run", *engine, *arguments)
    with running(cluster, *command, cwd=cwd, log=log) as process:
        yield process


def run(cluster: Any, *arguments: str, cwd: Path) -> tuple[int, str, str]:
    with job(cluster, *arguments, cwd=cwd) as process:
        out, err = process.communicate(timeout=PATIENT_S)
        return process.returncode, out, err


def test_the_example_gives_the_same_totals(spark_cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "hamlet.txt").write_text("To be, or not to be,\nthat is the question\n" * 100)
    (tmp_path / "other.txt").write_text("to be is to do\n" * 100)
    files = [str(tmp_path / name) for name in ("hamlet.txt", "other.txt")]
    for where, options in (("local", []), ("spark", HOSTED)):
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", "run", *options, str(EXAMPLE), str(tmp_path / where), *files],
            env=spark_cluster.environment,
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
        )
        assert done.returncode == 0, done.stderr
    local, spark = (
        sorted(line for file in (tmp_path / where).iterdir() for line in file.read_text().splitlines())
        for where in ("local", "spark")
    )
    assert local == spark
    assert "be 300" in local


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_what_is_killed_loses_and_doubles_nothing(
    spark_cluster: Any, kept_numbers: Callable[..., Path], tmp_path: Path, until: Any, victim: str
) -> None:
    numbers, kept = kept_numbers(COUNT), tmp_path / "kept"
    options = ("--checkpoint-interval", "200ms", "--checkpoints", str(kept), "--restart", "fixed-delay:1:100ms")
    with job(spark_cluster, *options, str(numbers), cwd=tmp_path) as process:
        until(lambda: complete(kept) or process.poll() is not None, "checkpoint")
        pids = spark_cluster.executors() if victim == "executor" else spark_cluster.workers()
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    check(tmp_path)
    assert err.count("subtasks restart") == 1, err
    assert "was lost by Spark: executor " in err if victim == "executor" else "was killed by SIGKILL" in err


def test_an_application_that_its_cluster_ends_ends_the_job(
    spark_cluster: Any, numbers: Path, tmp_path: Path, until: Any
) -> None:
    options = ("--checkpoint-interval", "200ms", "--restart", "fixed-delay:99:100ms")
    with job(spark_cluster, *options, str(numbers), cwd=tmp_path) as process:
        until(lambda: len(spark_cluster.workers()) == 2 or process.poll() is not None, "workers")
        spark_cluster.kill_application()
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 1, err
    assert re.search(r"ended with Spark's application app-\S+: Master removed our application: KILLED", err), err
    assert err.count("subtasks restart") <= 1, err


def python_workers(cluster: Any) -> list[int]:
    """Python workers of the executors: what their daemons have forked."""
    found = cluster.processes("pyspark.daemon")
    return [pid for pid in found if parent(pid) in found]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return 0


@pytest.mark.parametrize("victim", ["executor", "Python worker"])
def test_micro_batches_get_over_the_loss_of(
    spark_cluster: Any, kept_numbers: Callable[..., Path], tmp_path: Path, until: Any, victim: str
) -> None:
    """Spark tries the tasks of the micro-batch again, with timers and windows as they were before it."""
    numbers, kept = kept_numbers(COUNT, rate=6000), tmp_path / "kept"
    options = ("--checkpoints", str(kept), "--max-parallelism", "4", "-p", "2", "--restart", "none")
    with job(spark_cluster, *options, str(numbers), cwd=tmp_path, engine=MICRO) as process:
        until(lambda: noted(kept) or process.poll() is not None, "micro-batch")
        pids = spark_cluster.executors() if victim == "executor" else python_workers(spark_cluster)
        if pids:
            os.kill(pids[0], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    assert len(pids) >= 2
    check(tmp_path)
    assert len(list(kept.glob("*/commits/*"))) > 1


def test_micro_batches_go_on_with_another_driver(
    spark_cluster: Any, kept_numbers: Callable[..., Path], tmp_path: Path, until: Any
) -> None:
    numbers, kept = kept_numbers(COUNT, rate=6000), tmp_path / "kept"
    options = ("--max-parallelism", "4", "-p", "2")
    begun = ("--checkpoints", str(kept), *options, str(numbers))
    with job(spark_cluster, *begun, cwd=tmp_path, engine=MICRO) as process:
        until(lambda: noted(kept) or process.poll() is not None, "micro-batch")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until(lambda: not spark_cluster.executors(), "end of what it has left")
    again = ("--from", str(kept), *options, str(numbers))
    with job(spark_cluster, *again, cwd=tmp_path, engine=MICRO) as process:
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    check(tmp_path)


@pytest.mark.parametrize("engine", [HOSTED, MICRO], ids=["hosted", "micro-batches"])
def test_a_shared_directory_that_is_away_for_a_while_costs_no_record(
    spark_cluster: Any, kept_numbers: Callable[..., Path], tmp_path: Path, until: Any, engine: Sequence[str]
) -> None:
    """As where a mount is lost: what has been written is not there, and nothing can be written."""
    numbers = kept_numbers(COUNT, rate=1500 if engine is HOSTED else 6000)
    shared, away = tmp_path / "shared", tmp_path / "away"
    kept, log = shared / "kept", tmp_path / "log"
    restart = ("--checkpoint-interval", "500ms", "--checkpoints", str(kept), "--restart", "fixed-delay:999:500ms")
    given = (*restart, "-p", "2", "--max-parallelism", "4", str(numbers))
    begun = complete if engine is HOSTED else noted
    with job(spark_cluster, *given, cwd=tmp_path, engine=engine, log=log) as process:
        until(lambda: begun(kept) or process.poll() is not None, "checkpoint")
        before = log.stat().st_size
        shared.rename(away)
        shared.touch()  # so that nobody can create the directory anew
        until(lambda: "shared" in log.read_text()[before:] or process.poll() is not None, "failure")
        assert process.poll() is None, log.read_text()[-5000:]
        shared.unlink()
        away.rename(shared)
        process.wait(PATIENT_S)
    assert process.returncode == 0, log.read_text()[-5000:]
    check(tmp_path)


def test_micro_batches_run_where_executors_come_and_go(
    spark_cluster: Any, tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic allocation ends all executors in a pause between micro-batches, and others go on with the state."""
    settings = {
        "enabled": "true",
        "shuffleTracking.timeout": "1s",
        "executorIdleTimeout": "1s",
        "initialExecutors": "1",
        "maxExecutors": "2",
    }
    conf = " ".join(f"--conf spark.dynamicAllocation.{name}={value}" for name, value in settings.items())
    monkeypatch.setitem(spark_cluster.environment, "PYSPARK_SUBMIT_ARGS", f"{conf} pyspark-shell")
    flow, into, out, log = (tmp_path / name for name in ("watching_flow.py", "in", "out", "log"))
    flow.write_text(WATCHING.format(into=str(into), out=str(out)))
    into.mkdir()

    def give(first: int, end: int) -> None:
        (into / ".new").write_text("".join(f"{n}\n" for n in range(first, end)))
        (into / ".new").rename(into / f"{first}.txt")
        until(lambda: received() >= end or process.poll() is not None, "output")
        assert process.poll() is None, log.read_text()[-5000:]

    def received() -> int:
        return NumberFiles(out).report().received

    options = ("--checkpoints", str(tmp_path / "kept"), "--max-parallelism", "4", str(flow))
    with job(spark_cluster, *options, cwd=tmp_path, engine=MICRO, log=log) as process:
        give(0, 1000)
        until(lambda: not spark_cluster.executors(), "end of idle executors")
        give(1000, 2000)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENT_S)
    assert process.returncode == 130, log.read_text()[-5000:]
    check(tmp_path, 2000)


def test_a_batch_job_gets_over_the_loss_of_an_executor(
    spark_cluster: Any, kept_numbers: Callable[..., Path], tmp_path: Path, until: Any
) -> None:
    numbers = kept_numbers(COUNT)
    with job(spark_cluster, "-p", "2", str(numbers), cwd=tmp_path, engine=BATCH) as process:
        until(lambda: len(python_workers(spark_cluster)) > 0 or process.poll() is not None, "Python worker")
        pids = spark_cluster.executors()
        if pids:
            os.kill(pids[0], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    assert pids
    check(tmp_path)


def test_spark_refuses_python_in_deploy_mode_cluster(spark_cluster: Any, numbers: Path, tmp_path: Path) -> None:
    """As the page on Spark says of standalone clusters: a release that takes it fails this test, to be tried."""
    program = str(Path(spark_cluster.program).with_name("spark-submit"))
    done = subprocess.run(
        [program, "--deploy-mode", "cluster", str(numbers)],
        env=spark_cluster.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    assert done.returncode != 0
    assert "Cluster deploy mode is currently not supported for python applications on standalone" in done.stderr


def test_another_driver_goes_on_where_one_was_killed(
    spark_cluster: Any, numbers: Path, tmp_path: Path, until: Any
) -> None:
    kept = tmp_path / "kept"
    options = ("--checkpoint-interval", "200ms", "--checkpoints", str(kept))
    with job(spark_cluster, *options, str(numbers), cwd=tmp_path) as process:
        until(lambda: complete(kept) or process.poll() is not None, "checkpoint")
        assert len(spark_cluster.workers()) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until(lambda: not (spark_cluster.workers() or spark_cluster.executors()), "end of what it has left")
    code, _, err = run(spark_cluster, *options, "--from", str(kept), str(numbers), cwd=tmp_path)
    assert code == 0, err
    check(tmp_path)


def test_ctrl_c_leaves_nothing_behind(spark_cluster: Any, numbers: Path, tmp_path: Path, until: Any) -> None:
    with job(spark_cluster, str(numbers), cwd=tmp_path) as process:
        until(lambda: len(spark_cluster.workers()) == 2 or process.poll() is not None, "workers")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 130, err
    assert "cancelling" in err
    assert "Traceback" not in err
    until(lambda: not spark_cluster.workers(), "end of the workers")
    until(lambda: not spark_cluster.executors(), "end of the executors")


def test_too_many_workers_for_the_slots_are_told_of(spark_cluster: Any, numbers: Path, tmp_path: Path) -> None:
    code, _, err = run(spark_cluster, "--workers", "5", "-p", "5", str(numbers), cwd=tmp_path)
    assert code == 1
    assert "5 workers take 5 task slots of Spark's at a time, and spark://127.0.0.1:" in err
    assert " has 2 after 2" in err
    assert "ask for fewer with --workers, or give Spark more or larger executors" in err
