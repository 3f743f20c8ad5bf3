"""Contract of the event loop that runs the coroutines of a worker's tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from sluiceway.operators import Calls

__all__ = ["EventLoop"]


class EventLoop(ABC):
    """Event loop of a worker. From the worker's thread only."""

    @abstractmethod
    def calls(self, wake: Callable[[], None]) -> Calls:
        """Return the calls of an operator.

        Args:
            wake: called in the loop's thread when calls have ended.
        """

    @abstractmethod
    def close(self) -> None:
        """End the loop; every operator has closed its calls by now. Harmless a second time."""
