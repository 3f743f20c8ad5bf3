"""Contract of metrics reporters."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sluiceway.metrics.events import CheckpointInfo, RestartInfo
from sluiceway.metrics.figures import JobMetrics

__all__ = ["MetricsReporter"]


class MetricsReporter(ABC):
    """Contract of metrics reporters. All methods are called in the job's thread, and must not block.

    Call order: :meth:`open`, any number of :meth:`report`, :meth:`checkpoint_ended` and :meth:`restart_ended`,
    :meth:`close` once. The last call before :meth:`close` is a :meth:`report`.
    """

    def open(self, job_name: str) -> None:
        """Prepare for a job, before it runs."""

    @abstractmethod
    def report(self, metrics: JobMetrics) -> None:
        """Take the job's metrics; called at the reporting interval and once at the end."""

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        """Take a checkpoint or savepoint that was completed or has failed; called once for each."""

    def restart_ended(self, restart: RestartInfo) -> None:
        """Take a restart after a failure, once its subtasks run again or never will; called once for each."""

    def close(self) -> None:
        """Free resources: the job has ended."""
