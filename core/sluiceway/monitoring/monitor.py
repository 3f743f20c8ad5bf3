"""Contract of access to a cluster for web servers and other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.processes import ProcessMonitor
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.monitoring.state_view import StateMonitor

__all__ = ["Monitor"]


class Monitor(ABC):
    """Access to a cluster, or to one job that runs by itself. All methods block. May be called from any thread.

    Each method raises ConnectorError if the job manager is gone or does not answer, and SluicewayError with the
    reason if it refuses.
    """

    @abstractmethod
    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        """Return the state of the cluster; with ``figures``, also the metrics of jobs that run."""

    @abstractmethod
    def describe(self, job: str) -> JobDescription:
        """Return the graph, the attempts and the options of a job, and the metrics of one that has ended."""

    @abstractmethod
    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        """Return the last checkpoints and savepoints of a job, oldest first."""

    @abstractmethod
    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        """Take samples of the Python stacks of a job's processes; return them when the time is over.

        Args:
            job: id of the job.
            seconds: time to take them, at most 60.
            rate: samples per second, 1 to 250.
        """

    @abstractmethod
    def sample_keys(self, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
        """Count the keys of the records that come to keyed tasks; return samples when the time is over.

        Args:
            job: id of the job.
            vertices: ids of its vertices; empty: all.
            seconds: time, at most 60.
        """

    @abstractmethod
    def cancel(self, job: str) -> None:
        """Cancel a job."""

    @abstractmethod
    def stop(self, job: str) -> None:
        """End the sources of a job, which then finishes."""

    @abstractmethod
    def checkpoint(self, job: str) -> int:
        """Take a checkpoint now, and return its number when it is complete."""

    @abstractmethod
    def savepoint(self, job: str, place: str = "", *, stop: bool = False) -> str:
        """Take a savepoint and return its path or URL when it is complete.

        Args:
            job: id of the job.
            place: path or URL of the directory in which it gets one of its own; empty: that of the checkpoints.
            stop: end the job with it, and return when the job has ended.
        """

    @abstractmethod
    def rescale(
        self, job: str, parallelism: int | None, steps: Mapping[str, int], *, wait: bool = True
    ) -> RescaleInfo:
        """Change the parallelism of a job that runs, and return when it runs again.

        Args:
            job: id of the job.
            parallelism: of all steps for which the program chose none; None: they keep theirs.
            steps: of single steps, by name, uid, or id of the vertex.
            wait: False: return as soon as nothing is in the way.
        """

    @property
    def processes(self) -> ProcessMonitor:
        """Access to the processes; without any, that of records of ended jobs."""
        return ProcessMonitor()

    @property
    def state(self) -> StateMonitor:
        """Access to state and dead letters; that of records of ended jobs refuses."""
        return StateMonitor()

    def close(self) -> None:
        """Release connections. Harmless twice."""
