"""The built-in metrics reporters."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from sluiceway.clock import VirtualClock
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import CheckpointFigures, JobMetrics, SplitTime, SplitTimes, SubtaskMetrics, WorkerMetrics
from sluiceway.metrics.events import SubtaskInfo
from sluiceway.runtime.reporters.jsonl import JsonLinesReporter, _plain
from sluiceway.runtime.reporters.log import LogReporter

METRICS = JobMetrics(
    "wc",
    "running",
    2.5,
    10,
    20,
    (
        SubtaskMetrics("source", 0, "RUNNING", 10, 10, 0.5, 0.25, 1.75),
        SubtaskMetrics(
            "count",
            1,
            "RUNNING",
            10,
            20,
            watermark=7,
            output_watermark=9,
            watermark_lag_ms=31,
            user=MappingProxyType({"b": math.inf, "a": 1.5}),
            operators={"count": MappingProxyType({"b": math.inf, "a": 1.5})},
            vertex_id=3,
            attempt=2,
            bytes_in=1_000,
            bytes_out=2_000,
            queued=3,
            backlog=4,
            buffers=16,
            buffers_in_use=5,
            worker="worker-2",
            at_ms=999,
            splits=SplitTimes(3, 1, 1, 7, 7, 0.5, (SplitTime("a", None, False, math.inf),)),
        ),
    ),
    latency_ms={"print": {"p50": 0.5, "p99": 1.25}},
    restarts=2,
    checkpoints=CheckpointFigures(1_000, 2, 1, completed_ms=5, duration_ms=6, size=7),
    workers=(WorkerMetrics("worker-2", 1.5, 4_096),),
)


def test_json_lines_hold_structs_by_their_fields() -> None:
    info = SubtaskInfo("map", 1, 2, 3, 4, 5, 6, 7)
    assert _plain({"subtasks": (info,)}) == {"subtasks": [msgspec.structs.asdict(info)]}


def test_json_lines_hold_everything(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    clock = VirtualClock(1_000)
    reporter = JsonLinesReporter(file, clock)
    reporter.open("wc")
    reporter.report(METRICS)
    clock.advance(500)
    reporter.report(METRICS)
    first, second = map(json.loads, file.read_text().splitlines())  # before the file is closed
    reporter.close()
    reporter.close()
    assert second == {**first, "time_ms": 1_500}
    assert first == {
        "time_ms": 1_000,
        "job_name": "wc",
        "status": "running",
        "elapsed_s": 2.5,
        "records_in": 10,
        "records_out": 20,
        "restarts": 2,
        "workers": [{"worker": "worker-2", "cpu_s": 1.5, "rss": 4_096}],
        "latency_ms": {"print": {"p50": 0.5, "p99": 1.25}},
        "checkpoints": {
            "interval_ms": 1_000,
            "completed": 2,
            "failed": 1,
            "completed_ms": 5,
            "duration_ms": 6,
            "size": 7,
        },
        "subtasks": [
            {
                "vertex": "source",
                "subtask": 0,
                "state": "RUNNING",
                "records_in": 10,
                "records_out": 10,
                "busy_s": 0.5,
                "backpressured_s": 0.25,
                "idle_s": 1.75,
                "watermark": None,
                "output_watermark": None,
                "watermark_lag_ms": None,
                "user": {},
                "operators": {},
                "vertex_id": 0,
                "attempt": 0,
                "bytes_in": 0,
                "bytes_out": 0,
                "queued": 0,
                "backlog": 0,
                "buffers": 0,
                "buffers_in_use": 0,
                "worker": "",
                "at_ms": 0,
                "splits": None,
            },
            {
                "vertex": "count",
                "subtask": 1,
                "state": "RUNNING",
                "records_in": 10,
                "records_out": 20,
                "busy_s": 0.0,
                "backpressured_s": 0.0,
                "idle_s": 0.0,
                "watermark": 7,
                "output_watermark": 9,
                "watermark_lag_ms": 31,
                "user": {"a": 1.5, "b": None},
                "operators": {"count": {"a": 1.5, "b": None}},
                "vertex_id": 3,
                "attempt": 2,
                "bytes_in": 1_000,
                "bytes_out": 2_000,
                "queued": 3,
                "backlog": 4,
                "buffers": 16,
                "buffers_in_use": 5,
                "worker": "worker-2",
                "at_ms": 999,
                "splits": {
                    "splits": 3,
                    "idle": 1,
                    "without_watermark": 1,
                    "median": 7,
                    "highest": 7,
                    "last_record_s": 0.5,
                    "shown": [{"split": "a", "watermark": None, "idle": False, "silent_s": None}],
                },
            },
        ],
    }


def test_json_lines_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text("{}\n")
    reporter = JsonLinesReporter(file)
    reporter.open("wc")
    reporter.report(METRICS)
    reporter.close()
    assert len(file.read_text().splitlines()) == 2


def test_the_file_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", str(tmp_path / "m.jsonl"))
    reporter = JsonLinesReporter()
    reporter.open("wc")
    reporter.close()
    assert (tmp_path / "m.jsonl").exists()


def test_without_a_file_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICEWAY_METRICS_FILE", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        JsonLinesReporter()
    assert str(caught.value) == ("metrics reporter 'jsonl' needs a file: set SLUICEWAY_METRICS_FILE to its path")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JsonLinesReporter(tmp_path).open("wc")
    assert str(caught.value) == f"metrics reporter 'jsonl' cannot write {tmp_path}: Is a directory"


def test_log_lines_tell_of_job_sinks_and_subtasks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluiceway.metrics")
    reporter = LogReporter()
    reporter.open("wc")
    reporter.report(METRICS)
    reporter.close()
    assert [r.getMessage() for r in caplog.records] == [
        "wc: running, 2.5 s, 10 records in, 20 out",
        "wc: latency to 'print': p50 0.50 ms, p99 1.25 ms",
        "wc: source[0] RUNNING, 10 in, 10 out, busy 0.50 s, back-pressured 0.25 s, idle 1.75 s, watermark none",
        "wc: count[1] RUNNING, 10 in, 20 out, busy 0.00 s, back-pressured 0.00 s, idle 0.00 s, watermark 7, "
        "a=1.5, b=inf",
    ]


def test_the_last_watermark_is_the_end_of_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluiceway.metrics")
    last = replace(METRICS.subtasks[1], watermark=MAX_WATERMARK)
    LogReporter().report(replace(METRICS, subtasks=(last,)))
    assert "watermark end" in caplog.records[-1].getMessage()


def test_nothing_is_logged_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sluiceway.metrics")
    LogReporter().report(METRICS)
    assert caplog.records == []
