"""Client of a cluster whose job manager runs in another process: sends requests and waits for answers."""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.checkpoint import checkpoint_name
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.errors import CheckpointError, ConfigurationError, ConnectorError, SluicewayError
from sluiceway.graph import JobGraph
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.cluster_directory import (
    is_stood_by,
)
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.home import (
    Known,
    check_home,
    cluster_file,
    job_store_directory,
    logs_directory,
    read_cluster_file,
)
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Answer, Message, Request
from sluiceway.runtime.messages.clients import (
    AskCheckpoints,
    AskState,
    AskStatus,
    CancelJob,
    Checkpoints,
    CheckpointTaken,
    DescribeJob,
    Done,
    JobDescribed,
    JobRescaled,
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
from sluiceway.runtime.messages.pickling import check_shippable, dump
from sluiceway.runtime.messages.workers import FoundState

__all__ = [
    "ClusterClient",
    "cluster_file",
    "job_store_directory",
    "logs_directory",
]

_STOP_S: Final = 30.0
_ANSWER_S: Final = 30.0
# Seconds in which a standby has to become the leader, and leaders that a request is sent to: one that does not
# know its type closes the connection each time.
_FAILOVER_S: Final = 60.0
_MOST_LEADERS: Final = 8
_LOOK_S: Final = 0.02


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


class ClusterClient:
    """Client of the running cluster of this user. For one thread.

    If the job manager is lost and a standby exists, it waits up to a minute for the new leader, and repeats
    unanswered requests. Each request is carried out once, except that a savepoint may be taken twice.

    Args:
        known: address and secret of a job manager; None: those of this user's cluster.

    Raises:
        ConnectorError: none is running, or it does not answer.
        ConfigurationError: others than this user may write to the home of the cluster.
    """

    def __init__(self, known: Known | None = None) -> None:
        if known is None:
            check_home()
            try:
                known = read_cluster_file()
            except OSError as error:
                raise ConnectorError("no cluster is running: start one with sluiceway cluster start") from error
        self._directory, self._pid = Path(known.directory), known.pid
        self._secret, self.log = bytes.fromhex(known.secret), Path(known.log)
        sock = self._find_leader()
        self._poller = SelectorPoller()
        self._clock = SystemClock()
        self._loop = TaskletLoop(self._clock, self._poller)
        self._requests = count(1)
        self._asked = 0
        self._answers: list[Answer] = []
        self._lost: ConnectionLostError | None = None
        self._opened = False
        self._connection = self._connect(sock)

    def _find_leader(self) -> socket.socket:
        """Connect to the job manager; if a standby exists, wait until it leads."""
        until = time.monotonic() + _FAILOVER_S
        while True:
            try:
                return _connected(self._directory / "manager")
            except OSError as error:
                gone = f"its job manager (process {self._pid}) is gone"
                if not is_stood_by(self._directory):
                    raise ConnectorError(
                        f"no cluster is running: {gone}. Start it again with sluiceway cluster start, and its "
                        "jobs are recovered"
                    ) from error
                if time.monotonic() > until:
                    raise ConnectorError(
                        f"{gone}, and no standby has become the leader within {_FAILOVER_S:g} s; its log is "
                        f"{self.log}"
                    ) from error
                time.sleep(_LOOK_S)

    def _connect(self, sock: socket.socket) -> Connection:
        self._opened, self._lost = False, None
        # A lost connection may mean a new leader, and once it leads no standby can be seen any more. So this is
        # checked before.
        self._stood_by = is_stood_by(self._directory)
        return Connection(
            sock,
            self._loop,
            self._secret,
            "client",
            peer_role="manager",
            on_open=self._open,
            on_message=self._take,
            on_closed=self._closed,
        )

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._loop.run_ready()
        # What the job manager has not read by now is lost, as of a request that was interrupted.
        self._connection.abandon()
        self._poller.close()

    def status(self, figures: bool = False) -> Status:
        """Return the state of the cluster.

        Args:
            figures: with the metrics of the jobs that have not ended.
        """
        answer = self._ask(AskStatus(next(self._requests), figures))
        assert isinstance(answer, Status)
        return answer

    def figures(self) -> dict[str, JobMetrics]:
        """Return the metrics of all jobs that have not ended, by job id."""
        return self.status(figures=True).figures

    def metrics(self, job: str) -> JobMetrics | None:
        """Return the metrics of a job, the last ones if it has ended; None: no longer known.

        Raises:
            SluicewayError: the job does not exist.
        """
        return self.figures().get(job) or self.describe(job).metrics

    def submit(self, name: str, graph: JobGraph, settings: Settings) -> str:
        """Submit a job; return its id.

        Raises:
            GraphError: it cannot be sent to workers; names the steps.
            SluicewayError: it was refused; says why.
        """
        check_shippable(graph)
        program = dump((graph, settings))
        key = secrets.token_hex(16)
        return self._done(SubmitProgram(next(self._requests), name, program, sys.path, key))

    def cancel(self, job: str) -> None:
        """Cancel a job. Raises SluicewayError if that was refused."""
        self._done(CancelJob(next(self._requests), job))

    def stop(self, job: str) -> None:
        """End a job's sources and let it finish. Raises SluicewayError if that was refused."""
        self._done(StopJob(next(self._requests), job))

    def savepoint(self, job: str, place: str, *, stop: bool = False) -> str:
        """Take a savepoint of a job; return its path or URL once it is complete.

        Args:
            job: its id.
            place: path or URL of the parent directory; empty: that of the checkpoints.
            stop: stop the job with it, and return once the job has ended.

        Raises:
            SluicewayError: it was not taken; says why.
        """
        answer = self._ask(TakeSavepoint(next(self._requests), job, place, stop), None)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, SavepointTaken)
        return answer.location

    def rescale(
        self,
        job: str,
        parallelism: int | None = None,
        steps: Mapping[str, int] | None = None,
        *,
        wait: bool = True,
    ) -> RescaleInfo:
        """Change the parallelism of a running job; return the changes once it runs again.

        Args:
            job: its id.
            parallelism: parallelism of all steps for which the program chose none; None: unchanged.
            steps: parallelism of single steps, by name, uid, or id of the vertex.
            wait: False: return once the request is accepted; the job's description shows the progress.

        Raises:
            SluicewayError: the job keeps its parallelism; gives the reason.
        """
        answer = self._ask(RescaleJob(next(self._requests), job, parallelism or 0, dict(steps or {}), wait), None)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, JobRescaled)
        return answer.rescale

    def checkpoint(self, job: str) -> int:
        """Take a checkpoint of a job now; return its id once it is complete.

        Raises:
            SluicewayError: it was not taken; says why.
        """
        answer = self._ask(TakeCheckpoint(next(self._requests), job), None)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, CheckpointTaken)
        return answer.checkpoint

    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        """Return the last checkpoints and savepoints of a job, oldest first. Raises SluicewayError."""
        answer = self._ask(AskCheckpoints(next(self._requests), job))
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, Checkpoints)
        return answer.checkpoints

    def describe(self, job: str) -> JobDescription:
        """Return the graph, the attempts and the options of a job. Raises SluicewayError."""
        answer = self._ask(DescribeJob(next(self._requests), job))
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, JobDescribed)
        return answer.description

    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        """Sample the stacks of a job's processes for some seconds, and return the samples.

        Args:
            job: its id.
            seconds: time to take them.
            rate: samples per second.

        Raises:
            SluicewayError: the job does not run, or no process gave samples.
        """
        answer = self._ask(SampleJob(next(self._requests), job, seconds, rate), seconds + _ANSWER_S)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, JobSampled)
        if not answer.processes:
            raise SluicewayError(f"no stacks of job {job!r} were sampled: {'; '.join(answer.problems)}")
        return answer.processes

    def request(self, make: Callable[[int], Request], within_s: float = _ANSWER_S) -> Answer:
        """Send a request and return its answer.

        Args:
            make: makes the request with its number.
            within_s: seconds to wait.

        Raises:
            SluicewayError: it was refused; says why.
        """
        answer = self._ask(make(next(self._requests)), within_s)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, Answer)
        return answer

    def latest_checkpoint(self, job: str) -> str:
        """Return the path or URL of a job's last completed checkpoint. Raises SluicewayError: the job has none."""
        answer = self._ask(AskCheckpoints(next(self._requests), job))
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, Checkpoints)
        done = [c.checkpoint for c in answer.checkpoints if c.status == "completed" and not c.savepoint]
        if not done or not answer.directory:
            instead = "only the live state of its running tasks can be read"
            if answer.directory:
                raise CheckpointError(f"job {job!r} has completed no checkpoint yet: {instead}")
            raise ConfigurationError(f"job {job!r} keeps no checkpoints in files: {instead}")
        return f"{answer.directory}/{checkpoint_name(done[-1])}"

    def live_state(
        self, job: str, uid: str, state: str, key: str, *, namespace: str = "", within_s: float = 10.0
    ) -> FoundState:
        """Read the state of a key of a running job; its task answers between two batches.

        Args:
            job: its id.
            uid: uid of the step.
            state: name of the state.
            key: the key as JSON or as text, whichever fits the type of the step's keys.
            namespace: namespace as JSON, for example a window; empty: all in which the key has state.
            within_s: seconds to wait for the answer.

        Raises:
            SluicewayError: there is no such step, state or key, or the task did not answer; says what there is.
        """
        request = AskState(next(self._requests), job, uid, state, key, namespace, within_s)
        answer = self._ask(request, within_s + _ANSWER_S)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, StateFound)
        return answer.found

    def shut_down(self, keep: bool = False) -> list[str]:
        """Stop the cluster; return once all its processes have ended.

        Args:
            keep: leave its jobs in the job store for the next cluster; otherwise they are cancelled.

        Returns:
            A sentence for each worker that had to be killed, with the task that did not end.
        """
        # Process ids are opened while the processes live: later, another process may have them.
        told = self.status()
        with ExitStack() as processes:
            opened = []
            for pid in (told.pid, *(standby.pid for standby in told.standbys)):
                # It has ended; or this is not Linux, where other processes cannot be waited for.
                with suppress(OSError, AttributeError):
                    opened.append(os.pidfd_open(pid))
                    processes.callback(os.close, opened[-1])
            answer = self._ask(ShutDown(next(self._requests), keep))
            for process in opened:
                select.select([process], [], [], _STOP_S)
        cluster_file().unlink(missing_ok=True)
        return list(answer.problems) if isinstance(answer, Done) else []

    def _done(self, message: Request) -> str:
        answer = self._ask(message)
        if isinstance(answer, Refused):
            raise answer.error()
        assert isinstance(answer, Done)
        return answer.job

    def _ask(self, message: Request, within_s: float | None = _ANSWER_S) -> Answer:
        self._answers.clear()
        self._asked = message.request
        leaders = 1
        self._connection.send(message)
        until = None if within_s is None else self._clock.monotonic() + within_s
        while not self._answers:
            if self._lost is not None:
                leaders += 1
                if leaders > _MOST_LEADERS:  # The job manager is alive, but this message type is unknown to it.
                    raise ConnectorError(f"the connection to the cluster was lost: {self._lost}") from self._lost
                message = self._ask_next_leader(message, self._lost)
                if until is not None:
                    # The next leader recovers its jobs before it answers.
                    until = self._clock.monotonic() + _ANSWER_S
            if until is not None and self._clock.monotonic() > until:
                raise ConnectorError(f"the cluster has not answered within {within_s:g} s")
            if not self._loop.run_ready(4):
                self._poller.poll(1.0)
        return self._answers[0]

    def _ask_next_leader(self, message: Request, lost: ConnectionLostError) -> Request:
        """Send an unanswered request again to the next leader; return the message as sent."""
        if not self._opened and not self._stood_by:
            raise ConnectorError(f"the connection to the cluster was lost: {lost}") from lost
        try:
            sock = self._find_leader()
        except ConnectorError as error:
            raise ConnectorError(f"the connection to the cluster was lost: {lost}. {error}") from lost
        self._connection = self._connect(sock)
        # The lost leader may have carried it out without answering. The next one finds out by its records, or by
        # the key of a submission.
        if isinstance(message, CancelJob | StopJob | TakeSavepoint):
            message = msgspec.structs.replace(message, again=True)
        self._connection.send(message)
        return message

    def _open(self, connection: Connection) -> None:
        self._opened = True

    def _take(self, connection: Connection, message: Message) -> None:
        # An answer to an earlier request, which was given up, may come late.
        if isinstance(message, Answer) and message.request == self._asked:
            self._answers.append(message)

    def _closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        self._lost = why or ConnectionLostError("closed")
