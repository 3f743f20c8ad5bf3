"""Local directories that are removed when unused, also after their process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from typing import Final

from sluiceway.errors import StateError
from sluiceway.util.private_files import make_private_directory

__all__ = ["Place", "new_place"]

_PREFIX: Final = "sluiceway-rocksdb-"
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
        # It gets its name when the lock is held: else another process might find it unlocked, and remove it.
        hidden = tempfile.mkdtemp(prefix=f".new-{_PREFIX}", dir=directory)
        self._lock = os.open(os.path.join(hidden, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = os.path.join(directory, os.path.basename(hidden).removeprefix(".new-"))
        os.rename(hidden, self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


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
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(directory, name)
        try:
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not ours, or just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)
