"""Findings about restarts, from given attempts and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from sluiceway.metrics import FailureInfo, JobMetrics, SubtaskMetrics
from sluiceway.monitoring.diagnosis import diagnose, why_late, why_slow
from sluiceway.monitoring.infos import (
    CheckpointInfo,
    EdgeInfo,
    ExecutionInfo,
    JobDescription,
    StepInfo,
    VertexInfo,
)
from sluiceway.monitoring.rates import RateMeter, SubtaskRates

NOW = 1_000_000_000
READ = SubtaskMetrics("read", 0, "running", vertex_id=0, at_ms=NOW)
PRICE = SubtaskMetrics("price", 0, "running", vertex_id=1, at_ms=NOW)
RUNNING = [
    SubtaskRates(READ, 100.0, 100.0, 0.0, 0.0, 0.1, 0.0, 0.9),
    SubtaskRates(PRICE, 100.0, 0.0, 0.0, 0.0, 0.2, 0.0, 0.8),
]


def failure(at_ms: int, delay_ms: int | None = 5000) -> FailureInfo:
    cause = "ValueError: no item for 'tea'\nin step 'price', subtask 1 of 1"
    return FailureInfo(at_ms, "price", 0, 0, "worker-1", cause, "Traceback", 2, delay_ms)


def job(*states: str, begun_ms: int = NOW - 10_000) -> JobDescription:
    def vertex(number: int, name: str, kind: str) -> VertexInfo:
        return VertexInfo(number, name, name, 1, 128, [StepInfo(name, name, kind, False)])

    return JobDescription(
        vertices=[vertex(0, "read", "source"), vertex(1, "price", "sink")],
        edges=[EdgeInfo(0, 1, "hash", "hash", 0, False)],
        executions=[ExecutionInfo(n, 0, 3, s, {"created": begun_ms, s: NOW}) for n, s in enumerate(states)],
        checkpoint_interval_ms=1000,
    )


def metrics(status: str = "running") -> JobMetrics:
    return JobMetrics("job", status, 10.0, 1, 1, (READ, PRICE), restarts=3)


RESTARTS = (
    "The job restarts, as 'price' has failed with ValueError: no item for 'tea'. "
    "2 of 2 subtasks do not run, and restart 5 s after the failure."
)


@pytest.mark.parametrize("status", ["restarting", "running"])
def test_a_job_that_waits_for_its_restart_says_so_and_why(status: str) -> None:
    down, failures = job("canceled", "failed"), [failure(NOW - 20_000), failure(NOW - 100)]
    (slow,) = diagnose(down, metrics(status), RUNNING, (), failures).findings
    assert (slow.kind, slow.severity, slow.vertex, slow.text) == ("restarting", "cause", 1, RESTARTS)
    (late,) = why_late(down, metrics(status), RUNNING, failures=failures).findings
    assert late.text == RESTARTS, "and not that the job has no event time"


def test_subtasks_that_ended_without_a_failure_are_no_cause() -> None:
    """As when a job is rescaled; the failure is of an earlier attempt."""
    for failures in ([], [failure(NOW - 60_000)]):
        (found,) = diagnose(job("canceled", "running"), metrics(), RUNNING, (), failures).findings
        assert (found.severity, found.text) == ("notice", "1 of 2 subtasks do not run: the job restarts them.")


def first(failures: Sequence[FailureInfo]) -> str:
    return why_slow(job("running", "running"), metrics(), RUNNING, (), failures).findings[0].kind


def test_a_job_that_fails_repeatedly_is_not_healthy_while_it_runs() -> None:
    failures = [failure(NOW - 300_000), failure(NOW - 200_000), failure(NOW - 20_000)]
    cause = "'price' has failed with ValueError: no item for 'tea'."
    found = why_slow(job("running", "running"), metrics(), RUNNING, (), failures)
    assert not found.healthy
    assert found.summary == f"The job has failed 3 times in 5 min, and is restarted each time: {cause}"
    taken = CheckpointInfo(1, "completed", NOW, 10, 100, "", "", [])
    lost = msgspec.structs.replace(taken, checkpoint=2, status="failed")
    for checkpoints, then in (([lost], "is restarted"), ([taken, lost], "goes back to its last checkpoint")):
        found = why_slow(job("running", "running"), metrics(), RUNNING, checkpoints, failures)
        assert found.summary == f"The job has failed 3 times in 5 min, and {then} each time: {cause}"
    assert first(failures[1:]) == "idle", "twice may be chance"
    assert first([failure(NOW - 3_600_000), *failures[1:]]) == "idle", "an hour ago is over"


def test_long_and_empty_errors() -> None:
    def text(cause: str, task: str = "price") -> str:
        told = msgspec.structs.replace(failure(NOW), cause=cause, task=task)
        return why_slow(job("failed", "failed"), metrics(), RUNNING, (), [told]).summary

    assert len(text("x" * 5000)) < 400
    assert "'price' has failed with an error without a message" in text("  ")
    assert "as it has failed with WorkerLost: gone." in text("WorkerLost: gone", task="")


@pytest.mark.parametrize("state", ["failed", "canceled", "finished"])
def test_ended_subtasks_have_no_rates(state: str) -> None:
    meter = RateMeter()

    def read(task: SubtaskMetrics) -> SubtaskRates:
        return meter.read("job", JobMetrics("job", "running", 10.0, 0, 0, (task,)))[0]

    read(READ)
    busy = read(replace(READ, records_in=500, busy_s=1.0, at_ms=NOW + 1000))
    assert (busy.in_per_s, busy.busy) == (500.0, 1.0)
    ended = read(replace(READ, state=state, records_in=500, busy_s=1.0, at_ms=NOW + 1000))
    assert (ended.in_per_s, ended.busy, ended.waiting, ended.metrics.state) == (0.0, 0.0, 0.0, state)


def test_what_an_engine_does_before_a_job_runs_is_said() -> None:
    created = replace(metrics("created"), doing="starting Spark", subtasks=())
    assert why_slow(job(), created, []).summary == "The job is created: starting Spark."
    scheduled = replace(metrics(), doing="waiting for room for 2 workers", restarts=0)
    found = why_slow(job("scheduled", "scheduled"), scheduled, [])
    assert found.summary == (
        "2 of 2 subtasks are not running: 'read' is scheduled (waiting for room for 2 workers)."
    )
