"""Limits of one micro-batch: records, and the times that a reader waits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchLimits"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch: records and waiting times.

    Attributes:
        records: how many records a reader reads at the most.
        wait_s: how long a reader waits for its first record.
        linger_s: for how long after its first record a reader waits for others, once there is nothing more.
        time_s: after how long a reader stops, however much there is.
    """

    records: int = 100_000
    wait_s: float = 0.5
    linger_s: float = 0.1
    time_s: float = 5.0
