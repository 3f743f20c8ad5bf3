"""The directory of a cluster: locked as long as its job manager lives, and removed by others when that is dead.

A job manager that ends removes its directory, and workers that outlive it do it in its place. Where all of them
were killed at once nobody is left to; then whoever starts the next cluster finds the directory without a lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from sluiceway.util.private_files import private_opener

__all__ = [
    "held_directory",
    "is_alive",
    "is_awaited",
    "is_stood_by",
    "lock_directory",
    "make_directory",
    "place_of_directories",
    "remove_dead",
    "remove_if_dead",
    "stand_by",
    "stay",
    "worker_numbers",
]

PREFIX: Final = "sluiceway-"
LOCK: Final = "lock"
WAITING: Final = "waiting"
STANDBY: Final = "standby"
_UNLOCKED_S: Final = 300.0
"""Age in seconds up to which a directory without a lock file belongs to a cluster that is being started."""

_LONGEST_PLACE: Final = 107 - len(f"/{PREFIX}12345678/worker-99999.line")
"""Bytes of the path beside which the longest name of a socket has room; 107 is the most that Linux takes."""


def place_of_directories() -> Path:
    """Return the parent of clusters' directories: that for temporary files, or ``/tmp`` if its path is too long.

    The sockets of a job manager and of its workers are files in there, and Unix limits the length of their paths.
    """
    place = tempfile.gettempdir()
    return Path("/tmp" if len(os.fsencode(place)) > _LONGEST_PLACE and os.access("/tmp", os.W_OK) else place)


def make_directory() -> Path:
    """Create and return a directory that no other user may enter."""
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place_of_directories()))


@contextmanager
def held_directory() -> Iterator[Path]:
    """Create and lock a directory, and remove it at the end; before that, remove those of dead processes."""
    remove_dead(place_of_directories())
    # What a signal raises between the creation and the try would leave the directory.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        directory = make_directory()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # One without a lock counts as that of a dead process, and is removed by the next process that starts.
        with lock_directory(directory):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def lock_directory(directory: Path) -> FileIO:
    """Lock a directory until the returned file is closed or this process ends, however it does.

    Raises:
        BlockingIOError: another job manager holds the lock, or another process is testing it at this moment.
    """
    lock = directory / LOCK
    if lock.exists():
        return _open_locked(lock, "w")
    # A lock file that exists and is not locked means that its job manager is dead, and any process that finds it
    # removes the directory. So the file gets its name only once it is locked.
    unnamed = directory / f"{LOCK}.{secrets.token_hex(8)}"
    file = _open_locked(unnamed, "x")
    try:
        os.link(unnamed, lock)
    except FileExistsError as error:
        file.close()
        raise BlockingIOError(errno.EAGAIN, f"another job manager has just locked {directory}") from error
    except BaseException:
        file.close()
        raise
    finally:
        unnamed.unlink(missing_ok=True)
    return file


def _open_locked(path: Path, mode: str) -> FileIO:
    file = FileIO(path, mode, opener=private_opener)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def stay(directory: Path) -> FileIO:
    """Keep the directory until the result is closed; for workers that wait for a job manager, and for its start.

    Raises:
        OSError: the directory was removed.
    """
    file = FileIO(directory / WAITING, "w", opener=private_opener)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        # Removed, and perhaps made again, between opening and locking.
        if os.stat(directory / WAITING).st_ino != os.fstat(file.fileno()).st_ino:
            raise FileNotFoundError(f"{directory} was removed")
    except BaseException:
        file.close()
        raise
    return file


def is_awaited(directory: Path) -> bool:
    """Return whether the job manager of a directory is gone and workers wait there for another one."""
    with suppress(OSError):
        return not _is_locked(directory / LOCK) and _is_locked(directory / WAITING)
    return False


def stand_by(directory: Path) -> list[FileIO]:
    """Keep the directory for a standby, and show clients that it exists, until all files are closed.

    Raises:
        OSError: the directory was removed.
    """
    held = [stay(directory)]
    try:
        held.append(FileIO(directory / STANDBY, "w", opener=private_opener))
        fcntl.flock(held[-1], fcntl.LOCK_SH)
    except BaseException:
        for file in held:
            file.close()
        raise
    return held


def is_stood_by(directory: Path) -> bool:
    """Return whether a directory has a standby, or one that is about to lead."""
    with suppress(OSError):
        return _is_locked(directory / STANDBY)
    return False


def is_alive(directory: Path) -> bool:
    """Return whether a directory has a leader, a standby, or workers that wait for one."""
    return any(_is_held(directory / name) for name in (LOCK, STANDBY, WAITING))


def _is_held(path: Path) -> bool:
    with suppress(OSError):
        return _is_locked(path)
    return False


def worker_numbers(directory: Path) -> list[int]:
    """Return the numbers of workers that have, or had, files in a directory: for ``worker-7``, 7."""
    matches = (re.match(r"worker-(\d+)\b", path.name) for path in directory.glob("worker-*"))
    return [int(match[1]) for match in matches if match]


def remove_if_dead(directory: Path) -> bool:
    """Remove a directory without a job manager and workers; return whether it was one."""
    held = []
    try:
        # Both are held during the removal, so that nobody begins to wait or to lead in the directory.
        for name in (WAITING, LOCK):
            with suppress(FileNotFoundError):
                held.append(FileIO(directory / name, "r"))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        return False
    else:
        return True
    finally:
        for file in held:
            file.close()


def _is_locked(path: Path) -> bool:
    try:
        file = FileIO(path, "r")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def remove_dead(place: Path) -> list[Path]:
    """Remove the directories of this user's dead clusters; return their paths.

    Args:
        place: parent of such directories.
    """
    removed = []
    for directory in place.glob(PREFIX + "*"):
        with suppress(OSError):  # another user's, or removed by now
            told = directory.lstat()
            mine = stat.S_ISDIR(told.st_mode) and told.st_uid == os.getuid()
            if mine and _may_be_dead(directory, told.st_mtime) and remove_if_dead(directory):
                removed.append(directory)
    return removed


def _may_be_dead(directory: Path, changed: float) -> bool:
    if (directory / LOCK).exists():
        return True
    # Other programs may use such names: only a directory without files of others counts as ours.
    return time.time() - changed > _UNLOCKED_S and not any(directory.iterdir())
