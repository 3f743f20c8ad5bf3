"""Blocking calls of a simulated process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.testing.simulation.loop import Node
from sluiceway.testing.simulation.streams import Pipe

__all__ = ["SimulatedBackground"]

T = TypeVar("T")


class SimulatedBackground(Background):
    """Executor that runs each call a little later, in order, and reports its end later still.

    If the process ends in between, the call was made or not, and its end is never reported.

    Args:
        node: the process.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._coming: Pipe[Callable[[], None]] = Pipe(node.world, self._do)
        self._done: Pipe[Callable[[], None]] = Pipe(node.world, self._tell)

    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Run a call later."""
        self._coming.put(partial(self._work, work, done))

    def _work(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result, error = work(), None
        except Exception as raised:
            result, error = None, raised
        self._done.put(lambda: done(result, error))

    def _do(self, work: Callable[[], None]) -> None:
        if self._node.alive:
            work()

    def _tell(self, done: Callable[[], None]) -> None:
        if self._node.alive:
            self._node.loop.soon(done)
