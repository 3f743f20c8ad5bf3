"""Records that a job has not processed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.losses import Loss, losses, why_lost
from sluiceway_files import FilesSource


def metrics(*subtasks: dict[str, dict[str, float]]) -> JobMetrics:
    tasks = tuple(
        SubtaskMetrics("task", index, "running", operators=operators, vertex_id=3)
        for index, operators in enumerate(subtasks)
    )
    return JobMetrics("job", "running", 1.0, 0, 0, tasks)


def test_counters_of_all_subtasks_are_added() -> None:
    figures = metrics(
        {"sums": {"numLateRecordsDropped": 1200, "own": 5}, "parse": {"deadLetters": 0}},
        {"sums": {"numLateRecordsDropped": 34}, "parse": {"deadLetters": 1}, "read": {"lines_skipped": 2}},
    )
    assert losses(figures) == [
        Loss("sums", 3, 0, "late", 1200),
        Loss("sums", 3, 1, "late", 34),
        Loss("parse", 3, 1, "dead letter", 1),
        Loss("read", 3, 1, "unreadable", 2),
    ]
    found = why_lost(figures)
    assert [(f.kind, f.severity, f.vertex) for f in found.findings] == [
        ("late-records", "notice", 3),
        ("unreadable-records", "notice", 3),
        ("dead-letters", "notice", 3),
    ]
    assert found.summary.startswith("1,234 records came behind the watermark and were dropped by 'sums'")
    assert found.findings[1].text == "2 records that 'read' could not read were skipped."
    assert found.healthy


def test_nothing_is_lost() -> None:
    found = why_lost(metrics({"map": {"own": 1}}))
    assert [(f.kind, f.severity) for f in found.findings] == [("no-losses", "ok")]
    assert losses(metrics()) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_that_skips_lines_of_a_file(tmp_path: Path, workers: int) -> None:
    (tmp_path / "numbers.jsonl").write_text('1\n{broken\n"x"\n')
    flow = sw.Pipeline("files")
    read = flow.source(FilesSource.json_lines(tmp_path / "numbers.jsonl", on_error="skip")).name("read")
    read.map(lambda n: n + 1).name("add").on_error("skip").sink(DiscardSink())
    found = {(loss.step, loss.reason, loss.records) for loss in losses(flow.run(workers=workers).metrics)}
    assert found == {("read", "unreadable", 1), ("add", "dead letter", 1)}


class Broken(sw.ProcessFunction[int, int]):
    def open(self, runtime_context: sw.RuntimeContext) -> None:
        runtime_context.metrics.gauge("broken", lambda: 1 / 0)
        runtime_context.metrics.gauge("ending", lambda: sys.exit(3))
        runtime_context.metrics.gauge("right", lambda: 7)

    def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        yield value


@pytest.mark.parametrize("workers", [0, 1])
def test_a_gauge_that_raises_is_left_out(workers: int) -> None:
    flow = sw.Pipeline("gauges")
    flow.from_collection([1]).process(Broken()).sink(DiscardSink())
    [task] = flow.run(workers=workers).metrics.subtasks
    assert task.user == {"right": 7}


class OddNumbers(sw.ProcessFunction[int, int]):
    def open(self, runtime_context: sw.RuntimeContext) -> None:
        runtime_context.metrics.gauge("none", lambda: None)  # type: ignore[arg-type, return-value]
        runtime_context.metrics.gauge("half", lambda: Fraction(1, 2))  # type: ignore[arg-type, return-value]

    def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        yield value


@pytest.mark.parametrize("workers", [0, 1])
def test_values_of_gauges_are_numbers_for_reporters(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", str(tmp_path / "figures.jsonl"))
    flow = sw.Pipeline("gauges")
    flow.from_collection([1]).process(OddNumbers()).sink(DiscardSink())
    [task] = flow.run(workers=workers, metrics=["log", "jsonl"]).metrics.subtasks
    assert task.user == {"half": 0.5}


def test_counters_of_steps_with_one_name_are_added() -> None:
    """Steps of lambdas are called by their kind alone."""
    flow = sw.Pipeline("lambdas")
    numbers = flow.from_collection(["x", "y", "5", "6"]).map(lambda text: int(text)).on_error("skip")
    numbers.map(lambda number: 1 / (number - 5)).on_error("skip").sink(DiscardSink())
    assert sum(loss.records for loss in losses(flow.run().metrics)) == 3
