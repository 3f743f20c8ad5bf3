"""Launcher of worker processes, with a line to each: configuration, heartbeats, and detection of the end.

The line is a socket pair. The worker has its end as standard input and, until it is up, as standard error, so that
messages of a failed start reach the launching process. Once up, a thread sends a byte at intervals as a sign of
life, whatever the loop is doing. The end of the line tells the worker that the launching process has ended, in
whatever way.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from sluiceway.runtime.cluster.interpreter_pool import launch
from sluiceway.util.overriding import override

__all__ = ["BEAT", "CALL", "UP", "WorkerConfig", "WorkerHandle", "adopt_worker", "is_at_work", "start_worker"]

UP: Final = b"\0"
"""Byte of the worker: it is up."""
BEAT: Final = b"."
"""Byte of the worker: heartbeat."""
CALL: Final = b"?"
"""Byte to the worker: request for a connection of its inspector."""

_LONGEST_TEXT: Final = 16_384
_KILL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of a worker process, sent to its standard input.

    Attributes:
        name: name of the worker, unique in the cluster.
        manager: path of the job manager's socket, or ``tcp://host:port``.
        directory: directory of the cluster.
        secret: secret of the cluster, in hexadecimal.
        slots: number of slots.
        transport: name of the transport between workers.
        segments: number of network buffers.
        segment_bytes: size of a network buffer in bytes.
        path: entries to add to ``sys.path``.
        beat_s: interval of the heartbeats in seconds.
        logs: directory of the cluster's logs; empty: log to standard error.
        tells: whether to send log lines and output to the job manager instead.
        log_level: lowest level that is logged, unless a job sets one.
        log_format: format of log lines on standard error, ``text`` or ``json``.
        epoch: epoch of the job manager; messages of earlier ones are rejected.
        lock: path of the file that the process locks while it lives; empty: none.
        rejoin_s: time to wait for another job manager after the loss of its own; 0: end at once.
        parent: process id of the launching process; set by :func:`start_worker`.
        stderr: file descriptor of standard error once it is up; set by :func:`start_worker`.
    """

    name: str
    manager: str
    directory: str
    secret: str = field(repr=False)
    slots: int
    transport: str
    segments: int
    segment_bytes: int
    path: list[str]
    beat_s: float = 1.0
    logs: str = ""
    tells: bool = False
    log_level: str = "warning"
    log_format: str = "text"
    epoch: int = 0
    lock: str = ""
    rejoin_s: float = 0.0
    parent: int = 0
    stderr: int = -1


class WorkerHandle(ABC):
    """Handle of a worker process in the launching process.

    Attributes:
        reason_within_s: time to wait for the reason of its end after the end of its connection.
    """

    reason_within_s: float = 1.0

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id."""

    @abstractmethod
    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether the process has ended, after waiting at most ``within_s``."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, and wait for its end."""

    @abstractmethod
    def heard(self) -> bool:
        """Return whether the process has sent a heartbeat since the last call."""

    @abstractmethod
    def is_at_work(self) -> bool:
        """Return whether the process has used processor time since the last call."""

    def call_inspector(self) -> bool:
        """Request a connection of its inspector, bypassing its loop. Return False if there is no line to it."""
        return False

    @abstractmethod
    def was_killed(self) -> bool:
        """Return whether a signal has ended the process."""

    def is_hopeless(self) -> bool:
        """Return whether another worker is known to fail in the same way."""
        return False

    def ends_with(self, other: WorkerHandle) -> bool:
        """Return whether this process ends when another one does, as tasks of one barrier stage do."""
        return self is other

    @abstractmethod
    def how_it_ended(self) -> str:
        """Return the signal or exit code that it ended with, for messages."""

    @abstractmethod
    def what_it_said(self) -> str:
        """Return the output to standard error before the worker was up."""


class _ChildProcess(WorkerHandle):
    """Handle of a child process.

    Args:
        process: the process.
        line: this process's end of the line.
    """

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._process = process
        self._line = line
        self._line.setblocking(False)
        self._up = False
        self._said = bytearray()
        self._used: str | None = None

    @property
    @override
    def pid(self) -> int:
        return self._process.pid

    @override
    def ended(self, within_s: float = 0.0) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        # What it has said last is read before the line is closed.
        self.heard()
        self._line.close()
        return True

    @override
    def kill(self) -> None:
        self._process.kill()
        self.ended(_KILL_S)

    @override
    def heard(self) -> bool:
        came = False
        with suppress(OSError):  # nothing more for now, or the line is closed
            while data := self._line.recv(65_536):
                came = True
                if not self._up:
                    # Output until the byte that says that it is up; heartbeats after that.
                    text, up, _ = data.partition(UP)
                    self._said += text
                    # The end is kept, where a traceback names the error.
                    del self._said[:-_LONGEST_TEXT]
                    if up:
                        self._up = True
                        self._pass_on()
        return came

    @override
    def is_at_work(self) -> bool:
        at_work, self._used = is_at_work(self.pid, self._used)
        return at_work

    def call_inspector(self) -> bool:
        """Request a connection of its inspector."""
        return _call(self._line)

    @override
    def was_killed(self) -> bool:
        return (self._process.poll() or 0) < 0

    @override
    def how_it_ended(self) -> str:
        code = self._process.poll()
        if code is None:
            return "is still running"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                return f"was killed by signal {-code}"
            return f"was killed by {name}"
        return f"ended with exit code {code}"

    @override
    def what_it_said(self) -> str:
        self.heard()
        return "" if self._up else self._said.decode(errors="replace").strip()

    def _pass_on(self) -> None:
        """Forward the output of a successful start, such as warnings, to standard error."""
        if self._said:
            with suppress(OSError, AttributeError, ValueError):
                sys.stderr.write(self._said.decode(errors="replace"))
            self._said.clear()


class _AdoptedProcess(WorkerHandle):
    """Handle of a worker that an earlier job manager has started. Its exit status cannot be known.

    Args:
        pid: process id of the worker.
        line: path of the socket on which the worker accepts a line.

    Raises:
        OSError: the process has ended.
    """

    def __init__(self, pid: int, line: str) -> None:
        self._pid = pid
        # Readable when the process ends, and never about another process with the same id.
        self._process = os.pidfd_open(pid)
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._line.setblocking(False)
            self._line.connect(line)
        except BaseException:
            self._close()
            raise
        self._ended = False
        self._used: str | None = None

    @property
    @override
    def pid(self) -> int:
        return self._pid

    @override
    def ended(self, within_s: float = 0.0) -> bool:
        if not self._ended and select.select([self._process], [], [], within_s)[0]:
            self._ended = True
            self._close()
        return self._ended

    @override
    def kill(self) -> None:
        if not self._ended:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self.ended(_KILL_S)

    @override
    def heard(self) -> bool:
        came = False
        with suppress(OSError):
            while self._line.recv(65_536):
                came = True
        return came

    @override
    def is_at_work(self) -> bool:
        at_work, self._used = is_at_work(self._pid, self._used)
        return at_work

    def call_inspector(self) -> bool:
        """Request a connection of its inspector."""
        return _call(self._line)

    def was_killed(self) -> bool:
        """Return False: the exit status of a process that is no child cannot be read."""
        return False

    def how_it_ended(self) -> str:
        """Return whether the process has ended, for messages."""
        return "has ended" if self.ended() else "is still running"

    def what_it_said(self) -> str:
        """Return nothing: the worker was up before it was adopted."""
        return ""

    def _close(self) -> None:
        os.close(self._process)
        self._line.close()


def _call(line: socket.socket) -> bool:
    with suppress(OSError):  # the end of the process is detected by the resource manager
        line.send(CALL)
    return True


def adopt_worker(pid: int, line: str) -> WorkerHandle:
    """Return a handle of a worker of an earlier job manager. Raises OSError if it has ended."""
    return _AdoptedProcess(pid, line)


def is_at_work(pid: int, before: str | None) -> tuple[bool, str | None]:
    """Return whether a process has used processor time since ``before``, and the time used so far.

    C code that holds the interpreter lock for long prevents heartbeats, but is no hang.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, which may contain anything: the state is field 0, user and system time are 11 and
            # 12.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False, before
    used = f"{fields[11]!r} {fields[12]!r}"
    return fields[0] not in (b"T", b"t", b"Z") and used != before, used


def start_worker(config: WorkerConfig, path: Sequence[str] | None = None) -> WorkerHandle:
    """Start a worker in a new interpreter. Once it is up, it prints to this process's standard error.

    It has a process group of its own, so that Ctrl-C reaches the launching process only.

    Args:
        config: configuration of the worker.
        path: ``sys.path`` for importing Sluiceway before ``config.path`` is added; None: the interpreter's own.
    """
    launched = launch(path)
    line = launched.line
    handle = _ChildProcess(launched.process, line)
    # By the id of its parent, the worker notices the end of this process even if the line stays open.
    told = json.dumps(asdict(replace(config, parent=os.getpid(), stderr=launched.stderr))).encode() + b"\n"
    line.setblocking(True)
    with suppress(OSError):  # if it has ended already, waiting for its registration shows it
        line.sendall(told)
    line.setblocking(False)
    return handle
