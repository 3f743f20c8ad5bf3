"""What the command's exit code says."""

from __future__ import annotations

from typing import Final

from sluiceway.errors import (
    CheckpointError,
    ConfigurationError,
    ConnectorError,
    GraphError,
    IncompatibleStateError,
    JobCancelledError,
    NotBuiltYetError,
    PluginError,
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
    OK: "done; a job has come to its end",
    FAILED: "the pipeline's own code failed, while it was loaded or while it ran",
    USAGE: "a wrong command, option or setting, or a pipeline that cannot run as it is written",
    OUTSIDE: "something outside the pipeline: a connector cannot reach, read or write its other side, "
    "a checkpoint cannot be written or read, or a plugin is missing or broken",
    CANCELLED: "cancelled with Ctrl-C",
    BROKEN_PIPE: "whoever read the output went away (as in '| head')",
    TERMINATED: "cancelled with SIGTERM",
}
"""For ``sluiceway --help``."""


def of(error: BaseException) -> int:
    """The exit code for an error that ended a command."""
    match error:
        case KeyboardInterrupt() | JobCancelledError():
            return CANCELLED
        case PluginError() | ConnectorError() | CheckpointError():
            return OUTSIDE
        case ConfigurationError() | GraphError() | IncompatibleStateError() | NotBuiltYetError():
            return USAGE
        case SluicewayError() | _:
            return FAILED
