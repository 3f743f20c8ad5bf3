"""Parts of log files for clients, which name a file: no other files can be read."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluiceway.errors import SluicewayError
from sluiceway.monitoring.processes import MOST_LOG_BYTES, LogFile, LogPart
from sluiceway.runtime.cluster.log_files import OLDER, SUFFIX

__all__ = ["log_files_in", "read_log_part"]

_NAME: Final = re.compile(rf"([A-Za-z0-9_][\w.-]{{0,100}}){re.escape(SUFFIX)}(?:{re.escape(OLDER)})?", re.ASCII)
_MOST_FILES: Final = 256


def log_files_in(directory: Path) -> list[LogFile]:
    """Return the log files of a directory by name; none if it does not exist. Links are not followed."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is None:
                continue
            with suppress(OSError):  # it was removed meanwhile
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    found.append(LogFile(entry.name, named[1], facts.st_size, facts.st_mtime_ns // 1_000_000))
    return sorted(found, key=lambda file: file.name)[:_MOST_FILES]


def read_log_part(directory: Path, name: str, offset: int | None, size: int) -> LogPart:
    """Return bytes of a log file.

    Args:
        directory: of the logs.
        name: name of the file, without a directory.
        offset: first byte; None: the last ``size`` bytes.
        size: largest number of bytes; at most MOST_LOG_BYTES are read.

    Raises:
        SluicewayError: the log file does not exist, or the range is invalid.
    """
    if size < 0 or (offset is not None and offset < 0):
        raise SluicewayError(f"bytes {offset} to {offset} + {size} are no part of a file")
    if _NAME.fullmatch(name) is None:
        raise SluicewayError(f"there is no log file {name!r:.120}")
    size = min(size, MOST_LOG_BYTES)
    try:
        # Neither a link nor a pipe, which would block this process.
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SluicewayError(f"there is no log file {name!r}: {error.strerror or error}") from error
    with open(descriptor, "rb", buffering=0) as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise SluicewayError(f"there is no log file {name!r}: it is no file")
        at = max(0, facts.st_size - size) if offset is None else min(offset, facts.st_size)
        file.seek(at)
        return LogPart(name, at, facts.st_size, file.read(size))
