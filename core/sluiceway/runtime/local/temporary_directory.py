"""Directory for the checkpoints of a job in one process that names no place for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from sluiceway.checkpoint_storage import StoredFile
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage

__all__ = ["TemporaryDirectory"]


class TemporaryDirectory(TemporaryStorage):
    """Storage in a directory of its own, made with the first file and removed by :meth:`close`.

    A job without a checkpoint interval writes its first file when it is rescaled; most write none. The directory
    is locked, by which other processes see that this one is alive.
    """

    def __init__(self) -> None:
        super().__init__("")
        self._directory: Path | None = None
        self._lock: FileIO | None = None

    def write(self, name: str, parts: Iterable[bytes]) -> int:
        """Write a file, in the directory, which is made if needed."""
        self._make()
        return super().write(name, parts)

    def put_file(self, name: str, path: str) -> int:
        """Link a file into the directory, which is made if needed."""
        self._make()
        return super().put_file(name, path)

    def files(self, directory: str = "") -> Iterator[StoredFile]:
        """Return all files; none before the first is written."""
        return iter(()) if self._lock is None else super().files(directory)

    def close(self) -> None:
        """Remove the directory. No call is under way, and none follows."""
        if self._directory is not None and self._lock is not None:
            # Removed while it is locked: without the lock, another process that starts would remove it at the same
            # time.
            shutil.rmtree(self._directory, ignore_errors=True)
            self._lock.close()

    def _make(self) -> None:
        if self._lock is not None:
            return
        # Imported here: jobs without checkpoints start without it.
        from sluiceway.runtime.cluster.cluster_directory import (
            lock_directory,
            make_directory,
            place_of_directories,
            remove_dead,
        )

        remove_dead(place_of_directories())
        self._directory = make_directory()
        self.location = str(self._directory / "checkpoints")
        self._lock = lock_directory(self._directory)
