"""Queue of the elements that a producer's end of a channel cannot send yet."""

from __future__ import annotations

from collections import deque
from typing import Any

from sluiceway.elements import Batch, CheckpointBarrier, Element

__all__ = ["Backlog"]


class Backlog(deque[Element]):
    """Elements in their order, with a count of the batches among them, as batches alone wait for credit.

    Change it by these methods alone; a look at it, like ``if backlog``, costs what it costs for a deque.
    """

    __slots__ = ("batches",)

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def add(self, element: Element) -> None:
        """Queue an element behind all others."""
        self.append(element)
        if type(element) is Batch:
            self.batches += 1

    def take(self) -> Element:
        """Return the first element, and remove it. Raises IndexError if there is none."""
        element = self.popleft()
        if type(element) is Batch:
            self.batches -= 1
        return element

    def drop(self) -> None:
        """Remove all."""
        self.clear()
        self.batches = 0

    def overtaken_by(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        """Remove the barrier of this checkpoint, and return the batches before it, which stay queued.

        Those behind it are not part of the checkpoint. All are before it if it is not queued.
        """
        batches: list[Batch[Any]] = []
        for index, element in enumerate(self):
            if type(element) is Batch:
                batches.append(element)
            elif type(element) is CheckpointBarrier and element.checkpoint_id == barrier.checkpoint_id:
                del self[index]
                break
        return batches

    def holds(self, checkpoint_id: int) -> bool:
        """Return whether the barrier of a checkpoint is queued."""
        return any(type(e) is CheckpointBarrier and e.checkpoint_id == checkpoint_id for e in self)
