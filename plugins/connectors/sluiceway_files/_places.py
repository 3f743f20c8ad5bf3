"""Resolution of paths to files: on the local disk, or on any filesystem that fsspec knows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_files._compression import damaged_errors

__all__ = [
    "Found",
    "PathLike",
    "Paths",
    "absolute",
    "failing_with",
    "find",
    "find_by_name",
    "open_filesystem",
    "paths_of",
    "shown",
]

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Iterable[PathLike]


_HIDING: Final = (".", "_")


@dataclass(frozen=True, slots=True)
class Found:
    """File found under a path of the user.

    Attributes:
        root: index of the path, among those the user gave, through which it was found.
        path: its path on that filesystem.
        size: bytes, or None if the filesystem does not say.
        modified: when it was modified last (s since the epoch), or None if the filesystem does not say.
    """

    root: int
    path: str
    size: int | None
    modified: float | None = None


def paths_of(paths: Paths) -> tuple[str, ...]:
    """Return the user's paths as strings. Raises ConfigurationError if there are none."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = tuple(os.fspath(path) for path in given)
    if not found or not all(isinstance(path, str) and path for path in found):
        raise ConfigurationError(f"files need a path, a glob or a list of them, not {paths!r:.100}")
    return found


def absolute(path: str) -> str:
    """Return a path that is valid in other processes, which may have another working directory."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def open_filesystem(path: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a path or URL, and the path on it.

    Raises:
        ConnectorError: fsspec does not know it, or lacks a package for it.
    """
    if "://" not in path:  # also spares the user fsspec's other signs
        return fsspec.filesystem("file"), absolute(path)
    try:
        filesystem, inside = fsspec.core.url_to_fs(path, **options)
    except (ValueError, ImportError) as error:
        raise ConnectorError(f"{path!r} cannot be opened: {error}") from error
    return filesystem, str(inside)


def shown(filesystem: Any, path: str) -> str:
    """Return a path as messages show it."""
    return path if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(path))


def _errors() -> tuple[type[Exception], ...]:
    return (OSError, EOFError, *damaged_errors())


@contextmanager
def failing_with(doing: str) -> Iterator[None]:
    """Turn the errors of files, filesystems and decompressors into ``cannot {doing}: reason``."""
    try:
        yield
    except _errors() as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError) and not error.strerror:
            reason = os.strerror(errno.ENOENT)  # filesystems of fsspec give the path alone
        raise ConnectorError(f"cannot {doing}: {reason}") from error


def find(paths: Iterable[str], options: Mapping[str, Any]) -> list[Found]:
    """Return the files of paths, directories and globs, sorted within each, each file once.

    In directories and for globs, names that begin with ``.`` or ``_`` are left out.

    Raises:
        ConnectorError: one of them matches no file.
    """
    return list(find_by_name(paths, options).values())


def find_by_name(paths: Iterable[str], options: Mapping[str, Any], *, must_be: bool = True) -> dict[str, Found]:
    """Return the files of :func:`find` by name, as messages show them.

    Args:
        paths: as given by the user.
        options: for the filesystem.
        must_be: whether each of the paths has to stand for a file.

    Raises:
        ConnectorError: one of them stands for no file, and has to; or the filesystem cannot be reached.
    """
    found: dict[str, Found] = {}
    for root, given in enumerate(paths):
        filesystem, path = open_filesystem(given, options)
        # Object stores keep listings for as long as the process lives.
        filesystem.invalidate_cache()
        name = shown(filesystem, path)
        with failing_with(f"look for {name}"):
            infos = _look(filesystem, path)
        if not infos and must_be:
            if "*" in given or "?" in given or "[" in given:
                raise ConnectorError(f"no file matches {name}")
            if filesystem.isdir(path):
                raise ConnectorError(f"there is no file in the directory {name}")
            raise ConnectorError(f"there is no file {name}" + _beside(filesystem, path, given))
        for info in sorted(infos, key=lambda info: str(info["name"])):
            file = Found(root, info["name"], info.get("size"), _modified(info))
            found.setdefault(shown(filesystem, info["name"]), file)
    return found


def _modified(info: Mapping[str, Any]) -> float | None:
    """Return the time of the last modification, under any of the names that filesystems use."""
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _look(filesystem: Any, path: str) -> list[dict[str, Any]]:
    try:
        info = filesystem.info(path)
    except FileNotFoundError:
        if not fsspec.core.has_magic(path):
            return []
        matches = _listing(filesystem, path).glob(path, detail=True).values()
        return [m for m in matches if _is_file(filesystem, m) and not _is_hidden(m["name"], path)]
    if info["type"] != "directory":
        return [info]
    pattern = f"{path.rstrip('/')}/**"
    inside = _listing(filesystem, pattern).find(path, detail=True).values()
    return [i for i in inside if _is_file(filesystem, i) and not _is_hidden(i["name"], pattern)]


def _listing(filesystem: Any, pattern: str) -> Any:
    return _LocalListing(pattern) if isinstance(filesystem, LocalFileSystem) else filesystem


class _LocalListing(LocalFileSystem):  # type: ignore[misc]
    """Local filesystem whose ``find()`` and ``glob()`` fail for a directory that cannot be listed.

    Those of fsspec leave it out with all that is in it: files would be missing without a word. Its argument
    ``on_error`` does not reach the directories within.

    Args:
        pattern: what is looked for; a directory that it leaves out may be one that cannot be listed.
    """

    cachable = False

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = pattern

    @override
    def walk(self, path: str, *args: Any, **options: Any) -> Any:
        return super().walk(path, *args, **{**options, "on_error": self._fail})

    def _fail(self, error: OSError) -> None:
        # One that is not there any more was removed while its parent was listed.
        if not isinstance(error, FileNotFoundError) and not _is_hidden(error.filename, self._pattern):
            raise ConnectorError(f"cannot look into {error.filename}: {error.strerror}") from error


def _is_file(filesystem: Any, info: Mapping[str, Any]) -> bool:
    """Return whether a listed name stands for a file. A link to nothing does: reading it says what is wrong."""
    kind, name = info["type"], info["name"]
    if kind in ("file", "directory"):
        return bool(kind == "file")
    # A link, or what cannot be read as a file: opening a named pipe blocks until somebody writes to it.
    return bool(not filesystem.isdir(name) if info.get("islink") else filesystem.isfile(name))


def _is_hidden(path: str, pattern: str) -> bool:
    """Return whether a match has a hidden part that the pattern does not name explicitly."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if fsspec.core.has_magic(part))
    asked_for = {part[0] for part in parts[first:] if part.startswith(_HIDING)}
    return any(
        part[:1] in _HIDING and part[0] not in asked_for and not _is_partition(part)
        for part in path.split("/")[first:]
        if part
    )


def _is_partition(part: str) -> bool:
    """Return whether a name is that of a partition by a column whose name begins with ``_``, as Spark has it."""
    return part[0] == "_" and "=" in part


def _beside(filesystem: Any, path: str, given: str) -> str:
    """Return what may be wrong with a path that stands for nothing, for the end of a message."""
    decoded = unquote(path)
    if "://" in given and decoded != path and filesystem.exists(decoded):
        return f"; URLs are not percent-decoded here, and {shown(filesystem, decoded)} is there: give that"
    parent = path.rsplit("/", 1)[0] or "/"
    return "" if filesystem.isdir(parent) else f"; not even the directory {shown(filesystem, parent)}"
