"""Limits of one micro-batch: records, and the times that a reader waits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchLimits"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch: records and waiting times.

    Attributes:
        records: maximum number of records that one reader reads.
        wait_s: time that a reader waits for its first record.
        linger_s: time after its first record during which an idle reader waits for more.
        time_s: time after which a reader stops, even if more records are available.
    """

    records: int = 100_000
    wait_s: float = 0.5
    linger_s: float = 0.1
    time_s: float = 5.0
