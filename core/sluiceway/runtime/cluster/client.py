"""Client of a cluster whose job manager runs in another process: sends requests and waits for answers."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from sluiceway.checkpoint import checkpoint_name
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.errors import ConfigurationError, ConnectorError, SluicewayError
from sluiceway.graph import JobGraph
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.configuration import ConfiguredOption
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import (
    is_awaited,
    is_stood_by,
    make_directory,
    place_of_directories,
    remove_dead,
    stay,
)
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.home import (
    Known,
    check_home,
    cluster_file,
    is_starting,
    job_store_directory,
    logs_directory,
    next_epoch,
    put_logs_aside,
    read_cluster_file,
    start_lock,
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
from sluiceway.util.private_files import make_private_directory, private_opener

__all__ = [
    "ClusterClient",
    "cluster_file",
    "job_store_directory",
    "logs_directory",
    "run_cluster",
    "start_cluster",
    "wait_for_start",
]

_START_S: Final = 30.0
_OTHER_START_S: Final = 60.0
_ANSWER_S: Final = 30.0
# Seconds in which a standby has to become the leader, and leaders that a request is sent to: one that does not
# know its type closes the connection each time.
_FAILOVER_S: Final = 60.0
_MOST_LEADERS: Final = 8
_LOOK_S: Final = 0.02


def start_cluster(
    workers: int,
    slots: int,
    transport: str,
    idle_s: float = 30.0,
    log_level: str = "info",
    network_buffers: int = 512,
    heartbeat_timeout_s: float = 50.0,
    job_store: str = "",
    standby: int = 0,
    options: Sequence[ConfiguredOption] = (),
) -> int:
    """Start a cluster in the background; return the process id of its job manager once it answers.

    It recovers the jobs in the job store; empty: in :func:`job_store_directory`. It starts
    ``standby`` standby job managers. ``options`` are shown by the web interface.

    Raises:
        ConfigurationError: there is one already.
        ConnectorError: it did not start in time.
    """
    check_home()
    file = cluster_file()
    with ExitStack() as kept:
        starting = kept.enter_context(start_lock(_OTHER_START_S))
        _make_room(file)
        before = _awaited(kept)
        config = _config(
            before, workers, slots, transport, idle_s, log_level, network_buffers, heartbeat_timeout_s, job_store
        )
        config = replace(config, standby=standby, options=tuple((o.name, o.value, o.origin) for o in options))
        ready, says_ready = os.pipe()
        own_log = file.parent / "cluster.log"
        with open(ready, "rb", buffering=0) as line, open(own_log, "wb", opener=private_opener) as log:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "sluiceway.entrypoint.jobmanager"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    # The job manager holds the lock of the start, too, until clients can find it.
                    pass_fds=(says_ready, starting.fileno()),
                    start_new_session=True,
                )
            finally:
                os.close(says_ready)
            assert process.stdin is not None
            said_ready = b""
            try:
                # If it has ended already, the line shows it.
                with suppress(BrokenPipeError), process.stdin as told:
                    inherited = {"ready": says_ready, "starting": starting.fileno()}
                    told.write(json.dumps({**asdict(config), **inherited}).encode() + b"\n")
                process.wait()  # it leaves its work to an orphaned process
                # Readable also at its end: then the process has ended without being ready, and nothing is read.
                if select.select([line], [], [], _START_S)[0]:
                    said_ready = line.read(100)
            finally:
                if not said_ready:
                    # One that started later would hold the job store, and no client would know it.
                    _end_session(process)
                    if before is None:
                        shutil.rmtree(config.directory, ignore_errors=True)
        if said_ready:
            return int(said_ready)
        said = Path(log.name).read_text(errors="replace").strip()
        raise ConnectorError(f"the cluster did not start; its output is in {log.name}: {said[-2000:]}")


def run_cluster(
    workers: int,
    slots: int,
    transport: str,
    idle_s: float,
    log_level: str,
    network_buffers: int,
    heartbeat_timeout_s: float,
    job_store: str,
    log_format: str,
    told: str,
    options: Sequence[ConfiguredOption] = (),
) -> NoReturn:
    """Replace this process by the job manager of a cluster; see :func:`start_cluster`.

    The program is replaced, so that the process that a service manager has started is the one that it watches.

    Args:
        workers: as for :func:`start_cluster`, as are the others up to ``job_store``.
        slots: of each worker.
        transport: between them.
        idle_s: after which an idle worker is ended.
        log_level: the lowest level that is logged.
        network_buffers: of each worker.
        heartbeat_timeout_s: after which a silent worker is killed.
        job_store: directory; empty: :func:`job_store_directory`.
        log_format: of the lines on standard error, ``text`` or ``json``.
        told: what the cluster offers, for the log.
        options: shown by the web interface.

    Raises:
        ConfigurationError: there is one already.
    """
    check_home()
    with ExitStack() as kept:
        starting = kept.enter_context(start_lock(_OTHER_START_S))
        _make_room(cluster_file())
        before = _awaited(kept)
        config = _config(
            before,
            workers,
            slots,
            transport,
            idle_s,
            log_level,
            network_buffers,
            heartbeat_timeout_s,
            job_store,
        )
        config = replace(config, options=tuple((o.name, o.value, o.origin) for o in options))
        # The lock of the start survives the replacement, until clients can find the job manager.
        os.set_inheritable(starting.fileno(), True)
        foreground = {
            "log_format": log_format,
            "told": told,
            "is_new": before is None,
            "starting": starting.fileno(),
        }
        with tempfile.TemporaryFile() as line:  # not readable by others: it holds the secret
            line.write(json.dumps({**asdict(config), "foreground": foreground}).encode() + b"\n")
            line.seek(0)
            # Standard input survives the replacement of the program.
            os.dup2(line.fileno(), 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "sluiceway.entrypoint.jobmanager"])


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a job manager that has not started, and the child that it has left its work to, if any."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _make_room(file: Path) -> None:
    """Raise ConfigurationError if a cluster runs already, and remove the directories of dead ones."""
    try:
        with ClusterClient() as running:
            pid = running.status().pid
    except ConnectorError:
        pass
    else:
        raise ConfigurationError(
            f"a cluster is running already (process {pid}): stop it with sluiceway cluster stop"
        )
    make_private_directory(file.parent)
    remove_dead(place_of_directories())


def _config(
    before: tuple[Path, str] | None,
    workers: int,
    slots: int,
    transport: str,
    idle_s: float,
    log_level: str,
    network_buffers: int,
    heartbeat_timeout_s: float,
    job_store: str,
) -> ClusterConfig:
    """Return the configuration of the next job manager.

    Args:
        before: directory and secret of the previous cluster, if its workers wait for a job manager.
        workers: these and the others as for :func:`start_cluster`.
        slots: of each worker.
        transport: between them.
        idle_s: after which an idle worker is ended.
        log_level: the lowest level that is logged.
        network_buffers: of each worker.
        heartbeat_timeout_s: after which a silent worker is killed.
        job_store: directory; empty: :func:`job_store_directory`.
    """
    if before is None:
        directory, secret, logs = make_directory(), secrets.token_hex(32), put_logs_aside()
    else:
        # The waiting workers know the address and the secret of the previous job manager only.
        (directory, secret), logs = before, logs_directory()
        make_private_directory(logs)
    return ClusterConfig(
        str(directory),
        secret,
        workers,
        slots,
        transport,
        idle_s=idle_s,
        logs=str(logs),
        log_level=log_level,
        network_buffers=network_buffers,
        heartbeat_timeout_s=heartbeat_timeout_s,
        epoch=next_epoch(),
        job_store=job_store or str(job_store_directory()),
    )


def _awaited(kept: ExitStack) -> tuple[Path, str] | None:
    """Return directory and secret of the previous cluster if its workers wait for another job manager."""
    try:
        known = read_cluster_file()
        directory = Path(known.directory)
        if not is_awaited(directory):
            return None
        # Nobody removes the directory until the new job manager has locked it.
        kept.enter_context(stay(directory))
    except (OSError, ConnectorError):
        return None
    return directory, known.secret


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def wait_for_start() -> None:
    """Wait until no cluster of this user is being started. Raises ConnectorError if that takes too long."""
    if is_starting():
        start_lock(_OTHER_START_S).close()


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
            raise SluicewayError(answer.reason)
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
            raise SluicewayError(answer.reason)
        assert isinstance(answer, JobRescaled)
        return answer.rescale

    def checkpoint(self, job: str) -> int:
        """Take a checkpoint of a job now; return its id once it is complete.

        Raises:
            SluicewayError: it was not taken; says why.
        """
        answer = self._ask(TakeCheckpoint(next(self._requests), job), None)
        if isinstance(answer, Refused):
            raise SluicewayError(answer.reason)
        assert isinstance(answer, CheckpointTaken)
        return answer.checkpoint

    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        """Return the last checkpoints and savepoints of a job, oldest first. Raises SluicewayError."""
        answer = self._ask(AskCheckpoints(next(self._requests), job))
        if isinstance(answer, Refused):
            raise SluicewayError(answer.reason)
        assert isinstance(answer, Checkpoints)
        return answer.checkpoints

    def describe(self, job: str) -> JobDescription:
        """Return the graph, the attempts and the options of a job. Raises SluicewayError."""
        answer = self._ask(DescribeJob(next(self._requests), job))
        if isinstance(answer, Refused):
            raise SluicewayError(answer.reason)
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
            raise SluicewayError(answer.reason)
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
            raise SluicewayError(answer.reason)
        assert isinstance(answer, Answer)
        return answer

    def latest_checkpoint(self, job: str) -> str:
        """Return the path or URL of a job's last completed checkpoint. Raises SluicewayError: the job has none."""
        answer = self._ask(AskCheckpoints(next(self._requests), job))
        if isinstance(answer, Refused):
            raise SluicewayError(answer.reason)
        assert isinstance(answer, Checkpoints)
        done = [c.checkpoint for c in answer.checkpoints if c.status == "completed" and not c.savepoint]
        if not done or not answer.directory:
            why = "has completed no checkpoint yet" if answer.directory else "keeps no checkpoints in files"
            raise SluicewayError(f"job {job!r} {why}: --live reads the state of its tasks")
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
            raise SluicewayError(answer.reason)
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
                select.select([process], [], [], _START_S)
        cluster_file().unlink(missing_ok=True)
        return list(answer.problems) if isinstance(answer, Done) else []

    def _done(self, message: Request) -> str:
        answer = self._ask(message)
        if isinstance(answer, Refused):
            raise SluicewayError(answer.reason)
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
