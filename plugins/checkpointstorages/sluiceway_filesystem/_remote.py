"""Storage on filesystems that fsspec knows: object stores, HDFS, memory."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import fsspec

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile, check_name
from sluiceway.errors import CheckpointError, ConfigurationError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override

__all__ = ["RemoteStorage"]

_WHOLE: Final = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"}
"""Object stores: a file is there when it was closed, and not before; a rename would copy it."""


_REPLACING: Final = {"memory", "sftp", "ssh"}
"""Other filesystems that replace a file in one step when another one is moved there. HDFS does not."""

_ASIDE: Final = ".replaced"
"""Suffix of a file while another one takes its place."""

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs"}
"""By scheme, the extra with what is needed."""
_NEEDS: Final = {"s3": "s3fs", "hdfs": "pyarrow"}


class RemoteStorage(CheckpointStorage):
    """Storage below a URL.

    Where the filesystem is no object store, a file is written under another name and renamed. Where it cannot
    replace a file in one step, the old one has another name meanwhile, by which it is found after a crash.

    Args:
        location: the URL.

    Raises:
        ConfigurationError: fsspec does not know such URLs, or lacks a package for them.
        MissingExtraError: a package of one of the project's extras is missing.
        CheckpointError: the filesystem cannot be reached.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self._fs, root = fsspec.core.url_to_fs(location)
        except ImportError as error:
            extra = _EXTRAS.get(location.partition("://")[0])
            if extra is None:
                raise ConfigurationError(f"checkpoints cannot be kept in {location!r}: {error}") from error
            missing = _NEEDS[extra]
            raise MissingExtraError(
                f"checkpoints in {location!r} need {missing}: {install_command(f'sluiceway[{extra}]')}"
            ) from error
        except ValueError as error:
            known = "file, memory, s3, gs, hdfs and others that fsspec lists"
            raise ConfigurationError(
                f"checkpoints cannot be kept in {location!r}: {error}. Name a directory, or a URL of one of the"
                f" filesystems that fsspec knows: {known}"
            ) from error
        except OSError as error:  # some connect at once
            raise CheckpointError(f"cannot reach {location}: {error}") from error
        self._root = str(root).rstrip("/")
        protocol = self._fs.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_object_store = not _WHOLE.isdisjoint(protocols)
        self._replaces = self._is_object_store or not _REPLACING.isdisjoint(protocols)

    def __getstate__(self) -> str:
        return self.location

    def __setstate__(self, location: str) -> None:
        self.__init__(location)  # type: ignore[misc]

    def write(self, name: str, parts: Iterable[bytes]) -> int:
        """Write, and move into place."""
        path = self._path(name)
        partial = path if self._is_object_store else f"{path}.part-{secrets.token_hex(6)}"
        with self._failing("write", name):
            if not self._is_object_store:
                self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            file = self._fs.open(partial, "wb")
        size = 0
        try:
            for part in parts:
                with self._failing("write", name):
                    file.write(part)
                size += len(part)
            with self._failing("write", name):
                file.close()
                if not self._is_object_store:
                    self._move(partial, path)
        except BaseException:
            self._abandon(file, partial)
            raise
        return size

    def create(self, name: str, parts: Iterable[bytes]) -> bool:
        """Write a file that must not exist, in one step where the package supports it (``s3fs``, ``gcsfs``)."""
        if not (self._is_object_store and "mode" in inspect.signature(self._fs.pipe_file).parameters):
            return super().create(name, parts)
        with self._failing("write", name):
            try:
                self._fs.pipe_file(self._path(name), b"".join(parts), mode="create")
            except FileExistsError:
                return False
        return True

    @override
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        path = self._path(name)
        with self._failing("read", name):
            if not self._replaces:
                # The name itself once more: the file may have been replaced between the two.
                for one in (path, path + _ASIDE):
                    with suppress(FileNotFoundError):
                        return self._read(one, offset, size)
            return self._read(path, offset, size)

    def _read(self, path: str, offset: int, size: int | None) -> bytes:
        end = None if size is None else offset + size
        if size == 0:
            self._fs.size(path)  # or it is not there; a range of nothing would be all of it
            return b""
        try:
            found: bytes = self._fs.cat_file(path, start=offset or None, end=end)
        except FileNotFoundError:
            raise
        except Exception:
            # S3 answers so where nothing is left to read.
            if (offset or end is not None) and self._fs.size(path) <= offset:
                return b""
            raise
        return found

    @override
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        top = self._path(directory) if directory else self._root
        with self._failing("list", directory):
            # fsspec keeps listings, in which files of other processes are missing.
            self._fs.invalidate_cache()
            found = dict(self._found_in(top or "/"))
        for path, info in found.items():
            if path.endswith(_ASIDE):
                path = path.removesuffix(_ASIDE)
                if path in found:
                    continue
            name = "/" + path.lstrip("/")
            name = name.removeprefix("/" + self._root.lstrip("/")).lstrip("/")
            yield StoredFile(name, info.get("size") or 0, _modified_ms(info))

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            with self._failing("delete", name):
                self._remove_aside(path)  # first: it would go by the name otherwise
                self._remove(path)

    @override
    def delete_directory(self, directory: str) -> None:
        super().delete_directory(directory)
        if not self._is_object_store:
            # Empty directories stay otherwise, and each listing looks into all of them. delete() leaves them: HDFS
            # would remove a directory together with files that were written into it since.
            with suppress(Exception):
                self._fs.rm(self._path(directory), recursive=True)

    def _found_in(self, top: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the paths of all files in a directory and below it, with what the listings say of them."""
        if self._is_object_store:
            with suppress(FileNotFoundError):
                yield from self._fs.find(top, detail=True).items()
            return
        # find() leaves out a directory that cannot be listed, as if it were empty.
        waiting = [top]
        while waiting:
            directory = waiting.pop()
            try:
                listing = self._fs.ls(directory, detail=True)
            except FileNotFoundError:  # deleted since
                continue
            for info in listing:
                path = info["name"].rstrip("/")
                if info["type"] != "directory":
                    yield path, info
                elif path != directory.rstrip("/"):
                    waiting.append(path)

    def _remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            pass
        except Exception:
            # libhdfs reports a file that does not exist as an I/O error.
            if self._fs.exists(path):
                raise

    def _move(self, partial: str, path: str) -> None:
        if not self._replaces and self._fs.exists(path):
            self._remove_aside(path)
            with suppress(FileNotFoundError):  # another process replaces it, too
                self._fs.mv(path, path + _ASIDE)
        try:
            self._fs.mv(partial, path)
        except FileExistsError:  # written since
            self._fs.rm_file(path)
            self._fs.mv(partial, path)
        with suppress(Exception):  # the file is written; the next write deletes what stays
            self._remove_aside(path)

    def _remove_aside(self, path: str) -> None:
        if not self._replaces and self._fs.exists(path + _ASIDE):
            self._remove(path + _ASIDE)

    def _abandon(self, file: Any, partial: str) -> None:
        """Leave no whole file behind, and as little as can be of a part."""
        with suppress(Exception):
            file.discard()
        with suppress(Exception):
            # An object store makes a file of what was written when it is closed, also by the garbage collector.
            file.closed = True
        if not self._is_object_store:
            with suppress(Exception):
                self._fs.rm_file(partial)

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each filesystem has errors of its own
            if isinstance(error, CheckpointError):
                raise
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, FileNotFoundError):
                reason = "No such file or directory"
            raise CheckpointError(f"cannot {doing} {self.shown(name)}: {reason}") from error


def _modified_ms(info: dict[str, Any]) -> int:
    for key in ("LastModified", "last_modified", "mtime", "modified", "created"):
        found = info.get(key)
        if isinstance(found, (int, float)):
            return int(found * 1000)
        if found is not None and hasattr(found, "timestamp"):
            return int(found.timestamp() * 1000)
    found = info.get("modificationTime")  # of WebHDFS, in ms
    return found if isinstance(found, int) else 0
