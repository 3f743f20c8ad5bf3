"""Local directories that are removed when unused, also after their process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Final

from sluiceway.errors import StateError
from sluiceway.util.private_files import make_private_directory

__all__ = ["Place", "new_place"]

_PREFIX: Final = "sluiceway-rocksdb-"
_NEW: Final = ".new-"
_TRIES: Final = 20
_LOCK: Final = "owner.lock"

_guard = threading.Lock()
_left: deque[tuple[_Root, str]] = deque()
"""By whom places were left whose roots have not taken notice yet."""


class _Root:
    """Directory of this process below the configured one, held by a lock that ends with the process."""

    def __init__(self, directory: str) -> None:
        self.pid = os.getpid()
        self.places = 0
        self.made = 0
        for left in reversed(range(_TRIES)):
            try:
                self.path, self._lock = _locked(directory)
                return
            except (BlockingIOError, FileNotFoundError):
                # Another process has taken it for that of one that was killed, before it was locked.
                if not left:
                    raise

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(directory: str) -> tuple[str, int]:
    """Make a directory, and return its path and the descriptor of its lock.

    Raises:
        BlockingIOError: another process is removing it.
        FileNotFoundError: another process has removed it.
        OSError: there can be none.
    """
    # The final name shows that it is locked. Before that it may be removed at any time.
    hidden = tempfile.mkdtemp(prefix=_NEW + _PREFIX, dir=directory)
    lock = os.open(os.path.join(hidden, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = os.path.join(directory, os.path.basename(hidden).removeprefix(_NEW))
        os.rename(hidden, path)
    except OSError:
        os.close(lock)
        raise
    return path, lock


_roots: dict[str, _Root] = {}


class Place:
    """Local directory, removed by :meth:`remove` or when this object is collected.

    Attributes:
        path: of the directory, which is not there yet.
    """

    def __init__(self, root: _Root, key: str, kind: str) -> None:
        root.places += 1
        root.made += 1
        self.path = os.path.join(root.path, f"{kind}-{root.made}")
        self._finalizer = weakref.finalize(self, _remove, root, key, self.path)

    def remove(self) -> None:
        """Remove it. Harmless a second time."""
        self._finalizer()


def new_place(directory: str, kind: str) -> Place:
    """Return a new directory of this process, on the same file system as all others below ``directory``.

    Raises:
        StateError: there can be none.
    """
    with _guard:
        root = _roots.get(directory)
        if root is None or root.pid != os.getpid():
            try:
                make_private_directory(directory)
                _sweep(directory)
                root = _roots[directory] = _Root(directory)
            except OSError as error:
                raise StateError(
                    f"state backend 'rocksdb' cannot use the directory {directory}: {error.strerror or error}. "
                    "Set SLUICEWAY_ROCKSDB_DIRECTORY to another one"
                ) from error
        place = Place(root, directory, kind)
    _leave()
    return place


def _remove(root: _Root, key: str, path: str) -> None:
    if root.pid != os.getpid():
        return  # a forked child; these are its parent's
    shutil.rmtree(path, ignore_errors=True)
    _left.append((root, key))
    _leave()


def _leave() -> None:
    """Remove the roots without directories; if the lock is taken, its holder removes them.

    Nobody waits for the lock here: garbage is collected at any time, also in the thread that holds it.
    """
    while _left and _guard.acquire(blocking=False):
        try:
            while _left:
                root, key = _left.popleft()
                if root.pid != os.getpid():
                    continue  # a forked child, in which it was left before
                root.places -= 1
                if not root.places:
                    root.remove()
                    if _roots.get(key) is root:
                        del _roots[key]
        finally:
            _guard.release()


def _sweep(directory: str) -> None:
    """Remove the directories of processes that were killed, whose locks are free."""
    for name in os.listdir(directory):
        if not name.removeprefix(_NEW).startswith(_PREFIX):
            continue
        path = os.path.join(directory, name)
        try:
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            if name.startswith(_NEW):
                # Its process was killed before it made the lock; if it lives, it makes another directory.
                with suppress(OSError):
                    os.rmdir(path)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)
