"""Names of attributes, and the attributes of jobs, tasks and steps."""

from __future__ import annotations

from typing import Final

from sluiceway.metrics import JobMetrics, SubtaskMetrics

__all__ = [
    "ACTIVITY",
    "ATTEMPT",
    "JOB",
    "JOB_ID",
    "QUANTILE",
    "REASON",
    "STATUS",
    "STEP",
    "SUBTASK",
    "TASK",
    "TASK_ID",
    "WORKER",
    "Attributes",
    "of_job",
    "of_task",
]

Attributes = dict[str, str | int | float | bool]

JOB: Final = "sluiceway.job.name"
JOB_ID: Final = "sluiceway.job.id"
TASK: Final = "sluiceway.task.name"
TASK_ID: Final = "sluiceway.task.id"
SUBTASK: Final = "sluiceway.subtask.index"
ATTEMPT: Final = "sluiceway.subtask.attempt"
STEP: Final = "sluiceway.step.name"
WORKER: Final = "sluiceway.worker.name"
STATUS: Final = "sluiceway.status"
ACTIVITY: Final = "sluiceway.task.activity"
REASON: Final = "sluiceway.loss.reason"
QUANTILE: Final = "sluiceway.quantile"


def of_job(metrics: JobMetrics) -> Attributes:
    """Return the attributes of a job: its name and, in a cluster, its id."""
    found: Attributes = {JOB: metrics.job_name}
    if metrics.job:
        found[JOB_ID] = metrics.job
    return found


def of_task(metrics: JobMetrics, task: SubtaskMetrics) -> Attributes:
    """Return the attributes of a subtask."""
    found = of_job(metrics) | {TASK: task.vertex, TASK_ID: task.vertex_id, SUBTASK: task.subtask}
    if task.worker:
        found[WORKER] = task.worker
    return found
