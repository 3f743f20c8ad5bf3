"""Contract of the input of a task: an input gate, or the reader of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sluiceway.connector import Wait
from sluiceway.elements import (
    BarrierAnnouncement,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    Watermark,
)
from sluiceway.metrics import SplitTimes
from sluiceway.network.channel_state import Recording

__all__ = ["NOTHING", "TaskInput"]

NOTHING: Final = Wait()
"""Wait of an input that has nothing to read: its producers or its reader wake the task."""


class TaskInput(ABC):
    """Input of a task. From the task's thread only."""

    _ahead: deque[Element] | None = None

    def read(self) -> Element | Wait:
        """Return the next element, or a wait."""
        return self._ahead.popleft() if self._ahead else self.poll()

    def look_ahead(self) -> Batch[Any] | CheckpointBarrier | CancelCheckpointMarker | None:
        """Return the next element of these types, unless a watermark precedes it; None: none now.

        Other elements before it are kept for :meth:`read`.
        """
        ahead = self._ahead = deque() if self._ahead is None else self._ahead
        # A barrier may overtake other control elements, but no watermark: it belongs behind the timers that this
        # makes due.
        while not (ahead and type(ahead[-1]) is Watermark):
            element = self.poll()
            if isinstance(element, Batch | CheckpointBarrier | CancelCheckpointMarker):
                return element
            if isinstance(element, Wait):
                break
            ahead.append(element)
        return None

    def looked_at(self) -> int:
        """Return the number of elements kept for :meth:`read`."""
        return len(self._ahead or ())

    def open(self) -> None:
        """Start reading."""

    @abstractmethod
    def poll(self) -> Element | Wait:
        """Return the next element behind those looked at, or a wait."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """Current watermark of the input, in ms."""

    @abstractmethod
    def start_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint with this task: return the barrier from :meth:`poll` in its turn."""

    def watch_checkpoints(
        self,
        announced: Callable[[BarrierAnnouncement], None],
        begins: Callable[[CheckpointBarrier], None],
        alignment: Callable[[], None],
    ) -> None:
        """Register callbacks for announced barriers, for overtaking barriers and for the begin of an alignment."""

    @abstractmethod
    def overtake(self, barrier: CheckpointBarrier) -> None:
        """Begin an alignment-timed-out checkpoint ahead of unread elements, unless it is over."""

    def record(self, checkpoint_id: int, remainder: Batch[Any] | None) -> Recording | None:
        """Record the in-flight data of a checkpoint that begins ahead of it; None: a source has none.

        Args:
            checkpoint_id: the checkpoint.
            remainder: unprocessed part of the last batch.
        """
        return None

    def snapshot(self, checkpoint_id: int = 0) -> tuple[Any, ...] | None:
        """Return the splits of the source's reader with their positions; None: the input is a gate.

        Args:
            checkpoint_id: the checkpoint that will hold them; 0: none.
        """
        return None

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Release what was held back for an aborted checkpoint."""

    def checkpoint_taken(self) -> None:
        """Continue after the snapshot of the last returned barrier was taken or abandoned."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint."""

    @property
    def port(self) -> int:
        """Index of the task's input that the last batch belongs to."""
        return 0

    @property
    def bytes_in(self) -> int:
        """Bytes received from other workers."""
        return 0

    @property
    def ready(self) -> bool:
        """True if an element may be readable now."""
        return True

    def queued(self) -> int:
        """Return the number of received elements that were not read."""
        return 0

    def split_times(self) -> SplitTimes | None:
        """Return the event time of a source's splits; None: there are none. From any thread."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything. Harmless a second time."""
