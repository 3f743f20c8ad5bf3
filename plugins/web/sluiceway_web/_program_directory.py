"""Private directory of uploaded programs, which a later server removes if its own was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["ProgramDirectory", "remove_abandoned"]

_PREFIX: Final = "sluiceway-programs-"
_LOCK: Final = "server.lock"


class ProgramDirectory:
    """Directory for this user alone, held by a lock that ends with the process.

    Attributes:
        path: of the directory.
    """

    def __init__(self) -> None:
        # It gets its name when the lock is held: else another server might find it unlocked, and remove it.
        hidden = Path(tempfile.mkdtemp(prefix=f".new-{_PREFIX}"))
        self._lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = hidden.rename(hidden.with_name(hidden.name.removeprefix(".new-")))

    def remove(self) -> None:
        """Remove the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the directories of servers that were killed, whose locks are free."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its server lives
        finally:
            os.close(lock)
