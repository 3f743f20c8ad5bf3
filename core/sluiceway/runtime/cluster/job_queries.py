"""Requests of clients to see a job of a cluster, running or ended: they change nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, SluicewayError
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import JobDescription, JobInfo
from sluiceway.monitoring.job_history import EndedJob
from sluiceway.monitoring.key_samples import check_key_sampling
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_infos import task_counts
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_records import JobRecords
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.jobmanager.checkpoint_store import directory_of
from sluiceway.runtime.jobmanager.job_description import told_error
from sluiceway.runtime.messages.clients import (
    AskCheckpoints,
    AskState,
    Checkpoints,
    DescribeJob,
    JobDescribed,
    JobSampled,
    Refused,
    SampleJob,
    StateFound,
)
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.keys import JobKeysSampled, SampleJobKeys
from sluiceway.runtime.messages.workers import FoundState
from sluiceway.runtime.taskmanager.stack_sampler import check_sampling

__all__ = ["JobQueries"]


class JobQueries(Handlers):
    """Handlers of the requests. From the job manager's loop only.

    Args:
        manager: runs the jobs.
        records: records of the jobs, also of those that have ended.
    """

    def __init__(self, manager: JobManager, records: JobRecords) -> None:
        self._manager = manager
        self._records = records

    def infos(self) -> dict[str, JobInfo]:
        """Return short descriptions of the jobs in the job manager."""
        return {job: self._info(job, run) for job, run in self._manager.jobs.items()}

    def figures(self) -> dict[str, JobMetrics]:
        """Return the metrics of the jobs in the job manager."""
        return {job: self._figures(job, run) for job, run in self._manager.jobs.items()}

    def ended_job(self, job: str, run: JobRun, ended_ms: int) -> EndedJob:
        """Return the record of a job that has ended, which refers to neither its program nor its state."""
        return EndedJob(
            self._info(job, run, ended_ms),
            msgspec.structs.replace(self._described(job, run), metrics=run.metrics()),
            run.checkpoints(),
            directory_of(run.settings.checkpoints, run.checkpoint_path),
        )

    @handles(AskCheckpoints)
    def _tell_checkpoints(self, message: AskCheckpoints, client: Connection) -> None:
        run = self._manager.jobs.get(message.job)
        if run is not None:
            client.send(
                Checkpoints(
                    message.request, run.checkpoints(), directory_of(run.settings.checkpoints, run.checkpoint_path)
                )
            )
        elif (ended := self._records.find_ended(message.job)) is not None:
            client.send(Checkpoints(message.request, ended.checkpoints, ended.directory))
        else:
            client.send(Refused.by(message.request, ConfigurationError(f"there is no job {message.job!r}")))

    @handles(DescribeJob)
    def _describe(self, message: DescribeJob, client: Connection) -> None:
        run = self._manager.jobs.get(message.job)
        if run is not None:
            client.send(JobDescribed(message.request, self._described(message.job, run)))
        elif (ended := self._records.find_ended(message.job)) is not None:
            client.send(JobDescribed(message.request, ended.description))
        else:
            absent = ConfigurationError(f"there is no description of job {message.job!r}")
            client.send(Refused.by(message.request, absent))

    @handles(SampleJob)
    def _sample_stacks(self, message: SampleJob, client: Connection) -> None:
        try:
            run = self._running(message.job)
            check_sampling(message.seconds, message.rate)
        except SluicewayError as error:
            client.send(Refused.by(message.request, error))
            return
        run.sample_stacks(
            message.seconds,
            message.rate,
            lambda samples, problems: client.send(JobSampled(message.request, samples, problems)),
        )

    @handles(SampleJobKeys)
    def _sample_keys(self, message: SampleJobKeys, client: Connection) -> None:
        try:
            run = self._running(message.job)
            check_key_sampling(message.seconds)
        except SluicewayError as error:
            client.send(Refused.by(message.request, error))
            return
        run.sample_keys(
            message.vertices,
            message.seconds,
            lambda samples, problems: client.send(JobKeysSampled(message.request, samples, problems)),
        )

    @handles(AskState)
    def _read_state(self, message: AskState, client: Connection) -> None:
        def done(found: FoundState | SluicewayError) -> None:
            if isinstance(found, SluicewayError):
                client.send(Refused.by(message.request, found))
            else:
                client.send(StateFound(message.request, found))

        run = self._manager.jobs.get(message.job)
        if run is None or run.status.ended:
            status = self._records.status(message.job) if run is None else run.status.value
            what = f"is {status}" if status else "is not there"
            left = "read what it has left from its last checkpoint"
            done(ConfigurationError(f"job {message.job!r} {what}: {left}"))
        else:
            run.read_state(message, done)

    # ---- inside ---------------------------------------------------------------------------------------------

    def _running(self, job: str) -> JobRun:
        return self._records.running(job, self._manager.jobs.get(job))

    def _described(self, job: str, run: JobRun) -> JobDescription:
        """Describe a job, including rescales under earlier job managers."""
        description = run.describe()
        return msgspec.structs.replace(description, rescales=self._records.rescales(job, description.rescales))

    def _figures(self, job: str, run: JobRun) -> JobMetrics:
        metrics = run.metrics()
        if run.status is not JobStatus.CREATED or not self._manager.is_waiting(run):
            return metrics
        needed = self._records.of(job).needs_slots
        return replace(metrics, doing=f"waiting for {needed} slot{'s' * (needed != 1)}")

    def _info(self, job: str, run: JobRun, ended_ms: int = 0) -> JobInfo:
        stored = self._records.of(job)
        metrics = run.metrics()
        return JobInfo(
            job=job,
            name=stored.name,
            status="waiting" if self._manager.is_waiting(run) and not run.status.ended else run.status.value,
            submitted_ms=stored.submitted_ms,
            ended_ms=ended_ms,
            needs_slots=stored.needs_slots,
            records_in=metrics.records_in,
            records_out=metrics.records_out,
            failure="" if run.failure is None else told_error(run.failure),
            restarts=self._records.restarts_before(job) + run.master.restarts,
            failures=self._records.failures(job, run),
            tasks=task_counts(metrics),
        )
