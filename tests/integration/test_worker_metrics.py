"""What is told of a job on worker processes: by reporters, by metrics(), on the progress line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import SubtaskMetrics, WorkerMetrics
from sluiceway.runtime.jobmanager.job_metrics import JobFigures
from sluiceway.runtime.loop.tasklet import Progress
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.task.task import Task


def wordcount(name: str = "words") -> sw.Pipeline:
    flow = sw.Pipeline(name, parallelism=2)
    flow.from_collection(["to be or not to be"] * 500).flat_map(str.split).rebalance().key_by(
        str
    ).count().collect()
    return flow


def test_reporters_are_told_of_a_job_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", str(tmp_path / "m.jsonl"))
    wordcount().run(workers=2, metrics=["jsonl"], metrics_interval="20ms")
    told = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert len(told) > 1  # at the interval, too
    last = told[-1]
    assert (last["job_name"], last["status"]) == ("words", "finished")
    assert (last["records_in"], last["records_out"]) == (500, 3_000)
    assert {task["state"] for task in last["subtasks"]} == {"finished"}
    assert [process["worker"] for process in last["workers"]] == ["worker-1", "worker-2"]
    for process in last["workers"]:
        assert process["cpu_s"] > 0
        assert process["rss"] is None or process["rss"] > 10 << 20


def test_a_worker_that_is_gone_is_not_reported_any_more() -> None:
    figures = JobFigures()
    for name in ("a", "b", "c"):
        figures.take_process(WorkerMetrics(name, 1.0, None), ["a", "b", "c"])
    figures.worker_lost("a")
    figures.take_process(WorkerMetrics("b", 2.0, None), ["b"])  # c was idle, and was stopped
    assert figures.metrics("job", "running", 1.0, None).workers == (WorkerMetrics("b", 2.0, None),)


def test_a_reporter_that_cannot_work_is_told_of_before_a_worker_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", str(tmp_path / "absent" / "m.jsonl"))
    monkeypatch.setattr("sluiceway.runtime.cluster.os_platform.start_worker", None)
    with pytest.raises(ConfigurationError, match="cannot write"):
        wordcount().run(workers=2, metrics=["jsonl"])


def test_subtasks_are_spread_over_all_workers_as_evenly_as_can_be() -> None:
    flow = sw.Pipeline("four", parallelism=4)
    flow.generate(count=8).rebalance().map(lambda n: n).collect()
    tasks = flow.run(workers=3).metrics.subtasks
    slots = {(task.subtask, task.worker) for task in tasks}
    assert len(slots) == 4  # what goes with a subtask's index is on one worker
    assert sorted(Counter(worker for _, worker in slots).values()) == [1, 1, 2]


def test_figures_of_channels_between_workers_are_known() -> None:
    tasks = wordcount().run(workers=2).metrics.subtasks
    assert {task.worker for task in tasks} == {"worker-1", "worker-2"}
    assert all(task.attempt == 0 for task in tasks)
    written = sum(task.bytes_out for task in tasks)
    # Half of 3,000 words at least leave their process once, and each is some bytes.
    assert written > 1_500
    assert sum(task.bytes_in for task in tasks) == written
    assert all((task.backlog, task.queued, task.buffers_in_use) == (0, 0, 0) for task in tasks)
    here = wordcount().run().metrics.subtasks
    assert {(task.worker, task.bytes_in, task.bytes_out) for task in here} == {("", 0, 0)}


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_restart_the_new_attempts_are_told_of_and_totals_go_on(workers: int) -> None:
    class FailsAtFirst(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.first = context.attempt_number == 0

        def map(self, value: int) -> int:
            if self.first and value == 90:
                raise ValueError("at first")
            return value

    flow = sw.Pipeline("again", parallelism=2)
    flow.from_collection(range(100)).map(FailsAtFirst()).rebalance().map(abs).collect()
    metrics = flow.run(workers=workers, restart="fixed-delay:1:0ms", batch_size=10).metrics
    assert metrics.restarts == 1
    assert {(task.attempt, task.state) for task in metrics.subtasks} == {(1, "finished")}
    assert len({(task.vertex_id, task.subtask) for task in metrics.subtasks}) == len(metrics.subtasks)
    newest = sum(task.records_in for task in metrics.subtasks if task.vertex_id == metrics.subtasks[0].vertex_id)
    assert newest == 100
    assert 110 <= metrics.records_in <= 200


def test_states_are_those_that_the_job_master_knows() -> None:
    flow = sw.Pipeline("states", parallelism=2)
    flow.from_collection(range(100)).map(lambda v: 1 // (v - 90)).rebalance().map(abs).collect()
    job = flow.prepare(Settings(workers=2))
    with pytest.raises(ZeroDivisionError):
        job.run()
    metrics = job.metrics()
    assert metrics.status == "failed"
    states = [task.state for task in metrics.subtasks]
    assert "failed" in states  # consumers of the one that failed, too, as the case may be
    assert set(states) <= {"failed", "canceled", "finished"}


def test_a_rest_that_lasts_is_told() -> None:
    """A task that waits for input is idle now, not only when something comes."""
    clock = VirtualClock(0)
    since = clock.monotonic()
    clock.advance(3_000)
    for rest, told in ((Progress.IDLE, (1.0, 5.0)), (Progress.BLOCKED, (4.0, 2.0)), (Progress.AGAIN, (1.0, 2.0))):
        task = SimpleNamespace(rest=rest, rest_since=since, clock=clock, blocked_s=1.0, idle_s=2.0)
        assert Task.at_rest_s(task) == told  # type: ignore[arg-type]


class Times(sw.MapFunction[float, float]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.times = context.metrics.histogram("waited")
        context.metrics.histogram("never")

    def map(self, value: float) -> float:
        self.times.observe(value)
        return value


@pytest.mark.parametrize("workers", [0, 1])
def test_histograms_of_functions_are_told(workers: int) -> None:
    flow = sw.Pipeline("times")
    flow.from_collection([0.1] * 99 + [3.0]).map(Times()).name("timer").collect()
    (task,) = flow.run(workers=workers).metrics.subtasks
    assert task.user == task.operators["timer"]
    assert set(task.user) == {"waited_count", "waited_p50", "waited_p99", "waited_max"}
    assert (task.user["waited_count"], task.user["waited_max"]) == (100, 3.0)
    assert task.user["waited_p50"] == pytest.approx(0.1, rel=0.12)
    assert task.user["waited_p99"] == pytest.approx(0.1, rel=0.12)


def test_a_job_that_is_over_has_nothing_in_its_channels_whatever_was_told_last() -> None:
    told = SubtaskMetrics("map", 0, "running", queued=1, backlog=2, buffers=16, buffers_in_use=3)
    figures = JobFigures()
    figures.take([TaskFigures("a", told, False, 0, {})])
    (last,) = figures.metrics("job", "running", 1.0, None).subtasks
    assert (last.queued, last.backlog, last.buffers_in_use) == (1, 2, 3)
    (last,) = figures.metrics("job", "finished", 1.0, None).subtasks
    assert (last.queued, last.backlog, last.buffers_in_use, last.buffers) == (0, 0, 0, 16)
