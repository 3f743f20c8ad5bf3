"""What people are told while a job runs."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.cli.progress import Progress, summary, summary_json
from sluiceway.cli.terminal import LiveLine
from sluiceway.elements import MAX_WATERMARK
from sluiceway.engine import Job, JobResult, JobStatus
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.figures import Figures, figures

WIDE = "\r\x1b[2K"


def subtask(vertex: str, busy: float, waiting: float = 0.0, watermark: int | None = None) -> SubtaskMetrics:
    return SubtaskMetrics(vertex, 0, "RUNNING", busy_s=busy, backpressured_s=waiting, watermark=watermark)


BEFORE = JobMetrics("wc", "running", 1.0, 100, 40, (subtask("a", 0.5), subtask("b", 0.2, 0.1)))
NOW = JobMetrics(
    "wc",
    "running",
    3.0,
    1100,
    2040,
    (subtask("a", 1.0, 0.0, 90_061_000), subtask("b", 0.3, 1.6, 5_000_000), subtask("c", 0.4)),
)


class Paced(Job):
    """A job whose metrics are asked for; tells when the last answer is given."""

    def __init__(self, *answers: JobMetrics | Exception) -> None:
        self._answers = list(answers)
        self.last = threading.Event()

    def run(self) -> JobResult:
        raise AssertionError

    def cancel(self) -> None:
        raise AssertionError

    @property
    def status(self) -> JobStatus:
        return JobStatus.RUNNING

    def metrics(self) -> JobMetrics:
        if len(self._answers) == 1:
            self.last.set()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    monkeypatch.delenv("TERM", raising=False)
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


# -- figures ------------------------------------------------------------------------------------------------


def test_rates_are_those_since_the_moment_before() -> None:
    assert figures(NOW, BEFORE) == Figures(
        elapsed_s=3.0,
        records_in=1100,
        records_out=2040,
        in_per_s=500.0,
        out_per_s=1000.0,
        busy=pytest.approx((0.5 + 0.1 + 0.4) / 2),
        backpressured=pytest.approx(1.5 / 2),
        watermark=5_000_000,
    )


def test_without_a_moment_before_they_are_since_the_start() -> None:
    assert figures(NOW).in_per_s == pytest.approx(1100 / 3)


def test_no_time_and_figures_that_go_back_give_zero() -> None:
    assert figures(BEFORE, BEFORE).in_per_s == 0.0
    again = replace(NOW, records_in=0, subtasks=())
    assert figures(again, BEFORE).in_per_s == 0.0
    assert figures(again, BEFORE).busy == 0.0
    assert figures(again, BEFORE).watermark is None


def test_shares_are_never_more_than_all() -> None:
    busy = replace(NOW, subtasks=(subtask("a", 99.0, 99.0),))
    assert (figures(busy).busy, figures(busy).backpressured) == (1.0, 1.0)


def test_of_workers_the_busiest_counts() -> None:
    tasks = [
        replace(subtask(name, busy), worker=worker) for name, busy, worker in (("a", 1.0, "1"), ("b", 1.5, "2"))
    ]
    assert figures(replace(NOW, subtasks=(*tasks, replace(tasks[0], vertex="c")))).busy == pytest.approx(2 / 3)


def test_what_an_earlier_attempt_did_is_not_taken_from_the_new_one() -> None:
    again = replace(NOW, subtasks=(replace(subtask("a", 0.4), attempt=1),))
    assert figures(again, BEFORE).busy == pytest.approx(0.2)


def test_rates_of_workers_do_not_jump_with_their_reports() -> None:
    task = replace(subtask("a", 0.5), worker="worker-1")
    steps = [
        JobMetrics("wc", "running", elapsed, count, 0, (task,))
        for elapsed, count in ((1.0, 0), (1.5, 1_000), (2.0, 1_000), (3.5, 1_000))
    ]
    told = [json.loads(line)["in_per_s"] for line in run(io.StringIO(), *steps, as_json=True).splitlines()]
    assert told[:4] == [0.0, 2_000.0, 1_000.0, 400.0]


def test_what_an_engine_is_at_is_told_and_of_records_what_is_known() -> None:
    steps = [
        replace(NOW, doing="stage 1 of 3", records_in=0, records_out=0),
        replace(NOW, doing="stage 2 of 3"),
    ]
    first, second, *_ = run(io.StringIO(), *steps).splitlines()
    assert first == "wc: 3.0 s | stage 1 of 3"
    assert second.startswith("wc: 3.0 s | stage 2 of 3 | in ")
    assert second.endswith("| total 1,100 in, 2,040 out")
    told = [json.loads(line) for line in run(io.StringIO(), *steps, NOW, as_json=True).splitlines()]
    assert [line.get("doing") for line in told[:3]] == ["stage 1 of 3", "stage 2 of 3", None]


# -- the closing line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12 ms"), (1.0, "1.0 s"), (59.94, "59.9 s"), (61, "0:01:01"), (3_725, "1:02:05")],
)
def test_the_closing_line(seconds: float, shown: str) -> None:
    metrics = replace(NOW, status="finished", elapsed_s=seconds, records_in=1_234_567, records_out=8)
    line = summary(metrics)
    assert line.startswith(f"wc: finished after {shown}, 1,234,567 records in")
    assert line.endswith(", 8 out")
    assert ("/s)" in line) == (seconds >= 0.1)


def test_the_closing_line_has_latencies_where_they_are_known() -> None:
    metrics = replace(NOW, latency_ms={"print": {"p50": 0.5, "p99": 1.25}})
    assert summary(metrics).splitlines()[1] == "latency to print: p50 0.50 ms, p99 1.25 ms"
    assert json.loads(summary_json(metrics))["latency_ms"] == {"print": {"p50": 0.5, "p99": 1.25}}


# -- while the job runs -------------------------------------------------------------------------------------


def run(stream: io.StringIO, *answers: Any, **options: Any) -> str:
    job = Paced(*answers)
    threads = threading.active_count()
    with Progress(job, stream, interval_s=0.001, **options):  # the end waits for a line that has begun
        assert job.last.wait(PATIENT_S)
    assert threading.active_count() == threads
    return stream.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    first, second, *_ = run(io.StringIO(), BEFORE, NOW).splitlines()
    assert first.startswith("wc: 1.0 s | in 100/s | out 40/s | busy 70% | back-pressured 10% | watermark none | ")
    assert second == (
        "wc: 3.0 s | in 500/s | out 1,000/s | busy 50% | back-pressured 75% | watermark 1970-01-01 01:23:20 | "
        "total 1,100 in, 2,040 out"
    )


def test_what_has_not_begun_is_starting(width: Callable[[int], None]) -> None:
    before = JobMetrics("wc", "created", 0.0, 0, 0, (), {})
    assert run(io.StringIO(), before, NOW).splitlines()[0] == "wc: starting"
    width(200)
    assert run(Terminal(), before, NOW).split(WIDE)[1] == "starting"
    spark = replace(before, doing="starting Spark")
    assert run(io.StringIO(), spark, NOW).splitlines()[0] == "wc: starting Spark"
    waiting = replace(spark, elapsed_s=2.0, doing="waiting for room for 2 workers")
    assert run(io.StringIO(), waiting, NOW).splitlines()[0] == "wc: 2.0 s | waiting for room for 2 workers"


def test_micro_batches_are_told_where_there_are_any() -> None:
    late = replace(NOW.subtasks[0], watermark_lag_ms=2500)
    now = replace(NOW, subtasks=(late,), micro_batches=12, micro_batch_s=0.8)
    _, second, *_ = run(io.StringIO(), replace(BEFORE, micro_batches=3), now).splitlines()
    assert " | out 1,000/s | micro-batch 12 took 800 ms | lag 2.5 s | watermark " in second
    told = [json.loads(line) for line in run(Terminal(), BEFORE, now, as_json=True).splitlines()]
    assert (told[1]["micro_batches"], told[1]["micro_batch_s"]) == (12, 0.8)


def test_json_lines() -> None:
    told = [json.loads(line) for line in run(Terminal(), BEFORE, NOW, as_json=True).splitlines()]
    assert told[1] == {
        "event": "progress",
        "job": "wc",
        "status": "running",
        "elapsed_s": 3.0,
        "records_in": 1100,
        "records_out": 2040,
        "in_per_s": 500.0,
        "out_per_s": 1000.0,
        "busy": 0.5,
        "backpressured": 0.75,
        "watermark": 5_000_000,
    }


def test_one_line_in_place_on_a_terminal_that_is_gone_at_the_end(width: Callable[[int], None]) -> None:
    width(200)
    text = run(Terminal(), BEFORE, NOW)
    _, first, second, *_, last = text.split(WIDE)
    assert first == "1.0 s | in 100/s | out 40/s | busy 70% | back-pressured 10% | watermark none"
    assert second == (
        "3.0 s | in 500/s | out 1,000/s | busy 50% | back-pressured 75% | watermark 1970-01-01 01:23:20"
    )
    assert last == ""
    assert "\n" not in text


def test_the_line_is_cut_to_the_terminal(width: Callable[[int], None]) -> None:
    width(20)
    shown = run(Terminal(), BEFORE, NOW).split(WIDE)
    assert {len(line) for line in shown} == {0, 19}


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run(Terminal(), BEFORE, NOW)


@pytest.mark.parametrize(
    ("watermark", "shown"), [(MAX_WATERMARK, "end"), (10**17, "100000000000000000 ms"), (None, "none")]
)
def test_watermarks(watermark: int | None, shown: str) -> None:
    metrics = replace(NOW, subtasks=(subtask("a", 0, watermark=watermark),))
    assert f"watermark {shown} |" in run(io.StringIO(), metrics)


@pytest.mark.parametrize(
    ("rate", "shown"), [(9_999, "9,999/s"), (12_345, "12k/s"), (9_999_000, "9,999k/s"), (12_345_678, "12.3M/s")]
)
def test_large_rates_are_short(rate: int, shown: str) -> None:
    assert f"in {shown} |" in run(io.StringIO(), replace(NOW, elapsed_s=1.0, records_in=rate))


def test_metrics_that_cannot_be_had_end_the_progress_and_nothing_else() -> None:
    assert run(io.StringIO(), RuntimeError("no figures")) == (
        "warning: no more progress is shown (RuntimeError: no figures)\n"
    )


# -- the line and other output ------------------------------------------------------------------------------


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch, width: Callable[[int], None]) -> Callable[[], Terminal]:
    """Makes one terminal standard output and standard error. Called in the test: pytest sets its own before it."""
    width(80)

    def take() -> Terminal:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return take


def test_output_takes_the_line_away_first(take: Callable[[], Terminal]) -> None:
    both = take()
    live = LiveLine(both)
    with live.guard_output():
        live.show("busy")
        print("a result")
        sys.stderr.writelines(["a", "b\n"])
        live.show("busier")
    assert both.getvalue() == f"{WIDE}busy{WIDE}a result\nab\n{WIDE}busier{WIDE}"
    assert sys.stdout is both
    assert sys.stderr is both


def test_the_line_waits_while_other_output_is_in_the_middle_of_one(take: Callable[[], Terminal]) -> None:
    both = take()
    live = LiveLine(both)
    with live.guard_output():
        print("half", end="")
        live.show("busy")
        print(" and half", end="")
        live.show("busy")
        print()
        print("", end="")
        live.show("busy")
    assert both.getvalue() == f"half and half\n{WIDE}busy{WIDE}"


def test_output_that_goes_elsewhere_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[], Terminal]
) -> None:
    both = take()
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    live = LiveLine(both)
    with live.guard_output():
        assert sys.stdout is file
        live.show("busy")
        print("half", end="")
        live.show("busier")
    assert file.getvalue() == "half"
    assert both.getvalue() == f"{WIDE}busy{WIDE}busier{WIDE}"


def test_what_a_program_puts_in_place_of_the_streams_stays(take: Callable[[], Terminal]) -> None:
    both = take()
    mine = io.StringIO()
    with LiveLine(both).guard_output():
        assert sys.stdout.isatty()
        sys.stdout = mine
    assert sys.stdout is mine


def test_lines_and_output_from_many_threads_do_not_mix(take: Callable[[], Terminal]) -> None:
    both = take()
    live = LiveLine(both)
    with live.guard_output():
        threads = [
            threading.Thread(target=lambda: [live.show("busy") for _ in range(200)]),
            *(threading.Thread(target=lambda: [print("a result", flush=True) for _ in range(200)]) for _ in "12"),
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    # print() writes text and line end separately, so results of two threads may share a line, as always.
    shown = both.getvalue().replace(f"{WIDE}busy", "").replace(WIDE, "")
    assert shown.replace("a result", "").replace("\n", "") == ""
    assert shown.count("a result") == shown.count("\n") == 400
