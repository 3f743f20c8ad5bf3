"""Whether workers of an earlier job manager still live: as long as they may, no job of theirs is begun again.

A worker holds the lock of a file of its own until its process ends, however it does. So nobody has to be believed:
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
    """In a worker: lock its file and write down which process it is. Held until the process ends."""
    held = FileIO(file, "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    held.write(f"{os.getpid()}\n".encode())
    return held


class EpochFence:
    """The workers of earlier job managers.

    Args:
        directory: where workers have their files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = uuid.uuid4().hex

    def file(self, worker: str) -> Path:
        """The file of a worker of this job manager."""
        return self._directory / f"{self._own}-{worker}{_SUFFIX}"

    def alive(self) -> list[int]:
        """The process ids of those that live, 0 where it is not known yet; the files of the others are removed."""
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
        """The numbers of workers of earlier job managers that may live: of ``worker-7`` it is 7."""
        names = (file.name.removesuffix(_SUFFIX) for file in self._directory.glob(f"*-worker-*{_SUFFIX}"))
        return [int(number) for name in names if (number := name.rpartition("-")[2]).isdecimal()]

    def end(self, which: Collection[int]) -> None:
        """End those of them that still live."""
        for pid in filter(None, set(which).intersection(self.alive())):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _held_by(file: Path) -> int | None:
    """The process that holds a file's lock, 0 if it has not said yet; None: nobody does."""
    try:
        with FileIO(file, "r") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                said = opened.readall().split()
                pid = int(said[0]) if said and said[0].isdigit() and len(said[0]) <= _DIGITS else 0
                # What has inherited the file from a worker that has ended is no worker.
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
