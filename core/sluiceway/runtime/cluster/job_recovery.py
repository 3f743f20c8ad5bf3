"""Recovery of the jobs of the previous job manager, and the requests of clients that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sluiceway.clock import Clock
from sluiceway.engine import JobStatus
from sluiceway.errors import ConnectorError
from sluiceway.graph.rescaling import with_parallelism
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_launcher import JobLauncher
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_preparation import MOST_PREPARED, EarlierRun, PreparedJob
from sluiceway.runtime.cluster.job_records import JobManagerLostError, JobRecords
from sluiceway.runtime.cluster.job_store import StoredJob
from sluiceway.runtime.cluster.search_path import SearchPath
from sluiceway.runtime.logging.engine_log import ERROR, INFO, log
from sluiceway.runtime.loop.blocking_io import Backgrounds
from sluiceway.runtime.messages.base import Message, Request
from sluiceway.runtime.messages.clients import CancelJob, Refused, ShutDown
from sluiceway.runtime.messages.pickling import load

__all__ = ["JobRecovery"]

_ALL_WAIT_S: Final = 5.0
"""Seconds in which clients wait until all jobs are recovered; later only until the one that they ask about is."""
_MOST_DEFERRED: Final = 1000


class JobRecovery:
    """Recovery of jobs, in which one that fails or takes long does not prevent the others. From the loop only.

    Args:
        manager: prepares the jobs.
        launcher: starts them.
        records: where the jobs are.
        search_path: entries that the jobs have added to ``sys.path``.
        preparing: threads that read checkpoints.
        clock: clock of the loop.
        answer: answers a message that was deferred.

    Attributes:
        jobs: jobs whose checkpoints are being read.
    """

    def __init__(
        self,
        manager: JobManager,
        launcher: JobLauncher,
        records: JobRecords,
        search_path: SearchPath,
        preparing: Backgrounds,
        clock: Clock,
        answer: Callable[[Connection, Message], None],
    ) -> None:
        self.jobs: dict[str, StoredJob] = {}
        self._manager = manager
        self._launcher = launcher
        self._records = records
        self._search_path = search_path
        self._preparing = preparing
        self._clock = clock
        self._answer = answer
        self._deferred: list[tuple[Connection, Message]] = []
        self._all_wait = False
        self._abandoned = False

    def start(self) -> None:
        """Recover the jobs of the previous job manager.

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
                self.jobs[stored.job] = stored
                self._preparing.of(place % MOST_PREPARED).run(
                    partial(self._manager.prepare, stored.job, graph, settings, earlier),
                    partial(self._prepared, stored),
                )
        if self.jobs:
            self._all_wait = True
            self._manager.loop.at(self._clock.monotonic() + _ALL_WAIT_S, self._serve_others)

    def abandon(self) -> None:
        """Start no further job: those that are still being recovered stay in the store."""
        self._abandoned = True

    def give_up(self, job: str) -> bool:
        """Cancel a job that is being recovered, or could not be; return whether it is one."""
        recovering = self.jobs.pop(job, None) is not None
        given_up = self._records.give_up(job, self._clock.now_ms(), anyway=recovering)
        if recovering:
            self._search_path.drop(job)
            self._answer_deferred()
        return given_up

    def give_up_all(self) -> None:
        """Cancel all jobs that are being recovered."""
        for job in list(self.jobs):
            self.give_up(job)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _prepared(self, stored: StoredJob, prepared: PreparedJob | None, error: BaseException | None) -> None:
        """Let a recovered job go on, or record why it cannot, and answer who waits for it."""
        if self.jobs.pop(stored.job, None) is None:
            return  # it was cancelled meanwhile
        if self._abandoned:
            return  # it stays in the store
        try:
            if prepared is None:
                assert error is not None
                raise error
            run = self._launcher.launch(prepared)
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

    # ---- clients that wait for them ---------------------------------------------------------------------------

    def defers(self, client: Connection, message: Message) -> bool:
        """Return whether a message waits for a job that is being recovered; it is answered later then."""
        if not self._waits(message):
            return False
        if len(self._deferred) < _MOST_DEFERRED:
            self._deferred.append((client, message))
        elif isinstance(message, Request):
            later = ConnectorError("jobs are being recovered: try again later")
            client.send(Refused.by(message.request, later))
        return True

    def client_gone(self, client: Connection) -> None:
        """Drop the requests of a client: it does not receive the answers any more."""
        self._deferred = [waiting for waiting in self._deferred if waiting[0] is not client]

    def refuse_deferred(self, why: Exception) -> None:
        """Answer all that wait with an error."""
        for client, message in self._deferred:
            if isinstance(message, Request):
                client.send(Refused.by(message.request, why))

    def _waits(self, message: Message) -> bool:
        if not self.jobs or isinstance(message, CancelJob | ShutDown):
            return False
        return self._all_wait or getattr(message, "job", "") in self.jobs

    def _serve_others(self) -> None:
        self._all_wait = False
        self._answer_deferred()

    def _answer_deferred(self) -> None:
        self._all_wait = self._all_wait and bool(self.jobs)
        if not self._all_wait:
            deferred, self._deferred = self._deferred, []
            for client, message in deferred:
                self._answer(client, message)  # those about other jobs that are being recovered wait on
