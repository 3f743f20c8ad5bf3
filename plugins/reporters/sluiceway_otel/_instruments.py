"""A job's figures as instruments of OpenTelemetry, with names and units by its conventions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from time import time
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import CheckpointInfo, JobMetrics, RestartInfo, SubtaskMetrics
from sluiceway.monitoring.losses import COUNTERS, losses
from sluiceway_otel._attributes import (
    ACTIVITY,
    QUANTILE,
    REASON,
    STATUS,
    STEP,
    WORKER,
    Attributes,
    of_job,
    of_task,
)

__all__ = ["Instruments"]

_MOST_OWN: Final = 500
"""Names of metrics of users' functions, each of which is an instrument; a name made of a key would have no end."""
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_./-]")
_LONGEST: Final = 200
_SECONDS: Final = "s"
# Bounds in seconds: those of the conventions for durations end at 10 s, and checkpoints may take minutes.
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    unit: str
    about: str
    read: Callable[[SubtaskMetrics], float | None]


def _watermark(task: SubtaskMetrics) -> float | None:
    return None if task.watermark is None or task.watermark >= MAX_WATERMARK else task.watermark / 1000


_COUNTERS: Final = (
    _Figure("sluiceway.task.input.records", "{record}", "Records read.", lambda t: t.records_in),
    _Figure("sluiceway.task.output.records", "{record}", "Records sent or written.", lambda t: t.records_out),
    _Figure("sluiceway.task.input.size", "By", "Bytes of records from other workers.", lambda t: t.bytes_in),
    _Figure("sluiceway.task.output.size", "By", "Bytes of records for other workers.", lambda t: t.bytes_out),
)
_TIMES: Final[tuple[tuple[str, Callable[[SubtaskMetrics], float]], ...]] = (
    ("busy", lambda t: t.busy_s),
    ("backpressured", lambda t: t.backpressured_s),
    ("idle", lambda t: t.idle_s),
)
_GAUGES: Final = (
    _Figure("sluiceway.task.attempt", "{attempt}", "Number of the attempt, from 0.", lambda t: t.attempt),
    _Figure("sluiceway.task.watermark", _SECONDS, "Watermark of the input, since the epoch.", _watermark),
    _Figure(
        "sluiceway.task.watermark.lag",
        _SECONDS,
        "Time that the output watermark is behind the clock.",
        lambda t: None if t.watermark_lag_ms is None else t.watermark_lag_ms / 1000,
    ),
    _Figure("sluiceway.task.queue.size", "{batch}", "Batches received and not read yet.", lambda t: t.queued),
    _Figure("sluiceway.task.backlog.size", "{batch}", "Batches that wait for credit.", lambda t: t.backlog),
    _Figure("sluiceway.task.buffer.limit", "{buffer}", "Most buffers of the outputs.", lambda t: t.buffers),
    _Figure("sluiceway.task.buffer.usage", "{buffer}", "Buffers in use.", lambda t: t.buffers_in_use),
)


def _number(value: object) -> float:
    """Return what a function has put into its metrics as a number; NaN if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


class _Totals:
    """Counts of subtasks over all their attempts, each of which begins at 0."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, float, float]] = {}

    def total(self, key: Hashable, attempt: int, value: float) -> float:
        """Return the sum of a count's last values in earlier attempts, and of ``value``."""
        known_attempt, last, before = self._known.get(key, (attempt, 0, 0))
        # Counters must not go down: a value below the last one begins a new count.
        if attempt != known_attempt or value < last:
            before += last
        self._known[key] = attempt, value, before
        return before + value


_Row = tuple[float, Attributes]


class Instruments:
    """Instruments of one job. :meth:`take` in the job's thread; they are read in another one.

    Args:
        meter: what makes them.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._totals = _Totals()
        self._rows: dict[str, list[_Row]] = {}
        self._own: set[str] = set()
        self._completed_ms = 0
        self._job: Attributes = {}
        self._make()
        self._checkpoint = meter.create_histogram(
            "sluiceway.job.checkpoint.duration",
            _SECONDS,
            "Time from the trigger of checkpoints to their end.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        self._restart = meter.create_histogram(
            "sluiceway.job.restart.duration",
            _SECONDS,
            "Time from failures until all subtasks ran again.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )

    def _make(self) -> None:
        counters = (
            ("sluiceway.job.input.records", "{record}", "Records read by all sources."),
            ("sluiceway.job.output.records", "{record}", "Records written by all sinks."),
            ("sluiceway.job.restarts", "{restart}", "Restarts of a part of the job after a failure."),
            ("sluiceway.job.checkpoints", "{checkpoint}", "Checkpoints and savepoints that have ended."),
            ("sluiceway.task.time", _SECONDS, "Time by activity."),
            ("sluiceway.worker.cpu.time", _SECONDS, "Processor time of the worker's process."),
            ("sluiceway.step.lost.records", "{record}", "Records that were late, skipped or put aside."),
            *((f.name, f.unit, f.about) for f in _COUNTERS),
        )
        for name, unit, about in counters:
            self._meter.create_observable_counter(name, [self._reader(name)], unit, about)
        gauges = (
            ("sluiceway.job.status", "1", "1 for the status that the job has."),
            ("sluiceway.job.uptime", _SECONDS, "Time since the job started."),
            ("sluiceway.job.checkpoint.interval", _SECONDS, "Time between two checkpoints."),
            ("sluiceway.job.checkpoint.size", "By", "Size of the last completed checkpoint."),
            ("sluiceway.step.latency", _SECONDS, "Time of latency markers from the sources to a sink."),
            ("sluiceway.task.status", "1", "1 for the state that the subtask has."),
            ("sluiceway.worker.memory.usage", "By", "Resident memory of the worker's process."),
            *((f.name, f.unit, f.about) for f in _GAUGES),
        )
        for name, unit, about in gauges:
            self._meter.create_observable_gauge(name, [self._reader(name)], unit, about)
        about = "Time since the last checkpoint was completed."
        self._meter.create_observable_gauge("sluiceway.job.checkpoint.age", [self._age], _SECONDS, about)

    def _reader(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in self._rows.get(name, ())]

        return read

    def _age(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._completed_ms:
            yield Observation(max(0.0, time() - self._completed_ms / 1000), self._job)

    def take(self, metrics: JobMetrics) -> None:
        """Show these figures from now on."""
        rows: dict[str, list[_Row]] = {}
        for name, value, attributes in self._of_job(metrics):
            rows.setdefault(name, []).append((value, attributes))
        for task in metrics.subtasks:
            for name, value, attributes in self._of_task(metrics, task):
                rows.setdefault(name, []).append((value, attributes))
        for name, value, attributes in self._of_steps(metrics):
            if math.isfinite(value):
                rows.setdefault(name, []).append((value, attributes))
        self._job, self._completed_ms = of_job(metrics), metrics.checkpoints.completed_ms
        # Replaced as a whole: the exporting thread reads the figures of one moment.
        self._rows = rows

    def _of_job(self, metrics: JobMetrics) -> Iterator[tuple[str, float, Attributes]]:
        job = of_job(metrics)
        yield "sluiceway.job.status", 1, {**job, STATUS: metrics.status}
        yield "sluiceway.job.uptime", metrics.elapsed_s, job
        for name, value in (
            ("input.records", metrics.records_in),
            ("output.records", metrics.records_out),
            ("restarts", metrics.restarts),
        ):
            yield f"sluiceway.job.{name}", value, job
        checkpoints = metrics.checkpoints
        yield "sluiceway.job.checkpoints", checkpoints.completed, {**job, STATUS: "completed"}
        yield "sluiceway.job.checkpoints", checkpoints.failed, {**job, STATUS: "failed"}
        if checkpoints.interval_ms:
            yield "sluiceway.job.checkpoint.interval", checkpoints.interval_ms / 1000, job
        if checkpoints.completed_ms:
            yield "sluiceway.job.checkpoint.size", checkpoints.size, job
        for process in metrics.workers:
            attributes = {**job, WORKER: process.worker}
            yield "sluiceway.worker.cpu.time", process.cpu_s, attributes
            if process.rss is not None:
                yield "sluiceway.worker.memory.usage", process.rss, attributes

    def _of_task(self, metrics: JobMetrics, task: SubtaskMetrics) -> Iterator[tuple[str, float, Attributes]]:
        attributes = of_task(metrics, task)
        where = task.vertex_id, task.subtask
        yield "sluiceway.task.status", 1, {**attributes, STATUS: task.state}
        for figure in _COUNTERS:
            value = figure.read(task) or 0
            yield figure.name, self._totals.total((figure.name, where), task.attempt, value), attributes
        for activity, read in _TIMES:
            seconds = self._totals.total((activity, where), task.attempt, read(task))
            yield "sluiceway.task.time", seconds, {**attributes, ACTIVITY: activity}
        for figure in _GAUGES:
            read_value = figure.read(task)
            if read_value is not None:
                yield figure.name, read_value, attributes

    def _of_steps(self, metrics: JobMetrics) -> Iterator[tuple[str, float, Attributes]]:
        tasks = {(t.vertex_id, t.subtask): t for t in metrics.subtasks}
        for loss in losses(metrics):
            where = loss.vertex, loss.subtask
            task = tasks[where]
            total = self._totals.total((where, loss.step, loss.reason), task.attempt, loss.records)
            attributes = {**of_task(metrics, task), STEP: loss.step, REASON: loss.reason.replace(" ", "_")}
            yield "sluiceway.step.lost.records", total, attributes
        for sink, quantiles in metrics.latency_ms.items():
            for label, ms in quantiles.items():
                yield "sluiceway.step.latency", ms / 1000, {**of_job(metrics), STEP: sink, QUANTILE: label}
        for task in metrics.subtasks:
            for step, own in task.operators.items():
                attributes = {**of_task(metrics, task), STEP: step}
                for name, value in own.items():
                    if name not in COUNTERS and (instrument := self._instrument(name)):
                        yield instrument, _number(value), attributes

    def _instrument(self, name: str) -> str:
        """Return the instrument of a metric of a user's function; empty: there are too many."""
        instrument = f"sluiceway.user.{_NO_NAME.sub('_', name)[:_LONGEST]}".lower()  # they know no case
        if instrument not in self._own:
            if len(self._own) >= _MOST_OWN:
                return ""
            self._own.add(instrument)
            about = "A metric of the pipeline's own functions."
            self._meter.create_observable_gauge(instrument, [self._reader(instrument)], "1", about)
        return instrument

    def checkpoint_ended(self, checkpoint: CheckpointInfo, job: Attributes) -> None:
        """Record the duration of a checkpoint."""
        seconds = (checkpoint.duration_ms or 0) / 1000
        self._checkpoint.record(seconds, {**job, STATUS: checkpoint.status})

    def restart_ended(self, restart: RestartInfo, job: Attributes) -> None:
        """Record the duration of a restart."""
        if restart.failure.restarted:
            seconds = max(0, restart.ended_ms - restart.failure.at_ms) / 1000
            self._restart.record(seconds, {**job, STATUS: restart.outcome})
