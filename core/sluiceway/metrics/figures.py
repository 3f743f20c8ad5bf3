"""Metrics of functions, and the contract of metrics reporters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from sluiceway.monitoring.job_events import CheckpointInfo, RestartInfo
from sluiceway.util.name_hints import Hinting

__all__ = [
    "CheckpointFigures",
    "Counter",
    "Histogram",
    "JobMetrics",
    "MetricGroup",
    "MetricsReporter",
    "SplitTime",
    "SplitTimes",
    "SubtaskMetrics",
    "WorkerMetrics",
]

Number: TypeAlias = int | float
"""An integer stays one where figures are sent to another process."""


class Counter:
    """A number that is added to. Not for use from several threads."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        self.value += n


# 20 bounds a decade from 1 us to 1000 s: quantiles within 12 %.
_BOUNDS = [10 ** (e / 20) for e in range(-120, 61)]


class Histogram:
    """Durations in seconds, in buckets of constant ratio; quantiles are right within 12 %."""

    __slots__ = ("_buckets", "count", "max")

    def __init__(self) -> None:
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.max = 0.0

    def observe(self, seconds: float) -> None:
        """Record one duration."""
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.count += 1
        self.max = max(self.max, seconds)

    def quantile(self, q: float) -> float:
        """The smallest bucket bound (seconds) that a share ``q`` of the durations does not exceed; 0.0 if none."""
        if not self.count:
            return 0.0
        rank = q * self.count
        for index, reached in enumerate(accumulate(self._buckets)):
            if reached >= rank and reached:
                return min(_BOUNDS[index], self.max) if index < len(_BOUNDS) else self.max
        return self.max


class MetricGroup(Hinting):
    """The metrics of one function in one subtask. Asking twice for a name gives the same metric."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Callable[[], float]] = {}
        self.histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """The counter called ``name``."""
        return self.counters.setdefault(name, Counter())

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Have ``read()`` called whenever metrics are reported, also from other threads than the task's.

        While it raises, the gauge is left out.
        """
        self.gauges[name] = read

    def remove_gauge(self, name: str) -> None:
        """Remove a gauge of something that has ended, so that its last value is not reported for ever."""
        self.gauges.pop(name, None)

    def histogram(self, name: str) -> Histogram:
        """The histogram called ``name``."""
        return self.histograms.setdefault(name, Histogram())

    def read(self) -> dict[str, float]:
        """The metrics as of now, by name. From any thread.

        A histogram that has observed something gives ``NAME_count``, and in seconds ``NAME_p50``, ``NAME_p99`` and
        ``NAME_max``.
        """
        figures: dict[str, float] = {name: counter.value for name, counter in list(self.counters.items())}
        for name, read in list(self.gauges.items()):
            try:
                figures[name] = read()
            except Exception:  # a user's gauge must not end whoever reports
                continue
        for name, histogram in list(self.histograms.items()):
            if histogram.count:
                figures[f"{name}_count"] = histogram.count
                figures[f"{name}_p50"] = histogram.quantile(0.5)
                figures[f"{name}_p99"] = histogram.quantile(0.99)
                figures[f"{name}_max"] = histogram.max
        return figures


@dataclass(frozen=True, slots=True)
class SplitTime:
    """Event time of one split of a source, such as a file or a partition.

    Attributes:
        split: id of the split, shortened.
        watermark: in ms, or None before the first one.
        idle: True if the split does not count for the watermark of its reader.
        silent_s: seconds since its last record, or since it was assigned. Time in which the output was blocked
            does not count.
    """

    split: str
    watermark: int | None
    idle: bool
    silent_s: float


@dataclass(frozen=True, slots=True)
class SplitTimes:
    """Event time of the splits of one reader: counts of all, and a few by name.

    Attributes:
        splits: number of splits.
        idle: number of those that are idle.
        without_watermark: number of those that are not idle and have no watermark yet.
        median: of the watermarks of those that are not idle, in ms; None: no such split has one.
        highest: the highest of these.
        last_record_s: seconds since the last record of any split.
        shown: splits that hold back the watermark most, then idle ones, longest silent first; at most 16.
    """

    splits: int
    idle: int
    without_watermark: int
    median: int | None
    highest: int | None
    last_record_s: float
    shown: tuple[SplitTime, ...]


@dataclass(frozen=True, slots=True)
class SubtaskMetrics:
    """One subtask at one moment. Counts are totals since the start, times are seconds.

    Attributes:
        vertex: name of the job vertex (the chain).
        subtask: index of the subtask.
        state: the execution state's name.
        records_in: records read from the gate, or from the source's readers.
        records_out: records written to result partitions, or to a sink in the chain.
        busy_s: time spent in work.
        backpressured_s: time spent unable to emit.
        idle_s: time spent without input.
        watermark: of the task's input, in ms, or None before the first one.
        output_watermark: the last that left the task, likewise. With several outputs: the lowest.
        watermark_lag_ms: how far that one is behind the clock; None before the first one and after the last.
        user: the functions' own metrics, by name.
        operators: the same by the name of the step whose function they are of, and then by their own.
        vertex_id: number of the job vertex, for names that two of them have.
        attempt: 0 at first, one more after each restart. Counts are those of the attempt.
        bytes_in: bytes that came from other workers.
        bytes_out: bytes written for other workers. Records that stay in their process are not counted.
        queued: batches and control elements that have come in and are not read yet.
        backlog: batches that were emitted and wait for credit of their consumers.
        buffers: network buffers that the outputs may have.
        buffers_in_use: and those that they have: written, and not read by their consumers yet.
        worker: name of the worker process that it runs on; empty in one process.
        at_ms: when the figures were taken, in ms since the epoch. A worker sends its own every half a second.
        splits: event time of the splits of a source that has a watermark strategy; None: there are none.
    """

    vertex: str
    subtask: int
    state: str
    records_in: int = 0
    records_out: int = 0
    busy_s: float = 0.0
    backpressured_s: float = 0.0
    idle_s: float = 0.0
    watermark: int | None = None
    output_watermark: int | None = None
    watermark_lag_ms: int | None = None
    user: Mapping[str, Number] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    vertex_id: int = 0
    attempt: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    queued: int = 0
    backlog: int = 0
    buffers: int = 0
    buffers_in_use: int = 0
    worker: str = ""
    at_ms: int = 0
    splits: SplitTimes | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """Checkpoints of a job, with savepoints, since its job manager has led it.

    Attributes:
        interval_ms: time between two checkpoints; 0: none are taken by themselves.
        completed: number of those that were completed.
        failed: number of those that failed or were given up.
        completed_ms: when the last one was completed, in ms since the epoch; 0: none was.
        duration_ms: time from its trigger to its completion.
        size: bytes of serialized state in it.
    """

    interval_ms: int = 0
    completed: int = 0
    failed: int = 0
    completed_ms: int = 0
    duration_ms: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Process of a worker at one moment. A worker of a cluster may have tasks of several jobs.

    Attributes:
        worker: name of the worker.
        cpu_s: processor time that the process has used, in seconds.
        rss: resident memory in bytes; None: the platform does not tell.
    """

    worker: str
    cpu_s: float
    rss: int | None


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """A job at one moment.

    Attributes:
        job_name: the pipeline's name.
        status: the job's status.
        elapsed_s: seconds since the job started.
        records_in: records read by all sources, in all their attempts.
        records_out: records written by all sinks, likewise.
        subtasks: one entry per subtask, of its newest attempt.
        latency_ms: per sink name, quantiles of the time that latency markers took: ``{"p50": ..., "p99": ...}``.
        restarts: number of restarts of a part of the job after a failure.
        job: the job's id, where it runs in a cluster that stays; else empty.
        micro_batches: how many it has come through, on an engine that has any.
        micro_batch_s: how long the last of them took.
        doing: what the engine is at, in its own words and short, such as ``stage 2 of 3``; mostly empty.
        checkpoints: figures of its checkpoints.
        workers: processes of the workers that it has; empty if it runs in the process of its program.
    """

    job_name: str
    status: str
    elapsed_s: float
    records_in: int
    records_out: int
    subtasks: tuple[SubtaskMetrics, ...]
    latency_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    restarts: int = 0
    job: str = ""
    micro_batches: int = 0
    micro_batch_s: float = 0.0
    doing: str = ""
    checkpoints: CheckpointFigures = CheckpointFigures()
    workers: tuple[WorkerMetrics, ...] = ()


class MetricsReporter(ABC):
    """Sends metrics somewhere. Called from the job's thread: must not block.

    Call order: :meth:`open`, any number of :meth:`report`, :meth:`checkpoint_ended` and :meth:`restart_ended`,
    :meth:`close` once. The last call before :meth:`close` is a :meth:`report`.
    """

    def open(self, job_name: str) -> None:
        """The job is about to run."""

    @abstractmethod
    def report(self, metrics: JobMetrics) -> None:
        """Take the job's metrics; called at the reporting interval and once at the end."""

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        """Take a checkpoint or savepoint that was completed or has failed; called once for each."""

    def restart_ended(self, restart: RestartInfo) -> None:
        """Take a restart after a failure, once its subtasks run again or never will; called once for each."""

    def close(self) -> None:
        """The job has ended."""
