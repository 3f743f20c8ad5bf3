"""Events of a job, as metrics reporters and clients are sent them: failures, restarts and checkpoints."""

from __future__ import annotations

import msgspec

__all__ = ["CheckpointInfo", "FailureInfo", "RestartInfo", "SubtaskInfo"]


class FailureInfo(msgspec.Struct, frozen=True):
    """One failure in a job's history: a :class:`~sluiceway.engine.JobFailure` whose ``cause`` is text."""

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
    """Part of one subtask in a checkpoint. Times are durations in ms, sizes are bytes.

    ``start_delay_ms`` is the time from the trigger until the state was taken: alignment, flush and the copy of the
    state are in it.
    """

    task: str
    subtask: int
    start_delay_ms: int
    alignment_ms: int
    flush_ms: int
    sync_ms: int
    async_ms: int
    size: int
    in_flight: int = 0
    vertex_id: int = 0

    @property
    def barrier_ms(self) -> int:
        """Time from the trigger to the first barrier."""
        return max(0, self.start_delay_ms - self.alignment_ms - self.flush_ms - self.sync_ms)

    @property
    def duration_ms(self) -> int:
        """Time from the trigger until the state was written."""
        return self.start_delay_ms + self.async_ms


class CheckpointInfo(msgspec.Struct, frozen=True):
    """One checkpoint or savepoint.

    Attributes:
        checkpoint: its number.
        status: ``pending``, ``completed`` or ``failed``.
        triggered_ms: when it was triggered, in ms since the epoch.
        duration_ms: from then to its end; None while it is under way.
        size: bytes of serialized state.
        reason: why it failed; else empty.
        savepoint: path or URL of a savepoint; empty for a checkpoint.
        subtasks: the parts of those that have acknowledged it.
        in_flight: bytes of records in flight in it.
        acknowledged_ms: from the trigger until the last subtask had acknowledged it; None: not all have.
    """

    checkpoint: int
    status: str
    triggered_ms: int
    duration_ms: int | None
    size: int
    reason: str
    savepoint: str
    subtasks: list[SubtaskInfo]
    in_flight: int = 0
    acknowledged_ms: int | None = None


class RestartInfo(msgspec.Struct, frozen=True):
    """One restart of a part of a job, or of all of it, that is over; or a failure that no restart followed.

    Attributes:
        failure: the failure before it, with the number of subtasks that were restarted and their delay.
        outcome: ``running``: all of them run again; ``failed``: one of them failed before that; ``ended``: the
            job ended before that; ``given up``: none was restarted.
        ended_ms: when that was the case, in ms since the epoch.
    """

    failure: FailureInfo
    outcome: str
    ended_ms: int
