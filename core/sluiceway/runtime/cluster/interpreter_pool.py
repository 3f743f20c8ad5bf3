"""Interpreters for workers, started on demand, or ahead if it is clear that workers will be needed.

A worker takes as long to import the engine as the program takes to define its job. Started ahead, both do
so at the same time. Such an interpreter imports modules of the engine, waits for the configuration of its worker,
and is then like any other: a fresh process without state of the program. If the program has meanwhile
changed what its children inherit, such as the environment or the working directory, it is not used.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.util.engine_processes import engine_command

__all__ = ["AHEAD", "WAITS_S", "Launched", "ahead", "launch"]

MODULE: Final = "sluiceway.entrypoint.worker"
AHEAD: Final = "ahead"
"""Argument of an interpreter that is started ahead."""
WAITS_S: Final = 60.0
"""Seconds that it waits for its configuration before it ends, as no worker is needed after all."""

# Well below that time: it must not end while its configuration is on the way.
_STALE_S: Final = WAITS_S / 2

_waiting: list[tuple[Launched, float, Any]] = []


@dataclass(frozen=True, slots=True)
class Launched:
    """Interpreter without the configuration of a worker yet.

    Attributes:
        process: the process.
        line: this end of the line to it.
        stderr: file descriptor, in that process, of its later standard error; -1: none.
    """

    process: subprocess.Popen[bytes]
    line: socket.socket
    stderr: int

    def discard(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.line.close()


def launch(path: Sequence[str] | None = None) -> Launched:
    """Return an interpreter that was started ahead, or else start one.

    It has its own process group: Ctrl-C is for the process that started it.

    Args:
        path: ``sys.path`` to import Sluiceway itself from; None: the interpreter's own.
    """
    # One that was started ahead has imported Sluiceway from its own path.
    if path is not None:
        return _start(path=path)
    while _waiting:
        launched, since, inherited = _waiting.pop()
        stale = time.monotonic() - since > _STALE_S or launched.process.poll() is not None
        if not stale and inherited == _inherited():
            return launched
        launched.discard()
    return _start()


@contextmanager
def ahead(workers: int) -> Iterator[None]:
    """Start interpreters for workers that will be needed within this context.

    Unused ones end with it.
    """
    # On other systems, what children inherit is not known.
    with suppress(OSError):  # the start of the worker reports the error
        for _ in range(min(workers, os.cpu_count() or 1) if sys.platform == "linux" else 0):
            _waiting.append((_start(AHEAD), time.monotonic(), _inherited()))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop()[0].discard()


def _start(*arguments: str, path: Sequence[str] | None = None) -> Launched:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    stderr = -1
    with suppress(OSError):  # a process without standard error
        stderr = os.dup(2)
    try:
        with theirs:
            process = subprocess.Popen(
                engine_command(MODULE, *arguments, path=path),
                stdin=theirs.fileno(),
                stderr=theirs.fileno(),
                pass_fds=() if stderr < 0 else (stderr,),
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        if stderr >= 0:
            os.close(stderr)
    return Launched(process, ours, stderr)


def _inherited() -> Any:
    """Return the state that a child inherits from this process, as far as a program is likely to change it."""
    try:
        with open("/proc/self/status") as status:
            umask = [line for line in status if line.startswith("Umask:")]
        outputs = [(at.st_dev, at.st_ino) for at in map(os.fstat, (1, 2))]
        return (
            os.getpid(),
            sys.executable,
            dict(os.environ),
            os.getcwd(),
            umask,
            outputs,
            (os.getresuid(), os.getresgid(), os.getgroups()),
            os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getaffinity(0),
            [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
            [each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN],
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )
    except OSError:
        return object()  # equal to nothing: unknown state may have changed
