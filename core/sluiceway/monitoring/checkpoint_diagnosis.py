"""Checkpoints that fail, or take about as long as their interval, and the part of them that takes the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluiceway.monitoring.findings import Finding, age
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, SubtaskInfo

__all__ = ["slow_checkpoints"]

SLOW: Final = 0.8
"""Ratio of a checkpoint's duration to the interval from which it counts as slow."""
_LONGEST_MS: Final = 1000
"""Time that a pending checkpoint may take where the interval is shorter."""
_STUCK: Final = 3
"""Ratio of a pending checkpoint's age to the duration of the last one from which the pending one is told of."""
_SLOW_STORAGE: Final = 1_000_000
"""Bytes per second from which on the size of the state explains the time in which it is written."""


def slow_checkpoints(
    description: JobDescription, checkpoints: Sequence[CheckpointInfo], now_ms: int
) -> Finding | None:
    """Return a finding if the last checkpoint of a job has failed, or takes about as long as its interval.

    Args:
        description: the job's graph and checkpoint interval.
        checkpoints: the last ones, oldest first.
        now_ms: the clock.
    """
    done = [c for c in checkpoints if c.status == "completed" and c.duration_ms is not None and not c.savepoint]
    last = done[-1] if done else None
    every_ms = description.checkpoint_interval_ms
    took_ms = 0 if last is None or last.duration_ms is None else last.duration_ms
    is_slow = last is not None and every_ms > 0 and took_ms >= SLOW * every_ms
    pending = next((c for c in checkpoints if c.status == "pending" and not c.savepoint), None)
    if pending is not None and every_ms:
        # A completed one says which part of it takes the time, so one like it is left out.
        limit_ms = max(every_ms, _LONGEST_MS, _STUCK * took_ms if is_slow else 0)
        if now_ms - pending.triggered_ms > limit_ms:
            return _pending(description, pending, now_ms)
    failed = [c for c in checkpoints if c.status == "failed"]
    if failed and (last is None or failed[-1].checkpoint > last.checkpoint):
        return Finding(
            "failed-checkpoint", f"Checkpoint {failed[-1].checkpoint} has failed: {failed[-1].reason}", "notice"
        )
    if last is None or not is_slow:
        return None
    return _slowest_part(last, f"Checkpoints take {age(took_ms)}, and one is due every {age(every_ms)}")


def _pending(description: JobDescription, pending: CheckpointInfo, now_ms: int) -> Finding:
    under_way = now_ms - pending.triggered_ms
    text = (
        f"Checkpoint {pending.checkpoint} has been under way for {age(under_way)}, and one is due every "
        f"{age(description.checkpoint_interval_ms)}"
    )
    if pending.acknowledged_ms is not None:
        return Finding(
            "slow-checkpoint",
            f"{text}: the checkpoint storage is slow. All subtasks have acknowledged the checkpoint, and its "
            f"metadata has been written for {age(under_way - pending.acknowledged_ms)}.",
        )
    told = {(s.vertex_id, s.subtask) for s in pending.subtasks}
    running = [(e.vertex, e.subtask) for e in description.executions if e.state == "running"]
    missing = [where for where in running if where not in told]
    text = f"{text}: {len(told)} of {len(told) + len(missing)} subtasks have acknowledged it"
    if not missing:
        return Finding("slow-checkpoint", f"{text}.")
    vertex, subtask = missing[0]
    name = next((v.name for v in description.vertices if v.id == vertex), "?")
    return Finding(
        "slow-checkpoint",
        f"{text}, and subtask {subtask + 1} of {name!r} has not.",
        vertex=vertex,
        subtask=subtask,
    )


def _slowest_part(last: CheckpointInfo, text: str) -> Finding:
    """Name the phase of a subtask, or the storing of the metadata, that takes most of a checkpoint's time."""
    acknowledged_ms, duration_ms = last.acknowledged_ms, last.duration_ms or 0
    storing_ms = 0 if acknowledged_ms is None else duration_ms - acknowledged_ms
    parts = [(ms, name, s) for s in last.subtasks for name, ms in _phases(s).items()]
    ms, phase, worst = max(parts, key=lambda part: part[0], default=(0, "", None))
    if storing_ms > ms:
        return Finding(
            "slow-checkpoint",
            f"{text}: the checkpoint storage is slow. Writing the metadata takes {age(storing_ms)}, after all "
            "subtasks have acknowledged the checkpoint.",
        )
    if worst is None:
        return Finding("slow-checkpoint", f"{text}.")
    if phase == "barriers":
        why = (
            f"their barriers wait {age(ms)} behind records in front of {worst.task!r}. Unaligned checkpoints do "
            "not wait (--checkpoint-unaligned)."
        )
    elif phase == "writing the state" and ms >= SLOW * _LONGEST_MS and worst.size < _SLOW_STORAGE * ms / 1000:
        why = (
            f"the checkpoint storage is slow. Writing the state, {worst.size:,} bytes, takes {age(ms)} in subtask "
            f"{worst.subtask + 1} of {worst.task!r}."
        )
    else:
        why = f"{phase} takes {age(ms)} in subtask {worst.subtask + 1} of {worst.task!r}."
    return Finding("slow-checkpoint", f"{text}: {why}", vertex=worst.vertex_id, subtask=worst.subtask)


def _phases(subtask: SubtaskInfo) -> dict[str, int]:
    return {
        "barriers": subtask.barrier_ms,
        "alignment": subtask.alignment_ms,
        "flushing": subtask.flush_ms,
        "the copy of the state": subtask.sync_ms,
        "writing the state": subtask.async_ms,
    }
