"""An enumerator driven by hand, without readers that run at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluiceway.clock import Clock, SystemClock
from sluiceway.connector import Source
from sluiceway.runtime.source.enumerator_driver import EnumeratorDriver

__all__ = ["Dealt", "DrivenEnumerator", "SplitsInTurn", "deal_splits", "plan_splits"]

_LOOK_S: Final = 0.2


class DrivenEnumerator(EnumeratorDriver):
    """The enumerator of one source, in the calling thread; only :meth:`wake` comes from others.

    A context manager, which closes the enumerator.

    Args:
        source: the source.
        parallelism: number of readers.
        clock: for the delays of its wake-ups.
        restored: what an earlier enumerator's snapshot returned, or None.
        no_more: readers that an earlier one has told that there are no more splits.

    Attributes:
        unanswered: readers whose last request was not answered yet.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        clock: Clock | None = None,
        *,
        restored: Any = None,
        no_more: Collection[int] = (),
    ) -> None:
        clock = SystemClock() if clock is None else clock
        super().__init__(source, parallelism, clock, restored=restored, no_more=no_more)
        self._assigned: dict[int, list[Any]] = {}
        self.unanswered: set[int] = set()
        self._woken = threading.Condition()
        self._run_at: list[float] = []

    def __enter__(self) -> DrivenEnumerator:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        """Keep them until they are taken."""
        self._assigned.setdefault(reader, []).extend(splits)
        self.unanswered.discard(reader)

    def deliver_end(self, reader: int) -> None:
        """Note that its request was answered."""
        self.unanswered.discard(reader)

    def wake(self, after_s: float = 0.0) -> None:
        """Have ``run`` called by the next :meth:`step` that comes late enough."""
        with self._woken:
            self._run_at.append(self._clock.monotonic() + after_s)
            self._woken.notify()

    def start(self, readers: Iterable[int] = ()) -> None:
        """Create and start the enumerator, and add all readers that may still get splits."""
        try:
            super().start(reader for reader in range(self._parallelism) if reader not in self.no_more)
        except BaseException:
            self.close()
            raise

    def request(self, reader: int) -> None:
        """A reader wants a split, unless it waits for one already or was told that there are no more."""
        if reader not in self.no_more and reader not in self.unanswered:
            self.unanswered.add(reader)
            super().request(reader)

    def step(self, timeout_s: float = 0.0) -> bool:
        """Run the enumerator if it has asked for that, waiting for it at most ``timeout_s``; whether it ran."""
        until = self._clock.monotonic() + timeout_s
        with self._woken:
            while True:
                now = self._clock.monotonic()
                due = [at for at in self._run_at if at <= now]
                if due:
                    self._run_at = [at for at in self._run_at if at > now]
                    break
                if now >= until:
                    return False
                self._woken.wait(min([until, *self._run_at]) - now)
        self.run()
        return True

    def taken(self, reader: int) -> int:
        """How many splits wait to be taken for a reader."""
        return len(self._assigned.get(reader, ()))

    def peek(self) -> dict[int, list[Any]]:
        """What :meth:`take` would return."""
        return {reader: list(splits) for reader, splits in self._assigned.items()}

    def take(self) -> dict[int, list[Any]]:
        """The splits handed out since this was last called, by reader."""
        assigned, self._assigned = self._assigned, {}
        return assigned

    def take_for(self, reader: int) -> list[Any]:
        """The same for one reader alone."""
        return self._assigned.pop(reader, [])


@dataclass(frozen=True, slots=True)
class Dealt:
    """What an enumerator has given to one reader.

    Attributes:
        first: without being asked, when it began.
        answers: for one request after the other.
    """

    first: list[Any]
    answers: list[list[Any]]


def deal_splits(
    source: Source[Any],
    readers: int,
    clock: Clock | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    kept: ExitStack | None = None,
) -> list[Dealt]:
    """All splits of a source that ends, for each reader: they ask in turn.

    Waits for an enumerator that finds its splits in threads of its own.

    Args:
        source: a bounded one.
        readers: how many there are.
        clock: for the enumerator's delays; None: the system's.
        cancelled: asked while the enumerator takes its time: whether to give up.
        kept: closes the enumerator, with which files may go that readers need; None: it is closed at once.

    Returns:
        the splits of each reader, for :class:`SplitsInTurn`; none, if it was cancelled.

    Raises:
        Exception: what the enumerator raises; ConnectorError if it breaks its contract.
    """
    with ExitStack() as at_once:
        enumerator = (at_once if kept is None else kept).enter_context(DrivenEnumerator(source, readers, clock))
        first = enumerator.take()
        dealt = [Dealt(first.get(reader, []), []) for reader in range(readers)]
        while not cancelled():
            for reader in range(readers):
                enumerator.request(reader)
            found = enumerator.take()
            for reader, splits in found.items():
                dealt[reader].answers.append(splits)
            if len(enumerator.no_more) == readers:
                return dealt
            if not found:
                enumerator.step(_LOOK_S)
    return [Dealt([], []) for _ in range(readers)]


def plan_splits(
    source: Source[Any],
    readers: int,
    clock: Clock | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    kept: ExitStack | None = None,
) -> list[list[Any]]:
    """What :func:`deal_splits` finds, without who was asked for it when: the splits of each reader."""
    dealt = deal_splits(source, readers, clock, cancelled, kept)
    return [[*each.first, *(split for answer in each.answers for split in answer)] for each in dealt]


class _Reading(Protocol):
    """A subtask that reads a source."""

    splits_wanted: int
    records_in: int

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def no_more_splits(self) -> None: ...


class SplitsInTurn:
    """Gives a subtask its splits as they were dealt: so that it reads as it would beside the enumerator.

    Which splits a reader has at a time matters: it may read several in turn, and the slowest of them is how far it
    is in event time.

    Args:
        chain: the subtask, open.
        dealt: its splits.
        held: gives the splits that its reader has and has not read to their end.
    """

    def __init__(self, chain: _Reading, dealt: Dealt, held: Callable[[], Sequence[Any]]) -> None:
        self._chain = chain
        self._left = deque(dealt.answers)
        self._held = held
        self._records = -1
        self._owed = chain.splits_wanted
        if dealt.first:
            chain.add_splits(dealt.first)
            self._owed += chain.splits_wanted
        self._answer()

    def wanted(self) -> bool:
        """Whether the reader waits for a split: to be asked before it is polled."""
        if not self._left:
            return False
        if self._chain.splits_wanted:
            return True
        # Whoever has nothing to read waits for splits, asked for or not.
        before, self._records = self._records, self._chain.records_in
        return before == self._records and not self._held()

    def give(self) -> None:
        """Give what it waits for, and with the last split say that it was the last."""
        self._owed = max(1, self._chain.splits_wanted)
        self._answer()

    def _answer(self) -> None:
        chain = self._chain
        while self._owed and self._left:
            chain.add_splits(self._left.popleft())
            self._owed += chain.splits_wanted - 1
        if not self._left:
            chain.no_more_splits()
