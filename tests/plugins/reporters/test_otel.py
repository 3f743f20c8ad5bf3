"""The reporter ``otel``, with a receiver of its protocol that decodes what comes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason='needs pip install "sluiceway[otel]"')

from tests.plugins.reporters.otlp import Receiver, receiving, wait_closed

import sluiceway as sw
import sluiceway_otel._exporting as exporting
from sluiceway.connector.lib import DiscardSink
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import (
    CheckpointInfo,
    FailureInfo,
    MetricsReporter,
    RestartInfo,
    SubtaskInfo,
    SubtaskMetrics,
)
from sluiceway.testing.conformance.metrics_reporter import METRICS, MetricsReporterConformance
from sluiceway_otel._options import OtelOptions
from sluiceway_otel._reporter import OtelReporter

SECRET = "Bearer hush/8731"


@pytest.fixture(scope="module")
def shared() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("SLUICEWAY_OTEL_ENDPOINT", f"http://127.0.0.1:{receiver.port}/")
        monkeypatch.setenv("SLUICEWAY_OTEL_HEADERS", "authorization=Bearer%20hush%2F8731, x-scope = shop")
        monkeypatch.setattr(exporting, "_AT_THE_END_S", float(PATIENT_S))
        yield receiver


class TestConformance(MetricsReporterConformance):
    @pytest.fixture(autouse=True)
    def _to(self, shared: Receiver) -> None:
        url = f"http://127.0.0.1:{shared.port}/v1/"
        self.options = OtelOptions(f"{url}metrics", f"{url}traces", interval_ms=10, delay_ms=5)

    def make_reporter(self) -> MetricsReporter:
        return OtelReporter(self.options)

    def wait_closed(self, reporter: MetricsReporter) -> None:
        assert isinstance(reporter, OtelReporter)
        reporter.wait_closed()


def closed(reporter: OtelReporter) -> None:
    reporter.close()
    reporter.wait_closed()


class Breaks(sw.MapFunction[int, int]):
    """Fails at a record, in its first attempt."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.attempt = context.attempt_number
        self.seen = context.metrics.counter("seen by it")

    def map(self, value: int) -> int:
        self.seen.inc()
        if value == 500 and self.attempt == 0:
            raise ValueError("no luck with http://ann:hush@host/")
        return value


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_with_its_checkpoints_and_its_restart(
    workers: int, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICEWAY_OTEL_INTERVAL", "20ms")
    monkeypatch.setenv("SLUICEWAY_OTEL_RESOURCE", "service.namespace=shop,team=data%20flow")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=no,host.name=h1")
    flow = sw.Pipeline("watched")
    sent = tmp_path / "sent"

    def numbers(ended: threading.Event) -> Iterator[int]:
        yield from range(999)
        while not (sent.exists() or ended.wait(0.01)):
            pass
        yield 999

    def completed_some() -> bool:
        told = receiver.points("sluiceway.job.checkpoints") if len(receiver.exports) > 1 else []
        return any(number for about, number in told if about["sluiceway.status"] == "completed")

    def tell() -> None:
        """Let the job end when figures with a completed checkpoint have come while it runs."""
        until(completed_some)
        sent.touch()

    watches = threading.Thread(target=tell, daemon=True)
    watches.start()
    flow.from_function(numbers, blocking=True).map(Breaks()).name("breaks").rebalance().sink(DiscardSink())
    result = flow.run(
        workers=workers,
        metrics=["otel"],
        metrics_interval="10ms",
        checkpoint_interval="20ms",
        restart="fixed-delay:3:1ms",
    )
    watches.join()
    wait_closed()
    job = {"sluiceway.job.name": "watched"}

    for _, headers in receiver.requests:
        assert headers["authorization"] == SECRET
        assert headers["x-scope"] == "shop"
    assert {path for path, _ in receiver.requests} == {"/v1/metrics", "/v1/traces"}
    for resource in receiver.resources:
        assert resource["service.name"] == "sluiceway"
        assert resource["service.namespace"] == "shop"
        assert resource["team"] == "data flow"
        assert resource["host.name"] == "h1"
        assert resource["service.instance.id"]

    assert len(receiver.exports) > 1, "also while the job runs"
    assert receiver.points("sluiceway.job.status") == [({**job, "sluiceway.status": "finished"}, 1)]
    assert receiver.points("sluiceway.job.input.records") == [(job, result.metrics.records_in)]
    assert receiver.points("sluiceway.job.restarts") == [(job, 1)]
    checkpoints = {a["sluiceway.status"]: v for a, v in receiver.points("sluiceway.job.checkpoints")}
    assert checkpoints == {
        "completed": result.metrics.checkpoints.completed,
        "failed": result.metrics.checkpoints.failed,
    }
    assert checkpoints["completed"] > 0
    tasks = receiver.points("sluiceway.task.input.records")
    assert len(tasks) == len(result.metrics.subtasks)
    breaks = next(task for task in result.metrics.subtasks if "breaks" in task.vertex)
    key = {**job, "sluiceway.task.id": breaks.vertex_id, "sluiceway.subtask.index": breaks.subtask}
    ((first, count),) = ((a, v) for a, v in tasks if a.items() >= key.items())
    assert "breaks" in first["sluiceway.task.name"]
    assert ("sluiceway.worker.name" in first) == (workers > 0)
    assert count >= breaks.records_in
    seen = receiver.points("sluiceway.user.seen_by_it")
    assert {a["sluiceway.step.name"] for a, _ in seen} == {"breaks"}
    units = {metric.name: metric.unit for metric in receiver.exports[-1].values()}
    assert units["sluiceway.task.time"] == units["sluiceway.job.checkpoint.duration"] == "s"
    assert units["sluiceway.task.input.records"] == "{record}"
    assert units["sluiceway.task.input.size"] == "By"
    for metric in receiver.exports[-1].values():
        if metric.WhichOneof("data") == "sum":
            assert metric.sum.is_monotonic, metric.name
    duration = receiver.exports[-1]["sluiceway.job.checkpoint.duration"].histogram
    assert sum(p.count for p in duration.data_points) == sum(checkpoints.values())
    # A total is what a series never goes below, in all exports.
    for name in ("sluiceway.job.input.records", "sluiceway.task.input.records"):
        for where in {tuple(sorted(a.items())) for a, _ in receiver.points(name)}:
            told = [dict(_keys(receiver.points(name, at))).get(where, 0) for at in range(len(receiver.exports))]
            assert told == sorted(told), (name, where)

    completed = [r for r in receiver.roots("checkpoint") if r["attributes"]["sluiceway.status"] == "completed"]
    assert len(completed) == checkpoints["completed"]
    assert len({r["trace"] for r in receiver.roots("checkpoint")}) == sum(checkpoints.values()), "a trace for each"
    for root in completed:
        assert root["status"] == {"code": "STATUS_CODE_OK"}
        phases = receiver.children(root)
        assert [p["name"] for p in phases].count("commit") == 1
        assert [p["name"] for p in phases].count("trigger") == 1
        parts = [p for p in phases if p["name"] == "subtask"]
        assert len(parts) == root["attributes"]["sluiceway.checkpoint.subtasks"]
        for part in parts:
            assert {c["name"] for c in receiver.children(part)} == {"alignment", "flush", "sync", "async"}
            assert part["attributes"]["sluiceway.task.name"]
        (commit,) = (p for p in phases if p["name"] == "commit")
        assert root["begin_ms"] <= commit["begin_ms"] <= commit["end_ms"] == root["end_ms"]
    (restart,) = receiver.roots("restart")
    assert restart["status"]["code"] == "STATUS_CODE_ERROR"
    assert "ValueError: no luck" in restart["status"]["message"]
    assert (
        restart["attributes"].items()
        >= {
            **job,
            "sluiceway.status": "running",
            "sluiceway.restart.subtasks": len(result.metrics.subtasks),
            "sluiceway.subtask.attempt": 0,
            "error.type": "ValueError",
        }.items()
    )
    ((event, cause),) = restart["events"]
    assert event == "exception"
    assert "in map" in cause["exception.stacktrace"]
    assert "hush" not in str(receiver.spans)


def _keys(points: list[tuple[dict[str, Any], float]]) -> list[tuple[Any, float]]:
    return [(tuple(sorted(a.items())), v) for a, v in points]


def test_counts_go_on_over_attempts_and_moves(receiver: Receiver) -> None:
    reporter = OtelReporter()
    reporter.open("wc")
    source = SubtaskMetrics("source", 0, "running", 10, 11, 0.5, vertex_id=1, worker="worker-1")
    for task in (
        source,
        replace(source, records_in=15, busy_s=0.75),
        replace(source, records_in=2, busy_s=0.125, attempt=1, worker="worker-2"),
        replace(source, records_in=20, busy_s=0.25, attempt=2, worker="worker-2"),
    ):
        lost = {"window": {"numLateRecordsDropped": task.records_in, "own": float("nan"), "text": "x"}}
        reporter.report(replace(METRICS, subtasks=(replace(task, operators=lost),)))  # type: ignore[arg-type]
    closed(reporter)
    ((where, records),) = receiver.points("sluiceway.task.input.records")
    assert records == 15 + 2 + 20
    assert where["sluiceway.worker.name"] == "worker-2"
    times = {a["sluiceway.task.activity"]: v for a, v in receiver.points("sluiceway.task.time")}
    assert times == {"busy": 0.75 + 0.125 + 0.25, "backpressured": 0, "idle": 0}
    ((late, number),) = receiver.points("sluiceway.step.lost.records")
    assert (late["sluiceway.step.name"], late["sluiceway.loss.reason"], number) == ("window", "late", 37)
    assert not receiver.points("sluiceway.user.own"), "what is no number is left out"


def test_a_job_of_a_cluster_has_its_id(receiver: Receiver) -> None:
    reporter = OtelReporter()
    reporter.open("wc-2")  # the name of a job is not known before the first report
    reporter.checkpoint_ended(CheckpointInfo(1, "completed", 1_000, 300, 0, "", "", []))
    reporter.report(replace(METRICS, job_name="wc", job="wc-2"))
    closed(reporter)
    of_job = {"sluiceway.job.name": "wc", "sluiceway.job.id": "wc-2"}
    assert receiver.points("sluiceway.job.input.records") == [(of_job, 10)]
    (checkpoint,) = receiver.roots("checkpoint")
    assert checkpoint["attributes"].items() >= of_job.items()


def test_a_failed_checkpoint_and_a_failure_without_a_restart_are_errors(receiver: Receiver) -> None:
    reporter = OtelReporter()
    reporter.open("wc")
    parts = [SubtaskInfo("count", i, 5, 3, 0, 2, i, 9, vertex_id=1) for i in range(250)]
    reporter.checkpoint_ended(CheckpointInfo(8, "failed", 1_000, 300, 0, "too late", "", parts))
    failure = FailureInfo(2_000, "", None, None, "", "OSError: password=hush gone", "", 0, None)
    reporter.restart_ended(RestartInfo(failure, "given up", 2_000))
    reporter.report(METRICS)
    closed(reporter)
    (checkpoint,) = receiver.roots("checkpoint")
    assert checkpoint["status"] == {"code": "STATUS_CODE_ERROR", "message": "too late"}
    shown = [
        s["attributes"]["sluiceway.subtask.index"] for s in receiver.children(checkpoint) if s["name"] == "subtask"
    ]
    assert sorted(shown) == list(range(150, 250)), "of many the slowest"
    (failed,) = receiver.roots("failure")
    assert failed["attributes"]["error.type"] == "OSError"
    assert "hush" not in str(failed)
    assert not receiver.exports[-1].get("sluiceway.job.restart.duration")


def test_a_part_of_a_checkpoint_begins_with_its_barrier(receiver: Receiver) -> None:
    times = {"start_delay_ms": 100, "alignment_ms": 30, "flush_ms": 10, "sync_ms": 20, "async_ms": 50}
    reporter = OtelReporter()
    reporter.open("wc")
    part = SubtaskInfo("count", 0, **times, size=9)
    reporter.checkpoint_ended(CheckpointInfo(1, "completed", 1_000, 300, 9, "", "", [part]))
    reporter.report(METRICS)
    closed(reporter)
    assert {s["name"]: (s["begin_ms"], s["end_ms"]) for s in receiver.spans} == {
        "checkpoint": (1000, 1300),
        "trigger": (1000, 1040),
        "subtask": (1040, 1150),
        "alignment": (1040, 1070),
        "flush": (1070, 1080),
        "sync": (1080, 1100),
        "async": (1100, 1150),
    }


class Ends:
    """Exporter that notes its end."""

    ended = False

    def shutdown(self) -> None:
        self.ended = True


LIBRARY = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")


def test_an_export_that_was_repeated_with_success_does_not_end_those_after_it() -> None:
    exporter = Ends()
    target = exporting._Target("http://c/v1/metrics", (), exporter, set())

    def send() -> bool:
        LIBRARY.warning("Transient error Unavailable encountered while exporting metrics batch, retrying in 1s.")
        return True

    target.export(send)
    target.hurry()
    assert not exporter.ended, "the last metrics are still to be sent"


def test_what_a_library_says_below_a_warning_is_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "urllib3.connectionpool")
    target = exporting._Target("http://c/v1/metrics", (), Ends(), set())

    def send() -> bool:
        logging.getLogger("urllib3.connectionpool").debug("Starting new HTTP connection (1): c:80")
        LIBRARY.error("Failed to export metrics batch code: 400, reason: Bad Request")
        return False

    target.export(send)
    [said] = caplog.records
    assert said.getMessage().startswith(
        "metrics reporter 'otel' cannot export to http://c/v1/metrics: Failed to export metrics batch code: 400"
    )


def test_a_collector_that_is_not_there_is_said_once(
    refusing_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLUICEWAY_OTEL_ENDPOINT", f"http://ann:hush@127.0.0.1:{refusing_port}")
    monkeypatch.setenv("SLUICEWAY_OTEL_INTERVAL", "1ms")
    flow = sw.Pipeline("alone")
    flow.generate(count=300, rate=1_000).sink(DiscardSink())
    assert flow.run(metrics=["otel"], metrics_interval="5ms", checkpoint_interval="5ms").metrics.records_in == 300
    wait_closed()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert said[0].startswith(
        f"metrics reporter 'otel' cannot export to http://ann:***@127.0.0.1:{refusing_port}/v1/"
    )
    assert "onnection refused" in said[0]
    assert said[0].endswith(". The job continues; this is logged once")
    assert "hush" not in caplog.text


def test_what_a_collector_answers_shows_no_header(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answer = 401, f"who is {SECRET}"
    reporter = OtelReporter()
    reporter.open("wc")
    reporter.report(METRICS)
    reporter.checkpoint_ended(CheckpointInfo(1, "completed", 1_000, 10, 0, "", "", []))
    closed(reporter)
    assert [record.name for record in caplog.records] == ["sluiceway_otel"], "once for metrics and traces"
    assert "401" in caplog.text
    assert "hush" not in caplog.text
    assert "hush" not in repr(reporter._options)


def test_a_collector_that_never_answers_holds_up_neither_the_job_nor_the_end_of_the_process(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_AT_THE_END_S", 0.05)
    receiver.hold = threading.Event()
    reporter = OtelReporter()
    reporter.open("wc")
    for number in range(5_000):
        reporter.checkpoint_ended(CheckpointInfo(number, "completed", 1_000, 10, 0, "", "", []))
        reporter.report(METRICS)
    reporter.close()
    assert reporter._exporting is not None
    assert len(reporter._exporting._spans._spans) <= reporter._options.spans, "the oldest are dropped"
    closer = reporter._exporting._closer
    assert closer is not None
    assert not closer.daemon, "the process waits for the last export"
    reporter.wait_closed()  # although the receiver still holds the first request
    assert not receiver.requests
    receiver.hold.set()
    wait_closed()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("http://localhost:4318/v1/metrics", "http://localhost:4318/v1/traces")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/x/"}, ("https://c/x/v1/metrics", "https://c/x/v1/traces")),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/own", "OTEL_METRICS_EXPORTER": "none"},
            ("", "http://t/own"),
        ),
        (
            {"SLUICEWAY_OTEL_ENDPOINT": "http://s", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("http://s/v1/metrics", "http://s/v1/traces"),
        ),
        ({"OTEL_SDK_DISABLED": "true"}, ("", "")),
    ],
)
def test_where_to(environ: dict[str, str], expected: tuple[str, str]) -> None:
    options = OtelOptions.from_environment(environ)
    assert (options.metrics_url, options.traces_url) == expected


def test_variables_of_opentelemetry() -> None:
    options = OtelOptions.from_environment(
        {
            "OTEL_EXPORTER_OTLP_HEADERS": "A=1,b=x%20=y",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "c=3",
            "OTEL_METRIC_EXPORT_INTERVAL": "1500",
            "OTEL_BSP_MAX_QUEUE_SIZE": "7",
            "OTEL_SERVICE_NAME": "mine",
        }
    )
    assert (options.metrics_headers, options.traces_headers) == ({"a": "1", "b": "x =y"}, {"c": "3"})
    assert (options.interval_ms, options.spans, options.resource) == (1_500, 7, {})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SLUICEWAY_OTEL_ENDPOINT", "ftp://ann:hush@h", "'ftp://ann:***@h' is no URL"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "is no URL such as http://localhost:4318"),
        ("SLUICEWAY_OTEL_HEADERS", "a=1,hush", "part 2 of SLUICEWAY_OTEL_HEADERS is no name=value"),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=hush%0d%0ab: c",
            "part 1 of OTEL_EXPORTER_OTLP_HEADERS is no",
        ),
        ("SLUICEWAY_OTEL_INTERVAL", "soon", "SLUICEWAY_OTEL_INTERVAL='soon' is no duration such as 10s"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "OTEL_METRIC_EXPORT_INTERVAL='-1' is no whole number"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "'grpc', and metrics reporter 'otel' speaks http/protobuf alone"),
    ],
)
def test_what_is_wrong_is_refused_before_the_job_begins(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OtelOptions.from_environment({name: value})
    assert told in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_program_that_ends_at_once_has_sent_its_last_figures(receiver: Receiver, tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    program.write_text("import sluiceway as sw\nflow = sw.Pipeline('short')\nflow.from_collection([1, 2]).print()")
    command = [sys.executable, "-m", "sluiceway", "run", "--metrics", "otel", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=tmp_path, check=True)
    assert receiver.points("sluiceway.job.input.records") == [({"sluiceway.job.name": "short"}, 2)]
    assert "hush" not in ran.stdout + ran.stderr
