"""All splits of a bounded source, handed out before anything is read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Source
from sluiceway.runtime.jobmanager.sources import SourceCoordinator

__all__ = ["plan_splits"]


def plan_splits(
    source: Source[Any], readers: int, clock: Clock, cancelled: Callable[[], bool] = lambda: False
) -> list[list[Any]]:
    """Run the enumerator of a source as if its readers were done with each split at once, all equally fast.

    Args:
        source: a bounded one: its enumerator comes to an end.
        readers: how many there are.
        clock: the enumerator's.
        cancelled: asked while the enumerator takes its time: whether to give up.

    Returns:
        the splits of each reader; none, if it was cancelled.

    Raises:
        Exception: what the enumerator has raised.
    """
    dealt: list[list[Any]] = [[] for _ in range(readers)]
    ended: set[int] = set()
    posts = _Posts(clock)

    def assign(reader: int, splits: Sequence[Any]) -> None:
        dealt[reader].extend(splits)

    coordinator = SourceCoordinator(source, readers, clock, assign=assign, no_more=ended.add, post=posts.post)
    try:
        coordinator.start()
        for reader in range(readers):
            coordinator.reader_ready(reader)
        while len(ended) < readers and not cancelled():
            known = sum(map(len, dealt)), len(ended)
            for reader in range(readers):
                if reader not in ended:
                    coordinator.split_requested(reader)
            if (sum(map(len, dealt)), len(ended)) == known:
                posts.wait()
            posts.run()
    finally:
        coordinator.close()
    return [[] for _ in dealt] if len(ended) < readers else dealt


class _Posts:
    """What an enumerator wants to have called later; some of it from other threads."""

    _LOOK_S = 0.2

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: deque[tuple[float, Callable[[], None]]] = deque()

    def post(self, action: Callable[[], None], after_s: float) -> None:
        with self._changed:
            self._due.append((self._clock.monotonic() + after_s, action))
            self._changed.notify()

    def wait(self) -> None:
        """Until something is due, or for a moment."""
        with self._changed:
            first = min((at for at, _ in self._due), default=None)
            rest = self._LOOK_S if first is None else min(self._LOOK_S, first - self._clock.monotonic())
            if rest > 0:
                self._changed.wait(rest)

    def run(self) -> None:
        now = self._clock.monotonic()
        with self._changed:
            due = [action for at, action in self._due if at <= now]
            self._due = deque((at, action) for at, action in self._due if at > now)
        for action in due:
            action()
