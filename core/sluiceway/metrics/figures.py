"""Figures of a job at one moment: its subtasks, splits, checkpoints and worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "CheckpointFigures",
    "JobMetrics",
    "Number",
    "SplitTime",
    "SplitTimes",
    "SubtaskMetrics",
    "WorkerMetrics",
]

Number: TypeAlias = int | float
"""An integer stays one where figures are sent to another process."""


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
        records_out: records written by all sinks, likewise; without those skipped, of the option dead-letters.
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

    @property
    def running(self) -> bool:
        """Return whether the job has begun and is to go on, also if some subtasks wait for a restart."""
        return self.status in ("running", "restarting")
