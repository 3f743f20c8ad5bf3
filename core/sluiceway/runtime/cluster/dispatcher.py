"""Dispatcher of a standalone cluster: a job manager in a process of its own, with clients."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.election import LeaderElection, LeadershipLostError
from sluiceway.engine import JobStatus, Services
from sluiceway.errors import ConfigurationError, ConnectorError, JobStoreError, SluicewayError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.graph.check.iterations import check_checkpoints
from sluiceway.graph.rescaling import with_parallelism
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway.monitoring.configuration import ConfiguredOption
from sluiceway.monitoring.infos import JobDescription, JobInfo, RescaleInfo
from sluiceway.monitoring.job_history import EndedJob
from sluiceway.monitoring.key_samples import check_key_sampling
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import is_stood_by
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_infos import task_counts
from sluiceway.runtime.cluster.job_manager import STOP_S, JobManager
from sluiceway.runtime.cluster.job_preparation import EarlierRun, PreparedJob
from sluiceway.runtime.cluster.job_records import JobManagerLostError, JobRecords
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.job_store import JobStore, StoredJob
from sluiceway.runtime.cluster.process_requests import ProcessRequests
from sluiceway.runtime.cluster.request_answers import RescaleAnswer, checkpoint_answer, savepoint_refusal
from sluiceway.runtime.cluster.search_path import SearchPath
from sluiceway.runtime.cluster.standbys import Standbys
from sluiceway.runtime.cluster.worker_settings import WorkerLogging, WorkerSettings
from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place
from sluiceway.runtime.jobmanager.checkpoint_store import directory_of
from sluiceway.runtime.jobmanager.job_description import told_error
from sluiceway.runtime.jobmanager.job_metrics import Reporting
from sluiceway.runtime.logging.engine_log import ERROR, INFO, log
from sluiceway.runtime.messages.base import Message, Request
from sluiceway.runtime.messages.clients import (
    AskCheckpoints,
    AskState,
    AskStatus,
    CancelJob,
    Checkpoints,
    DescribeJob,
    Done,
    JobDescribed,
    JobSampled,
    Refused,
    RescaleJob,
    SampleJob,
    SavepointTaken,
    ShutDown,
    StateFound,
    Status,
    StopJob,
    SubmitProgram,
    TakeCheckpoint,
    TakeSavepoint,
)
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.keys import JobKeysSampled, SampleJobKeys
from sluiceway.runtime.messages.pickling import load
from sluiceway.runtime.messages.workers import FoundState
from sluiceway.runtime.taskmanager.stack_sampler import check_sampling

__all__ = ["Dispatcher"]

EXIT_CODE: Final = 70
"""Exit code of a job manager that has lost leadership."""
_LEADING_S: Final = 1.0
_BEING_STOPPED: Final = "the cluster is being stopped: start it again with sluiceway cluster start"
_RECOVERY_S: Final = 5.0
"""Seconds in which clients wait until all jobs are recovered; later only until the one that they ask about is."""
_MOST_DEFERRED: Final = 1000
_MOST_PREPARED: Final = 64
"""Programs that are prepared at a time, each in its own thread; more jobs that are recovered share threads."""
KEPT: Final = 100
"""Ended jobs that are still listed."""


class Dispatcher(Handlers):
    """Dispatcher: accepts jobs from clients, runs them in the job manager, and keeps records of ended ones.

    With a job store, it first recovers the jobs of the previous job manager.

    Args:
        config: configuration of the cluster.
        services: factories of the plugins in this process.
        election: the election that this process has won; None: it campaigns here.

    Raises:
        ConfigurationError: the job store cannot be used.
    """

    def __init__(self, config: ClusterConfig, services: Services, election: LeaderElection | None = None) -> None:
        self._config = config
        self._clock = services.clock
        self._services = services
        self._store = JobStore(config.job_store, election, config.epoch) if config.job_store else None
        self._records = JobRecords(self._store)
        epoch = config.epoch if self._store is None else self._store.election.epoch
        self._manager = JobManager(
            Path(config.directory),
            bytes.fromhex(config.secret),
            self._services,
            WorkerSettings(
                config.transport,
                most=config.workers,
                slots=config.slots,
                heartbeat_timeout_s=config.heartbeat_timeout_s,
                idle_s=config.idle_s,
                network_buffers=config.network_buffers,
                logs=WorkerLogging(config.logs, config.log_level),
            ),
            on_client=self._message,
            on_client_gone=self._gone,
            epoch=epoch,
            fence=self._records.fence(),
        )
        self._processes = ProcessRequests(
            self._manager.loop,
            self._clock,
            self._manager.processes.ask,
            [ConfiguredOption(*option) for option in config.options],
            Path(config.logs) if config.logs else None,
        )
        self._standbys = Standbys(config, epoch, self._manager.loop, self._clock)
        self._search_path = SearchPath()
        self._hands_over = False
        self._reporting: dict[str, Reporting] = {}
        self._started_ms = self._clock.now_ms()
        self._stopping: tuple[Connection, int] | None = None
        self._stopped = False
        # Clients that wait for a job to end with a savepoint: connection, request, and place of the savepoint.
        self._ending: dict[str, list[tuple[Connection, int, str]]] = {}
        # Clients whose programs are being prepared, by the key of the submission: connection and request.
        self._submitting: dict[object, list[tuple[Connection, int]]] = {}
        self._preparing = self._manager.make_backgrounds()
        # Jobs of the previous job manager whose checkpoints are being read, and what clients ask meanwhile.
        self._recovering: dict[str, StoredJob] = {}
        self._deferred: list[tuple[Connection, Message]] = []
        self._all_wait = False

    def serve(self) -> None:
        """Serve until a client requests the shutdown."""
        try:
            if self._store is not None:
                self._keep_leading(self._store)
            self._recover()
            while not self._stopped:
                self._manager.turn()
                self._look_after_jobs()
            # Standbys first: one of them would take the lead as soon as this process ends.
            if not self._hands_over:
                self._standbys.stop()
                self._refuse_pending()
            self._manager.stop_workers()
            self._answer_shut_down()
            self._manager.close(hands_over=self._hands_over)
        except LeadershipLostError as error:
            # The workers and the directory belong to another leader by now: nothing may be cleaned up.
            log(ERROR, "jobs", f"this job manager ends at once: {error}")
            os._exit(EXIT_CODE)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close at once."""
        self._standbys.close()
        # These calls only read: a storage that does not answer does not keep this process.
        self._preparing.retire()
        self._manager.abandon()
        self._records.close()

    def _keep_leading(self, store: JobStore) -> None:
        """Check periodically whether this process still leads, and publish its address."""
        # Before anything is announced: another leader may have announced itself.
        store.check_leadership()
        leader = store.election.leader()
        if leader is None or (leader.pid, leader.address) != (os.getpid(), self._manager.address):
            # A full disk, for example. The next check writes it again.
            with suppress(OSError):
                store.election.announce(self._manager.address)
        self._records.write_ends()
        now = self._clock.monotonic()
        self._manager.loop.at(now + _LEADING_S, lambda: self._keep_leading(store))

    def stop(self) -> None:
        """Stop; the next job manager recovers the jobs in the job store. From signal handlers, too.

        A standby, if there is one, becomes the leader.
        """
        self._manager.loop.mail(self._hand_over if self._config.job_store else self._stop)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _look_after_jobs(self) -> None:
        for job, run in list(self._manager.jobs.items()):
            if not run.status.ended:
                self._records.changed(job, run)
                continue
            if run.failure is not None:
                log(ERROR, "jobs", "failed", job=job, error=run.failure)
            self._manager.ended(run)
            # No more of the job is kept: its program and its state may be large.
            info = self._info(job, run, self._clock.now_ms())
            description = msgspec.structs.replace(self._described(job, run), metrics=run.metrics())
            self._records.remember(
                EndedJob(
                    info,
                    description,
                    run.checkpoints(),
                    directory_of(run.settings.checkpoints, run.checkpoint_path),
                )
            )
            self._records.ended(info)
            self._search_path.drop(job)
            self._close_reporting(job)
            for client, request, location in self._ending.pop(job, ()):
                self._tell_ended(client, request, location, run)
        self._records.drop_oldest(KEPT)
        if self._stopping is not None and not self._manager.jobs:
            self._stopped = True

    def _accept(self, message: SubmitProgram) -> tuple[StoredJob, JobGraph, Settings]:
        """Check a submitted program as far as nothing has to be read for that, and give it an id."""
        if self._stopping is not None:
            raise ConnectorError(_BEING_STOPPED)
        graph, settings = load(message.program)
        assert isinstance(graph, JobGraph)
        assert isinstance(settings, Settings)
        settings = self._records.settled(settings)
        needed = sum(slots_required(graph).values())
        most = self._config.workers * self._config.slots
        if needed > most:
            raise ConfigurationError(
                f"job {message.name!r} needs {needed} slots, and this cluster has {most} ({self._config.workers}"
                f" workers with {self._config.slots} each): lower its parallelism, or start a larger cluster"
            )
        check_checkpoints(graph, settings)
        number = self._records.next_number()
        stored = StoredJob(
            job=f"{message.name}-{number}",
            name=message.name,
            number=number,
            submitted_ms=self._clock.now_ms(),
            path=message.path,
            needs_slots=needed,
            key=message.key,
        )
        return stored, graph, settings

    def _submit(self, stored: StoredJob, prepared: PreparedJob, program: bytes) -> None:
        """Start a job that was accepted, and record it."""
        if self._stopping is not None:
            raise ConnectorError(_BEING_STOPPED)
        # In memory first, where the job may be refused; then in the store, and only then is the client answered.
        # No task is deployed before, as that takes another turn of the loop.
        run = self._begin(prepared)
        stored.checkpoints = run.checkpoint_path
        try:
            self._search_path.use(stored.job, stored.path)
            self._records.submitted(stored, program)
        except BaseException:
            self._search_path.drop(stored.job)
            self._undo(stored.job, run)
            raise
        needed = stored.needs_slots
        log(INFO, "jobs", f"submitted; needs {needed} slot{'s' * (needed != 1)}", job=stored.job)

    def _begin(self, prepared: PreparedJob) -> JobRun:
        # Checked here and not on a worker, which a failure would end, with the tasks of other jobs.
        self._services.state_backend(prepared.settings.state_backend)
        reporters = self._services.metrics_reporters(prepared.settings.metrics)
        run = self._manager.submit(prepared)
        if reporters:
            self._report(prepared.job, run, reporters, prepared.settings)
        return run

    def _undo(self, job: str, run: JobRun) -> None:
        run.cancel()
        del self._manager.jobs[job]
        self._manager.backgrounds.drop(job)
        self._close_reporting(job)

    def _recover(self) -> None:
        """Recover the jobs of the previous job manager; one that fails or takes long does not prevent the others.

        Most often all of them are there at once, and clients are answered then. Later, those that ask about a job
        which is still being recovered wait for it, and nobody else.
        """
        for place, stored in enumerate(self._records.load()):
            try:
                program = self._records.program(stored)
                self._search_path.use(stored.job, stored.path)
                graph, settings = load(program)
                # What could not be restarted correctly is not restarted at all: the job has ended with its job
                # manager.
                if stored.wanted == "cancel":
                    raise JobManagerLostError("it was being cancelled when the job manager ended")
                if stored.begun and not settings.checkpoint_interval_ms and settings.restart == "none":
                    raise JobManagerLostError(
                        "the job manager ended while the job ran, and the job has neither checkpoints to resume "
                        "from nor a restart strategy: submit it with --checkpoint-interval"
                    )
                settings = self._records.settled(settings)
                graph = with_parallelism(graph, stored.parallelism)
                earlier = EarlierRun(stored.checkpoints, stored.savepoint, tuple(stored.since))
            except JobManagerLostError as error:
                self._search_path.drop(stored.job)
                status = JobStatus.CANCELED if stored.wanted == "cancel" else JobStatus.FAILED
                self._records.lost(stored, status, self._clock.now_ms(), error)
            except Exception as error:
                self._cannot_go_on(stored, error)
            else:
                self._recovering[stored.job] = stored
                self._preparing.of(place % _MOST_PREPARED).run(
                    partial(self._manager.prepare, stored.job, graph, settings, earlier),
                    partial(self._recovered, stored),
                )
        if self._recovering:
            self._all_wait = True
            self._manager.loop.at(self._clock.monotonic() + _RECOVERY_S, self._serve_others)

    def _recovered(self, stored: StoredJob, prepared: PreparedJob | None, error: BaseException | None) -> None:
        """Let a recovered job go on, or record why it cannot, and answer who waits for it."""
        if self._recovering.pop(stored.job, None) is None:
            return  # it was cancelled meanwhile
        if self._stopped:
            return  # it stays in the store
        try:
            if prepared is None:
                assert error is not None
                raise error
            run = self._begin(prepared)
        except Exception as refusal:
            self._cannot_go_on(stored, refusal)
        else:
            # The sources end as soon as their readers run.
            if stored.wanted == "stop":
                run.stop()
            if prepared.recovered is None or not prepared.recovered.savepoint:
                stored.savepoint = ""  # the savepoint was not completed, and will not be
            stored.since = []  # they are marked by now
            stored.checkpoints = run.checkpoint_path  # an earlier version may have kept them nowhere
            self._records.recovered(stored, self._clock.now_ms())
            log(INFO, "jobs", f"goes on {run.begins_with}", job=stored.job)
        self._answer_deferred()

    def _cannot_go_on(self, stored: StoredJob, error: Exception) -> None:
        self._search_path.drop(stored.job)
        log(ERROR, "jobs", "cannot go on", job=stored.job, error=error)
        self._records.stuck(stored, self._clock.now_ms(), error)

    def _serve_others(self) -> None:
        self._all_wait = False
        self._answer_deferred()

    def _answer_deferred(self) -> None:
        self._all_wait = self._all_wait and bool(self._recovering)
        if not self._all_wait:
            deferred, self._deferred = self._deferred, []
            for client, message in deferred:
                self._message(client, message)  # those about other jobs that are being recovered wait on

    def _give_up(self, job: str) -> bool:
        """Cancel a job that is being recovered, or could not be; return whether it is one."""
        recovering = self._recovering.pop(job, None) is not None
        given_up = self._records.give_up(job, self._clock.now_ms(), anyway=recovering)
        if recovering:
            self._search_path.drop(job)
            self._answer_deferred()
        return given_up

    def _report(self, job: str, run: JobRun, reporters: list[MetricsReporter], settings: Settings) -> None:
        """Start reporters for a job; their later errors are logged and do not end anything."""

        def failed(error: Exception) -> None:
            log(ERROR, "jobs", "metrics reporting stopped", job=job, error=error)

        def metrics() -> JobMetrics:
            return replace(run.metrics(), job=job)

        reporting = Reporting(
            reporters, self._manager.loop, self._clock, settings.metrics_interval_ms, metrics, failed
        )
        try:
            reporting.open(job)
        except BaseException:
            self._undo(job, run)
            with suppress(Exception):
                reporting.close()
            raise
        run.master.events.listen(reporting)
        self._reporting[job] = reporting

    def _close_reporting(self, job: str) -> None:
        reporting = self._reporting.pop(job, None)
        if reporting is not None:
            try:
                reporting.close()
            except Exception as error:
                log(ERROR, "jobs", "the last metrics were not reported", job=job, error=error)

    def _stop(self) -> None:
        for job in list(self._recovering):
            self._give_up(job)
        for run in self._manager.jobs.values():
            run.cancel(STOP_S)
        # Without a client that waits, the loop ends at once, and the workers end the tasks. With one, it turns
        # until all jobs have ended, so that their ends are recorded.
        if self._stopping is None:
            self._stopped = True

    def _leave(self) -> None:
        """Stop the workers; the jobs stay in the job store."""
        self._stopped = True

    def _hand_over(self) -> None:
        # One that has not registered yet counts, too.
        self._hands_over = bool(self._standbys.infos()) or is_stood_by(Path(self._config.directory))
        self._leave()

    def _tell_ended(self, client: Connection, request: int, location: str, run: JobRun) -> None:
        if run.failure is None:
            client.send(SavepointTaken(request, location))
        else:
            reason = f"the savepoint is {location}, but the job failed: {told_error(run.failure)}"
            client.send(Refused.by(request, run.failure, reason))

    # ---- clients --------------------------------------------------------------------------------------------

    def _message(self, client: Connection, message: Message) -> None:
        if client.peer == "standby":
            self._standbys.take(client, message)
            return
        if self._waits(message):
            if len(self._deferred) < _MOST_DEFERRED:
                self._deferred.append((client, message))
            elif isinstance(message, Request):
                later = ConnectorError("jobs are being recovered: try again later")
                client.send(Refused.by(message.request, later))
            return
        if not (self.dispatch(message, client) or self._processes.dispatch(message, client)):
            client.close()

    def _waits(self, message: Message) -> bool:
        """Return whether a message is answered later, as jobs are being recovered."""
        if not self._recovering or isinstance(message, CancelJob | ShutDown):
            return False
        return self._all_wait or getattr(message, "job", "") in self._recovering

    def _gone(self, client: Connection) -> None:
        self._standbys.closed(client)
        # It does not hear the answer any more, and has been told so.
        self._deferred = [waiting for waiting in self._deferred if waiting[0] is not client]

    @handles(SubmitProgram)
    def _submitted(self, message: SubmitProgram, client: Connection) -> None:
        if known := self._records.submitted_with(message.key):
            # The previous job manager has accepted it, and died before the client was answered.
            client.send(Done(message.request, known))
            return
        if clients := self._submitting.get(message.key):
            clients.append((client, message.request))  # its connection had broken, and it asks again
            return
        if len(self._submitting) >= _MOST_PREPARED:
            text = f"{_MOST_PREPARED} programs wait for storages that have not answered: submit it again later"
            client.send(Refused.by(message.request, ConnectorError(text)))
            return
        submission = object()  # in place of the job, which has no name yet
        key = message.key or submission
        self._submitting[key] = [(client, message.request)]
        self._search_path.use(submission, message.path)

        def answer(job: str, error: BaseException | None) -> None:
            self._preparing.drop(key)
            self._search_path.drop(submission)
            for waiting, request in self._submitting.pop(key):
                waiting.send(Done(request, job) if error is None else Refused.by(request, error, _told(error)))

        def prepared(found: PreparedJob | None, error: BaseException | None) -> None:
            if found is not None:
                try:
                    self._submit(stored, found, message.program)
                except Exception as refusal:
                    error = refusal
            answer(stored.job, error)

        try:
            stored, graph, settings = self._accept(message)
        except Exception as error:
            answer("", error)
        else:
            # What it restores may lie on a slow storage: other jobs and their clients do not wait for that.
            self._preparing.of(key).run(lambda: self._manager.prepare(stored.job, graph, settings), prepared)

    @handles(CancelJob)
    def _cancel(self, message: CancelJob, client: Connection) -> None:
        # A job that could not be recovered is in the store alone.
        if message.job not in self._manager.jobs and self._give_up(message.job):
            client.send(Done(message.request, message.job))
        elif (run := self._running(message, client)) is not None:
            self._records.cancels(message.job)
            run.cancel()
            client.send(Done(message.request, message.job))

    @handles(StopJob)
    def _stop_sources(self, message: StopJob, client: Connection) -> None:
        if (run := self._running(message, client)) is None:
            return
        try:
            self._records.stops(message.job)
        except JobStoreError as error:
            client.send(Refused.by(message.request, error))
        else:
            run.stop()
            client.send(Done(message.request, message.job))

    @handles(TakeSavepoint)
    def _take_savepoint(self, message: TakeSavepoint, client: Connection) -> None:
        if (run := self._running(message, client)) is not None:
            self._savepoint(client, message, run)

    @handles(TakeCheckpoint)
    def _take_checkpoint(self, message: TakeCheckpoint, client: Connection) -> None:
        def done(checkpoint_id: int, problem: BaseException | None) -> None:
            client.send(checkpoint_answer(message, checkpoint_id, problem))

        if (run := self._running(message, client)) is not None:
            run.master.checkpoint(done)

    @handles(RescaleJob)
    def _rescale(self, message: RescaleJob, client: Connection) -> None:
        run = self._running(message, client)
        if run is None:
            return
        answer = RescaleAnswer(message, client.send)

        def done(info: RescaleInfo | None, problem: BaseException | None) -> None:
            self._records.rescaled(message.job, run)  # before any client sees the new parallelism
            answer.done(info, problem)

        run.master.rescale(message.parallelism or None, message.steps, done, answer.accepted)

    def _running(
        self,
        message: CancelJob | RescaleJob | StopJob | TakeCheckpoint | TakeSavepoint | SampleJob | SampleJobKeys,
        client: Connection,
    ) -> JobRun | None:
        """Return the running job of a request; None: it does not run, and the client has been answered."""
        run, request, job = self._manager.jobs.get(message.job), message.request, message.job
        if (
            not isinstance(message, RescaleJob | SampleJob | SampleJobKeys | TakeCheckpoint)
            and message.again
            and (answer := self._done_before(message))
        ):
            client.send(answer)
        elif how := self._records.status(job):
            client.send(Refused.by(request, ConfigurationError(f"job {job!r} is {how} already")))
        elif run is None:
            client.send(Refused.by(request, ConfigurationError(f"there is no job {job!r}")))
        elif run.status.ended:
            client.send(Refused.by(request, ConfigurationError(f"job {job!r} is {run.status.value} already")))
        else:
            return run
        return None

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

    def _described(self, job: str, run: JobRun) -> JobDescription:
        """Describe a job, including failures under earlier job managers."""
        description = run.describe()
        return msgspec.structs.replace(description, rescales=self._records.rescales(job, description.rescales))

    @handles(SampleJob)
    def _sample_stacks(self, message: SampleJob, client: Connection) -> None:
        run = self._running(message, client)
        if run is None:
            return
        try:
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
        run = self._running(message, client)
        if run is None:
            return
        try:
            check_key_sampling(message.seconds)
        except SluicewayError as error:
            client.send(Refused.by(message.request, error))
            return
        run.sample_keys(
            message.vertices,
            message.seconds,
            lambda samples, problems: client.send(JobKeysSampled(message.request, samples, problems)),
        )

    @handles(AskStatus)
    def _tell_status(self, message: AskStatus, client: Connection) -> None:
        client.send(self._status(message))

    @handles(ShutDown)
    def _shut_down(self, message: ShutDown, client: Connection) -> None:
        self._manager.stuck.killed.clear()  # those of earlier cancellations have been logged
        self._stopping = (client, message.request)
        if message.keep and self._config.job_store:
            self._leave()
        else:
            self._stop()

    def _refuse_pending(self) -> None:
        """Answer the clients that still wait for a storage at the end."""
        for client, message in self._deferred:
            if isinstance(message, Request):
                client.send(Refused.by(message.request, ConnectorError(_BEING_STOPPED)))
        for clients in self._submitting.values():
            for client, request in clients:
                client.send(Refused.by(request, ConnectorError(_BEING_STOPPED)))

    def _answer_shut_down(self) -> None:
        """Answer the client that has requested the shutdown, if one has: all workers have ended."""
        if self._stopping is not None:
            client, request = self._stopping
            client.send(Done(request, problems=tuple(self._manager.stuck.killed)))
            client.close()
            # The loop has made its last turn: this one writes the answer.
            self._manager.loop.run_ready(4)

    def _done_before(self, message: CancelJob | StopJob | TakeSavepoint) -> Message | None:
        """Return the answer to a request that the previous job manager carried out without answering."""
        ended = self._records.status(message.job)
        if isinstance(message, TakeSavepoint):
            location = self._records.last_savepoint(message.job) if message.stop else ""
            return SavepointTaken(message.request, location) if location else None
        wanted = JobStatus.CANCELED if isinstance(message, CancelJob) else JobStatus.FINISHED
        return Done(message.request, message.job) if ended == wanted.value else None

    def _savepoint(self, client: Connection, message: TakeSavepoint, run: JobRun) -> None:
        def done(location: str, problem: BaseException | None) -> None:
            if problem is not None:
                if message.stop:
                    self._records.stop_failed(message.job)
                client.send(savepoint_refusal(message, problem))
            elif message.stop:
                # The client is answered when the job has ended: until then it may still fail.
                self._records.saved(message.job, location)
                self._ending.setdefault(message.job, []).append((client, message.request, location))
            else:
                self._records.savepoint_taken(message.job, run)
                client.send(SavepointTaken(message.request, location))

        try:
            place = savepoint_place(message.place or None, self._records.place_of(run.settings))
            if message.stop:
                # Recorded before the savepoint begins: the next job manager looks there for a complete one.
                self._records.ends_with(message.job, place)
        except (SluicewayError, OSError) as error:
            client.send(Refused.by(message.request, error))
        else:
            run.savepoint(place, message.stop, done)

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

    def _status(self, message: AskStatus) -> Status:
        self._look_after_jobs()  # the end of the job is notified to nobody
        resources = self._manager.resources
        figures: dict[str, JobMetrics] = {}
        if message.figures:
            figures = {job: self._figures(job, run) for job, run in self._manager.jobs.items()}
        return Status(
            request=message.request,
            pid=os.getpid(),
            epoch=self._manager.epoch,
            started_ms=self._started_ms,
            slots=resources.slots.total,
            free_slots=resources.slots.available,
            max_workers=self._config.workers,
            transport=self._config.transport,
            jobs=self._records.told(
                {job: self._info(job, run) for job, run in self._manager.jobs.items()}, self._recovering
            ),
            workers=resources.infos(),
            figures=figures,
            job_store=self._config.job_store,
            recovered=self._records.went_on,
            problems=[
                *self._records.problems,
                *(
                    f"job {job!r} is still being recovered: it waits for its checkpoints"
                    for job in self._recovering
                ),
                *([self._standbys.problem] if self._standbys.problem else []),
            ],
            standbys=self._standbys.infos(),
            max_standbys=self._config.standby,
        )

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


def _told(error: BaseException) -> str:
    """Return the message of an error in the answer to a client."""
    return str(error) if isinstance(error, SluicewayError) else f"{type(error).__name__}: {error}"
