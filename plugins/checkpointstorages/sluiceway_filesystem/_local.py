"""Storage in a local directory: files are synced to the disk, renamed into place, and shared by hard links."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, TypeVar

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile, check_name
from sluiceway.errors import CheckpointError
from sluiceway.util.overriding import override
from sluiceway.util.private_files import other_writers, private_opener

__all__ = ["LocalStorage"]

_ATTEMPTS = 20
"""A directory can go between making it and using it as often as somebody deletes the last file in it."""


class LocalStorage(CheckpointStorage):
    """Storage below a directory of this machine, or of a network file system that renames atomically.

    Args:
        location: the directory; it is made with the first write. Directories that are made, and all files,
            are accessible to the user alone: state may hold anything that records hold.
    """

    def __init__(self, location: str) -> None:
        self.location = os.path.abspath(os.path.expanduser(location))

    def check(self) -> None:
        """Check that the location can be written; a file in its place is reported as such."""
        place = self.location
        while not os.path.lexists(place) and place != os.path.dirname(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place):
            raise CheckpointError(
                f"checkpoints cannot be kept in {self.location}: {place} is not a directory. Name another place"
            )
        super().check()

    def other_writers(self, name: str) -> str | None:
        """Look at owners and modes."""
        with self._failing("look at", name):
            return other_writers(self._path(name), self.location)

    def write(self, name: str, parts: Iterable[bytes]) -> int:
        """Write beside it, sync, rename, sync the directory."""
        path = self._path(name)
        with self._written(name, path, parts) as (partial, size), self._failing("write", name):
            _rename(partial, path)
        return size

    def create(self, name: str, parts: Iterable[bytes]) -> bool:
        """Write a file that must not exist, with a hard link, which fails if the name exists."""
        path = self._path(name)
        with self._written(name, path, parts) as (partial, _), self._failing("write", name):
            try:
                os.link(partial, path)
            except FileExistsError:
                os.unlink(partial)
                return False
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                # Not atomic: without hard links, two processes that create the name at the same moment both
                # succeed.
                if os.path.exists(path):
                    os.unlink(partial)
                    return False
                _rename(partial, path)
            else:
                os.unlink(partial)
                _sync(os.path.dirname(path))
        return True

    @contextmanager
    def _written(self, name: str, path: str, parts: Iterable[bytes]) -> Iterator[tuple[str, int]]:
        """Write a temporary file and yield it with its size; removed if anything fails."""
        partial = _partial(path)
        file: IO[bytes] | None = None
        try:
            with self._failing("write", name):
                file = _in_directory(path, lambda: open(partial, "xb", opener=private_opener))  # noqa: SIM115 - closed below
            for part in parts:
                with self._failing("write", name):
                    file.write(part)
            with self._failing("write", name):
                size = file.tell()
                file.flush()
                # Before the name exists: after a power cut it could stand for a file without content.
                os.fsync(file.fileno())
                file.close()
            yield partial, size
        except BaseException:
            with suppress(OSError):
                if file is not None:
                    file.close()
            self._abandon(partial)
            raise

    def put_file(self, name: str, path: str) -> int:
        """Link a file into the storage, or copy it from another disk."""
        target = self._path(name)
        partial = _partial(target)
        with self._failing("write", name):
            size = os.stat(path).st_size
            try:
                _in_directory(target, lambda: os.link(path, partial))
                os.chmod(partial, 0o600)
                os.utime(partial)  # it is written now, however old its content: see StoredFile.modified_ms
                _sync(partial)
                _rename(partial, target)
                with suppress(FileNotFoundError):  # still there if the target was a link to the same file before
                    os.unlink(partial)
            except OSError as error:
                self._abandon(partial)
                if error.errno not in _NO_LINK:
                    raise
                return super().put_file(name, path)
        return size

    def fetch_file(self, name: str, path: str) -> None:
        """Link a file out of the storage, or copy it to another disk."""
        source = self._path(name)
        try:
            os.link(source, path)
        except OSError as error:
            if error.errno not in _NO_LINK:
                with self._failing("read", name):
                    os.stat(source)
                raise
            super().fetch_file(name, path)

    @override
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._failing("read", name), open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    @override
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        top = self._path(directory) if directory else self.location
        try:
            for folder, _, names in os.walk(top, onerror=_unless_missing):
                prefix = os.path.relpath(folder, self.location).replace(os.sep, "/")
                for name in names:
                    with suppress(FileNotFoundError):  # deleted since
                        stat = os.stat(os.path.join(folder, name))
                        full = name if prefix == "." else f"{prefix}/{name}"
                        yield StoredFile(full, stat.st_size, int(stat.st_mtime * 1000))
        except OSError as error:
            raise CheckpointError(f"cannot list the checkpoints in {top}: {error.strerror or error}") from error

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and directories that are empty then."""
        emptied: set[str] = set()
        for name in names:
            path = self._path(name)
            with self._failing("delete", name), suppress(FileNotFoundError):
                os.unlink(path)
            emptied.add(os.path.dirname(path))
        for folder in emptied:
            self._remove_empty(folder)

    def _abandon(self, partial: str) -> None:
        """Remove a temporary file, and directories that are empty then: those of a full disk would become many."""
        with suppress(OSError):
            os.unlink(partial)
        self._remove_empty(os.path.dirname(partial))

    def _remove_empty(self, folder: str) -> None:
        while folder != self.location and len(folder) > len(self.location):
            try:
                # Fails for a directory with files, also for one that another process has put there just now.
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = os.path.dirname(folder)

    def _path(self, name: str) -> str:
        return os.path.join(self.location, *check_name(name).split("/"))

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"cannot {doing} {self.shown(name)}: {error.strerror or error}") from error


_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
"""Another disk, or one that has no hard links, or too many to this file."""

_R = TypeVar("_R")


def _partial(path: str) -> str:
    return f"{path}.part-{secrets.token_hex(6)}"


def _in_directory(path: str, create: Callable[[], _R]) -> _R:
    """Call ``create`` with the directory of ``path`` there."""
    for _ in range(_ATTEMPTS):
        try:
            return create()
        except FileNotFoundError:
            _make_directory(os.path.dirname(path))
    return create()


def _make_directory(path: str) -> None:
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_directory(parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        _sync(parent)


def _rename(partial: str, path: str) -> None:
    os.replace(partial, path)
    _sync(os.path.dirname(path))


def _sync(path: str) -> None:
    """Have what was written, linked or renamed there outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
