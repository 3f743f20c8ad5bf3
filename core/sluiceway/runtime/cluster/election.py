"""Leader election by a lock on the job store.

The leader holds the lock of a file until its process ends. The kernel releases it then, however the process ended,
and not before: a suspended leader keeps it, so no leader loses the lock by being slow. A standby that has waited
long enough for a silent leader kills it, which works on suspended processes, too. A leader that resumes has led
all the time; a deposed one is dead.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
import weakref
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.election import Leader, LeaderElection
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.util.durable_files import write_file

__all__ = ["FileLeaderElection", "epoch_of"]

LOCK: Final = "lock"
EPOCH: Final = "epoch"
_NO_EPOCH: Final = 1 << 53
"""Number that no count of leaders reaches, and that control messages can hold."""
_KILL_S: Final = 5.0

_HELD: Final[weakref.WeakSet[FileIO]] = weakref.WeakSet()


def _let_go() -> None:
    """Close inherited locks: a forked child shares them, and would keep them after the leader's death."""
    for file in list(_HELD):
        file.close()


os.register_at_fork(after_in_child=_let_go)


class _Told(msgspec.Struct):
    """Content of the lock file. ``began`` is the start time of the process, as process ids are reused."""

    pid: int
    began: int
    epoch: int
    address: str = ""


class FileLeaderElection(LeaderElection):
    """Election on one machine, by ``flock``.

    Args:
        directory: directory of the job store; only its user may write there.
        least: the lowest epoch that this candidate may have.
    """

    def __init__(self, directory: Path, least: int = 1) -> None:
        self._directory = directory
        self._path = directory / LOCK
        self._least = least
        self._file: FileIO | None = None
        self._epoch = 0
        self._lost = False

    @property
    def epoch(self) -> int:
        """Epoch of this candidate's leadership, from 1; 0 if it does not lead."""
        return self._epoch

    def campaign(self) -> bool:
        """Take the lock if it is free, and the next epoch, which is on disk before this returns."""
        if self._file is not None or self._lost:
            return self.is_leader()
        file = self._take()
        if file is None:
            return False
        try:
            epoch = max(self._least, self._stored_epoch() + 1)
            # On disk before anybody is led: after a crash, no later leader has this epoch again.
            write_file(self._directory / EPOCH, f"{epoch}\n".encode())
            self._tell(file, epoch, "")
        except BaseException:
            file.close()
            raise
        self._file, self._epoch = file, epoch
        return True

    def is_leader(self) -> bool:
        """Return whether the lock is held on the file that others would lock.

        If the file was removed, this process locks a new one, unless another process has led by it.
        """
        if self._file is None or self._lost:
            return False
        if _is_at(self._path, self._file):
            return True
        with suppress(OSError):
            file = self._take()
            if file is not None:
                if self._stored_epoch() <= self._epoch:
                    self._file.close()
                    self._file = file
                    self._tell(file, self._epoch, "")
                    return True
                file.close()
        self.close()
        return False

    def announce(self, address: str) -> None:
        """Write the leader's address to the lock file."""
        if self._file is not None:
            self._tell(self._file, self._epoch, address)

    def leader(self) -> Leader | None:
        """Return the leader named in the lock file."""
        told = self._told()
        return None if told is None else Leader(told.pid, told.epoch, told.address)

    def depose(self) -> bool:
        """Kill the process that holds the lock, if the file names one that is still the same process."""
        told = self._told()
        if told is None or told.pid == os.getpid():
            return False
        try:
            # Opened before the start time is compared: whoever has the id then is the process that is killed.
            process = os.pidfd_open(told.pid)
        except OSError:
            return False
        try:
            if _began(told.pid) != told.began:
                return False
            log(WARNING, "jobs", f"killed job manager {told.pid}: it sends no heartbeat")
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return bool(select.select([process], [], [], _KILL_S)[0])
        except OSError:
            return False
        finally:
            os.close(process)

    def close(self) -> None:
        """Release the lock."""
        self._lost = True
        if self._file is not None:
            self._file.close()

    def _take(self) -> FileIO | None:
        # Not truncated: the content is the leader's until this process holds the lock.
        file = FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        if not _is_at(self._path, file):  # it was removed after it was opened
            file.close()
            return None
        _HELD.add(file)
        return file

    def _tell(self, file: FileIO, epoch: int, address: str) -> None:
        pid = os.getpid()
        data = msgspec.json.encode(_Told(pid, _began(pid), epoch, address)) + b"\n"
        # In place: a file that replaced this one would not have the lock. A reader that sees half of it finds no
        # leader.
        os.pwrite(file.fileno(), data, 0)
        os.ftruncate(file.fileno(), len(data))

    def _told(self) -> _Told | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Told)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _stored_epoch(self) -> int:
        try:
            return epoch_of(self._directory / EPOCH)
        except FileNotFoundError:
            return 0
        except ValueError:  # damaged: seconds since 1970 exceed any earlier epoch
            return int(time.time())


def epoch_of(file: Path) -> int:
    """Return the epoch in a file. Raises OSError, and ValueError for what is no epoch."""
    epoch = int(file.read_text())
    if not 0 <= epoch < _NO_EPOCH:
        raise ValueError(f"{epoch} is no epoch")
    return epoch


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        there, here = os.stat(path), os.fstat(file.fileno())
    except (OSError, ValueError):
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _began(pid: int) -> int:
    """Start time of a process, in ticks since the machine was started; 0: not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
