"""Files and directories that only the user may access, whatever the umask is."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["make_private_directory", "other_writers", "private_opener"]


def private_opener(path: str, flags: int) -> int:
    """Open a file; one that is created is for this user alone. For ``open(..., opener=private_opener)``."""
    return os.open(path, flags, 0o600)


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory, and its parents, for this user alone; those that exist stay as they are.

    Raises:
        OSError: it cannot be made.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    # os.makedirs() gives its mode to the last one alone.
    try:
        make_private_directory(os.path.dirname(path))
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def other_writers(path: str, top: str) -> str:
    """Return who else than this user, or root, may have written a file, for messages; empty: nobody.

    A group that may write counts as nobody else: with the umask of many systems that is the user's own group.

    Args:
        path: of the file.
        top: directory, down to which those that it is in are looked at.

    Raises:
        OSError: one of them is not there, or cannot be looked at.
    """
    inside = None
    while True:
        told = os.stat(path)
        if told.st_uid not in (os.getuid(), 0):
            return f"{path} belongs to another user (uid {told.st_uid})"
        # In a directory with the sticky bit, such as /tmp, others cannot replace what is not theirs.
        if told.st_mode & stat.S_IWOTH and not (inside is not None and told.st_mode & stat.S_ISVTX):
            return f"every user may write to {path}"
        if path == top or path == os.path.dirname(path):
            return ""
        inside, path = path, os.path.dirname(path)
