"""Worker processes: started with their configuration on a line to them, and never left behind.

The line is a pair of sockets. The worker has its end as standard input and, until it is up, as standard error:
what it says when it cannot start comes back to whoever started it. After that it sends a byte now and then, as a
sign that the process lives, whatever its loop is doing; and the end of the line tells the worker that whoever
started it is gone, however that ended.
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

__all__ = ["BEAT", "CALL", "UP", "WorkerConfig", "WorkerHandle", "adopt_worker", "is_at_work", "start_worker"]

UP: Final = b"\0"
"""Says on the line that the worker is up."""
BEAT: Final = b"."
"""Says on the line that it lives."""
CALL: Final = b"?"
"""The other way: asks for a connection of the worker's inspector."""

_LONGEST_TEXT: Final = 16_384
_KILL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process is told when it is started, on its standard input.

    Attributes:
        name: unique in the cluster.
        manager: path of the job manager's socket, or ``tcp://host:port``.
        directory: the cluster's own directory.
        secret: the cluster's, in hexadecimal.
        slots: how many it offers.
        transport: name of the transport between workers.
        segments: number of network buffers.
        segment_bytes: size of each.
        path: what to put on ``sys.path``.
        beat_s: time between two signs of life.
        logs: directory of the cluster's logs; empty: log to standard error.
        tells: whether it tells the job manager what it logs and prints, instead of that.
        log_level: the lowest level that is logged, where a job does not say.
        log_format: of log lines on standard error, ``text`` or ``json``.
        epoch: of the job manager; what an earlier one says is not listened to.
        lock: path of the file that it locks as long as it lives; empty: none.
        rejoin_s: how long it waits for another job manager when its own is gone; 0: it ends.
        parent: process id of whoever starts it; filled in by :func:`start_worker`.
        stderr: file descriptor of standard error once it is up; likewise.
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
    """A worker process, from the side of whoever started it.

    Attributes:
        tells_within_s: how long to block until it is known here how it has ended.
        reason_within_s: how long to wait for that afterwards, without blocking, where something else reports it.
    """

    tells_within_s: float = 1.0
    reason_within_s: float = 0.0

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id."""

    @abstractmethod
    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, and wait for that."""

    @abstractmethod
    def heard(self) -> bool:
        """Whether it has given a sign of life since this was asked last."""

    @abstractmethod
    def is_at_work(self) -> bool:
        """Whether it has used the processor since this was asked last."""

    def call_inspector(self) -> bool:
        """Ask for a connection of its inspector, past its loop; False: there is no line to the process."""
        return False

    @abstractmethod
    def was_killed(self) -> bool:
        """Whether a signal has ended it."""

    def is_hopeless(self) -> bool:
        """Whether it is known that another one would end in the same way."""
        return False

    def ends_with(self, other: WorkerHandle) -> bool:
        """Return whether this process ends when another one does, as tasks of one barrier stage do."""
        return self is other

    @abstractmethod
    def how_it_ended(self) -> str:
        """For messages: by which signal, or with which exit code."""

    @abstractmethod
    def what_it_said(self) -> str:
        """What it wrote to standard error before it was up."""


class _ChildProcess(WorkerHandle):
    """A process that this one has started.

    Args:
        process: the process.
        line: this end of the line to it.
    """

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._process = process
        self._line = line
        self._line.setblocking(False)
        self._up = False
        self._said = bytearray()
        self._used: str | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        self.heard()
        self._line.close()
        return True

    def kill(self) -> None:
        """End it at once, and wait for that."""
        self._process.kill()
        self.ended(_KILL_S)

    def heard(self) -> bool:
        """Whether it has given a sign of life since this was asked last."""
        came = False
        with suppress(OSError):  # nothing more for now, or the line is closed
            while data := self._line.recv(65_536):
                came = True
                if not self._up:
                    text, up, _ = data.partition(UP)
                    self._said += text
                    del self._said[:-_LONGEST_TEXT]
                    if up:
                        self._up = True
                        self._pass_on()
        return came

    def is_at_work(self) -> bool:
        """Whether it has used the processor since this was asked last."""
        at_work, self._used = is_at_work(self.pid, self._used)
        return at_work

    def call_inspector(self) -> bool:
        """Ask for a connection of its inspector."""
        return _call(self._line)

    def was_killed(self) -> bool:
        """Whether a signal has ended it."""
        return (self._process.poll() or 0) < 0

    def how_it_ended(self) -> str:
        """For messages: by which signal, or with which exit code."""
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

    def what_it_said(self) -> str:
        """What it wrote to standard error before it was up."""
        self.heard()
        return "" if self._up else self._said.decode(errors="replace").strip()

    def _pass_on(self) -> None:
        """It is up: what it has said are warnings."""
        if self._said:
            with suppress(OSError, AttributeError, ValueError):
                sys.stderr.write(self._said.decode(errors="replace"))
            self._said.clear()


class _AdoptedProcess(WorkerHandle):
    """A worker that an earlier job manager has started. How it ends is not known, only that it has.

    Args:
        pid: its process id.
        line: path of the socket on which it waits for the line to this process.

    Raises:
        OSError: it is not there.
    """

    def __init__(self, pid: int, line: str) -> None:
        self._pid = pid
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
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        if not self._ended and select.select([self._process], [], [], within_s)[0]:
            self._ended = True
            self._close()
        return self._ended

    def kill(self) -> None:
        """End it at once, and wait for that."""
        if not self._ended:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self.ended(_KILL_S)

    def heard(self) -> bool:
        """Whether it has given a sign of life since this was asked last."""
        came = False
        with suppress(OSError):
            while self._line.recv(65_536):
                came = True
        return came

    def is_at_work(self) -> bool:
        """Whether it has used the processor since this was asked last."""
        at_work, self._used = is_at_work(self._pid, self._used)
        return at_work

    def call_inspector(self) -> bool:
        """Ask for a connection of its inspector."""
        return _call(self._line)

    def was_killed(self) -> bool:
        """Whether a signal has ended it: nobody knows."""
        return False

    def how_it_ended(self) -> str:
        """For messages."""
        return "has ended" if self.ended() else "is still running"

    def what_it_said(self) -> str:
        """It was up before."""
        return ""

    def _close(self) -> None:
        os.close(self._process)
        self._line.close()


def _call(line: socket.socket) -> bool:
    with suppress(OSError):  # it has ended, which is found out by others
        line.send(CALL)
    return True


def adopt_worker(pid: int, line: str) -> WorkerHandle:
    """Take over a worker of an earlier job manager. Raises OSError: it is not there."""
    return _AdoptedProcess(pid, line)


def is_at_work(pid: int, before: str | None) -> tuple[bool, str | None]:
    """Whether a process has used the processor since it had used so much, and how much it has used by now.

    A function in C that keeps Python's lock for long lets nobody send signs of life; it is no hang.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False, before
    used = f"{fields[11]!r} {fields[12]!r}"
    return fields[0] not in (b"T", b"t", b"Z") and used != before, used


def start_worker(config: WorkerConfig, path: Sequence[str] | None = None) -> WorkerHandle:
    """Start a worker in a new interpreter. Once it is up, what it prints goes where this process prints.

    It is in a process group of its own: Ctrl-C is for whoever started it.

    Args:
        config: what the worker is told.
        path: ``sys.path`` to import Sluiceway itself from, before that; None: the interpreter's own.
    """
    launched = launch(path)
    line = launched.line
    handle = _ChildProcess(launched.process, line)
    told = json.dumps(asdict(replace(config, parent=os.getpid(), stderr=launched.stderr))).encode() + b"\n"
    line.setblocking(True)
    with suppress(OSError):  # it has ended already; whoever waits for it to register finds out
        line.sendall(told)
    line.setblocking(False)
    return handle
