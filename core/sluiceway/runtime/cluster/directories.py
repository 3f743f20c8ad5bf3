"""The directory of a cluster: locked as long as its job manager lives, and removed by others when that is dead.

A job manager that ends removes its directory, and workers that outlive it do it in its place. Where all of them
were killed at once nobody is left to; then whoever starts the next cluster finds the directory without a lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

__all__ = ["lock_directory", "make_directory", "remove_dead"]

PREFIX: Final = "sluiceway-"
LOCK: Final = "lock"
_UNLOCKED_S: Final = 300.0
"""A directory without a lock file belongs to a cluster that is being started, unless it is older than that."""


def make_directory() -> Path:
    """A new directory that nobody else may enter."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def lock_directory(directory: Path) -> FileIO:
    """Hold the lock of a directory until the file is closed, or this process ends, however it does."""
    file = FileIO(directory / LOCK, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def remove_dead(place: Path) -> list[Path]:
    """Remove the directories of this user's clusters that are dead; which they were.

    Args:
        place: where such directories are made.
    """
    removed = []
    for directory in place.glob(PREFIX + "*"):
        with suppress(OSError):  # somebody else's, or removed by now
            told = directory.lstat()
            if stat.S_ISDIR(told.st_mode) and told.st_uid == os.getuid() and _is_dead(directory, told.st_mtime):
                shutil.rmtree(directory, ignore_errors=True)
                removed.append(directory)
    return removed


def _is_dead(directory: Path, changed: float) -> bool:
    try:
        file = FileIO(directory / LOCK, "r")
    except FileNotFoundError:
        # Something else may be called like that: only what has nothing of ours in it counts as a leftover of ours.
        return time.time() - changed > _UNLOCKED_S and not any(directory.iterdir())
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
