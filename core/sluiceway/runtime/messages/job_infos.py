"""What clients are told of jobs, checkpoints and processes, within messages."""

from __future__ import annotations

import msgspec

__all__ = ["CheckpointInfo", "FailureInfo", "JobInfo", "StandbyInfo", "SubtaskInfo", "WorkerInfo"]


class FailureInfo(msgspec.Struct, frozen=True):
    """One failure in a job's history, as a :class:`~.engine.JobFailure` tells it; ``cause`` in a few lines."""

    at_ms: int
    task: str
    subtask: int | None
    attempt: int | None
    worker: str
    cause: str
    traceback: str
    restarted: int
    delay_ms: int | None


class SubtaskInfo(msgspec.Struct, frozen=True):
    """How one subtask took part in a checkpoint, as a :class:`~.runtime.snapshots.TaskSnapshot` tells it."""

    task: str
    subtask: int
    start_delay_ms: int
    alignment_ms: int
    flush_ms: int
    sync_ms: int
    async_ms: int
    size: int
    in_flight: int = 0


class CheckpointInfo(msgspec.Struct, frozen=True):
    """What a client is told of a checkpoint. ``duration_ms`` is None while it is under way."""

    checkpoint: int
    status: str
    triggered_ms: int
    duration_ms: int | None
    size: int
    reason: str
    savepoint: str
    subtasks: list[SubtaskInfo]
    in_flight: int = 0


class JobInfo(msgspec.Struct, frozen=True):
    """What a client is told of a job. Times are in ms since the epoch; 0: not yet."""

    job: str
    name: str
    status: str
    submitted_ms: int
    ended_ms: int
    needs_slots: int
    records_in: int
    records_out: int
    failure: str
    restarts: int
    failures: list[FailureInfo]


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a client is told of a worker."""

    name: str
    pid: int
    slots: int
    silent_s: float


class StandbyInfo(msgspec.Struct, frozen=True):
    """What a client is told of a job manager that stands by."""

    pid: int
    silent_s: float
