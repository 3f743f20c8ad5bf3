"""Reporters are told of every checkpoint and every restart, in one process and on workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import resolve
from sluiceway.errors import FunctionContractError
from sluiceway.hooks import Offer, hookimpl
from sluiceway.metrics import CheckpointInfo, JobMetrics, MetricsReporter, RestartInfo
from sluiceway.plugins import PluginManager
from sluiceway.runtime.reporters.jsonl import JsonLinesReporter
from sluiceway.runtime.reporters.log import LogReporter
from sluiceway.testing.conformance.metrics_reporter import MetricsReporterConformance


class TestLog(MetricsReporterConformance):
    def make_reporter(self) -> MetricsReporter:
        return LogReporter()


class TestJsonLines(MetricsReporterConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.file = tmp_path / "metrics.jsonl"

    def make_reporter(self) -> MetricsReporter:
        return JsonLinesReporter(self.file)


class Recorder(MetricsReporter):
    """Keeps everything that it is told."""

    def __init__(self) -> None:
        self.reports: list[JobMetrics] = []
        self.checkpoints: list[CheckpointInfo] = []
        self.restarts: list[RestartInfo] = []
        self.last: Any = None

    def report(self, metrics: JobMetrics) -> None:
        self.reports.append(metrics)
        self.last = metrics

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        self.checkpoints.append(checkpoint)
        self.last = checkpoint

    def restart_ended(self, restart: RestartInfo) -> None:
        self.restarts.append(restart)
        self.last = restart


class Breaks(sw.MapFunction[int, int]):
    """Fails at a record, in its first attempt."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.attempt = context.attempt_number

    def map(self, value: int) -> int:
        if value == 500 and self.attempt == 0:
            raise ValueError("no luck")
        return value


def run(flow: sw.Pipeline, recorder: MetricsReporter, **options: Any) -> sw.JobResult:
    class Mine:
        @hookimpl
        def sluiceway_metrics_reporters(self) -> list[Offer]:
            return [Offer("recorder", lambda: lambda: recorder)]

    manager = PluginManager()
    manager.register(Mine(), "mine")
    settings = resolve({"metrics": ["recorder"], **options}).settings
    return flow.prepare(settings, manager.services()).run()


@pytest.mark.parametrize("workers", [0, 2])
def test_each_checkpoint_and_each_restart_is_told_of(workers: int, tmp_path: Path) -> None:
    completed_one = tmp_path / "completed"

    def numbers(ended: threading.Event) -> Iterator[int]:
        yield from range(999)
        while not (completed_one.exists() or ended.wait(0.01)):
            pass
        yield 999

    class Tells(Recorder):
        def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
            super().checkpoint_ended(checkpoint)
            if checkpoint.status == "completed":
                completed_one.touch()

    recorder = Tells()
    flow = sw.Pipeline("events")
    flow.from_function(numbers, blocking=True).map(Breaks()).rebalance().map(abs).collect()
    run(flow, recorder, workers=workers, checkpoint_interval="20ms", restart="fixed-delay:3:0ms")
    completed = [c for c in recorder.checkpoints if c.status == "completed"]
    assert completed
    for checkpoint in completed:
        assert checkpoint.acknowledged_ms is not None
        assert checkpoint.duration_ms is not None
        assert 0 <= checkpoint.acknowledged_ms <= checkpoint.duration_ms
    tasks = recorder.reports[-1].subtasks
    assert {part.vertex_id for part in completed[0].subtasks} == {task.vertex_id for task in tasks}
    (restart,) = recorder.restarts
    assert restart.outcome == "running"
    assert restart.failure.restarted == len(tasks)
    assert "ValueError: no luck" in restart.failure.cause
    assert restart.ended_ms >= restart.failure.at_ms
    figures = recorder.reports[-1].checkpoints
    assert figures.interval_ms == 20
    assert figures.completed == len(completed)
    assert figures.failed == len(recorder.checkpoints) - len(completed)
    assert figures.completed_ms >= completed[-1].triggered_ms
    assert recorder.last is recorder.reports[-1], "the last report comes after all events"


def test_a_restart_that_does_not_help_has_failed_and_the_last_failure_is_told_of() -> None:
    recorder = Recorder()
    flow = sw.Pipeline("hopeless")
    flow.from_collection([0]).map(lambda n: 1 // n).collect()
    with pytest.raises(ZeroDivisionError):
        run(flow, recorder, restart="fixed-delay:1:0ms")
    assert [(r.outcome, r.failure.restarted) for r in recorder.restarts] in (
        [("failed", 1), ("given up", 0)],
        [("running", 1), ("given up", 0)],
    )
    assert all("ZeroDivisionError" in r.failure.cause for r in recorder.restarts)
    assert "ZeroDivisionError" in recorder.restarts[-1].failure.traceback


def test_what_a_reporter_raises_ends_the_job_and_leaves_the_job_master_whole() -> None:
    class Raises(Recorder):
        def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
            raise LookupError("not mine")

    flow = sw.Pipeline("raises")
    flow.generate(count=10**9).map(abs).collect()
    with pytest.raises(LookupError, match="not mine"):
        run(flow, Raises(), checkpoint_interval="5ms")


@pytest.mark.parametrize("method", ["open", "report", "close"])
def test_a_reporter_that_exits_fails_the_job_and_is_named(method: str) -> None:
    def exits(*_: object) -> None:
        raise SystemExit(3)

    recorder = Recorder()
    setattr(recorder, method, exits)
    flow = sw.Pipeline("exits")
    flow.from_collection([1]).collect()
    with pytest.raises(FunctionContractError, match=r"metrics reporter Recorder raised SystemExit\(3\)") as caught:
        run(flow, recorder)
    assert caught.value.__notes__ == ["in metrics reporter Recorder"]
