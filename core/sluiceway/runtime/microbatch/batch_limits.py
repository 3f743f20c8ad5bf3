"""Limits of one micro-batch: records, and the times that a reader waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["BatchLimits"]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch: records and waiting times.

    Attributes:
        records: maximum number of records that one reader reads.
        wait_s: time that a reader waits for its first record.
        linger_s: time after its first record during which an idle reader waits for more.
        time_s: time after which a reader stops, even if more records are available.
        idle_s: longest time that a planner waits for input of one source; never more than ``wait_s``.
    """

    records: int = 100_000
    wait_s: float = 0.5
    linger_s: float = 0.1
    time_s: float = 5.0
    idle_s: float = math.inf

    @property
    def planning_s(self) -> float:
        """Time that a planner waits for input of one source, before it reports that there is none."""
        return min(self.wait_s, self.idle_s)

    def every(self, interval_ms: int, sources: int) -> BatchLimits:
        """Return the limits of micro-batches that begin so often, 0 for as soon as they can.

        The wait for input counts to the micro-batch: with one of the interval or longer, Spark would log that an
        idle query is falling behind.
        """
        return replace(self, idle_s=interval_ms / 2000 / sources) if interval_ms else self
