"""The reporter ``prometheus``, read as Prometheus reads it: by HTTP."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from patience import PATIENT_S
from prometheus_client.parser import text_string_to_metric_families

import sluiceway as sw
from sluiceway.config.settings import resolve
from sluiceway.connector.lib import DiscardSink
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import CheckpointFigures, JobMetrics, MetricsReporter, SubtaskMetrics
from sluiceway.testing.conformance.metrics_reporter import MetricsReporterConformance
from sluiceway_prometheus._reporter import PrometheusReporter

TASK = {"job": "wc", "task": "count", "task_id": "3", "subtask": "1"}
METRICS = JobMetrics(
    "wc",
    "running",
    2.5,
    10,
    20,
    (
        SubtaskMetrics("source", 0, "running", 10, 11, 0.5, 0.25, 1.75, watermark=None, vertex_id=1),
        SubtaskMetrics(
            "count",
            1,
            "running",
            12,
            13,
            watermark=7_500,
            output_watermark=MAX_WATERMARK,
            watermark_lag_ms=31,
            operators={
                "window": {"numLateRecordsDropped": 4, "dead_letters": 8},
                'a "b"': {
                    "bad lines": 5,
                    "bad_lines": 6,
                    "deadLetters": 7,
                    "records_skipped": 1,
                    "lines_skipped": 2,
                },
            },
            vertex_id=3,
            attempt=2,
            bytes_in=1_000,
            bytes_out=2_000,
            queued=3,
            backlog=4,
            buffers=16,
            buffers_in_use=5,
            worker="worker-2",
        ),
    ),
    latency_ms={"print": {"p50": 0.5, "p99": 1.25}},
    restarts=2,
    checkpoints=CheckpointFigures(500, 5, 3, completed_ms=1_700_000_000_500, duration_ms=250, size=1_024),
)


def read(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENT_S) as answer:
        text = answer.read().decode()
    families = [f for f in text_string_to_metric_families(text) if f.name.startswith("sluiceway_")]
    samples = [s for family in families for s in family.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples)  # Prometheus refuses what is told twice
    return found


class TestConformance(MetricsReporterConformance):
    def make_reporter(self) -> MetricsReporter:
        return PrometheusReporter(0)


@pytest.fixture
def reporter() -> Iterator[PrometheusReporter]:
    reporter = PrometheusReporter(0)
    reporter.open("wc")
    yield reporter
    reporter.close()


def test_a_client_that_sends_no_request_keeps_no_thread(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sluiceway_prometheus._reporter._SILENT_S", 0.1)
    reporter = PrometheusReporter(0)
    reporter.open("wc")
    try:
        for sent in (b"", b"GET /met"):
            with socket.create_connection(("127.0.0.1", reporter.port), timeout=PATIENT_S) as sock:
                sock.sendall(sent)
                assert sock.recv(1) == b""
        assert read(reporter.port) == {}
    finally:
        reporter.close()
    assert capfd.readouterr().err == ""


def test_a_job_of_a_cluster_has_its_id(reporter: PrometheusReporter) -> None:
    reporter.report(replace(METRICS, job="wc-2"))
    found = [dict(where) for _, where in read(reporter.port)]
    assert found
    assert {(labels["job"], labels["job_id"]) for labels in found} == {("wc", "wc-2")}


def test_everything_is_told_by_job_task_operator_and_subtask(reporter: PrometheusReporter) -> None:
    assert read(reporter.port) == {}
    reporter.report(METRICS)
    found = read(reporter.port)

    def value(name: str, **labels: str) -> float | None:
        return found.get((f"sluiceway_{name}", frozenset(labels.items())))

    assert value("job_status", job="wc", status="running") == 1
    assert value("job_uptime_seconds", job="wc") == 2.5
    assert value("job_restarts_total", job="wc") == 2
    assert value("job_records_in_total", job="wc") == 10
    assert value("job_records_out_total", job="wc") == 20
    assert value("latency_seconds", job="wc", operator="print", quantile="0.99") == 0.00125
    assert value("task_info", **TASK, state="running", worker="worker-2") == 1
    source = {"job": "wc", "task": "source", "task_id": "1", "subtask": "0"}
    for name, expected in (("busy", 0.5), ("backpressured", 0.25), ("idle", 1.75)):
        assert value(f"task_{name}_seconds_total", **source) == expected
    assert value("task_watermark_timestamp_seconds", **source) is None
    told = {
        "records_in_total": 12,
        "records_out_total": 13,
        "bytes_in_total": 1_000,
        "bytes_out_total": 2_000,
        "attempt": 2,
        "watermark_timestamp_seconds": 7.5,
        "output_watermark_timestamp_seconds": math.inf,
        "watermark_lag_seconds": 0.031,
        "queued": 3,
        "backlog": 4,
        "buffers": 16,
        "buffers_in_use": 5,
    }
    assert {name: value(f"task_{name}", **TASK) for name in told} == told
    for status, number in (("completed", 5), ("failed", 3)):
        assert value("job_checkpoints_total", job="wc", status=status) == number
    assert value("job_checkpoint_interval_seconds", job="wc") == 0.5
    assert value("job_last_checkpoint_duration_seconds", job="wc") == 0.25
    assert value("job_last_checkpoint_size_bytes", job="wc") == 1_024
    assert value("job_last_checkpoint_completed_timestamp_seconds", job="wc") == 1_700_000_000.5
    assert value("operator_late_records_dropped_total", **TASK, operator="window") == 4
    assert value("operator_dead_letters_total", **TASK, operator='a "b"') == 7
    assert value("operator_own_dead_letters", **TASK, operator="window") == 8, (
        "a function's metric of the same name"
    )
    assert value("operator_unreadable_records_total", **TASK, operator='a "b"') == 3
    assert value("operator_bad_lines", **TASK, operator='a "b"') == 5


def test_the_endpoint_is_gone_when_the_job_is(reporter: PrometheusReporter) -> None:
    threads = threading.active_count()
    reporter.close()
    reporter.close()
    assert threading.active_count() == threads - 1
    with pytest.raises(URLError):
        read(reporter.port)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"cannot listen on 127.0.0.1:{port}: .* SLUICEWAY_PROMETHEUS_PORT"
        ):
            PrometheusReporter(port).open("wc")


@pytest.mark.parametrize("named", ["x", "-1", "65536", "²"])
def test_what_is_no_port_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_PROMETHEUS_PORT", named)
    with pytest.raises(ConfigurationError, match=f"SLUICEWAY_PROMETHEUS_PORT is '{named}', which is no port"):
        PrometheusReporter()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_is_watched_while_it_runs(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("SLUICEWAY_PROMETHEUS_PORT", str(port))
    flow = sw.Pipeline("watched")
    flow.generate(count=10**12).map(abs).rebalance().sink(DiscardSink())
    options = resolve({"workers": workers, "metrics": ["prometheus"], "metrics_interval": "10ms"})
    job = flow.prepare(options.settings)
    records = ("sluiceway_job_records_in_total", frozenset({"job": "watched"}.items()))
    seen: list[float] = []

    def ask() -> None:
        pause = threading.Event()
        while not seen:
            try:
                seen.extend(v for k, v in read(port).items() if k == records and v)
            except OSError:
                pause.wait(0.01)
        job.cancel()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    ended = job.run()
    thread.join()
    assert ended.metrics.records_in >= seen[0] > 0
