"""Contract of checkpoint storages: files that are written whole, read, listed and deleted.

A storage keeps files under one location and knows nothing of what is in them. What the files of a checkpoint
are, when it is complete and what may be deleted is built once over any storage, in ``sluiceway.checkpoint``.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluiceway.errors import CheckpointError

__all__ = ["CheckpointStorage", "StoredFile", "check_name"]

_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it.

    Attributes:
        name: relative to the storage's location, parts separated by ``/``.
        size: in bytes.
        modified_ms: when it was written here, ms since the epoch by the storage's own clock, also if it was put
            from a local file that is older; 0 where that is not known.
    """

    name: str
    size: int
    modified_ms: int


class CheckpointStorage(ABC):
    """Files under one location.

    Every process of a job has a storage of its own over the same location: it can be pickled, and its methods
    may be called from any thread. They may block; the runtime calls them from helper threads. Names are
    relative, their parts separated by ``/``, none of them empty, ``.`` or ``..`` (:func:`check_name`).

    All methods raise CheckpointError, which names the file, where the place cannot be read or written.

    Attributes:
        location: the path or URL.
    """

    location: str

    @abstractmethod
    def write(self, name: str, parts: Iterable[bytes]) -> int:
        """Write a file, durably and all at once; one of that name is replaced. Returns its size.

        Whoever reads meanwhile finds the old file or the new one, or none, never a part of it. If this raises,
        or the process dies, nothing goes by that name that did not before. What such an end leaves behind is shown
        by :meth:`files`, under another name.

        Args:
            name: directories that it needs are made.
            parts: the content, piece by piece; what iterating raises goes through.
        """

    def create(self, name: str, parts: Iterable[bytes]) -> bool:
        """Write a file, as :meth:`write` does, unless there is one of that name: that one stays as it is.

        What is done here looks whether there is one and then writes. A storage that can do it in one step does: of
        those that create the same file at the same time, in whatever processes, one alone is told that it did.

        Returns:
            whether it was written.
        """
        try:
            self.read(name, 0, 0)
        except CheckpointError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self.write(name, parts)
            return True
        return False

    @abstractmethod
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read a file, or ``size`` bytes of it from ``offset``; fewer where it ends before.

        Raises:
            CheckpointError: also if there is no such file, with FileNotFoundError as its cause.
        """

    @abstractmethod
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        """Return all files in a directory and below it, in no order; none if there is no such directory."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are no error. Directories that become empty may go, too."""

    def delete_directory(self, directory: str) -> None:
        """Delete all files in a directory and below it, and the directory itself where the storage has such.

        Files that are written there meanwhile may go, too.
        """
        self.delete([file.name for file in self.files(directory)])

    def put_file(self, name: str, path: str) -> int:
        """Write a local file, which never changes again, under a name. Returns its size.

        A storage on the same disk may share it instead of copying it.
        """
        return self.write(name, _parts_of(path))

    def fetch_file(self, name: str, path: str) -> None:
        """Make a local file of a stored one; neither will be changed.

        A storage on the same disk may share it instead of copying it.

        Raises:
            CheckpointError: also if there is no such file.
            OSError: the local file cannot be written.
        """
        offset = 0
        with open(path, "wb") as target:
            while part := self.read(name, offset, _PART):
                target.write(part)
                offset += len(part)

    def check(self) -> None:
        """Write a small file and delete it, so that a place that cannot be used is refused before a job runs.

        Raises:
            CheckpointError: the place cannot be written; says why and what to do.
        """
        name = f"probe-{secrets.token_hex(6)}"
        try:
            self.write(name, [b"Written to see whether checkpoints can be kept here; it may be deleted.\n"])
            self.delete([name])
        except CheckpointError as error:
            raise CheckpointError(
                f"checkpoints cannot be kept in {self.location}: {error}. Name a directory, or a URL, that this"
                " process may write, or correct what is in the way"
            ) from error

    def other_writers(self, name: str) -> str | None:
        """Return who else than this user may have written a file, for messages, as "it belongs to user ann".

        Returns:
            empty: nobody; None: the storage cannot know.
        """
        return None

    def distrust(self, name: str) -> bool:
        """Drop cached copies of a file whose content was found damaged.

        Returns:
            whether there was anything: then it is worth while to read again.
        """
        return False

    def shown(self, name: str) -> str:
        """Return the name of a file for messages."""
        return f"{self.location.rstrip('/')}/{name}"


def check_name(name: str) -> str:
    """Return a name of a stored file as it is. Raises CheckpointError if it would lead out of the location."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise CheckpointError(f"{name!r} is no name of a file of a checkpoint: it would lead out of its place")
    return name


def _parts_of(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(_PART):
            yield part
