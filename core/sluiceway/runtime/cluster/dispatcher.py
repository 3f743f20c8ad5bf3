"""Dispatcher of a standalone cluster: a job manager in a process of its own, with clients."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluiceway.election import LeaderElection, LeadershipLostError
from sluiceway.engine import JobStatus, Services
from sluiceway.errors import ConfigurationError, ConnectorError, JobStoreError, SluicewayError
from sluiceway.monitoring.configuration import ConfiguredOption
from sluiceway.monitoring.infos import RescaleInfo
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import is_stood_by
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_launcher import JobLauncher
from sluiceway.runtime.cluster.job_manager import STOP_S, JobManager
from sluiceway.runtime.cluster.job_queries import JobQueries
from sluiceway.runtime.cluster.job_records import JobRecords
from sluiceway.runtime.cluster.job_recovery import JobRecovery
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.job_store import JobStore
from sluiceway.runtime.cluster.job_submissions import BEING_STOPPED, JobSubmissions
from sluiceway.runtime.cluster.process_requests import ProcessRequests
from sluiceway.runtime.cluster.request_answers import RescaleAnswer, checkpoint_answer, savepoint_refusal
from sluiceway.runtime.cluster.search_path import SearchPath
from sluiceway.runtime.cluster.standbys import Standbys
from sluiceway.runtime.cluster.worker_settings import WorkerLogging, WorkerSettings
from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place
from sluiceway.runtime.jobmanager.job_description import told_error
from sluiceway.runtime.logging.engine_log import ERROR, log
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import (
    AskStatus,
    CancelJob,
    Done,
    Refused,
    RescaleJob,
    SavepointTaken,
    ShutDown,
    Status,
    StopJob,
    TakeCheckpoint,
    TakeSavepoint,
)
from sluiceway.runtime.messages.handlers import Handlers, handles

__all__ = ["Dispatcher"]

EXIT_CODE: Final = 70
"""Exit code of a job manager that has lost leadership."""
KEPT: Final = 100
"""Ended jobs that are still listed."""
_LEADING_S: Final = 1.0


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
        self._store = JobStore(config.job_store, election, config.epoch) if config.job_store else None
        self._records = JobRecords(self._store)
        epoch = config.epoch if self._store is None else self._store.election.epoch
        self._manager = JobManager(
            Path(config.directory),
            bytes.fromhex(config.secret),
            services,
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
        self._preparing = self._manager.make_backgrounds()
        self._launcher = JobLauncher(self._manager, services)
        self._recovery = JobRecovery(
            self._manager,
            self._launcher,
            self._records,
            self._search_path,
            self._preparing,
            self._clock,
            answer=self._message,
        )
        self._submissions = JobSubmissions(
            config, self._manager, self._launcher, self._records, self._search_path, self._preparing, self._clock
        )
        self._queries = JobQueries(self._manager, self._records)
        self._receivers: tuple[Handlers, ...] = (self, self._submissions, self._queries, self._processes)
        self._hands_over = False
        self._started_ms = self._clock.now_ms()
        self._stopping: tuple[Connection, int] | None = None
        self._stopped = False
        # Clients that wait for a job to end with a savepoint: connection, request, and place of the savepoint.
        self._ending: dict[str, list[tuple[Connection, int, str]]] = {}

    def serve(self) -> None:
        """Serve until a client requests the shutdown."""
        try:
            if self._store is not None:
                self._keep_leading(self._store)
            self._recovery.start()
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
            ended = self._queries.ended_job(job, run, self._clock.now_ms())
            self._records.remember(ended)
            self._records.ended(ended.info)
            self._search_path.drop(job)
            self._launcher.close_reporting(job)
            for client, request, location in self._ending.pop(job, ()):
                self._tell_ended(client, request, location, run)
        self._records.drop_oldest(KEPT)
        if self._stopping is not None and not self._manager.jobs:
            self._stopped = True

    def _stop(self) -> None:
        self._recovery.give_up_all()
        for run in self._manager.jobs.values():
            run.cancel(STOP_S)
        # Without a client that waits, the loop ends at once, and the workers end the tasks. With one, it turns
        # until all jobs have ended, so that their ends are recorded.
        if self._stopping is None:
            self._stopped = True

    def _leave(self) -> None:
        """Stop the workers; the jobs stay in the job store."""
        self._recovery.abandon()
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
        if self._recovery.defers(client, message):
            return
        if not any(each.dispatch(message, client) for each in self._receivers):
            client.close()

    def _gone(self, client: Connection) -> None:
        self._standbys.closed(client)
        self._recovery.client_gone(client)

    @handles(CancelJob)
    def _cancel(self, message: CancelJob, client: Connection) -> None:
        # A job that could not be recovered is in the store alone.
        if message.job not in self._manager.jobs and self._recovery.give_up(message.job):
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
        self, message: CancelJob | RescaleJob | StopJob | TakeCheckpoint | TakeSavepoint, client: Connection
    ) -> JobRun | None:
        """Return the running job of a request; None: it does not run, and the client has been answered."""
        if (
            not isinstance(message, RescaleJob | TakeCheckpoint)
            and message.again
            and (answer := self._done_before(message))
        ):
            client.send(answer)
            return None
        try:
            return self._records.running(message.job, self._manager.jobs.get(message.job))
        except ConfigurationError as error:
            client.send(Refused.by(message.request, error))
            return None

    @handles(AskStatus)
    def _tell_status(self, message: AskStatus, client: Connection) -> None:
        client.send(self._status(message))

    @handles(ShutDown)
    def _shut_down(self, message: ShutDown, client: Connection) -> None:
        self._manager.stuck.killed.clear()  # those of earlier cancellations have been logged
        self._stopping = (client, message.request)
        self._submissions.close()
        if message.keep and self._config.job_store:
            self._leave()
        else:
            self._stop()

    def _refuse_pending(self) -> None:
        """Answer the clients that still wait for a storage at the end."""
        self._recovery.refuse_deferred(ConnectorError(BEING_STOPPED))
        self._submissions.refuse_pending(ConnectorError(BEING_STOPPED))

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

    def _status(self, message: AskStatus) -> Status:
        self._look_after_jobs()  # the end of the job is notified to nobody
        resources = self._manager.resources
        return Status(
            request=message.request,
            pid=os.getpid(),
            epoch=self._manager.epoch,
            started_ms=self._started_ms,
            slots=resources.slots.total,
            free_slots=resources.slots.available,
            max_workers=self._config.workers,
            transport=self._config.transport,
            jobs=self._records.told(self._queries.infos(), self._recovery.jobs),
            workers=resources.infos(),
            figures=self._queries.figures() if message.figures else {},
            job_store=self._config.job_store,
            recovered=self._records.went_on,
            problems=[
                *self._records.problems,
                *(
                    f"job {job!r} is still being recovered: it waits for its checkpoints"
                    for job in self._recovery.jobs
                ),
                *([self._standbys.problem] if self._standbys.problem else []),
            ],
            standbys=self._standbys.infos(),
            max_standbys=self._config.standby,
        )
