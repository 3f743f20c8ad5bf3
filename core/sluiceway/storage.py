"""Where checkpoints are kept: what a checkpoint storage implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

__all__ = ["CheckpointStorage"]


class CheckpointStorage(ABC):
    """Keeps the files of checkpoints and makes a checkpoint visible in one step.

    Methods may block; the runtime calls them from helper threads.
    """

    @abstractmethod
    def write(self, checkpoint_id: int, name: str, data: bytes) -> None:
        """Write one file of a checkpoint that is not visible yet."""

    @abstractmethod
    def complete(self, checkpoint_id: int, metadata: bytes) -> None:
        """Make the checkpoint visible, all at once, with its metadata."""

    @abstractmethod
    def read(self, checkpoint_id: int, name: str) -> bytes:
        """Read one file of a visible checkpoint. Raises FileNotFoundError."""

    @abstractmethod
    def metadata(self, checkpoint_id: int) -> bytes:
        """Read the metadata of a visible checkpoint. Raises FileNotFoundError."""

    @abstractmethod
    def checkpoints(self) -> Iterator[int]:
        """The visible checkpoints, oldest first."""

    @abstractmethod
    def discard(self, checkpoint_id: int) -> None:
        """Forget a checkpoint, visible or not."""
