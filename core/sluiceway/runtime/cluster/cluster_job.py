"""Job on worker processes that are started for it and end with it: on this machine, or on a worker host."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.engine import JobFailure, JobResult, JobStatus, Services
from sluiceway.errors import ConfigurationError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription
from sluiceway.monitoring.key_samples import KeySample, check_key_sampling
from sluiceway.monitoring.processes import ProcessReadings
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.cluster_directory import (
    lock_directory,
    make_directory,
    place_of_directories,
    remove_dead,
)
from sluiceway.runtime.cluster.job_manager import STOP_S, JobManager
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.os_platform import Platform
from sluiceway.runtime.cluster.worker_host import HostedPlatform, WorkerHost
from sluiceway.runtime.cluster.worker_settings import WorkerLogging, WorkerSettings
from sluiceway.runtime.jobmanager.checkpoint_places import check_place
from sluiceway.runtime.jobmanager.checkpoint_store import directory_of
from sluiceway.runtime.jobmanager.job_description import describe_job
from sluiceway.runtime.jobmanager.job_metrics import Reporting
from sluiceway.runtime.jobmanager.mastered_job import MasteredJob
from sluiceway.runtime.jobmanager.restore import restore_from
from sluiceway.runtime.logging.engine_log import job_logging
from sluiceway.runtime.messages.pickling import check_shippable
from sluiceway.runtime.taskmanager.stack_sampler import check_sampling
from sluiceway.util.overriding import override

__all__ = ["ClusterJob"]


class ClusterJob(MasteredJob):
    """Run of a job on ``settings.workers`` processes. The calling thread is the job manager.

    Args:
        graph: the job.
        settings: the options of the run.
        services: factories of the plugins.
        host: places the workers; None: they run on this machine.
    """

    def __init__(
        self, graph: JobGraph, settings: Settings, services: Services, host: WorkerHost | None = None
    ) -> None:
        super().__init__(settings, services)
        self._graph = graph
        self._host = host
        # A wrong name is reported before any process is started.
        if host is not None and settings.transport not in ("auto", host.transport):
            raise ConfigurationError(
                f"transport {settings.transport!r} is for workers on one machine; where these are placed "
                f"elsewhere, leave transport at 'auto', which is {host.transport!r} then"
            )
        usual = "shm" if host is None else host.transport
        self._transport = usual if settings.transport == "auto" else settings.transport
        services.carrier(self._transport)
        services.state_backend(settings.state_backend)
        restore_from(settings, graph, services)
        check_place(settings, services)
        check_shippable(graph)
        self._reporters = services.metrics_reporters(settings.metrics)
        self._manager: JobManager | None = None
        self._run: JobRun | None = None
        self._cancelled = False
        self._over = False

    def run(self) -> JobResult:
        """Start the workers, run the job, and stop the workers."""
        if self._manager is not None:
            raise RuntimeError("a job runs once: prepare another one")
        try:
            with job_logging(self._settings):
                return self._lead()
        finally:
            # A job that cannot begin, for want of a directory or a host, has ended, too.
            self._over = True
            self._requests.close()

    def _lead(self) -> JobResult:
        workers = self._settings.workers
        remove_dead(place_of_directories())
        host = self._host
        if host is None:
            return self._lead_on(Platform(), workers)
        try:
            return self._lead_on(HostedPlatform(host, host.open()), workers)
        finally:
            host.close()

    def _lead_on(self, platform: Platform, workers: int) -> JobResult:
        directory = make_directory()
        with lock_directory(directory):
            return self._lead_in(directory, platform, workers)

    def _lead_in(self, directory: Path, platform: Platform, workers: int) -> JobResult:
        settings = self._settings
        logs = WorkerLogging("", settings.log_level or "warning", settings.log_format, told=self._host is not None)
        manager = self._manager = JobManager(
            directory,
            secrets.token_bytes(32),
            self.services,
            WorkerSettings(
                self._transport,
                most=workers,
                # Rounded up, so that the workers have enough in all.
                slots=-(-sum(slots_required(self._graph).values()) // workers),
                heartbeat_timeout_s=settings.heartbeat_timeout_ms / 1000,
                slots_grow=True,
                network_buffers=settings.network_buffers,
                logs=logs,
            ),
            platform=platform,
        )
        reporting = Reporting(
            self._reporters,
            manager.loop,
            self.services.clock,
            self._settings.metrics_interval_ms,
            self.metrics,
        )
        try:
            # First: a reporter that cannot work is an error before any process is started.
            reporting.open(self._graph.job_name)
            prepared = manager.prepare(self._graph.job_name, self._graph, self._settings)
            run = self._run = manager.submit(prepared)
            run.master.events.listen(reporting)
            self._requests.begin(run.master, manager.loop.mail)
            # cancel() may have come before there was a run to mail to.
            if self._cancelled:
                run.cancel(STOP_S)
            while not run.status.ended:
                manager.turn()
            manager.ended(run)
            manager.close()
        finally:
            try:
                manager.abandon()
            finally:
                reporting.close()
        if run.failure is not None:
            raise run.failure
        return JobResult(self._graph.job_name, run.status, run.metrics(), run.master.failures)

    def cancel(self) -> None:
        """Request cancellation. From any thread. A worker that is stuck in a call is killed after STOP_S."""
        self._cancelled = True
        manager, run = self._manager, self._run
        if manager is not None and run is not None:
            manager.loop.mail(lambda: run.cancel(STOP_S))

    def sample_stacks(
        self, seconds: float, rate: float, done: Callable[[list[StackSamples], list[str]], None]
    ) -> None:
        """Take samples of the stacks of the workers. From any thread."""
        check_sampling(seconds, rate)
        manager, run = self._manager, self._run
        if manager is None or run is None or run.status.ended:
            done([], ["the job does not run"])
        else:
            manager.loop.mail(lambda: run.sample_stacks(seconds, rate, done))

    def sample_keys(
        self, vertices: list[int], seconds: float, done: Callable[[list[KeySample], list[str]], None]
    ) -> None:
        """Count the keys that tasks of the workers receive. From any thread."""
        check_key_sampling(seconds)
        manager, run = self._manager, self._run
        if manager is None or run is None or run.status.ended:
            done([], ["the job does not run"])
        else:
            manager.loop.mail(lambda: run.sample_keys(vertices, seconds, done))

    def inspect_workers(self, worker: str, threads: bool, done: Callable[[ProcessReadings], None]) -> None:
        """Request the figures or the thread dumps of the workers. From any thread."""
        manager, run = self._manager, self._run
        if manager is None or run is None or run.status.ended:
            done(
                ProcessReadings(
                    problems=[f"there is no worker {worker!r}: the job does not run"] if worker else []
                )
            )
        else:
            manager.loop.mail(lambda: manager.processes.ask(worker, threads, done))

    @property
    @override
    def status(self) -> JobStatus:
        if self._run is not None:
            return self._run.status
        return JobStatus.FAILED if self._over else JobStatus.CREATED

    @override
    def failures(self) -> tuple[JobFailure, ...]:
        return () if self._run is None else self._run.master.failures

    @override
    def describe(self) -> JobDescription:
        if self._run is None:
            return describe_job(self._graph, self._settings, None)
        found = self._run.describe()
        if self._host is None or self._run.status.ended:
            return found
        return msgspec.structs.replace(found, engine_url=self._host.pages)

    @override
    def checkpoints(self) -> list[CheckpointInfo]:
        return [] if self._run is None else self._run.checkpoints()

    @override
    def checkpoint_directory(self) -> str:
        return "" if self._run is None else directory_of(self._settings.checkpoints, self._run.checkpoint_path)

    def metrics(self) -> JobMetrics:
        """Return the metrics that the workers have sent last."""
        doing = "" if self._host is None else self._host.doing
        if self._run is None:
            return JobMetrics(self._graph.job_name, self.status.value, 0.0, 0, 0, (), {}, doing=doing)
        found = self._run.metrics()
        return found if found.subtasks else replace(found, doing=doing)  # until workers report their own
