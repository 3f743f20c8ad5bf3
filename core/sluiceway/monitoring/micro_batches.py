"""Micro-batches of a job, on an engine that has any: their facts, and what they say about its throughput."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.findings import Finding

__all__ = ["MicroBatchInfo", "is_load_known", "why_slow_in_batches"]


class MicroBatchInfo(msgspec.Struct, frozen=True):
    """One committed micro-batch.

    Attributes:
        number: the engine's number of it, from 0.
        at_ms: when it was triggered, ms since the epoch.
        duration_ms: time until it was committed, ms.
        records: records that sources read.
        records_per_s: the same by the duration.
        state_rows: rows in the engine's state after it.
        state_bytes: memory that the engine's state takes, in bytes.
        phases: parts of the duration under the engine's names, ms.
    """

    number: int
    at_ms: int
    duration_ms: int
    records: int
    records_per_s: float
    state_rows: int
    state_bytes: int
    phases: dict[str, int] = {}


def is_load_known(metrics: JobMetrics) -> bool:
    """Return True unless the engine drives the tasks itself, and cannot tell how they spend their time."""
    return not (metrics.micro_batches or metrics.doing)


def why_slow_in_batches(batches: Sequence[MicroBatchInfo], metrics: JobMetrics, interval_ms: int) -> Finding:
    """Return what the last micro-batch says about the throughput of a job.

    Args:
        batches: the last ones, oldest first.
        metrics: the newest reading of the job.
        interval_ms: time from one to the next; 0: each follows at once.
    """
    if not batches:
        doing = f": {metrics.doing}" if metrics.doing else ""
        return Finding("engine", f"The engine runs the tasks, and does not report their load{doing}.", "notice")
    last = batches[-1]
    phase, ms = max(last.phases.items(), key=lambda item: item[1], default=("", 0))
    longest = f" {ms / 1000:.1f} s of it was {phase!r}." if phase else ""
    some = f"{last.records:,} record{'s' * (last.records != 1)}"
    if 0 < interval_ms < last.duration_ms:
        text = (
            f"Micro-batches take {last.duration_ms / 1000:.1f} s, and one is due every {interval_ms / 1000:g} s:"
        )
        return Finding("slow-micro-batch", f"{text} the last one had {some}.{longest}", "cause")
    text = f"Micro-batch {last.number:,} took {last.duration_ms / 1000:.1f} s for {some}."
    return Finding("micro-batch", text + longest, "notice")
