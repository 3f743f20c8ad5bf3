"""Event loop that starts with the first call."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.operators import Calls
from sluiceway.runtime.loop.async_calls import EventLoop

__all__ = ["LazyEventLoop"]


class LazyEventLoop(EventLoop):
    """Event loop that is created on demand: most workers need none, and asyncio is slow to import."""

    def __init__(self) -> None:
        self._loop: EventLoop | None = None

    def calls(self, wake: Callable[[], None]) -> Calls:
        """Start the loop if there is none."""
        if self._loop is None:
            from sluiceway.runtime.loop.asyncio_thread import ThreadedEventLoop

            self._loop = ThreadedEventLoop()
        return self._loop.calls(wake)

    def close(self) -> None:
        """End the loop, if it was started."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
