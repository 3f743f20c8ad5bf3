"""Rates and shares of the time of subtasks, from two readings of their counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluiceway.metrics import JobMetrics, SubtaskMetrics

__all__ = ["RateMeter", "SubtaskRates"]


@dataclass(frozen=True, slots=True)
class SubtaskRates:
    """Rates of one subtask between two readings. The four shares of the time add up to 1.

    Attributes:
        metrics: the newer reading.
        in_per_s: records read per second.
        out_per_s: records emitted per second.
        bytes_in_per_s: bytes received from other workers per second.
        bytes_out_per_s: bytes sent to other workers per second.
        busy: share of the time spent in work.
        blocked: share spent unable to emit.
        idle: share spent without input.
        waiting: share in which it could have worked, but another task of its process ran.
    """

    metrics: SubtaskMetrics
    in_per_s: float
    out_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    busy: float
    blocked: float
    idle: float

    @property
    def waiting(self) -> float:
        """Share in which another task of the process ran."""
        return max(0.0, 1.0 - self.busy - self.blocked - self.idle)


_ENDED: Final = ("finished", "failed", "canceled")


class RateMeter:
    """Meter of the rates of jobs between consecutive readings. Not thread-safe.

    The first reading of an attempt is measured from the start of the job.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, int, int], SubtaskRates] = {}

    def read(self, job: str, metrics: JobMetrics) -> list[SubtaskRates]:
        """Return the rates of a job's subtasks, in the order of its vertices."""
        return [self._rates(job, task, metrics.elapsed_s) for task in metrics.subtasks]

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget all jobs but these."""
        wanted = set(jobs)
        self._before = {key: rates for key, rates in self._before.items() if key[0] in wanted}

    def _rates(self, job: str, task: SubtaskMetrics, elapsed_s: float) -> SubtaskRates:
        key = job, task.vertex_id, task.subtask
        known = self._before.get(key)
        if known is None or known.metrics.attempt != task.attempt:
            rates = _since_start(task, elapsed_s)
        elif task.state in _ENDED:
            rates = SubtaskRates(task, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)  # not those of its last second
        elif known.metrics.at_ms == task.at_ms:
            return known  # its worker has sent nothing new
        else:
            rates = _between(known.metrics, task)
        self._before[key] = rates
        return rates


def _since_start(task: SubtaskMetrics, elapsed_s: float) -> SubtaskRates:
    known_s = task.busy_s + task.backpressured_s + task.idle_s
    # The elapsed time of a first attempt includes the time in which the task waited for its turn.
    return _over(known_s if task.attempt else max(known_s, elapsed_s), task, None)


def _between(before: SubtaskMetrics, now: SubtaskMetrics) -> SubtaskRates:
    return _over((now.at_ms - before.at_ms) / 1000, now, before)


_NOTHING: Final = SubtaskMetrics("", 0, "")


def _over(seconds: float, now: SubtaskMetrics, before: SubtaskMetrics | None) -> SubtaskRates:
    if seconds <= 0:
        return SubtaskRates(now, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    # Written out: a server of pages does this for each of tens of thousands of subtasks in every second.
    old = before or _NOTHING
    busy = max(0.0, (now.busy_s - old.busy_s) / seconds)
    blocked = max(0.0, (now.backpressured_s - old.backpressured_s) / seconds)
    idle = max(0.0, (now.idle_s - old.idle_s) / seconds)
    # Clocks are read at slightly different times, so that the sum may exceed the whole.
    scale = max(1.0, busy + blocked + idle)
    return SubtaskRates(
        now,
        max(0.0, (now.records_in - old.records_in) / seconds),
        max(0.0, (now.records_out - old.records_out) / seconds),
        max(0.0, (now.bytes_in - old.bytes_in) / seconds),
        max(0.0, (now.bytes_out - old.bytes_out) / seconds),
        busy / scale,
        blocked / scale,
        idle / scale,
    )
