"""Interpreters for workers, started when a worker is wanted, or ahead: as soon as it is clear that one will be.

A worker takes as long to import the engine as the program that wants it takes to get there. Started ahead, both do
so at the same time. Such an interpreter imports modules of the engine, waits for the configuration of its worker,
and is then like any other: a fresh process, which has seen nothing of the program. If the program has meanwhile
changed what its children inherit, such as the environment or the working directory, it is not used.
"""

from __future__ import annotations

import json
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

__all__ = ["AHEAD", "WAITS_S", "Launched", "ahead", "launch"]

MODULE: Final = "sluiceway.entrypoint.worker"
AHEAD: Final = "ahead"
"""Argument of an interpreter that is started ahead."""
WAITS_S: Final = 60.0
"""How long it waits for its configuration before it ends: whoever started it wants no worker after all."""

# The path travels as an argument, not in PYTHONPATH, which programs started by users' functions would inherit.
_BY_PATH: Final = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    f"runpy.run_module({MODULE!r}, run_name='__main__', alter_sys=True)"
)

# Well before it ends: it must not do so while its configuration is on the way.
_STALE_S: Final = WAITS_S / 2

_waiting: list[tuple[Launched, float, Any]] = []


@dataclass(frozen=True, slots=True)
class Launched:
    """An interpreter that has not been told yet which worker it is.

    Attributes:
        process: the process.
        line: this end of the line to it.
        stderr: its file descriptor of what is to be its standard error; -1: there is none.
    """

    process: subprocess.Popen[bytes]
    line: socket.socket
    stderr: int

    def discard(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.line.close()


def launch(path: Sequence[str] | None = None) -> Launched:
    """Return an interpreter that was started ahead, or else start one.

    It is in a process group of its own: Ctrl-C is for whoever started it.

    Args:
        path: ``sys.path`` to import Sluiceway itself from; None: the interpreter's own.
    """
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
    """Start interpreters for workers that will be wanted within this context.

    Those that are not used end with it.
    """
    # Elsewhere it cannot be known what children inherit.
    with suppress(OSError):  # whoever wants the worker finds out
        for _ in range(min(workers, os.cpu_count() or 1) if sys.platform == "linux" else 0):
            _waiting.append((_start(AHEAD), time.monotonic(), _inherited()))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop()[0].discard()


def _start(*arguments: str, path: Sequence[str] | None = None) -> Launched:
    program = ["-m", MODULE, *arguments] if path is None else ["-c", _BY_PATH, json.dumps(list(path))]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    stderr = -1
    with suppress(OSError):  # a process without standard error
        stderr = os.dup(2)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *program],
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
    """What a child gets from this process beside its arguments, as far as a program is likely to change it."""
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
        return object()  # equal to nothing: what cannot be known may have changed
