"""Submissions of programs by clients, each until its job has started or was refused."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.errors import ConfigurationError, ConnectorError, SluicewayError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.graph.check.iterations import check_checkpoints
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_launcher import JobLauncher
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_preparation import MOST_PREPARED, PreparedJob
from sluiceway.runtime.cluster.job_records import JobRecords
from sluiceway.runtime.cluster.job_store import StoredJob
from sluiceway.runtime.cluster.search_path import SearchPath
from sluiceway.runtime.logging.engine_log import INFO, log
from sluiceway.runtime.loop.blocking_io import Backgrounds
from sluiceway.runtime.messages.clients import Done, Refused, SubmitProgram
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.pickling import load

__all__ = ["BEING_STOPPED", "JobSubmissions"]

BEING_STOPPED: Final = "the cluster is being stopped: start it again with sluiceway cluster start"


class JobSubmissions(Handlers):
    """Submissions that wait until the storages of their jobs have answered. From the loop only.

    Args:
        config: configuration of the cluster.
        manager: prepares the jobs.
        launcher: starts them.
        records: records of accepted jobs.
        search_path: entries that the jobs have added to ``sys.path``.
        preparing: threads that read checkpoints.
        clock: clock of the loop.
    """

    def __init__(
        self,
        config: ClusterConfig,
        manager: JobManager,
        launcher: JobLauncher,
        records: JobRecords,
        search_path: SearchPath,
        preparing: Backgrounds,
        clock: Clock,
    ) -> None:
        self._config = config
        self._manager = manager
        self._launcher = launcher
        self._records = records
        self._search_path = search_path
        self._preparing = preparing
        self._clock = clock
        # Clients that wait, by the key of the submission: connection and request.
        self._waiting: dict[Hashable, list[tuple[Connection, int]]] = {}
        self._closed = False

    def close(self) -> None:
        """Accept no further programs, and start none that is being prepared."""
        self._closed = True

    def refuse_pending(self, why: Exception) -> None:
        """Answer all clients that wait with an error."""
        for clients in self._waiting.values():
            for client, request in clients:
                client.send(Refused.by(request, why))

    @handles(SubmitProgram)
    def _submitted(self, message: SubmitProgram, client: Connection) -> None:
        if known := self._records.submitted_with(message.key):
            # The previous job manager has accepted it, and died before the client was answered.
            client.send(Done(message.request, known))
            return
        if clients := self._waiting.get(message.key):
            clients.append((client, message.request))  # its connection had broken, and it asks again
            return
        if len(self._waiting) >= MOST_PREPARED:
            text = f"{MOST_PREPARED} programs wait for storages that have not answered: submit it again later"
            client.send(Refused.by(message.request, ConnectorError(text)))
            return
        submission = object()  # in place of the job, which has no name yet
        key = message.key or submission
        self._waiting[key] = [(client, message.request)]
        self._search_path.use(submission, message.path)

        def answer(job: str, error: BaseException | None) -> None:
            self._preparing.drop(key)
            self._search_path.drop(submission)
            for waiting, request in self._waiting.pop(key):
                waiting.send(Done(request, job) if error is None else Refused.by(request, error, _told(error)))

        def prepared(found: PreparedJob | None, error: BaseException | None) -> None:
            if found is not None:
                try:
                    self._start(stored, found, message.program)
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

    def _accept(self, message: SubmitProgram) -> tuple[StoredJob, JobGraph, Settings]:
        """Check a submitted program as far as nothing has to be read for that, and give it an id."""
        if self._closed:
            raise ConnectorError(BEING_STOPPED)
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

    def _start(self, stored: StoredJob, prepared: PreparedJob, program: bytes) -> None:
        """Start a job that was accepted, and record it."""
        if self._closed:
            raise ConnectorError(BEING_STOPPED)
        # In memory first, where the job may be refused; then in the store, and only then is the client answered.
        run = self._launcher.launch(prepared)
        stored.checkpoints = run.checkpoint_path
        try:
            self._search_path.use(stored.job, stored.path)
            self._records.submitted(stored, program)
        except BaseException:
            self._search_path.drop(stored.job)
            self._launcher.withdraw(stored.job, run)
            raise
        needed = stored.needs_slots
        log(INFO, "jobs", f"submitted; needs {needed} slot{'s' * (needed != 1)}", job=stored.job)


def _told(error: BaseException) -> str:
    """Return the message of an error in the answer to a client."""
    return str(error) if isinstance(error, SluicewayError) else f"{type(error).__name__}: {error}"
