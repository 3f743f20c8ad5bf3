"""A cluster that stays: a job manager in a process of its own, which clients talk to."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from sluiceway.config import Settings
from sluiceway.engine import JobFailure, Services
from sluiceway.errors import NoResourceAvailableError, SluicewayError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.metrics import MetricsReporter
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.jobrun import JobRun
from sluiceway.runtime.cluster.manager import JobManager, WorkerLogging
from sluiceway.runtime.cluster.messages import (
    AskCheckpoints,
    AskStatus,
    CancelJob,
    CheckpointInfo,
    Checkpoints,
    Done,
    FailureInfo,
    JobInfo,
    Message,
    Refused,
    SavepointTaken,
    ShutDown,
    Status,
    StopJob,
    SubmitProgram,
    SubtaskInfo,
    TakeSavepoint,
)
from sluiceway.runtime.cluster.shipping import dump, load
from sluiceway.runtime.enginelog import ERROR, INFO, log
from sluiceway.runtime.loops import check_checkpoints
from sluiceway.runtime.reporting import Reporting
from sluiceway.runtime.savepoints import savepoint_place

__all__ = ["ClusterConfig", "Dispatcher"]

KEPT: Final = 100
"""Jobs that have ended and are still told of."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What a cluster is started with.

    Attributes:
        directory: its own; made by whoever starts it.
        secret: in hexadecimal.
        workers: how many worker processes there may be.
        slots: how many each of them offers.
        transport: name of the transport between them.
        heartbeat_timeout_s: a worker that gives no sign of life for longer is killed.
        idle_s: a worker without tasks is ended after so long.
        network_buffers: how many each worker has.
        logs: directory of the log files of its processes.
        log_level: the lowest level that is logged, where a job does not say.
        epoch: higher than that of any job manager before.
    """

    directory: str
    secret: str
    workers: int
    slots: int
    transport: str
    heartbeat_timeout_s: float = 50.0
    idle_s: float = 30.0
    network_buffers: int = 512
    logs: str = ""
    log_level: str = "info"
    epoch: int = 1


class Dispatcher:
    """Takes jobs from clients, gives each to the job manager, and remembers how they ended.

    Args:
        config: what the cluster was started with.
        services: what plugins give in this process.
    """

    def __init__(self, config: ClusterConfig, services: Services) -> None:
        self._config = config
        self._clock = services.clock
        self._services = services
        self._manager = JobManager(
            Path(config.directory),
            bytes.fromhex(config.secret),
            self._services,
            transport=config.transport,
            slots_per_worker=config.slots,
            max_workers=config.workers,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            idle_s=config.idle_s,
            network_buffers=config.network_buffers,
            on_client=self._message,
            logs=WorkerLogging(config.logs, config.log_level),
            epoch=config.epoch,
        )
        self._numbers = count(1)
        self._submitted: dict[str, tuple[str, int]] = {}
        self._ended: dict[str, int] = {}
        self._reporting: dict[str, Reporting] = {}
        self._started_ms = self._clock.now_ms()
        self._stopping: tuple[Connection, int] | None = None
        self._stopped = False
        # Who waits for a job to end with a savepoint, the request, and where the savepoint is.
        self._ending: dict[str, list[tuple[Connection, int, str]]] = {}

    def serve(self) -> None:
        """Work until a client says that it is enough."""
        try:
            while not self._stopped:
                self._manager.turn()
                self._look_after_jobs()
            self._manager.loop.run_ready(4)  # the last answer goes out, also where no worker is there to wait for
            self._manager.close()
        finally:
            self._manager.abandon()

    def stop(self) -> None:
        """Cancel everything and end. From signal handlers, too."""
        self._manager.loop.mail(self._stop)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _look_after_jobs(self) -> None:
        for job, run in list(self._manager.jobs.items()):
            if run.status.ended and job not in self._ended:
                self._ended[job] = self._clock.now_ms()
                if run.failure is not None:
                    log(ERROR, "jobs", "failed", job=job, error=run.failure)
                self._manager.ended(run)
                self._close_reporting(job)
                for client, request, location in self._ending.pop(job, ()):
                    self._tell_ended(client, request, location, run)
        while len(self._ended) > KEPT:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._submitted[oldest], self._manager.jobs[oldest]
        if self._stopping is not None and len(self._ended) == len(self._manager.jobs):
            client, request = self._stopping
            client.send(Done(request))
            client.close()
            self._stopping = None
            self._stopped = True

    def _submit(self, message: SubmitProgram) -> str:
        for entry in message.path:
            if entry not in sys.path:
                sys.path.append(entry)
        graph, settings = load(message.program)
        assert isinstance(graph, JobGraph)
        assert isinstance(settings, Settings)
        needed = sum(slots_required(graph).values())
        most = self._config.workers * self._config.slots
        if needed > most:
            raise NoResourceAvailableError(
                f"job {message.name!r} needs {needed} slots, and this cluster has {most} ({self._config.workers}"
                f" workers with {self._config.slots} each): lower its parallelism, or start a larger cluster"
            )
        check_checkpoints(graph, settings)
        # Now, and not on a worker, which would end with it and take other jobs along.
        self._services.state_backend(settings.state_backend)
        reporters = self._services.metrics_reporters(settings.metrics)
        job = f"{message.name}-{next(self._numbers)}"
        run = self._manager.submit(job, graph, settings)
        if reporters:
            self._report(job, run, reporters, settings)
        self._submitted[job] = (message.name, self._clock.now_ms())
        log(INFO, "jobs", f"submitted; needs {needed} slot{'s' * (needed != 1)}", job=job)
        return job

    def _report(self, job: str, run: JobRun, reporters: list[MetricsReporter], settings: Settings) -> None:
        """Have reporters told of a job; what goes wrong with that later on is logged, and no reason to end."""

        def failed(error: Exception) -> None:
            log(ERROR, "jobs", "metrics are not reported any more", job=job, error=error)

        reporting = Reporting(
            reporters, self._manager.loop, self._clock, settings.metrics_interval_ms, run.metrics, failed
        )
        try:
            reporting.open(job)
        except BaseException:
            run.cancel()
            del self._manager.jobs[job]
            with suppress(Exception):
                reporting.close()
            raise
        self._reporting[job] = reporting

    def _close_reporting(self, job: str) -> None:
        reporting = self._reporting.pop(job, None)
        if reporting is not None:
            try:
                reporting.close()
            except Exception as error:
                log(ERROR, "jobs", "the last metrics could not be reported", job=job, error=error)

    def _stop(self) -> None:
        for run in self._manager.jobs.values():
            run.cancel()
        if self._stopping is None:
            self._stopped = True

    def _tell_ended(self, client: Connection, request: int, location: str, run: JobRun) -> None:
        if run.failure is None:
            client.send(SavepointTaken(request, location))
        else:
            client.send(Refused(request, f"the savepoint is {location}, but the job failed: {_told(run.failure)}"))

    # ---- clients --------------------------------------------------------------------------------------------

    def _message(self, client: Connection, message: Message) -> None:
        match message:
            case SubmitProgram():
                try:
                    client.send(Done(message.request, self._submit(message)))
                except Exception as error:
                    told = str(error) if isinstance(error, SluicewayError) else f"{type(error).__name__}: {error}"
                    client.send(Refused(message.request, told))
            case CancelJob() | StopJob() | TakeSavepoint():
                run = self._manager.jobs.get(message.job)
                if run is None:
                    client.send(Refused(message.request, f"there is no job {message.job!r}"))
                elif run.status.ended:
                    client.send(Refused(message.request, f"job {message.job!r} is {run.status.value} already"))
                elif isinstance(message, TakeSavepoint):
                    self._savepoint(client, message, run)
                else:
                    if isinstance(message, CancelJob):
                        run.cancel()
                    else:
                        run.stop()
                    client.send(Done(message.request, message.job))
            case AskCheckpoints():
                run = self._manager.jobs.get(message.job)
                if run is None:
                    client.send(Refused(message.request, f"there is no job {message.job!r}"))
                else:
                    client.send(Checkpoints(message.request, _checkpoints(run)))
            case AskStatus():
                client.send(self._status(message))
            case ShutDown():
                self._stopping = (client, message.request)
                self._stop()
            case _:
                client.close()

    def _savepoint(self, client: Connection, message: TakeSavepoint, run: JobRun) -> None:
        def done(location: str, problem: BaseException | None) -> None:
            if problem is not None:
                client.send(Refused(message.request, f"there is no savepoint of job {message.job!r}: {problem}"))
            elif message.stop:
                self._ending.setdefault(message.job, []).append((client, message.request, location))
            else:
                client.send(SavepointTaken(message.request, location))

        try:
            place = savepoint_place(message.place or None, run.settings.checkpoints)
        except SluicewayError as error:
            client.send(Refused(message.request, str(error)))
        else:
            run.savepoint(place, message.stop, done)

    def _status(self, message: AskStatus) -> Status:
        resources = self._manager.resources
        figures = {job: run.metrics() for job, run in self._manager.jobs.items()} if message.figures else {}
        return Status(
            request=message.request,
            pid=os.getpid(),
            epoch=self._manager.epoch,
            started_ms=self._started_ms,
            slots=resources.slots.total,
            free_slots=resources.slots.available,
            max_workers=self._config.workers,
            transport=self._config.transport,
            jobs=[self._info(job, run) for job, run in self._manager.jobs.items()],
            workers=resources.infos(),
            figures=dump(figures) if figures else b"",
        )

    def _info(self, job: str, run: JobRun) -> JobInfo:
        name, submitted_ms = self._submitted[job]
        metrics = run.metrics()
        return JobInfo(
            job=job,
            name=name,
            status="waiting" if self._manager.is_waiting(run) else run.status.value,
            submitted_ms=submitted_ms,
            ended_ms=self._ended.get(job, 0),
            needs_slots=sum(slots_required(run.graph).values()),
            records_in=metrics.records_in,
            records_out=metrics.records_out,
            failure="" if run.failure is None else _told(run.failure),
            restarts=run.master.restarts,
            failures=[_failure_info(f) for f in run.master.failures],
        )


def _checkpoints(run: JobRun) -> list[CheckpointInfo]:
    names = {vertex.id: vertex.name for vertex in run.graph.vertices}
    return [
        CheckpointInfo(
            checkpoint=r.checkpoint_id,
            status=r.status,
            triggered_ms=r.triggered_ms,
            duration_ms=r.duration_ms,
            size=r.size,
            reason=r.reason,
            savepoint=r.savepoint,
            subtasks=[
                SubtaskInfo(
                    names[vertex],
                    subtask,
                    s.start_delay_ms,
                    s.alignment_ms,
                    s.flush_ms,
                    s.sync_ms,
                    s.async_ms,
                    s.size,
                )
                for (vertex, subtask), s in sorted(r.tasks.items())
            ],
        )
        for r in run.master.checkpoints.coordinator.history
    ]


def _failure_info(failure: JobFailure) -> FailureInfo:
    return FailureInfo(
        failure.at_ms,
        failure.task,
        failure.subtask,
        failure.attempt,
        failure.worker,
        _told(failure.cause),
        failure.traceback,
        failure.restarted,
        failure.delay_ms,
    )


def _told(error: BaseException) -> str:
    notes: Any = getattr(error, "__notes__", ())
    return "\n".join([f"{type(error).__name__}: {error}", *notes])
