"""Live page of all jobs: a line about each, with a verdict that is kept for a while where there are many."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.diagnosis import diagnose
from sluiceway.monitoring.infos import JobInfo
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway_web._sampler import PERIOD_S, Point, Reading, Sampler, Verdict
from sluiceway_web._shapes import job_overview, now_ms

__all__ = ["jobs_page"]

_AT_ONCE: Final = 10
"""Jobs that are judged in one event. Each of them costs two requests to the job manager, for its description and
its checkpoints: together about a megabyte for 240 subtasks."""

_SPARKS: Final = 60


async def jobs_page(sampler: Sampler, wanted: str) -> dict[str, Any]:
    """Return the page of all jobs."""
    reading = await sampler.reading()
    running = [job for job in reading.cluster.jobs if job.running and job.job in reading.rates]
    sampler.verdicts = {job.job: known for job in running if (known := sampler.verdicts.get(job.job)) is not None}
    for job in _due(sampler, running):
        sampler.verdicts[job.job] = await _judge(sampler, reading, job)
    jobs = []
    for job in reversed(reading.cluster.jobs):
        row: dict[str, Any] = msgspec.to_builtins(job_overview(reading, job))
        if job.running and (verdict := sampler.verdicts.get(job.job)) is not None:
            row |= _health(verdict, reading.cluster.figures.get(job.job), reading.rates[job.job])
            row["sparkline"] = _sparkline(sampler.newest(job.job), verdict.sources)
        elif job.status == "created" and (figures := reading.cluster.figures.get(job.job)) and figures.doing:
            row["summary"] = f"{figures.doing[0].upper()}{figures.doing[1:]}."
        elif job.failure:
            row["summary"] = job.failure[:500]
        jobs.append(row)
    cluster = reading.cluster
    return {
        "now": now_ms(),
        "jobs": jobs,
        "cluster": {
            "pid": cluster.pid,
            "started": cluster.started_ms,
            "slots": cluster.slots,
            "free_slots": cluster.free_slots,
            "max_workers": cluster.max_workers,
            "job_store": cluster.job_store,
            "problems": cluster.problems,
            "workers": [
                {"name": w.name, "pid": w.pid, "slots": w.slots, "silent_s": round(w.silent_s, 1)}
                for w in cluster.workers
            ],
        },
    }


def _version(job: JobInfo) -> tuple[object, ...]:
    """Return the parts of a job's status whose change asks for another verdict at once."""
    return job.restarts, len(job.failures), tuple(sorted(job.tasks.items()))


def _due(sampler: Sampler, running: Sequence[JobInfo]) -> list[JobInfo]:
    """Return the jobs to judge now: new and changed ones first, then those with the oldest verdicts.

    Verdicts of up to ten jobs are made in every period; those of a hundred are up to ten periods old, so that the
    cost for the job manager does not grow with their number.
    """
    now = time.monotonic()
    limit = PERIOD_S * len(running) / _AT_ONCE if len(running) > _AT_ONCE else 0.0
    due = []
    for job in running:
        known = sampler.verdicts.get(job.job)
        if known is None:
            due.append((0, 0.0, job))
        elif known.version != _version(job):
            due.append((1, known.at, job))
        elif now - known.at >= limit:
            due.append((2, known.at, job))
    due.sort(key=lambda entry: entry[:2])
    return [job for _, _, job in due[:_AT_ONCE]]


async def _judge(sampler: Sampler, reading: Reading, job: JobInfo) -> Verdict:
    description = await sampler.describe(job.job)
    checkpoints = await sampler.checkpoints(job.job)
    metrics, rates = reading.metrics(job.job, description), reading.rates[job.job]
    found = diagnose(description, metrics, rates, checkpoints, job.failures)
    done = [c for c in checkpoints if c.status == "completed"]
    return Verdict(
        time.monotonic(),
        _version(job),
        found.summary,
        found.healthy,
        frozenset(v.id for v in description.vertices if v.is_source),
        done[-1].triggered_ms if done else None,
    )


def _health(verdict: Verdict, metrics: JobMetrics | None, rates: Sequence[SubtaskRates]) -> dict[str, Any]:
    lags = [lag for r in rates if (lag := r.metrics.watermark_lag_ms) is not None]
    # The metrics are of this second.
    last = (metrics.checkpoints.completed_ms if metrics is not None else 0) or verdict.checkpoint_ms
    return {
        "summary": verdict.summary,
        "healthy": verdict.healthy,
        "in_per_s": sum(r.in_per_s for r in rates if r.metrics.vertex_id in verdict.sources),
        "lag_ms": max(lags, default=None),
        "last_checkpoint_ms": last,
    }


def _sparkline(newest: Iterable[Point], sources: frozenset[int]) -> list[float]:
    """Return the records per second of the sources, oldest first, from points that come newest first."""
    by_time: dict[int, float] = {}
    for point in newest:
        if point.vertex in sources:
            if point.at_ms not in by_time and len(by_time) == _SPARKS:
                break  # ten times as many are kept, and this is done for each job in every second
            by_time[point.at_ms] = by_time.get(point.at_ms, 0.0) + point.in_per_s
    return [round(value, 1) for value in reversed(by_time.values())]
