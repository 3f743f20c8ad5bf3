"""Figures of a job as a whole, from two readings of its metrics, and their texts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import JobMetrics

__all__ = ["Figures", "figures", "lowest_watermark", "show_count", "show_seconds", "show_watermark"]


class Figures(msgspec.Struct, frozen=True):
    """Figures of a job at one moment, with rates since the moment before.

    Attributes:
        elapsed_s: seconds since the job started.
        records_in: records read by all sources.
        records_out: records written by all sinks.
        in_per_s: records read per second.
        out_per_s: records written per second.
        busy: share of the time in which the process worked; with workers, the busiest of them.
        backpressured: share of the time in which the subtask that waited most could not emit.
        watermark: the lowest watermark of the tasks that have one (ms), or None.
        micro_batches: how many there were, on an engine that has any.
        micro_batch_s: how long the last of them took.
        lag_ms: how far the watermark is behind the clock, where the engine says so.
        doing: what the engine is at, in its own words; mostly empty.
    """

    elapsed_s: float
    records_in: int
    records_out: int
    in_per_s: float
    out_per_s: float
    busy: float
    backpressured: float
    watermark: int | None
    micro_batches: int = 0
    micro_batch_s: float = 0.0
    lag_ms: int | None = None
    doing: str = ""


def figures(now: JobMetrics, before: JobMetrics | None = None) -> Figures:
    """Compute what changed between two moments; without an earlier one, since the start."""
    seconds = now.elapsed_s - (before.elapsed_s if before else 0.0)
    earlier = {(t.vertex, t.vertex_id, t.subtask, t.attempt): t for t in before.subtasks} if before else {}
    by_worker: dict[str, float] = {}
    waiting = 0.0
    for task in now.subtasks:
        old = earlier.get((task.vertex, task.vertex_id, task.subtask, task.attempt))
        worked = task.busy_s - (old.busy_s if old else 0.0)
        by_worker[task.worker] = by_worker.get(task.worker, 0.0) + worked
        waiting = max(waiting, task.backpressured_s - (old.backpressured_s if old else 0.0))
    # What left a task says more than what came in: watermarks may have been made inside it.
    latest = (t.watermark if t.output_watermark is None else t.output_watermark for t in now.subtasks)

    def per_second(amount: float) -> float:
        return max(amount / seconds, 0.0) if seconds > 0 else 0.0

    return Figures(
        elapsed_s=now.elapsed_s,
        records_in=now.records_in,
        records_out=now.records_out,
        in_per_s=per_second(now.records_in - (before.records_in if before else 0)),
        out_per_s=per_second(now.records_out - (before.records_out if before else 0)),
        busy=min(per_second(max(by_worker.values(), default=0.0)), 1.0),
        backpressured=min(per_second(waiting), 1.0),
        watermark=lowest_watermark(latest),
        micro_batches=now.micro_batches,
        micro_batch_s=now.micro_batch_s,
        lag_ms=max((t.watermark_lag_ms for t in now.subtasks if t.watermark_lag_ms is not None), default=None),
        doing=now.doing,
    )


def show_count(number: float) -> str:
    """Format a count or a rate in a few characters."""
    for limit, divisor, unit in ((10_000, 1, ""), (10_000_000, 1_000, "k")):
        if number < limit:
            return f"{number / divisor:,.0f}{unit}"
    return f"{number / 1_000_000:,.1f}M"


def show_seconds(seconds: float) -> str:
    """Format a duration for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def lowest_watermark(marks: Iterable[int | None]) -> int | None:
    """Return the lowest watermark of subtasks (ms); None if none has one but those at the end of their input.

    A source's subtask without splits is at its end from the start, and the others have no watermark yet.
    """
    seen = set(marks)
    if None in seen:
        seen -= {None, MAX_WATERMARK}
    return min((mark for mark in seen if mark is not None), default=None)


def show_watermark(watermark: int | None) -> str:
    """Format a watermark (ms) for people."""
    if watermark is None:
        return "none"
    if watermark >= MAX_WATERMARK:
        return "end"
    try:
        return datetime.fromtimestamp(watermark / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{watermark} ms"
