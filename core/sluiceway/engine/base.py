"""Contract of an engine, which runs pipelines: the job that it returns, and the services that it receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from traceback import format_exception

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.engine.capabilities import EVERYTHING, Capabilities
from sluiceway.errors import NotBuiltYetError
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.processes import ProcessReadings
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.partitioner import Partitioner
from sluiceway.state import StateBackend
from sluiceway.streamgraph import StreamGraph
from sluiceway.transport import Transport
from sluiceway.transport.carrier import Carrier
from sluiceway.util.name_hints import Hinting

__all__ = ["Engine", "Job", "JobFailure", "JobResult", "JobStatus", "LifecycleListener", "Services"]


class JobStatus(Enum):
    """State of a job in its life cycle.

    It is RESTARTING while some of its subtasks, after a failure, wait for their next attempts.
    """

    CREATED = "created"
    RUNNING = "running"
    RESTARTING = "restarting"
    CANCELLING = "cancelling"
    FAILING = "failing"
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Return whether the state is final."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

    @property
    def running(self) -> bool:
        """Return whether the job has begun and is to go on, also if some subtasks wait for a restart."""
        return self in (JobStatus.RUNNING, JobStatus.RESTARTING)


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Failure in the history of a job, with the decision of the restart strategy.

    Attributes:
        at_ms: when, in ms since the epoch.
        task: name of the step, or chain of steps, that failed; empty: no subtask has caused it.
        subtask: index of its subtask; None: no subtask has caused it.
        attempt: number of its attempt; None likewise.
        worker: name of the worker that it ran on, ``local`` in one process; empty: no subtask has caused it.
        cause: the exception.
        restarted: number of subtasks that restarted because of it; 0: the job failed.
        delay_ms: delay of the restart; None: the job was not restarted.
    """

    at_ms: int
    task: str
    subtask: int | None
    attempt: int | None
    worker: str
    cause: BaseException
    restarted: int
    delay_ms: int | None

    @property
    def traceback(self) -> str:
        """Traceback of the cause where it was raised, which may be in a worker."""
        remote = getattr(self.cause.__cause__, "remote_traceback", None)
        return remote if isinstance(remote, str) else "".join(format_exception(self.cause)).rstrip()


@dataclass(frozen=True, slots=True)
class JobResult(Hinting):
    """Result of a job that finished or was cancelled; a failure is raised instead.

    Attributes:
        job_name: the pipeline's name.
        status: FINISHED or CANCELED.
        metrics: the last metrics of the job.
        failures: failures after which it was restarted, oldest first; of many, the last ones.
    """

    job_name: str
    status: JobStatus
    metrics: JobMetrics
    failures: tuple[JobFailure, ...] = ()

    def __repr__(self) -> str:
        # A notebook shows what run() returns; all the metrics would be pages.
        metrics = self.metrics
        failed = f", {len(self.failures)} failures" if self.failures else ""
        return (
            f"<JobResult of {self.job_name!r}: {self.status.value} after {metrics.elapsed_s:.3g} s, "
            f"{metrics.records_in:,} records in, {metrics.records_out:,} out{failed}>"
        )


class LifecycleListener(ABC):
    """Listener to state changes, called in the thread that made them. Must not raise and must not block."""

    @abstractmethod
    def job_status_changed(self, job_name: str, old: JobStatus, new: JobStatus) -> None:
        """Handle a change of the job's status."""

    @abstractmethod
    def task_state_changed(self, job_name: str, vertex: str, subtask: int, old: str, new: str) -> None:
        """Handle a change of the state of a subtask's execution."""

    def checkpoint_completed(self, job_name: str, checkpoint_id: int, duration_ms: int, size_bytes: int) -> None:
        """Handle a completed checkpoint, which is stored."""

    def checkpoint_failed(self, job_name: str, checkpoint_id: int, cause: BaseException) -> None:
        """Handle an aborted checkpoint."""


class Services(ABC):
    """Services that plugins provide to an engine. Each is looked up when a job is made, never on the data path.

    Each method raises UnknownNameError for an unknown name, and MissingExtraError where the plugin's third-party
    library is missing.
    """

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Clock of the runtime."""

    @property
    @abstractmethod
    def listener(self) -> LifecycleListener:
        """Listener to notify of state changes."""

    @abstractmethod
    def state_backend(self, name: str) -> StateBackend:
        """Return a new state backend."""

    @abstractmethod
    def transport(self, name: str) -> Transport:
        """Return a new transport."""

    @abstractmethod
    def carrier(self, name: str) -> Carrier:
        """Return a new carrier, of a transport between workers."""

    @abstractmethod
    def partitioner(self, name: str) -> Partitioner:
        """Return a new partitioner of a plugin's."""

    @abstractmethod
    def checkpoint_storage(self, location: str) -> CheckpointStorage:
        """Return a new checkpoint storage at a path or URL."""

    @abstractmethod
    def metrics_reporters(self, names: Sequence[str]) -> list[MetricsReporter]:
        """New metrics reporters."""


class Job(ABC):
    """One run of one pipeline."""

    @abstractmethod
    def run(self) -> JobResult:
        """Run it to its end, in the calling thread. Once.

        Raises:
            BaseException: what a user's function, a source or a sink raised, with notes that name the step,
                the subtask and the record.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Request cancellation. From any thread, and from a signal handler."""

    @property
    @abstractmethod
    def status(self) -> JobStatus:
        """Its status. From any thread."""

    @abstractmethod
    def metrics(self) -> JobMetrics:
        """Return its metrics as of now. From any thread; figures of one subtask may be a batch apart."""

    def failures(self) -> tuple[JobFailure, ...]:
        """Failures so far, oldest first; the most recent ones if there were many. From any thread."""
        return ()

    def describe(self) -> JobDescription:
        """Return the job's graph, attempts and options, as far as the engine knows them. From any thread."""
        return JobDescription()

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return the last checkpoints and savepoints, oldest first. From any thread."""
        return []

    def checkpoint_directory(self) -> str:
        """Return the path or URL of the directory of its checkpoints; empty: there is none. From any thread."""
        return ""

    def stop(self) -> None:
        """End the sources at their current positions, and let the job finish. From any thread.

        Raises:
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} cannot stop a job: cancel it")

    def savepoint(
        self, place: str | None, done: Callable[[str, BaseException | None], None], *, stop: bool = False
    ) -> None:
        """Request a savepoint, from which another run may start. From any thread, and from a signal handler.

        Args:
            place: path or URL of the directory in which it gets one of its own; None: where checkpoints are.
            done: called once, in any thread, and must not raise: with the savepoint's path or URL and None, or
                with an empty one and why there is none: CheckpointError, or GraphError for a job with a feedback
                loop.
            stop: whether the job is to end with it. Nothing behind it is processed, and what sinks have made
                ready for it is committed; if it fails, the job continues.

        Raises:
            ConfigurationError: there is no place for it.
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} takes no savepoints")

    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Request a checkpoint now, besides the periodic ones. From any thread, and from a signal handler.

        Args:
            done: called once, in any thread, and must not raise: with the number of the checkpoint and None, or
                with 0 and why there is none: CheckpointError.

        Raises:
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} takes no checkpoints on demand")

    def rescale(
        self,
        parallelism: int | None,
        steps: Mapping[str, int],
        done: Callable[[RescaleInfo | None, BaseException | None], None],
        accepted: Callable[[RescaleInfo], None] | None = None,
    ) -> None:
        """Request another parallelism while the job runs. From any thread.

        Args:
            parallelism: of all steps for which the program chose none; None: they keep theirs.
            steps: of single steps, by name, uid, or id of the vertex.
            done: called once, in any thread, and must not raise: with what was changed and None, or with None and
                why the job has its old parallelism: RescaleError.
            accepted: called before that, once nothing is in the way; not for a request that is refused.

        Raises:
            RescaleError: this job cannot be rescaled at all.
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} cannot rescale a job that runs")

    def sample_stacks(
        self, seconds: float, rate: float, done: Callable[[list[StackSamples], list[str]], None]
    ) -> None:
        """Take samples of the Python stacks of the job's processes, for flame graphs. From any thread.

        Args:
            seconds: time to take them, at most 60.
            rate: samples per second, 1 to 250.
            done: called once, in any thread, and must not raise: with the samples of each process, and with the
                problems of those that gave none.

        Raises:
            ConfigurationError: ``seconds`` or ``rate`` is out of range.
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} takes no samples of stacks")

    def sample_keys(
        self, vertices: list[int], seconds: float, done: Callable[[list[KeySample], list[str]], None]
    ) -> None:
        """Count the keys of the records that keyed tasks receive, for some seconds. From any thread.

        Args:
            vertices: ids of job vertices; empty: all.
            seconds: time, at most 60.
            done: called once, in any thread, and must not raise: with the samples of each task, and with the
                problems of processes that gave none.

        Raises:
            ConfigurationError: ``seconds`` is out of range.
            NotBuiltYetError: this engine cannot do that.
        """
        raise NotBuiltYetError(f"{type(self).__name__} does not count keys")

    def inspect_workers(self, worker: str, threads: bool, done: Callable[[ProcessReadings], None]) -> None:
        """Take the figures of the job's worker processes, or with ``threads`` their thread dumps. From any thread.

        Args:
            worker: name of one of them; empty: all.
            threads: whether thread dumps are wanted.
            done: called once, in any thread, and must not raise. A job in one process has no workers.
        """
        problems = [f"there is no worker {worker!r}: the job runs in one process"] if worker else []
        done(ProcessReadings(problems=problems))

    def check_savepoint(self, place: str) -> None:
        """Refuse a place for the savepoint that the job is to end with, before it runs.

        Raises:
            ConfigurationError: :meth:`savepoint` could not use it.
            CheckpointError: it cannot be written.
        """


class Engine(ABC):
    """Engine that runs pipelines; a plugin offers it under a name."""

    @abstractmethod
    def prepare(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        """Check that the graph can run here, and make a job of it. Nothing is opened yet.

        What :meth:`capabilities` says that the engine lacks has been refused before.

        Raises:
            GraphError: the graph asks for something that this engine cannot do; names the steps.
        """

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """Return the engine's capabilities in a run with these options; by default, all capabilities.

        Args:
            settings: the options of the run.
            bounded: whether all sources of the job are bounded.

        Raises:
            ConfigurationError, NotBuiltYetError: it cannot run with these options at all.
        """
        return EVERYTHING

    def extract(self, location: str, into: str, services: Services) -> None:
        """Write the keyed state of a run, which this engine keeps in a form of its own, as a checkpoint.

        Args:
            location: path or URL of the run's directory, or of one with several: then it is the newest.
            into: path or URL of a directory for the checkpoint.
            services: open storages.

        Raises:
            CheckpointError: there is no run there, or its state cannot be read.
            NotBuiltYetError: this engine keeps its state in checkpoints, which need no extract.
        """
        raise NotBuiltYetError(f"{type(self).__name__} keeps state in checkpoints alone")
