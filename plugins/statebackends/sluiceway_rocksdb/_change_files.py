"""Change files: one change record per checkpoint, on top of the database of an earlier checkpoint.

To encode a thousand objects in one go takes a fraction of the time of a thousand rows of a database. So a
checkpoint is, as a rule, the directory of an earlier one, and a file for each that came after it. When these
files have become too many or too large, the next one is a directory again.

The database need not have anything: then the first file has everything.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from sluiceway.errors import StateError
from sluiceway.state import NativeFile
from sluiceway.util.private_files import make_private_directory, private_opener
from sluiceway_rocksdb._local_directories import Place, new_place

__all__ = ["ChangeFiles", "is_of_log"]

_NAME: Final = "changes-"
_FEW: Final = 20_000
"""So many objects may be in the files, however few there are in memory."""
_TIMES_OF_ROWS: Final = 8
"""Else they may have so many times the objects that would have to become rows of the database."""
_TIMES_OF_OBJECTS: Final = 2
"""The same where there is no database: these would be in a file again, which takes less time."""
_SMALL: Final = 1_000
"""So many objects are written anew each time, if that is all there is: rather one file than many small ones."""


def is_of_log(name: str) -> bool:
    """Return whether a file of a snapshot is a change file. They apply in the order of their names."""
    return name.startswith(_NAME)


class ChangeFiles:
    """Change files of a subtask, and the database below them.

    Args:
        directory: of all databases.
        base: the database, before any of the changes; None: there was nothing in it.

    Attributes:
        files: all of them, in order.
    """

    def __init__(self, directory: str, base: Place | None) -> None:
        self.base = base
        self.files: tuple[NativeFile, ...] = ()
        self._directory = directory
        self._id = secrets.token_hex(8)
        self._place: Place | None = None
        self._count = 0

    def takes(self, changed: int, dirty: int, most: int) -> bool:
        """Return whether another change file is cheaper than a new database snapshot.

        Args:
            changed: number of objects in it.
            dirty: number of those that would have to be written instead.
            most: number of files.
        """
        if self.base is None and dirty <= _SMALL:
            return False
        times = _TIMES_OF_OBJECTS if self.base is None else _TIMES_OF_ROWS
        return len(self.files) < most and self._count + changed <= max(times * dirty, _FEW)

    def append(self, data: bytes, count: int) -> None:
        """Write a file with so many objects. Raises StateError."""
        if self._place is None:
            self._place = new_place(self._directory, "changes")
        name = f"{_NAME}{len(self.files):06}"
        path = self.path(name)
        try:
            make_private_directory(self._place.path)
            with open(path, "wb", opener=private_opener) as file:
                file.write(data)
        except OSError as error:
            raise StateError(
                f"state backend 'rocksdb' cannot write changes to {path}: {error.strerror or error}"
            ) from error
        self.files = (*self.files, NativeFile(name, len(data), f"{self._id}-{name}"))
        self._count += count

    def read(self, name: str) -> bytes:
        """Return the content of a change file. Raises StateError."""
        path = self.path(name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise StateError(
                f"state backend 'rocksdb' cannot read changes from {path}: {error.strerror or error}"
            ) from error

    def path(self, name: str) -> str:
        """Return the path of a file."""
        place = self._place if is_of_log(name) else self.base
        assert place is not None
        return os.path.join(place.path, name)
