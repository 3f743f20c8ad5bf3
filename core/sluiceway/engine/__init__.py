"""Contract of an engine: what runs a pipeline, and what it declares of its capabilities."""

from sluiceway.engine.base import (
    Engine,
    Job,
    JobFailure,
    JobResult,
    JobStatus,
    LifecycleListener,
    Services,
)

__all__ = [
    "Engine",
    "Job",
    "JobFailure",
    "JobResult",
    "JobStatus",
    "LifecycleListener",
    "Services",
]
