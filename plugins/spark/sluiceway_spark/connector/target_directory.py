"""Target directory of a sink: on this machine, or in a filesystem that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from sluiceway.errors import ConnectorError

__all__ = ["Place", "absolute"]

_HIDING: Final = (".", "_")


def absolute(path: str) -> str:
    """Return the path for processes with another working directory; a local path without its scheme."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return os.path.abspath(unquote(parts.path))
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))


class Place:
    """Target directory. Paths inside it are relative, with slashes.

    Args:
        path: absolute, or a URL.
        options: for the filesystem.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self.shown = path
        self._filesystem: Any = None
        self._root = path
        if "://" not in path:
            return
        import fsspec

        try:
            self._filesystem, root = fsspec.core.url_to_fs(path, **options)
        except (ValueError, ImportError) as error:
            raise ConnectorError(f"{path!r} cannot be opened: {error}") from error
        self._root = str(root).rstrip("/")

    @contextmanager
    def failing_with(self, doing: str) -> Iterator[None]:
        """Turn errors of files into ``cannot {doing} {path}: reason``."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ConnectorError(f"cannot {doing} {self.shown}: {reason}") from error

    def make(self) -> None:
        """Have the directory there."""
        if self._filesystem is None:
            if os.path.lexists(self._root) and not os.path.isdir(self._root):
                raise ConnectorError(f"cannot write to {self.shown}: it is a file; a table is a directory")
            os.makedirs(self._root, exist_ok=True)
        else:
            self._filesystem.makedirs(self._root, exist_ok=True)

    def create(self, name: str) -> Any:
        """Return a new file, to be written."""
        if self._filesystem is None:
            return open(self._path(name), "xb")
        return self._filesystem.open(self._path(name), "wb")

    def open(self, name: str) -> Any:
        """Return a file, to be read."""
        return (
            open(self._path(name), "rb") if self._filesystem is None else self._filesystem.open(self._path(name))
        )

    def close(self, file: Any, *, durably: bool) -> None:
        """Close what :meth:`create` made, so that it survives a loss of power, where that is ours to do."""
        try:
            if durably and self._filesystem is None:
                file.flush()
                os.fsync(file.fileno())
        finally:
            file.close()

    def names(self) -> list[str]:
        """Return the names in the directory itself."""
        try:
            if self._filesystem is None:
                return os.listdir(self._root)
            found = self._filesystem.ls(self._root, detail=False, refresh=True)  # not what it was once
        except FileNotFoundError:  # an object store has no directory without a file, whatever makedirs() says
            return []
        return [str(path).rsplit("/", 1)[-1] for path in found]

    def visible(self) -> Iterator[str]:
        """Return the files that Spark sees, at any depth."""
        if self._filesystem is None:
            found = (
                os.path.relpath(os.path.join(folder, name), self._root)
                for folder, _, names in os.walk(self._root)
                for name in names
            )
        else:
            self._filesystem.invalidate_cache()
            skipped = len(self._root) + 1
            found = (str(path)[skipped:] for path in self._filesystem.find(self._root))
        return (path for path in found if not any(_is_hidden(part) for part in path.split("/")))

    def publish(self, hidden: str, name: str) -> bool:
        """Give a file its name, if it has not got it yet. False: it is not there under either."""
        source, target = self._path(hidden), self._path(name)
        if self._filesystem is None:
            return _once_more(lambda: self._move(source, target), target)
        try:
            self._filesystem.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._filesystem.mv(source, target)
        except FileNotFoundError:
            # An earlier commit of the same file may have moved it.
            return bool(self._filesystem.exists(target))
        return True

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            if self._filesystem is None:
                os.remove(path)
            else:
                self._filesystem.rm_file(path)

    def prune(self, directory: str) -> None:
        """Remove directories below the place from this one upwards, as long as they are empty."""
        while directory and self._filesystem is None:
            try:
                os.rmdir(self._path(directory))
            except OSError:
                return
            directory = directory.rpartition("/")[0]

    def sync(self, directories: set[str]) -> None:
        """Have the names in these directories survive a loss of power, and those of these directories."""
        if self._filesystem is not None:
            return
        above = {d.rsplit("/", n)[0] for d in directories for n in range(1, d.count("/") + 1)}
        for directory in {*directories, *above, ""}:
            descriptor = os.open(self._path(directory), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @staticmethod
    def _move(source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(source, target)


def _once_more(move: Callable[[], None], target: str) -> bool:
    """Try to move up to three times, and return whether the target is there.

    Another process may remove an empty directory before a file is moved into it.
    """
    for _ in range(3):
        try:
            move()
        except FileNotFoundError:
            if os.path.exists(target):
                return True
        else:
            return True
    return False


def _is_hidden(part: str) -> bool:
    # Spark sees the directory of a partition whose column begins with an underscore.
    return part[:1] in _HIDING and not (part[:1] == "_" and "=" in part)
