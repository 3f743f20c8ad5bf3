"""Temporary storage for the checkpoints of jobs without a place for them: a directory deleted with the job."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile, check_name
from sluiceway.errors import CheckpointError
from sluiceway.util.overriding import override
from sluiceway.util.private_files import private_opener

__all__ = ["TemporaryStorage"]

T = TypeVar("T")

_PART: Final = ".part"
"""End of the name of an incomplete file."""

_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
"""Errors of hard links: another disk, no support for them, or too many of this file."""


class TemporaryStorage(CheckpointStorage):
    """Storage below a directory, which is created with the first file.

    Files become visible atomically, but are not synced to disk: after a power cut the job is lost, and
    they are useless.

    Args:
        directory: directory of the files; the creator of the storage removes it.
    """

    def __init__(self, directory: str) -> None:
        self.location = directory

    @override
    def write(self, name: str, parts: Iterable[bytes]) -> int:
        path = self._path(name)
        with self._failing("write", name):
            return self._placed(path, lambda partial: _write(partial, parts))

    @override
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._failing("read", name), open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    @override
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        top = self._path(directory) if directory else self.location
        for folder, _, names in os.walk(top):
            prefix = os.path.relpath(folder, self.location).replace(os.sep, "/")
            for name in sorted(names):
                with suppress(FileNotFoundError):  # deleted since
                    stat = os.stat(os.path.join(folder, name))
                    full = name if prefix == "." else f"{prefix}/{name}"
                    yield StoredFile(full, stat.st_size, int(stat.st_mtime * 1000))

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and directories that are empty then."""
        emptied: set[str] = set()
        for name in names:
            path = self._path(name)
            with self._failing("delete", name), suppress(FileNotFoundError):
                os.unlink(path)
            emptied.add(os.path.dirname(path))
        for folder in emptied - {self.location}:
            # Not empty: files of other checkpoints are in it.
            with suppress(OSError):
                os.rmdir(folder)

    def write_part(self, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Write a part of a file, which becomes visible with the last one.

        Args:
            name: name of the file.
            offset: number of bytes in earlier parts; 0 begins the file anew.
            data: the bytes.
            last: whether the file is complete.

        Raises:
            CheckpointError: it cannot be written, or an earlier part is missing.
        """
        path = self._path(name)
        with self._failing("write", name):
            if not offset:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(f"{path}{_PART}", "ab" if offset else "wb", opener=private_opener) as file:
                if (there := file.tell()) != offset:
                    raise CheckpointError(
                        f"cannot write {self.shown(name)}: {there} bytes of it have come, {offset} should have"
                    )
                file.write(data)
            if last:
                os.replace(f"{path}{_PART}", path)

    def discard_part(self, name: str) -> None:
        """Delete the parts of a file of which the last has not come; a file that is complete stays."""
        with self._failing("delete", name), suppress(FileNotFoundError):
            os.unlink(f"{self._path(name)}{_PART}")

    def put_file(self, name: str, path: str) -> int:
        """Link a file, or copy it from another disk."""
        try:
            with self._failing("write", name):
                return self._placed(self._path(name), lambda partial: _link(path, partial))
        except CheckpointError as error:
            if not _cannot_link(error.__cause__):
                raise
            return super().put_file(name, path)

    def fetch_file(self, name: str, path: str) -> None:
        """Link a file, or copy it to another disk."""
        try:
            os.link(self._path(name), path)
        except OSError:
            super().fetch_file(name, path)  # which raises the error as well

    def other_writers(self, name: str) -> str:
        """Return an empty text: only its user may enter the directory."""
        return ""

    def _placed(self, path: str, make: Callable[[str], T]) -> T:
        """Write a file beside its path, and rename it once complete."""
        partial = f"{path}{_PART}-{secrets.token_hex(6)}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            made = make(partial)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        with suppress(FileNotFoundError):  # still there if the target was a link to the same file before
            os.unlink(partial)
        return made

    def _path(self, name: str) -> str:
        return os.path.join(self.location, *check_name(name).split("/"))

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"cannot {doing} {self.shown(name)}: {error.strerror or error}") from error


def _write(path: str, parts: Iterable[bytes]) -> int:
    with open(path, "xb", opener=private_opener) as file:
        for part in parts:
            file.write(part)
        return file.tell()


def _link(path: str, other: str) -> int:
    os.link(path, other)
    os.utime(other)  # it is written now, however old its content: see StoredFile.modified_ms
    return os.stat(path).st_size


def _cannot_link(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _NO_LINK
