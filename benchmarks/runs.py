"""Runs of a pipeline in one process or on workers: seconds with the start and without, and processor time."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any

import sluiceway as sw

__all__ = ["Taken", "timed_run"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Resources that a run took.

    Attributes:
        wall: seconds, from when the workers were up.
        start: seconds before that, and after the end of the job.
        cpu: seconds of processor time of the processes that did the work, all together.
    """

    wall: float
    start: float
    cpu: float


def timed_run(flow: sw.Pipeline, workers: int, records: int, **options: Any) -> Taken:
    """Run it; checked to have written so many records, where there are enough of them to say."""
    who = resource.RUSAGE_CHILDREN if workers else resource.RUSAGE_SELF
    cpu, wall = _cpu(who), time.perf_counter()
    metrics = flow.run(workers=workers, **options).metrics
    wall, cpu = time.perf_counter() - wall, _cpu(who) - cpu
    if metrics.records_out != records:
        raise RuntimeError(f"{metrics.job_name}: {metrics.records_out} records were written instead of {records}")
    return Taken(metrics.elapsed_s, wall - metrics.elapsed_s, cpu)


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
