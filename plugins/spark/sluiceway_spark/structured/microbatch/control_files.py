"""Files by which the job, its planner of micro-batches and earlier runs notify each other."""

from __future__ import annotations

from typing import Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError

__all__ = ["note_ended", "read_due", "sources_ended", "stop_sources", "stops", "write_due"]

_ENDED: Final = "sources/ended"
_STOP: Final = "sources/stop"
_DUE: Final = "sources/due"


def sources_ended(storage: CheckpointStorage) -> bool:
    """Return whether all sources have ended and Spark has committed their last batch."""
    return any(True for _ in storage.files(_ENDED))


def stop_sources(storage: CheckpointStorage, stop: bool = True) -> None:
    """Ask all sources to end with the next batch, or withdraw that. Raises CheckpointError."""
    if stop:
        storage.create(f"{_STOP}/asked", [b""])
    else:
        storage.delete([file.name for file in storage.files(_STOP)])


def stops(storage: CheckpointStorage) -> bool:
    """Return whether the sources are to end with the next batch."""
    return any(True for _ in storage.files(_STOP))


def note_ended(storage: CheckpointStorage, run: str, batch: int) -> None:
    """Note that all sources have ended, and their last batch. Raises CheckpointError."""
    storage.create(f"{_ENDED}/{run}", [str(batch).encode()])


def write_due(storage: CheckpointStorage, due_ms: int | None) -> None:
    """Note when subtasks have work without input, for the planner of micro-batches.

    Args:
        storage: the job's directory.
        due_ms: ms since the epoch; None: they will not.
    """
    storage.write(_DUE, [b"" if due_ms is None else str(due_ms).encode()])


def read_due(storage: CheckpointStorage) -> int | None:
    """Return the time that :func:`write_due` noted last; None also if there is none."""
    try:
        return int(storage.read(_DUE) or 0) or None
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
