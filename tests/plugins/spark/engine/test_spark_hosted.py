"""Workers of ours on Spark's executors: with a real session on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector.lib import CollectionSource
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, GraphError, NoResourceAvailableError, SluicewayError
from sluiceway.testing.exactly_once import FailOnce, KeySequence, NumberFiles
from sluiceway_spark.hosted.shared_storage import SharedPlaces

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

EXAMPLE = Path(__file__).parents[4] / "examples" / "wordcount_files.py"
HOSTED: dict[str, Any] = {"engine": "spark", "hosted": True, "workers": 2}


@pytest.fixture(autouse=True)
def _directories(until: Any) -> Iterator[None]:
    """A worker whose supervisor was killed removes its directory, a moment later."""
    place = Path(tempfile.gettempdir())
    before = set(place.glob("sluiceway-worker-*"))
    yield
    until(lambda: not set(place.glob("sluiceway-worker-*")) - before, "end of the workers' directories", 30)


def counts(**options: Any) -> list[Any]:
    flow = sw.Pipeline("counts", parallelism=2)
    words = flow.from_collection(["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 20)
    with words.key_by(lambda word: word).count().execute_and_collect(**options) as rows:
        return sorted(rows)


@pytest.mark.pysparks
def test_results_are_those_of_one_process() -> None:
    assert counts(**HOSTED) == counts()


def test_sources_one_after_the_other_are_read_by_hosted_workers_alone() -> None:
    flow = sw.Pipeline("hybrid", parallelism=2)
    source = sw.HybridSource(CollectionSource(range(50)), CollectionSource(range(50, 100)))
    numbers = flow.source(source).collect()
    with pytest.raises(GraphError, match=r"in a batch job does not have .*\(HybridSource\): .* with --hosted"):
        flow.run(engine="spark")
    flow.run(**HOSTED)
    assert sorted(numbers) == list(range(100))


def test_there_are_as_many_workers_as_the_parallelism_where_nobody_says() -> None:
    flow = sw.Pipeline("workers", parallelism=2)
    with (
        flow.from_sequence(0, 99)
        .map(lambda n: os.getpid())
        .execute_and_collect(engine="spark", hosted=True) as pids
    ):
        found = set(pids)
    assert len(found) == 2
    assert os.getpid() not in found


@pytest.mark.pysparks
def test_a_users_exception_comes_with_its_step_and_record() -> None:
    flow = sw.Pipeline("fails", parallelism=2)
    flow.from_sequence(-5, 5).map(lambda n: 1 // n).name("divide").collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run(**HOSTED)
    notes = "\n".join(caught.value.__notes__)
    assert "divide" in notes
    assert "record" in notes


def shout(value: int) -> int:
    print(f"at {value}")
    return value


def test_what_is_printed_over_there_is_seen_here(capfd: pytest.CaptureFixture[str]) -> None:
    flow = sw.Pipeline("shouts", parallelism=2)
    flow.from_sequence(0, 9).map(shout).print("seen")
    flow.run(**HOSTED)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.startswith("at ")) == [f"at {n}" for n in range(10)]
    assert sorted(line[-1] for line in lines if line.startswith("seen:")) == [str(n) for n in range(10)]


def test_executors_that_do_not_see_the_checkpoints_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mark(places: SharedPlaces) -> None:  # as if it were there, on another machine
        places.seen.append(str(tmp_path / "kept" / ".sluiceway-seen-1"))

    monkeypatch.setattr(SharedPlaces, "mark", mark)
    flow = sw.Pipeline("apart", parallelism=2)
    flow.from_sequence(0, 9).collect()
    with pytest.raises(SluicewayError, match=r"'worker-\d' cannot work on .* place that all executors see"):
        flow.run(**HOSTED, checkpoint_interval="1s", checkpoints=tmp_path / "kept")


class DiesOnce(sw.MapFunction[int, int]):
    """Kills its process when a number comes, the first time."""

    def __init__(self, mark: Path, at: int) -> None:
        self._mark = mark
        self._at = at

    def map(self, value: int) -> int:
        if value == self._at and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value


def numbers(out: NumberFiles, fails: Any, dies: Any) -> sw.Pipeline:
    flow = sw.Pipeline("numbers", parallelism=2)
    (
        flow.generate(count=6000, rate=3000)
        .map(fails)
        .key_by(lambda n: n % 10)
        .map(KeySequence(10))
        .map(dies)
        .sink(out)
    )
    return flow


def test_a_worker_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    out = NumberFiles(tmp_path / "out")
    mark = tmp_path / "killed"
    flow = numbers(out, FailOnce(tmp_path / "marks", at=(1500,)), DiesOnce(mark, 3000))
    result = flow.run(
        **HOSTED, checkpoint_interval="50ms", checkpoints=tmp_path / "kept", restart="fixed-delay:9:10ms"
    )
    assert mark.exists()
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts >= 2
    report = out.report(6000)
    assert (report.received, report.lost, report.duplicates) == (6000, 0, 0), report


@pytest.mark.pysparks
def test_a_worker_that_is_killed_is_told_of(tmp_path: Path) -> None:
    flow = sw.Pipeline("killed", parallelism=2)
    flow.from_sequence(0, 99).map(DiesOnce(tmp_path / "killed", 70)).collect()
    with pytest.raises(SluicewayError, match=r"worker 'worker-\d' .*was killed by SIGKILL"):
        flow.run(**HOSTED)


def test_a_job_is_cancelled_and_its_workers_go(spark: Any) -> None:
    flow = sw.Pipeline("endless", parallelism=2)
    with flow.generate(lambda n: os.getpid(), rate=200).execute_and_collect(**HOSTED) as records:
        pids = {next(records) for _ in range(50)}
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.timeout(600)
def test_the_example_gives_the_same_totals_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "hamlet.txt").write_text("To be, or not to be,\nthat is the question\n" * 100)
    (tmp_path / "other.txt").write_text("to be is to do\n" * 100)
    totals = []
    for number, options in enumerate(
        ([], ["--workers", "2"], ["--engine", "spark", "--hosted", "--workers", "2"])
    ):
        command = [sys.executable, "-m", "sluiceway", "run", *options, str(EXAMPLE), f"totals{number}"]
        done = subprocess.run(
            [*command, "hamlet.txt", "other.txt"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_S
        )
        assert done.returncode == 0, done.stderr
        files = (tmp_path / f"totals{number}").iterdir()
        totals.append(sorted(line for file in files for line in file.read_text().splitlines()))
    assert totals[0] == totals[1] == totals[2]
    assert "be 300" in totals[0]


@pytest.mark.timeout(600)
def test_executors_whose_python_has_nothing_installed_are_shipped_the_drivers_path(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    (tmp_path / "words.txt").write_text("to be or not to be\n" * 100)
    command = [sys.executable, "-m", "sluiceway", "run", "--engine", "spark", "--hosted", "--workers", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLE), "totals", "words.txt"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python")},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "be 200" in "".join(file.read_text() for file in (tmp_path / "totals").iterdir())


def test_a_module_that_executors_lack_ends_the_job_whatever_the_restart_strategy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = ModuleType("nowhere_else")
    module.__spec__ = ModuleSpec("nowhere_else", None)
    exec("def absent(value):\n    return value\n", vars(module))
    monkeypatch.setitem(sys.modules, "nowhere_else", module)
    flow = sw.Pipeline("absent", parallelism=2)
    flow.from_sequence(0, 9).map(vars(module)["absent"]).collect()
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_else'") as caught:
        flow.run(**HOSTED, restart="fixed-delay:9:10ms", checkpoint_interval="1s", checkpoints=tmp_path / "kept")
    assert f"imported by {sys.executable}, Python 3." in "\n".join(caught.value.__notes__)


def test_more_workers_than_tasks_can_run_are_refused() -> None:
    flow = sw.Pipeline("many", parallelism=9)
    flow.from_sequence(0, 9).collect()
    with pytest.raises(NoResourceAvailableError, match=r"9 workers take 9 .* and local\[3\] has 3: ask for"):
        flow.run(engine="spark", hosted=True, workers=9)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"hosted": True}, ConfigurationError, r"engine 'local' in .* starts its own workers; .* --engine spark"),
        ({**HOSTED, "transport": "shm"}, ConfigurationError, r"'shm' is not for workers on several .* 'zmq'"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    flow = sw.Pipeline("no", parallelism=2)
    flow.from_sequence(0, 9).collect()
    with pytest.raises(kind, match=message):
        flow.run(**options)
