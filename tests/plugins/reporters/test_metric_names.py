"""docs/reference/metrics.md has each metric of the reporters, with its type and unit, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from sluiceway.metrics import CheckpointInfo, FailureInfo, JobMetrics, RestartInfo, SubtaskMetrics, WorkerMetrics
from sluiceway.monitoring.losses import COUNTERS
from sluiceway.testing.conformance.metrics_reporter import METRICS
from sluiceway_prometheus._families import JobCollector

PAGE = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
UNITS = {"_seconds": "seconds", "_bytes": "bytes"}


def table(first: str) -> dict[str, list[str]]:
    """The other cells of each row, by name, of all tables whose heading begins with ``first``."""
    found: dict[str, list[str]] = {}
    for rows in re.findall(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.M):
        for row in rows.splitlines():
            name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            assert name not in found
            found[name.strip("`")] = cells
    assert found
    return found


def everything() -> JobMetrics:
    """Metrics in which each figure has a value."""
    task = SubtaskMetrics(
        "t",
        0,
        "running",
        watermark=1,
        output_watermark=1,
        watermark_lag_ms=1,
        operators={"s": {**dict.fromkeys(COUNTERS, 1), "NAME": 1}},
    )
    workers = (WorkerMetrics("worker-1", 1.5, 1 << 20),)
    return replace(METRICS, subtasks=(task,), latency_ms={"s": {"p50": 1.0}}, workers=workers)


def samples(families: Iterable[Metric]) -> dict[str, str]:
    return {sample.name: family.type for family in families for sample in family.samples}


def test_prometheus() -> None:
    collector = JobCollector()
    collector.metrics = everything()
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    exposed = samples([*collector.collect(), *process.collect()])
    told = table("Prometheus")
    assert {name: cells[0].replace("untyped", "unknown") for name, cells in told.items()} == exposed
    for name, (_, unit, meaning, flink) in told.items():
        in_name = next((u for suffix, u in UNITS.items() if name.removesuffix("_total").endswith(suffix)), None)
        assert in_name in (None, unit), name
        assert meaning, name
        assert flink, f"{name}: Flink's name, or none"


def test_opentelemetry() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason='needs pip install "sluiceway[otel]"')
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum

    from sluiceway_otel._instruments import Instruments

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instruments = Instruments(provider.get_meter("test"))
    instruments.take(everything())
    instruments.checkpoint_ended(CheckpointInfo(1, "completed", 0, 1, 1, "", "", []), {})
    failure = FailureInfo(0, "t", 0, 0, "", "no", "", 1, 0)
    instruments.restart_ended(RestartInfo(failure, "running", 1), {})
    data = reader.get_metrics_data()
    assert data is not None
    kinds = {Sum: "counter", Gauge: "gauge", Histogram: "histogram"}
    exposed = {
        metric.name: [kinds[type(metric.data)], f"`{metric.unit}`"]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    assert {name.lower(): cells[:2] for name, cells in table("OpenTelemetry").items()} == exposed
