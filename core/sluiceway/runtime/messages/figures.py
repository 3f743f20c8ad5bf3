"""Figures of tasks, as workers report them to the job manager."""

from __future__ import annotations

import msgspec

from sluiceway.metrics import SubtaskMetrics

__all__ = ["TaskFigures"]


class TaskFigures(msgspec.Struct, frozen=True):
    """Figures of one task at one moment, as a worker knows them.

    Attributes:
        attempt_id: which one.
        metrics: its figures; the state in them is unset, since the job master knows that.
        is_source: True if it reads a source.
        records_to_sinks: how many records its sinks have been given.
        latency_ms: by sink, quantiles of the latency.
    """

    attempt_id: str
    metrics: SubtaskMetrics
    is_source: bool
    records_to_sinks: int
    latency_ms: dict[str, dict[str, float]]
