"""Bounded pipelines as batch jobs of Spark's: with a real session on this machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.errors import ConnectorError, GraphError
from sluiceway.plugins import default_manager
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[4] / "examples" / "wordcount_files.py"
WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 20
STAMPED: Any = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event.at)


@dataclass(frozen=True)
class Event:
    """Something that was at a time, ms."""

    key: str
    at: int
    amount: int


EVENTS = [Event(f"k{i % 7}", i * 25, i) for i in range(800)]


def both(build: Any, parallelism: int = 2) -> list[Any]:
    """The results on Spark, which are to be those of one process."""
    results = []
    for options in ({}, {"engine": "spark"}):
        flow = sw.Pipeline("both", parallelism=parallelism)
        rows = build(flow).collect()
        result = flow.run(**options)
        assert result.status is JobStatus.FINISHED
        assert result.metrics.records_out == len(rows)
        results.append(sorted(rows, key=repr))
    assert results[0] == results[1]
    return results[1]


@pytest.mark.pysparks
def test_counts_words() -> None:
    assert len(both(lambda flow: flow.from_collection(WORDS).key_by(lambda word: word).count())) == len(WORDS)


@pytest.mark.pysparks
def test_windows_go_by_event_time() -> None:
    def build(flow: sw.Pipeline) -> Any:
        events = flow.from_collection(EVENTS, watermark_strategy=STAMPED)
        windows = events.key_by(lambda event: event.key).window(TumblingEventTimeWindows.of(1000))
        return windows.reduce(lambda a, b: Event(a.key, max(a.at, b.at), a.amount + b.amount))

    assert len(both(build)) == 7 * 20


def test_joins_streams() -> None:
    def build(flow: sw.Pipeline) -> Any:
        left = flow.from_collection(EVENTS, watermark_strategy=STAMPED).key_by(lambda event: event.key)
        right = flow.from_collection(EVENTS[::3], watermark_strategy=STAMPED).key_by(lambda event: event.key)
        joined = left.interval_join(right).between(-200, 200)
        return joined.process(lambda a, b, ctx: [(a.amount, b.amount)])

    assert both(build)


class Sort(sw.ProcessFunction[int, int]):
    """Odd numbers go aside."""

    ODD: Any = sw.OutputTag("odd", int)

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        """One number."""
        if value % 2:
            ctx.output(self.ODD, value)
        else:
            yield value


def test_a_diamond_of_side_outputs() -> None:
    def build(flow: sw.Pipeline) -> Any:
        even = flow.from_sequence(1, 100).process(Sort())
        odd = even.get_side_output(Sort.ODD).map(lambda n: ("odd", n))
        return even.map(lambda n: ("even", n)).union(odd).key_by(lambda pair: pair[0]).count()

    assert len(both(build)) == 100


def test_files_are_there_once_and_only_when_all_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flow = sw.Pipeline("files", parallelism=2)
    flow.from_sequence(1, 5000).rebalance().map(str).sink(FilesSink.text(out))
    result = flow.run(engine="spark")
    numbers = [int(n) for file in out.glob("part-*") for n in file.read_text().split()]
    assert sorted(numbers) == list(range(1, 5001))
    assert len(list(out.iterdir())) == len(list(out.glob("part-*"))) == 2
    assert (result.metrics.records_in, result.metrics.records_out) == (5000, 5000)

    flow = sw.Pipeline("fails", parallelism=2)
    flow.from_sequence(1, 5000).map(lambda n: str(1 // (4000 - n))).sink(FilesSink.text(tmp_path / "none"))
    with pytest.raises(ZeroDivisionError):
        flow.run(engine="spark")
    assert not list((tmp_path / "none").glob("part-*"))


def test_what_is_printed_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    flow = sw.Pipeline("prints")
    flow.from_collection(["one", "two"]).print()
    flow.run(engine="spark")
    assert capfd.readouterr().out == "one\ntwo\n"


def test_records_come_while_it_runs_and_it_is_cancelled_when_there_are_enough() -> None:
    flow = sw.Pipeline("takes", parallelism=2)
    with flow.from_sequence(0, 400_000).execute_and_collect(engine="spark") as records:
        some = [next(records) for _ in range(5)]
    assert len(set(some)) == 5
    assert records.job.status in (JobStatus.CANCELED, JobStatus.FINISHED)


@pytest.mark.pysparks
def test_a_users_exception_comes_with_its_step_and_record() -> None:
    flow = sw.Pipeline("fails", parallelism=2)
    flow.from_sequence(-5, 5).map(lambda n: 1 // n).name("divide").collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run(engine="spark")
    notes = "\n".join(caught.value.__notes__)
    assert "'divide'" in notes
    assert "record: 0" in notes


class NamedError(Exception):
    """Has an ``__init__`` that pickle does not know how to call."""

    def __init__(self, name: str, *, code: int) -> None:
        super().__init__(f"{name} has {code}")
        self.code = code


def test_an_exception_of_the_users_own_comes_as_it_is() -> None:
    def fail(value: int) -> int:
        raise NamedError("seven", code=value)

    flow = sw.Pipeline("own")
    flow.from_collection([7]).key_by(lambda n: n).map(fail).collect()
    with pytest.raises(NamedError, match="seven has 7") as caught:
        flow.run(engine="spark")
    assert caught.value.code == 7


def test_it_is_cancelled(tmp_path: Path) -> None:
    began = tmp_path / "began"

    def slow(value: int) -> int:
        began.touch()
        threading.Event().wait(PATIENT_S)
        return value

    flow = sw.Pipeline("slow")
    flow.from_collection([1, 2]).map(slow).collect()
    job = flow.prepare(Settings(engine="spark"), default_manager().services())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(job.run()), daemon=True)
    thread.start()
    while not began.exists() and thread.is_alive():
        thread.join(0.1)
    job.cancel()
    thread.join(PATIENT_S)
    assert results[0].status is JobStatus.CANCELED


def test_what_a_cancelled_job_held_goes_without_the_garbage_collector(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        test_it_is_cancelled(tmp_path)
        end = time.monotonic() + PATIENT_S
        # The thread that calls Spark ends a moment after the job.
        while any(type(one).__name__ == "PyLocalIterable" for one in gc.get_objects()):
            assert time.monotonic() < end, "the socket of the results is still there"
            time.sleep(0.01)  # polls
    finally:
        gc.enable()


def test_the_session_serves_another_job() -> None:
    assert both(lambda flow: flow.from_collection([1, 2]).map(lambda n: os.getpid() and n)) == [1, 2]


def test_the_example_gives_the_same_totals_by_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "hamlet.txt").write_text("To be, or not to be,\nthat is the question\n" * 100)
    (tmp_path / "other.txt").write_text("to be is to do\n" * 100)
    totals = []
    for number, options in enumerate(([], ["--engine", "spark"])):
        command = [sys.executable, "-m", "sluiceway", "run", *options, str(EXAMPLE), f"totals{number}"]
        done = subprocess.run(
            [*command, "hamlet.txt", "other.txt"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_S
        )
        assert done.returncode == 0, done.stderr
        assert "wordcount-files: finished after" in done.stderr
        files = (tmp_path / f"totals{number}").iterdir()
        totals.append(sorted(line for file in files for line in file.read_text().splitlines()))
    assert totals[0] == totals[1]
    assert "be 300" in totals[0]


def test_what_spark_says_is_told_in_short(tmp_path: Path) -> None:
    flow = sw.Pipeline("dies")
    flow.from_collection([1]).map(lambda n: os._exit(3)).collect()
    with pytest.raises(ConnectorError, match=r"Spark: .*(?i:python worker|crashed|exited)") as caught:
        flow.run(engine="spark")
    assert len(str(caught.value)) < 2000


def test_a_loop_is_refused() -> None:
    flow = sw.Pipeline("loop")
    loop = flow.from_collection([1]).iterate()
    loop.close_with(loop.map(lambda n: n + 1).filter(lambda n: n < 5))
    loop.collect()
    with pytest.raises(GraphError, match=r"feedback loops \(iterate\): records go through Spark in one direction"):
        flow.run(engine="spark")
