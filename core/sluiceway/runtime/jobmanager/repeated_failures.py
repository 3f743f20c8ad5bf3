"""Repeated failures of the same record, or of the same state, which no restart can cure."""

from __future__ import annotations

import re
from typing import Final

from sluiceway.errors import (
    CheckpointFailedError,
    ConnectorError,
    CorruptStreamError,
    DeclaredTypeError,
    FunctionContractError,
    RejectedRecordError,
    SerializationError,
)
from sluiceway.runtime.failures.error_texts import WorkerError

__all__ = ["SKIP_HINT", "RepeatedFailures", "kind_of", "record_of"]

SKIP_HINT: Final = (
    'To go on without such records, give the step .on_error("skip"); its dead_letters() are those left out.'
)

_OUTSIDE: Final = (OSError, ConnectorError, MemoryError)
"""Errors that external systems may cause and end, so that the record need not be at fault."""

_REFUSED: Final = (
    SerializationError,
    CorruptStreamError,
    FunctionContractError,
    DeclaredTypeError,
    RejectedRecordError,
)
"""Errors about one value, whether or not the task knows which record it was."""

# Addresses in a repr differ from attempt to attempt.
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]+")
# Different failures that are counted, and completed checkpoints between two equal ones that are no progress.
_REMEMBERED: Final = 64
_CHECKPOINTS_BETWEEN: Final = 8


class RepeatedFailures:
    """Counter per record of equal failures without progress in between.

    A record that fails again was not behind any checkpoint: the job was restarted from before it. Checkpoints can
    complete all the same until it comes again: the one that was overdue at the restart, the next one if records
    come slowly, and more with a short interval. After more than that it counts as another record that looks the
    same.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], tuple[int, int]] = {}

    def count(self, cause: BaseException, completed: int) -> int:
        """Return the number of equal failures, including this one; 0: neither a record nor state is at fault.

        Args:
            cause: of the failure, with the notes of its task.
            completed: number of checkpoints that the job has completed.
        """
        record = record_of(cause) or _value_of(cause)
        outside = isinstance(cause, _OUTSIDE) and not isinstance(cause, RejectedRecordError)
        if record is None or outside:
            return 0
        # Removed and added again, so that the first entry is the one that was seen longest ago.
        times, before = self._seen.pop(record, (0, completed))
        times = times + 1 if completed - before <= _CHECKPOINTS_BETWEEN else 1
        self._seen[record] = times, completed
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return times


def record_of(cause: BaseException) -> tuple[str, ...] | None:
    """Return what identifies a failure: kind, step, record and key; None: no record is at fault.

    The timestamp is no part of it: that of a processing-time timer is another one after each restart, and so is
    that of a record from a source without event time.
    """
    notes = [note for note in getattr(cause, "__notes__", ()) if isinstance(note, str)]
    about = [_ADDRESS.sub("0x", n) for n in notes if n.startswith(("record: ", "key: "))]
    return (*kind_of(cause), *about) if about else None


def _value_of(cause: BaseException) -> tuple[str, ...] | None:
    """Return the identity of a refused value, such as one that cannot be written; None: another failure."""
    if isinstance(cause, _REFUSED):
        return ("value", *kind_of(cause))
    if isinstance(cause, CheckpointFailedError) and isinstance(cause.__cause__, SerializationError):
        return "state", _ADDRESS.sub("0x", str(cause.__cause__))
    return None


def kind_of(cause: BaseException) -> tuple[str, str]:
    """Return the class of an exception and its step, without the subtask, which may change."""
    notes = [note for note in getattr(cause, "__notes__", ()) if isinstance(note, str)]
    step = next((note.partition(", subtask ")[0] for note in notes if note.startswith("in step ")), "")
    # If the exception could not be sent as it was, its text names the class.
    kind = str(cause).partition(":")[0] if isinstance(cause, WorkerError) else type(cause).__qualname__
    return kind, step
