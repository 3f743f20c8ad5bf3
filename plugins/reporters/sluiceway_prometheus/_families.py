"""A job's figures as Prometheus' metric families: by job, task, operator and subtask."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.losses import COUNTERS, DEAD_LETTER, LATE, UNREADABLE

__all__ = ["JobCollector"]

_SUBTASK: Final = ["task", "task_id", "subtask"]
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_LOST: Final = {
    LATE: ("late_records_dropped", "Records that came too late and were dropped."),
    DEAD_LETTER: ("dead_letters", "Records that were put aside because a function raised."),
    UNREADABLE: ("unreadable_records", "Records that a source could not read and skipped."),
}

_Read = Callable[[SubtaskMetrics], float | None]


def _seconds(watermark: int | None) -> float | None:
    if watermark is None:
        return None
    return math.inf if watermark >= MAX_WATERMARK else watermark / 1000


_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("records_in", "Records read.", lambda t: t.records_in),
    ("records_out", "Records sent on, or given to a sink.", lambda t: t.records_out),
    ("bytes_in", "Bytes of records that came from other workers.", lambda t: t.bytes_in),
    ("bytes_out", "Bytes of records written for other workers.", lambda t: t.bytes_out),
    ("busy_seconds", "Time at work.", lambda t: t.busy_s),
    ("backpressured_seconds", "Time at rest because the output was blocked.", lambda t: t.backpressured_s),
    ("idle_seconds", "Time at rest because there was no input.", lambda t: t.idle_s),
)
_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("attempt", "0 at first, one more after each restart.", lambda t: t.attempt),
    ("watermark_timestamp_seconds", "Watermark of the input; +Inf at its end.", lambda t: _seconds(t.watermark)),
    (
        "output_watermark_timestamp_seconds",
        "The last watermark that left; +Inf at the end.",
        lambda t: _seconds(t.output_watermark),
    ),
    (
        "watermark_lag_seconds",
        "How far the output watermark is behind the clock.",
        lambda t: None if t.watermark_lag_ms is None else t.watermark_lag_ms / 1000,
    ),
    ("queued", "Batches and control elements that have come in and are not read.", lambda t: t.queued),
    ("backlog", "Batches that wait for credit of their consumers.", lambda t: t.backlog),
    ("buffers", "Network buffers that the outputs may have.", lambda t: t.buffers),
    ("buffers_in_use", "Network buffers that the outputs have.", lambda t: t.buffers_in_use),
)


class JobCollector(Collector):
    """Collector of the last figures.

    Attributes:
        metrics: them, or None before the first. May be set from another thread.
    """

    def __init__(self) -> None:
        self.metrics: JobMetrics | None = None

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        metrics = self.metrics
        if metrics is not None:
            yield from _of_job(metrics)
            yield from _of_checkpoints(metrics)
            yield from _of_workers(metrics)
            yield from _of_subtasks(metrics)
            yield from _of_operators(metrics)


def _of_job(metrics: JobMetrics) -> Iterator[Metric]:
    of_job, job = _job_labels(metrics)
    state = GaugeMetricFamily(
        "sluiceway_job_status", "1 for the status that the job has.", labels=[*of_job, "status"]
    )
    state.add_metric([*job, metrics.status], 1)
    yield state
    uptime = GaugeMetricFamily("sluiceway_job_uptime_seconds", "Time since the job started.", labels=of_job)
    uptime.add_metric(job, metrics.elapsed_s)
    yield uptime
    for name, about, total in (
        ("restarts", "Restarts of a part of the job after a failure.", metrics.restarts),
        ("records_in", "Records read by all sources.", metrics.records_in),
        ("records_out", "Records written by all sinks.", metrics.records_out),
    ):
        counter = CounterMetricFamily(f"sluiceway_job_{name}", about, labels=of_job)
        counter.add_metric(job, total)
        yield counter
    latency = GaugeMetricFamily(
        "sluiceway_latency_seconds",
        "Time that latency markers took from the sources to a sink.",
        labels=[*of_job, "operator", "quantile"],
    )
    for sink, quantiles in metrics.latency_ms.items():
        for label, ms in quantiles.items():
            latency.add_metric([*job, sink, _quantile(label)], ms / 1000)
    yield latency


def _of_checkpoints(metrics: JobMetrics) -> Iterator[Metric]:
    of_job, job = _job_labels(metrics)
    figures = metrics.checkpoints
    ended = CounterMetricFamily(
        "sluiceway_job_checkpoints",
        "Checkpoints and savepoints that were completed, or have failed.",
        labels=[*of_job, "status"],
    )
    ended.add_metric([*job, "completed"], figures.completed)
    ended.add_metric([*job, "failed"], figures.failed)
    yield ended
    taken = bool(figures.completed_ms)
    for name, about, value, known in (
        ("checkpoint_interval", "Time between two checkpoints.", figures.interval_ms / 1000, figures.interval_ms),
        ("last_checkpoint_duration", "Time that the last one took.", figures.duration_ms / 1000, taken),
        ("last_checkpoint_completed_timestamp", "When it was completed.", figures.completed_ms / 1000, taken),
    ):
        family = GaugeMetricFamily(f"sluiceway_job_{name}_seconds", about, labels=of_job)
        if known:
            family.add_metric(job, value)
        yield family
    size = GaugeMetricFamily("sluiceway_job_last_checkpoint_size_bytes", "State in the last one.", labels=of_job)
    if taken:
        size.add_metric(job, figures.size)
    yield size


def _of_workers(metrics: JobMetrics) -> Iterator[Metric]:
    of_job, job = _job_labels(metrics)
    labels = [*of_job, "worker"]
    cpu = CounterMetricFamily(
        "sluiceway_worker_cpu_seconds", "Processor time of the worker's process.", labels=labels
    )
    memory = GaugeMetricFamily(
        "sluiceway_worker_resident_memory_bytes", "Resident memory of the worker's process.", labels=labels
    )
    for process in metrics.workers:
        cpu.add_metric([*job, process.worker], process.cpu_s)
        if process.rss is not None:
            memory.add_metric([*job, process.worker], process.rss)
    yield cpu
    yield memory


def _quantile(label: str) -> str:
    """``0.99`` for ``p99``."""
    digits = label.removeprefix("p")
    return f"{float(digits) / 100:g}" if digits.isdigit() else label


def _of_subtasks(metrics: JobMetrics) -> Iterator[Metric]:
    of_subtask = [*_job_labels(metrics)[0], *_SUBTASK]
    info = GaugeMetricFamily(
        "sluiceway_task_info",
        "Always 1: the state of a subtask, and where it runs.",
        labels=[*of_subtask, "state", "worker"],
    )
    for task in metrics.subtasks:
        info.add_metric([*_labels(metrics, task), task.state, task.worker], 1)
    yield info
    for make, figures in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, about, read in figures:
            family = make(f"sluiceway_task_{name}", about, labels=of_subtask)
            for task in metrics.subtasks:
                value = read(task)
                if value is not None:
                    family.add_metric(_labels(metrics, task), value)
            yield family


def _of_operators(metrics: JobMetrics) -> Iterator[Metric]:
    labels = [*_job_labels(metrics)[0], *_SUBTASK, "operator"]
    lost = {
        reason: CounterMetricFamily(f"sluiceway_operator_{name}", about, labels=labels)
        for reason, (name, about) in _LOST.items()
    }
    own: dict[str, UnknownMetricFamily] = {}
    seen: set[tuple[str, ...]] = set()
    for task in metrics.subtasks:
        for operator, figures in task.operators.items():
            where = [*_labels(metrics, task), operator]
            for reason, family in lost.items():
                counters = [figures[name] for name, of in COUNTERS.items() if of == reason and name in figures]
                if counters:
                    family.add_metric(where, sum(counters))
            for name, value in figures.items():
                plain = _plain(name)
                if name in COUNTERS or (plain, *where) in seen or (number := _number(value)) is None:
                    continue  # of two names that differ in what Prometheus does not take the first one counts
                seen.add((plain, *where))
                if plain not in own:
                    about = "A metric of the pipeline's own functions."
                    own[plain] = UnknownMetricFamily(f"sluiceway_operator_{plain}", about, labels=labels)
                own[plain].add_metric(where, number)
    yield from lost.values()
    yield from own.values()


def _plain(name: str) -> str:
    plain = _NO_NAME.sub("_", name)
    reserved = {name for name, _ in _LOST.values()}
    return f"own_{plain}" if plain.removesuffix("_total") in reserved else plain


def _number(value: object) -> float | None:
    """Return what a function has put into its metrics as a number; None if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _labels(metrics: JobMetrics, task: SubtaskMetrics) -> list[str]:
    return [*_job_labels(metrics)[1], task.vertex, str(task.vertex_id), str(task.subtask)]


def _job_labels(metrics: JobMetrics) -> tuple[list[str], list[str]]:
    """Names and values. In a cluster, where one pipeline may run twice, jobs have ids."""
    if metrics.job:
        return ["job", "job_id"], [metrics.job_name, metrics.job]
    return ["job"], [metrics.job_name]
