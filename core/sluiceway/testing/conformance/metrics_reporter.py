"""Conformance suite for metrics reporters.

In a plugin's tests::

    from sluiceway.testing.conformance.metrics_reporter import MetricsReporterConformance

    class TestMyReporter(MetricsReporterConformance):
        def make_reporter(self):
            return MyReporter(...)
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import (
    CheckpointFigures,
    CheckpointInfo,
    FailureInfo,
    JobMetrics,
    MetricsReporter,
    RestartInfo,
    SplitTime,
    SplitTimes,
    SubtaskInfo,
    SubtaskMetrics,
)
from sluiceway.testing.conformance._held import nothing_left_behind

__all__ = ["METRICS", "MetricsReporterConformance"]

METRICS: Final = JobMetrics(
    job_name='job "\\n{}é',
    status="running",
    elapsed_s=2.5,
    records_in=10,
    records_out=20,
    subtasks=(
        SubtaskMetrics(
            "source",
            0,
            "running",
            10,
            11,
            0.5,
            0.25,
            1.75,
            vertex_id=1,
            splits=SplitTimes(2, 0, 1, None, None, 0.5, (SplitTime("a", None, False, math.inf),)),
        ),
        SubtaskMetrics(
            'count "\\n{}é',
            1,
            "running",
            watermark=7_500,
            output_watermark=MAX_WATERMARK,
            user={"own": math.nan},
            operators={
                "window": {"numLateRecordsDropped": 4, "deadLetters": 1},
                "é": {"own": math.nan, "é": -math.inf},
            },
            vertex_id=3,
            attempt=2,
            worker="worker-2",
        ),
    ),
    latency_ms={"print": {"p50": 0.5, "p99": math.inf}},
    restarts=2,
    checkpoints=CheckpointFigures(
        1_000, completed=3, failed=1, completed_ms=1_700_000_000_000, duration_ms=7, size=9
    ),
)
"""Metrics of a job that reporters stumble over: infinities, names with quotes, tasks without a watermark."""

_PART: Final = SubtaskInfo("count", 1, start_delay_ms=7, alignment_ms=3, flush_ms=1, sync_ms=2, async_ms=4, size=9)
_COMPLETED: Final = CheckpointInfo(7, "completed", 1_700_000_000_000, 15, 9, "", "", [_PART], acknowledged_ms=11)
_FAILED: Final = CheckpointInfo(8, "failed", 1_700_000_001_000, 15, 0, "timed out", "/tmp/savepoint-1", [])
_FAILURE: Final = FailureInfo(
    1_700_000_002_000, "count", 1, 0, "worker-1", "ValueError: no", "Traceback ...", restarted=2, delay_ms=100
)
_ELSEWHERE: Final = FailureInfo(
    1_700_000_003_000, "", None, None, "", "OSError: no", "", restarted=0, delay_ms=None
)


class MetricsReporterConformance:
    """Suite of metrics reporters.

    Subclass it, give it a name that pytest collects, and implement :meth:`make_reporter`.
    """

    def make_reporter(self) -> MetricsReporter:
        """Return a new reporter, which is not open."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_reporter()")

    def _life(self, *calls: Callable[[MetricsReporter], None]) -> None:
        with nothing_left_behind(), ExitStack() as closing:
            reporter = self.make_reporter()
            closing.callback(self.wait_closed, reporter)
            closing.callback(reporter.close)
            reporter.open("job")
            for call in calls:
                call(reporter)

    def wait_closed(self, reporter: MetricsReporter) -> None:
        """Wait until a closed reporter has released what it held, if it does that in a thread of its own."""

    def test_the_life_of_a_job(self) -> None:
        self._life(
            lambda r: r.report(replace(METRICS, status="created", subtasks=(), latency_ms={})),
            lambda r: r.report(METRICS),
            lambda r: r.report(replace(METRICS, status="finished", elapsed_s=3.5, records_in=11)),
        )

    def test_a_job_that_ends_at_once(self) -> None:
        self._life()

    def test_events_before_and_after_the_first_report(self) -> None:
        self._life(
            lambda r: r.checkpoint_ended(_COMPLETED),
            lambda r: r.restart_ended(RestartInfo(_FAILURE, "running", 1_700_000_002_200)),
            lambda r: r.report(METRICS),
            lambda r: r.checkpoint_ended(_FAILED),
            lambda r: r.restart_ended(RestartInfo(_FAILURE, "failed", 1_700_000_002_500)),
            lambda r: r.restart_ended(RestartInfo(_ELSEWHERE, "given up", 1_700_000_003_000)),
            lambda r: r.report(METRICS),
        )

    def test_counts_that_begin_anew_and_tasks_that_come_and_go(self) -> None:
        source, count = METRICS.subtasks
        begun = replace(count, attempt=3, worker="worker-3", watermark=None, output_watermark=None)
        self._life(
            lambda r: r.report(METRICS),
            lambda r: r.report(replace(METRICS, subtasks=(source, begun))),
            lambda r: r.report(replace(METRICS, subtasks=(begun,))),
            lambda r: r.report(METRICS),
        )

    def test_one_that_is_closed_twice(self) -> None:
        self._life(lambda r: r.report(METRICS), lambda r: r.close())

    def test_two_at_a_time(self) -> None:
        """Two jobs of one process have one each, unless both need the same port or file."""
        with nothing_left_behind():
            reporters = [self.make_reporter() for _ in range(2)]
            for reporter in reporters:
                reporter.open("job")
                reporter.report(METRICS)
            for reporter in reporters:
                reporter.close()
                self.wait_closed(reporter)
