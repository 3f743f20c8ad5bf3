"""Control socket of a job that runs by itself: clients access it like a job of a cluster."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sluiceway.clock import Clock
from sluiceway.engine import Job, JobStatus
from sluiceway.errors import ConfigurationError, SluicewayError
from sluiceway.monitoring.configuration import ConfiguredOption
from sluiceway.monitoring.infos import JobDescription
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.connection import BrokenProtocolError, Connection, ConnectionLostError
from sluiceway.runtime.cluster.home import Known
from sluiceway.runtime.cluster.job_infos import job_info
from sluiceway.runtime.cluster.os_platform import Platform, Stream
from sluiceway.runtime.cluster.process_requests import ProcessRequests
from sluiceway.runtime.cluster.request_answers import RescaleAnswer, checkpoint_answer, savepoint_refusal
from sluiceway.runtime.jobmanager.job_description import told_error
from sluiceway.runtime.jobmanager.job_metrics import plain_metrics
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.messages.base import Message, Request
from sluiceway.runtime.messages.clients import (
    AskCheckpoints,
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
    Status,
    StopJob,
    TakeCheckpoint,
    TakeSavepoint,
)
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.keys import JobKeysSampled, SampleJobKeys
from sluiceway.transport.accept_loop import AcceptLoop

__all__ = ["JobServer"]

_CLOSE_S = 5.0


class JobServer(Handlers):
    """Server for clients of one job, in its own thread, which sleeps while there are no requests.

    Call order: :meth:`start`, :meth:`close` once.

    Args:
        job: the job; its thread-safe methods are called.
        name: name of the pipeline, and the id by which clients know the job.
        clock: the machine's.
        directory: place of its socket, which no other user may enter.
        options: of the run, with their origins.

    Attributes:
        known: address and secret, for a :class:`~.client.ClusterClient`.
    """

    def __init__(
        self, job: Job, name: str, clock: Clock, directory: Path, options: Sequence[ConfiguredOption] = ()
    ) -> None:
        self._job = job
        self._name = name
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._ended_ms = 0
        self._secret = secrets.token_bytes(32)
        self.known = Known(str(directory), self._secret.hex(), os.getpid(), "")
        platform = Platform()
        self._loop, self._poller = platform.loop(clock)
        self._processes = ProcessRequests(self._loop, clock, job.inspect_workers, options)
        self._listener = platform.listen(directory)
        self._connections: set[Connection] = set()
        self._ending: list[tuple[Connection, int, str]] = []
        self._closing = False
        self._accepting = AcceptLoop(
            self._listener,
            self._accept,
            watch=self._poller.keep,
            unwatch=self._poller.drop,
            later=lambda action, after_s: self._loop.at(clock.monotonic() + after_s, action),
            warn=lambda text: log(WARNING, "clients", text),
            what="the job",
        )
        self._thread = threading.Thread(target=self._serve, name="sluiceway-job-server", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def job_ended(self) -> None:
        """Record the end of the job, and answer clients that wait for it. From any thread."""
        self._ended_ms = self._clock.now_ms()
        self._loop.mail(self._answer_ending)

    def close(self) -> None:
        """Record the end of the job if that was not done, and close all connections."""
        self._ended_ms = self._ended_ms or self._clock.now_ms()
        self._loop.mail(self._end)
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        try:
            while not self._closing:
                if not self._loop.run_ready(16):
                    deadline = self._loop.next_deadline()
                    self._poller.poll(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
            self._loop.run_ready(4)  # the last answers
        finally:
            self._processes.close()
            self._accepting.close()
            for connection in self._connections:
                connection.abandon()
            self._listener.close()
            self._poller.close()

    def _answer_ending(self) -> None:
        ending, self._ending = self._ending, []
        for client, request, location in ending:
            if self._job.status is JobStatus.FAILED:
                reason = f"the savepoint is {location}, but the job failed"
                failures = self._job.failures()
                if failures:
                    cause = failures[-1].cause
                    client.send(Refused.by(request, cause, f"{reason}: {told_error(cause)}"))
                else:
                    client.send(Refused(request, reason))
            else:
                client.send(SavepointTaken(request, location))

    def _end(self) -> None:
        self._answer_ending()
        for connection in list(self._connections):
            connection.close()
        self._closing = True

    # ---- clients --------------------------------------------------------------------------------------------

    def _accept(self, sock: Stream) -> Connection:
        connection = Connection(
            sock,
            self._loop,
            self._secret,
            "manager",
            peer_role="client",
            on_open=self._accepting.forget,
            on_message=self._message,
            on_closed=self._closed,
        )
        self._connections.add(connection)
        return connection

    def _closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        self._accepting.forget(connection)
        self._connections.discard(connection)
        if not connection.proved and isinstance(why, BrokenProtocolError):
            self._accepting.refused(str(why))

    def _message(self, client: Connection, message: Message) -> None:
        if self.dispatch(message, client) or self._processes.dispatch(message, client):
            return
        if isinstance(message, Request):
            refusal = ConfigurationError("this is one job and no cluster: it cannot do that")
            client.send(Refused.by(message.request, refusal))
        else:
            client.close()

    @handles(AskStatus)
    def _tell_status(self, message: AskStatus, client: Connection) -> None:
        metrics = plain_metrics(self._job.metrics())
        info = job_info(self._job, metrics, self._name, self._name, self._started_ms, self._ended_ms)
        client.send(
            Status(
                request=message.request,
                pid=os.getpid(),
                epoch=1,
                started_ms=self._started_ms,
                slots=0,
                free_slots=0,
                max_workers=0,
                transport="",
                jobs=[info],
                workers=[],
                figures={self._name: metrics} if message.figures and not self._job.status.ended else {},
            )
        )

    @handles(DescribeJob)
    def _describe(self, message: DescribeJob, client: Connection) -> None:
        self._answer(message, client, lambda: JobDescribed(message.request, self._description()))

    def _description(self) -> JobDescription:
        description = self._job.describe()
        if self._job.status.ended:
            metrics = plain_metrics(self._job.metrics())
            description = msgspec.structs.replace(description, metrics=metrics)
        return description

    @handles(AskCheckpoints)
    def _tell_checkpoints(self, message: AskCheckpoints, client: Connection) -> None:
        self._answer(message, client, lambda: self._checkpoints(message))

    def _checkpoints(self, message: AskCheckpoints) -> Checkpoints:
        return Checkpoints(message.request, self._job.checkpoints(), self._job.checkpoint_directory())

    @handles(SampleJob)
    def _sample_stacks(self, message: SampleJob, client: Connection) -> None:
        def done(processes: list[StackSamples], problems: list[str]) -> None:
            self._loop.mail(lambda: client.send(JobSampled(message.request, processes, problems)))

        def ask() -> None:
            self._job.sample_stacks(message.seconds, message.rate, done)

        self._answer(message, client, ask)

    @handles(SampleJobKeys)
    def _sample_keys(self, message: SampleJobKeys, client: Connection) -> None:
        def done(samples: list[KeySample], problems: list[str]) -> None:
            self._loop.mail(lambda: client.send(JobKeysSampled(message.request, samples, problems)))

        def ask() -> None:
            self._job.sample_keys(message.vertices, message.seconds, done)

        self._answer(message, client, ask)

    @handles(CancelJob)
    def _cancel(self, message: CancelJob, client: Connection) -> None:
        self._answer(message, client, lambda: self._done(message, self._job.cancel))

    @handles(StopJob)
    def _stop(self, message: StopJob, client: Connection) -> None:
        self._answer(message, client, lambda: self._done(message, self._job.stop))

    @handles(TakeCheckpoint)
    def _checkpoint(self, message: TakeCheckpoint, client: Connection) -> None:
        def done(checkpoint_id: int, problem: BaseException | None) -> None:
            answer = checkpoint_answer(message, checkpoint_id, problem)
            # `done` is called in the job's thread, and connections belong to this one.
            self._loop.mail(lambda: client.send(answer))

        self._answer(message, client, lambda: self._job.checkpoint(done))

    @handles(RescaleJob)
    def _rescale(self, message: RescaleJob, client: Connection) -> None:
        answer = RescaleAnswer(message, lambda told: self._loop.mail(lambda: client.send(told)))

        def ask() -> None:
            self._job.rescale(message.parallelism or None, message.steps, answer.done, answer.accepted)

        self._answer(message, client, ask)

    @handles(TakeSavepoint)
    def _savepoint(self, message: TakeSavepoint, client: Connection) -> None:
        def done(location: str, problem: BaseException | None) -> None:
            self._loop.mail(lambda: self._saved(message, client, location, problem))

        def ask() -> None:
            self._job.savepoint(message.place or None, done, stop=message.stop)

        self._answer(message, client, ask)

    def _saved(
        self, message: TakeSavepoint, client: Connection, location: str, problem: BaseException | None
    ) -> None:
        if problem is not None:
            client.send(savepoint_refusal(message, problem))
        elif message.stop:
            self._ending.append((client, message.request, location))
            if self._ended_ms:
                self._answer_ending()
        else:
            client.send(SavepointTaken(message.request, location))

    def _done(self, message: CancelJob | StopJob, action: Callable[[], None]) -> Message:
        if self._job.status.ended:
            ended = ConfigurationError(f"job {message.job!r} is {self._job.status.value} already")
            return Refused.by(message.request, ended)
        action()
        return Done(message.request, self._name)

    def _answer(
        self,
        message: (
            DescribeJob
            | AskCheckpoints
            | SampleJob
            | SampleJobKeys
            | CancelJob
            | RescaleJob
            | StopJob
            | TakeCheckpoint
            | TakeSavepoint
        ),
        client: Connection,
        action: Callable[[], Message | None],
    ) -> None:
        """Send what ``action`` returns; a refusal if the job is another one or the action raises."""
        if message.job != self._name:
            other = ConfigurationError(f"there is no job {message.job!r}: this is {self._name!r}")
            client.send(Refused.by(message.request, other))
            return
        try:
            answer = action()
        except SluicewayError as error:
            answer = Refused.by(message.request, error)
        if answer is not None:
            client.send(answer)
