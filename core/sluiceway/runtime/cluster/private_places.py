"""Refusal of places of a cluster that other users may write to."""

from __future__ import annotations

import os
import stat

from sluiceway.errors import ConfigurationError

__all__ = ["check_private"]


def check_private(path: str | os.PathLike[str], what: str, why: str) -> None:
    """Refuse a file or directory that is not there for this user alone to write; one that is missing is fine.

    Args:
        path: of the file or directory.
        what: how messages call it, as in "the job store".
        why: what others could do, as in "programs in it are run".

    Raises:
        ConfigurationError: it belongs to another user, or others may write to it.
    """
    try:
        told = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be looked at: {error.strerror}") from error
    if told.st_uid != os.getuid():
        raise ConfigurationError(
            f"{what} {path} belongs to another user (uid {told.st_uid}), and {why}: name another directory"
        )
    if told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"others than you may write to {what} {path}, and {why}: name another directory, or make it yours"
            " alone (chmod go-w)"
        )
