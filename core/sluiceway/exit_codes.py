"""Exit codes of processes, and that of each error."""

from __future__ import annotations

import errno
from typing import Final

from sluiceway.errors import (
    CheckpointError,
    ConfigurationError,
    ConnectorError,
    GraphError,
    IncompatibleStateError,
    JobCancelledError,
    JobStoreError,
    NoResourceAvailableError,
    NotBuiltYetError,
    PluginError,
    RescaleError,
    SluicewayError,
)

__all__ = ["BROKEN_PIPE", "CANCELLED", "EXPLAINED", "FAILED", "OK", "OUTSIDE", "TERMINATED", "USAGE", "of"]

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
OUTSIDE: Final = 3
CANCELLED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143

EXPLAINED: Final = {
    OK: "success; a job has finished",
    FAILED: "the code of the pipeline failed, on loading or at run time",
    USAGE: "wrong command, option or setting, or a pipeline that cannot run as it is written",
    OUTSIDE: "failure outside the pipeline: of a connector, of a checkpoint storage, of a plugin, or a full disk",
    CANCELLED: "cancelled with Ctrl-C",
    BROKEN_PIPE: "the reader of the output closed it (as in '| head')",
    TERMINATED: "cancelled with SIGTERM",
}
"""For ``sluiceway --help``."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS: Final = ("No space left on device", "Disk quota exceeded")


def of(error: BaseException) -> int:
    """Return the exit code for an error that ended a command."""
    match error:
        case KeyboardInterrupt() | JobCancelledError():
            return CANCELLED
        case _ if _is_of_full_disk(error):
            return OUTSIDE
        case PluginError() | ConnectorError() | CheckpointError() | JobStoreError():
            return OUTSIDE
        case ConfigurationError() | GraphError() | IncompatibleStateError() | NotBuiltYetError():
            return USAGE
        case NoResourceAvailableError() | RescaleError():
            return USAGE
        case SluicewayError() | _:
            return FAILED


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Return True if an error, or one that it was raised from, says that a disk is full.

    RocksDB, and a worker's error that could not be pickled, say so in their text alone.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if isinstance(error, SluicewayError) and any(text in str(error) for text in _FULL_TEXTS):
            return True
        error = error.__cause__
    return False
