"""Fence against workers of earlier job managers: while one may live, none of its jobs is restarted.

A worker holds the lock of its own file until its process ends, however it ends. So no report has to be trusted:
a job manager that finds a lock waits, and ends the process if that takes too long.
"""

from __future__ import annotations

import fcntl
import os
import signal
import uuid
from collections.abc import Collection
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

__all__ = ["EpochFence", "hold"]

_SUFFIX: Final = ".lock"
_DIGITS: Final = 10


def hold(file: str) -> FileIO:
    """Lock a worker's file and write its process id into it. Held until the process ends."""
    held = FileIO(file, "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    held.write(f"{os.getpid()}\n".encode())
    return held


class EpochFence:
    """Fence of one job manager against the workers of earlier ones.

    Args:
        directory: directory of the workers' files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = uuid.uuid4().hex

    def file(self, worker: str) -> Path:
        """Return the file of a worker of this job manager."""
        return self._directory / f"{self._own}-{worker}{_SUFFIX}"

    def alive(self) -> list[int]:
        """Return the process ids of live workers, 0 if not known yet; remove the files of the others."""
        found = []
        for file in self._directory.glob(f"*{_SUFFIX}"):
            if not file.name.startswith(self._own):
                pid = _held_by(file)
                if pid is None:
                    file.unlink(missing_ok=True)
                else:
                    found.append(pid)
        return found

    def worker_numbers(self) -> list[int]:
        """Return the numbers of live workers of earlier job managers: for ``worker-7``, 7."""
        names = (file.name.removesuffix(_SUFFIX) for file in self._directory.glob(f"*-worker-*{_SUFFIX}"))
        return [int(number) for name in names if (number := name.rpartition("-")[2]).isdecimal()]

    def end(self, which: Collection[int]) -> None:
        """Kill those of ``which`` that still live."""
        for pid in filter(None, set(which).intersection(self.alive())):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _held_by(file: Path) -> int | None:
    """Return the process that holds a file's lock, 0 if not written yet; None: no process."""
    try:
        with FileIO(file, "r") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                said = opened.readall().split()
                pid = int(said[0]) if said and said[0].isdigit() and len(said[0]) <= _DIGITS else 0
                # A process that has inherited the file from an ended worker is no worker.
                return pid if not pid or _lives(pid) else None
            return None
    except FileNotFoundError:
        return None


def _lives(pid: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return told.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
