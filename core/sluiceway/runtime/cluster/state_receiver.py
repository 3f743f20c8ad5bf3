"""Receiver of the state of workers that share no file system with the job manager."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.errors import CheckpointError
from sluiceway.runtime.messages.tasks import StoreStatePart
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage

__all__ = ["StateReceiver"]


class StateReceiver:
    """Receiver of state files, in parts, from the tasks of one job. From the loop's thread.

    A worker writes one file after the other, so that there is at most one incomplete file per subtask. One that is
    not continued is deleted with the next of its subtask.

    Args:
        storage: storage of the files.
        subtask_of: returns vertex and subtask of an attempt; None: it is not known.
        decline: declines a checkpoint for an attempt, whose state cannot be kept.
    """

    def __init__(
        self,
        storage: TemporaryStorage,
        subtask_of: Callable[[str], tuple[int, int] | None],
        decline: Callable[[str, int, Exception], None],
    ) -> None:
        self._storage = storage
        self._subtask_of = subtask_of
        self._decline = decline
        self._incomplete: dict[tuple[int, int], str] = {}

    def take(self, part: StoreStatePart) -> None:
        """Write a part to its file."""
        subtask = self._subtask_of(part.attempt)
        if subtask is None:
            return
        begun = self._incomplete.get(subtask)
        try:
            if begun is not None and begun != part.name:
                self._storage.discard_part(begun)
            self._incomplete[subtask] = part.name
            self._storage.write_part(part.name, part.offset, part.data, last=part.last)
        except CheckpointError as error:
            self._decline(part.attempt, part.checkpoint, error)
        else:
            if part.last:
                del self._incomplete[subtask]
