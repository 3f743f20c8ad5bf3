"""Exceptions that Sluiceway raises on purpose.

A message says what was wrong, where, and what to do. An exception that a user's own function raised is
never wrapped in one of these: it reaches the caller as it is, with notes added.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from sluiceway.util.redaction import redact

__all__ = [
    "CheckpointError",
    "CheckpointFailedError",
    "ConfigurationError",
    "ConnectorError",
    "CorruptStreamError",
    "DeclaredTypeError",
    "FunctionContractError",
    "GraphError",
    "JobCancelledError",
    "JobStoreError",
    "MissingExtraError",
    "MisusedStateError",
    "NoResourceAvailableError",
    "NotBuiltYetError",
    "NotSerializableError",
    "PluginError",
    "ProcessExitError",
    "RejectedRecordError",
    "RescaleError",
    "SerializationError",
    "SluicewayError",
    "StateError",
    "StateQueryError",
    "SuppressRestartsError",
    "TimestampUnitWarning",
    "UnknownNameError",
    "UnstableKeyError",
    "choose",
]


class SluicewayError(Exception):
    """Base of all errors below. ``str(error)`` is meant to be shown to a person.

    Texts given to it lose the credentials that :func:`sluiceway.util.redaction.redact` knows: places and options
    that a message names may hold some, and so may a library's message that is quoted.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigurationError(SluicewayError):
    """An option has a value that cannot be used, or two options contradict each other."""


class GraphError(SluicewayError):
    """The pipeline as written cannot become a job: names the steps and what to change."""


class PluginError(SluicewayError):
    """A plugin could not be loaded or does not do what its kind promises."""


class MissingExtraError(PluginError):
    """A plugin is there, the third-party library it needs is not. Names what to install."""


class TimestampUnitWarning(UserWarning):
    """Timestamps look like seconds where milliseconds are wanted. A warning of Python's, no error."""


class UnknownNameError(ConfigurationError):
    """A name that nothing goes by; the message lists the known ones."""


class ConnectorError(SluicewayError):
    """A source or a sink cannot reach, read or write its other side."""


class RejectedRecordError(ConnectorError):
    """A source cannot decode a record, or a sink or its other side does not take it, however often it is tried."""


class SerializationError(SluicewayError):
    """A value cannot be turned into bytes or back."""


class CorruptStreamError(SerializationError):
    """Bytes from a peer or a file are not what their format promises. Names channel and sequence number."""


class NoResourceAvailableError(SluicewayError):
    """A job needs more slots than there are."""


class DeclaredTypeError(SluicewayError, TypeError):
    """A value is not of the type that the program has declared for it. Names the state or step, and the type."""


class StateError(SluicewayError):
    """State was used outside its rules: unknown, of another type, without a key."""


class StateQueryError(StateError, ConfigurationError):
    """A query of the state of a key does not fit what is there: no such key or entry, or a key of another type."""


class SuppressRestartsError(SluicewayError):
    """A job does not get over it by beginning anew, so it ends at once, whatever its restart strategy says.

    For functions, sources and sinks to raise, or to subclass, where trying again would fail in the same way.
    """


class IncompatibleStateError(StateError, SuppressRestartsError):
    """Saved state that is incompatible with the job's declarations. No restart can mend that."""


class MisusedStateError(StateError, SuppressRestartsError):
    """A step asks for state, timers or event time that it does not have. No restart can mend that."""


class NotSerializableError(StateError, SuppressRestartsError):
    """State cannot be written to a checkpoint, now or after a restart. Names the kind of state and its type."""


class CheckpointError(SluicewayError):
    """A checkpoint or savepoint cannot be written, found or read. Names the file."""


class CheckpointFailedError(CheckpointError):
    """A checkpoint was given up, and why; what the job goes on from stays the one before it."""


class JobStoreError(SluicewayError):
    """An entry of the job store cannot be read or written; names the file."""


class RescaleError(SluicewayError):
    """A running job cannot get another parallelism: it was not stopped, or has gone back to the one it had."""


class UnstableKeyError(SluicewayError, TypeError):
    """A key cannot be hashed the same way in every process, so it cannot decide where a record goes."""


class FunctionContractError(SluicewayError, TypeError):
    """A user's function returned something that its step cannot use."""


class ProcessExitError(FunctionContractError, SuppressRestartsError):
    """A user's function called ``sys.exit()``, which fails the job without a restart."""


class JobCancelledError(SluicewayError):
    """The job was cancelled before it ended, so the results that were asked for are not complete."""


class NotBuiltYetError(SluicewayError, NotImplementedError):
    """The thing asked for has a place in the design but does not exist in this version."""


def unknown_column(name: str, known: Iterable[str]) -> str:
    """Return the sentence about a column that does not exist, with the closest one that does.

    Args:
        name: the column that was asked for.
        known: the names that exist, in the order of the columns.
    """
    names = list(known)
    close = get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"there is no column {name!r}{hint} the columns are {', '.join(names)}"


def choose(kind: str, name: str, known: Iterable[str], where: str = "") -> UnknownNameError:
    """Make the error for an unknown ``name``, with the closest known one first.

    Args:
        kind: what the name should have been, for the message: ``"state backend"``.
        name: what was asked for.
        known: the names that exist.
        where: what has those names, to follow the name in the message: ``"of step 'totals'"``.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(repr(n) for n in names) or "none"
    place = f" {where}" if where else ""
    return UnknownNameError(f"there is no {kind} {name!r}{place}.{hint} Known: {listed}")
