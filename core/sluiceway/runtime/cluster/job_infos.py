"""Facts about a job that runs by itself, in the form that a cluster reports."""

from __future__ import annotations

from collections import Counter

import msgspec

from sluiceway.engine import Job
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import JobInfo
from sluiceway.monitoring.job_history import EndedJob
from sluiceway.runtime.jobmanager.job_description import failure_info
from sluiceway.runtime.jobmanager.job_metrics import plain_metrics

__all__ = ["ended_job", "job_info", "task_counts"]


def task_counts(metrics: JobMetrics) -> dict[str, int]:
    """Return the number of subtasks by their state."""
    return dict(Counter(task.state for task in metrics.subtasks))


def job_info(
    job: Job, metrics: JobMetrics, job_id: str, name: str, submitted_ms: int, ended_ms: int = 0
) -> JobInfo:
    """Return the description of a job. From any thread; ``ended_ms`` is 0 while it runs."""
    status = job.status.value
    failures = [failure_info(failure) for failure in job.failures()]
    return JobInfo(
        job=job_id,
        name=name,
        status=status,
        submitted_ms=submitted_ms,
        ended_ms=ended_ms,
        needs_slots=0,
        records_in=metrics.records_in,
        records_out=metrics.records_out,
        failure=failures[-1].cause if failures and status == "failed" else "",
        restarts=metrics.restarts,
        failures=failures,
        tasks=task_counts(metrics),
    )


def ended_job(job: Job, job_id: str, name: str, submitted_ms: int, ended_ms: int) -> EndedJob:
    """Return the record of a job that has ended."""
    metrics = plain_metrics(job.metrics())
    return EndedJob(
        info=job_info(job, metrics, job_id, name, submitted_ms, ended_ms),
        description=msgspec.structs.replace(job.describe(), metrics=metrics),
        checkpoints=job.checkpoints(),
    )
