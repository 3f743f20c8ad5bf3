"""Where the coroutines of a worker's tasks run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from sluiceway.operators import Calls

__all__ = ["EventLoop", "LazyEventLoop"]


class EventLoop(ABC):
    """The event loop of a worker. From the worker's thread."""

    @abstractmethod
    def calls(self, wake: Callable[[], None]) -> Calls:
        """Begin to make calls for an operator.

        Args:
            wake: called in the loop's thread when calls have ended.
        """

    @abstractmethod
    def close(self) -> None:
        """End the loop; every operator has closed its calls by now. Harmless a second time."""


class LazyEventLoop(EventLoop):
    """A loop in a thread of its own, for workers that will mostly not want one: asyncio is slow to import."""

    def __init__(self) -> None:
        self._loop: EventLoop | None = None

    def calls(self, wake: Callable[[], None]) -> Calls:
        """Start the loop if there is none."""
        if self._loop is None:
            from sluiceway.runtime.loop.asyncio_thread import ThreadedEventLoop

            self._loop = ThreadedEventLoop()
        return self._loop.calls(wake)

    def close(self) -> None:
        """End it, if there is one."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
