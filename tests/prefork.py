"""Workers forked from a process that has imported what a worker needs: no test pays for the imports.

Such a worker is what a started one is: an interpreter that has seen nothing of the program, a child of the test's
process, with the environment, directory and files that a child inherits. Only its imports are done, and workers
share the hash seed of the process that they were forked from; there are two of these processes.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

__all__ = ["HELD", "KEEPER", "Preforked"]

KEEPER = "keeps a process that forks workers"
"""Argument by which the children that this makes are known."""
HELD: set[str] = set()
"""What this holds open for the whole run, as the system names it."""

_KEEP = """
import os, sys
reader, writer = os.pipe()
line, file, *module = sys.argv[2:]
if not os.fork():
    os.setsid()
    os.set_inheritable(writer, True)
    os.execv(sys.executable, [sys.executable, file, ".".join(module), line])
os.close(writer)
os.close(int(line))
os.read(reader, 1)
"""
"""Program of the parent of a process that forks workers, which waits for its end."""

_PR_SET_CHILD_SUBREAPER = 36
_SEEDS = ("1", "2")
# What a forked process cannot take over: of these, `_inherited` of the launcher knows more than this needs.
_ENVIRONMENT, _DIRECTORY, _OUTPUTS = 2, 3, 5


class _Forked(subprocess.Popen[bytes]):
    """A process that this one has not started itself, and is the parent of all the same."""

    def __init__(self, pid: int, args: list[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode = None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._communication_started = False
        self._input = None


class Preforked:
    """Replacement for the function that starts interpreters for workers."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.start = pool._start
        self._lock = threading.Lock()
        self._servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._turn = 0
        self._like = self._settings()

    def close(self) -> None:
        """End the processes that fork workers."""
        for keeper, sock in self._servers:
            sock.close()
            keeper.wait()
        self._servers.clear()

    def __call__(self, *arguments: str, path: Any = None) -> Any:
        if path is not None:
            return self.start(*arguments, path=path)
        if self._settings() != self._like:
            return self.start(*arguments)  # what has changed is inherited only by a process that is started
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stderr = -1
        with suppress(OSError):
            stderr = os.dup(2)
        try:
            with theirs:
                pid = self._fork(theirs.fileno(), stderr, arguments)
        except BaseException:
            ours.close()
            raise
        finally:
            if stderr >= 0:
                os.close(stderr)
        args = [sys.executable, "-m", self._pool.MODULE, *arguments]
        return self._pool.Launched(_Forked(pid, args), ours, stderr)

    def _settings(self) -> Any:
        inherited = self._pool._inherited()
        if not isinstance(inherited, tuple):
            return inherited
        python = {k: v for k, v in os.environ.items() if k.startswith("PYTHON")}
        others = [x for i, x in enumerate(inherited) if i not in (_ENVIRONMENT, _DIRECTORY, _OUTPUTS)]
        return [self._pool.MODULE, python, others]

    def _fork(self, line: int, stderr: int, arguments: tuple[str, ...]) -> int:
        told = {
            "arguments": arguments,
            "stderr": stderr,
            "environment": dict(os.environ),
            "directory": os.getcwd(),
        }
        files = [line, 1] + ([stderr] if stderr >= 0 else [])
        with self._lock:
            if not self._servers:
                self._servers = [_start_server(self._pool.MODULE, seed) for seed in _SEEDS]
            self._turn = (self._turn + 1) % len(self._servers)
            server = self._servers[self._turn][1]
            # Whoever has forked the worker ends, and this process becomes the parent.
            _adopt(True)
            try:
                text = json.dumps(told).encode()
                server.sendmsg(
                    [len(text).to_bytes(4, "big")],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))],
                )
                server.sendall(text)
                answer = server.recv(8, socket.MSG_WAITALL)
            finally:
                _adopt(False)
        if len(answer) < 8:
            raise OSError("the process that forks workers has ended")
        return int.from_bytes(answer, "big")


def _adopt(on: bool) -> None:
    """Become the parent of processes below this one whose parent ends, or no more."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _start_server(module: str, seed: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that forks workers until the socket is closed.

    It is a grandchild: tests take every child of theirs that looks like a worker for one. Its parent never looks
    like one, not even while it starts.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        keeper = subprocess.Popen(
            [sys.executable, "-S", "-c", _KEEP, KEEPER, str(theirs.fileno()), __file__, *module.split(".")],
            pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    HELD.add(os.readlink(f"/proc/self/fd/{ours.fileno()}"))
    return keeper, ours


def _serve(module: str, asked: socket.socket) -> None:
    del sys.path[0]
    for name in import_module(module)._NEEDED:
        with suppress(ImportError):
            import_module(name)
    del sys.modules[module]
    gc.collect()
    gc.freeze()
    while True:
        head, files, *_ = socket.recv_fds(asked, 4, 3)
        if not head:
            return
        told = json.loads(asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(writer, pid.to_bytes(8, "big"))
                os._exit(0)
            asked.close()
            os.close(reader)
            os.close(writer)
            _become_worker(module, told, files)
            return
        os.close(writer)
        os.waitpid(between, 0)
        answer = os.read(reader, 8)
        for number in (reader, *files):
            os.close(number)
        asked.sendall(answer)


def _become_worker(module: str, told: dict[str, Any], files: list[int]) -> None:
    """Be what ``python -m MODULE`` is, with what the process that asked hands down."""
    os.setpgid(0, 0)
    line, output, *rest = files
    # None of the new numbers is one of the old ones, which are closed then.
    kept = [os.dup2(number, 200 + i) for i, number in enumerate((line, line, output, *rest))]
    os.closerange(3, 200)
    os.dup2(kept[0], 0)
    os.dup2(kept[1], 2)
    os.dup2(kept[2], 1)
    if rest:
        os.dup2(kept[3], told["stderr"])
    for number in kept:
        if number != told["stderr"]:
            os.close(number)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["directory"])
    sys.path.insert(0, told["directory"])
    sys.argv[1:] = told["arguments"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
