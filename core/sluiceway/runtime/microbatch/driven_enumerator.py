"""Enumerator driver for readers that do not run at the same time as the enumerator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Protocol

from sluiceway.clock import Clock, SystemClock
from sluiceway.connector import Source
from sluiceway.errors import ConnectorError
from sluiceway.runtime.source.enumerator_driver import EnumeratorDriver

__all__ = ["Dealt", "DrivenEnumerator", "SplitsInTurn", "check_all_received", "deal_splits", "plan_splits"]

_LOOK_S: Final = 0.2


@dataclass(slots=True)
class _Delivery:
    """Splits that a reader was assigned in one call of the enumerator.

    Attributes:
        call: number of the call.
        is_answer: whether the call was the request of this reader.
        splits: the splits, at least one.
    """

    call: int
    is_answer: bool
    splits: list[Any]


class DrivenEnumerator(EnumeratorDriver):
    """Driver of the enumerator of one source, in the calling thread.

    A context manager, which closes the enumerator. Other threads may call :meth:`wake` only.

    Args:
        source: the source.
        parallelism: number of readers.
        clock: clock of delayed wake-ups.
        restored: snapshot of an earlier enumerator, or None.
        no_more: readers that an earlier enumerator has notified that no more splits follow.

    Attributes:
        unanswered: readers with an unanswered request.
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
        self._assigned: dict[int, list[_Delivery]] = {}
        self._calls = 0
        self._served: int | None = None
        self.unanswered: set[int] = set()
        self._woken = threading.Condition()
        self._run_at: list[float] = []

    def __enter__(self) -> DrivenEnumerator:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        """Store assigned splits until :meth:`take`."""
        mine = self._assigned.setdefault(reader, [])
        if not mine or mine[-1].call != self._calls:
            mine.append(_Delivery(self._calls, reader == self._served, []))
        mine[-1].splits += splits
        self.unanswered.discard(reader)

    def deliver_end(self, reader: int) -> None:
        """Mark the request of a reader as answered."""
        self.unanswered.discard(reader)

    def wake(self, after_s: float = 0.0) -> None:
        """Schedule ``run`` for the first :meth:`step` after the delay."""
        with self._woken:
            self._run_at.append(self._clock.monotonic() + after_s)
            self._woken.notify()

    def start(self, readers: Iterable[int] = ()) -> None:
        """Create and start the enumerator, and register all readers that may still get splits."""
        try:
            super().start(reader for reader in range(self._parallelism) if reader not in self.no_more)
        except BaseException:
            self.close()
            raise

    def request(self, reader: int, *, again: bool = False) -> None:
        """Request a split for a reader; ignored if none follow or, unless ``again``, a request is unanswered."""
        if reader not in self.no_more and (again or reader not in self.unanswered):
            self.unanswered.add(reader)
            self._calls += 1
            self._served = reader
            try:
                super().request(reader)
            finally:
                self._served = None

    def step(self, timeout_s: float = 0.0) -> bool:
        """Run the enumerator if a wake-up is due, after waiting at most ``timeout_s``. Return whether it ran."""
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
        self._calls += 1
        self.run()
        return True

    def taken(self, reader: int) -> int:
        """Return the number of splits assigned to a reader and not taken."""
        return sum(len(delivery.splits) for delivery in self._assigned.get(reader, ()))

    @property
    def assigns_to_any(self) -> bool:
        """True if any reader may read a split that the enumerator has assigned to another one."""
        return self.enumerator is not None and self.enumerator.assigns_to_any

    def peek(self) -> dict[int, list[Any]]:
        """Return the result of :meth:`take`, without taking it."""
        return {reader: _flat(deliveries) for reader, deliveries in self._assigned.items()}

    def together(self) -> frozenset[str]:
        """Return the ids of the splits not taken that were assigned in one call with the one before them."""
        return frozenset(split.split_id for delivery in self._deliveries() for split in delivery.splits[1:])

    def pushed(self) -> frozenset[str]:
        """Return the ids of the first splits of each call that was no request of their reader; none is taken."""
        return frozenset(d.splits[0].split_id for d in self._deliveries() if not d.is_answer)

    def take(self) -> dict[int, list[Any]]:
        """Remove and return the splits assigned since the last call, by reader."""
        assigned = self.peek()
        self._assigned.clear()
        return assigned

    def take_for(self, reader: int) -> list[Any]:
        """Remove and return the splits assigned to one reader."""
        return _flat(self._assigned.pop(reader, ()))

    def _deliveries(self) -> Iterator[_Delivery]:
        return chain.from_iterable(self._assigned.values())


def _flat(deliveries: Iterable[_Delivery]) -> list[Any]:
    return [split for delivery in deliveries for split in delivery.splits]


@dataclass(frozen=True, slots=True)
class Dealt:
    """Splits that an enumerator has assigned to one reader.

    Attributes:
        first: splits assigned at the start, without a request.
        answers: splits per request, in order.
    """

    first: list[Any]
    answers: list[list[Any]]

    @property
    def splits(self) -> list[Any]:
        """All splits, in the order of their assignment."""
        return [*self.first, *(split for answer in self.answers for split in answer)]


def deal_splits(
    source: Source[Any],
    readers: int,
    clock: Clock | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    kept: ExitStack | None = None,
) -> list[Dealt]:
    """Assign all splits of a bounded source to readers that request them in turn.

    Blocks while the enumerator finds splits in threads of its own.

    Args:
        source: a bounded source.
        readers: number of readers.
        clock: clock for the enumerator's delays; None: the system clock.
        cancelled: polled between requests; True ends the assignment.
        kept: closes the enumerator later, since closing may delete files that readers need; None: it is closed
            on return.

    Returns:
        the splits of each reader, for :class:`SplitsInTurn`; empty if cancelled.

    Raises:
        Exception: errors of the enumerator; ConnectorError if it breaks its contract.
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
    """Return the splits of each reader as one list: :func:`deal_splits` without the order of requests."""
    return [dealt.splits for dealt in deal_splits(source, readers, clock, cancelled, kept)]


def check_all_received(name: str, reader: int, readers: int, left: Iterable[Sequence[Any]]) -> None:
    """Check at the end of a reader that it has received the answers that it was assigned ahead.

    Elsewhere the other readers request what one that ends by itself has not. A reader alone decides where to end.

    Args:
        name: name of the source.
        reader: number of the reader.
        readers: number of readers.
        left: answers that it has not received.

    Raises:
        ConnectorError: splits are left that no reader reads.
    """
    split_ids = [repr(split.split_id) for answer in left for split in answer]
    if split_ids and readers > 1:
        raise ConnectorError(
            f"reader {reader} of {name} returned END_OF_INPUT before no_more_splits() was called, and no other "
            f"reader reads the splits that were assigned to it ahead: {', '.join(split_ids[:3])}"
            f"{', ...' if len(split_ids) > 3 else ''}. Have the reader return a Wait until no_more_splits() is "
            "called, or read the source with a parallelism of 1"
        )


class _Reading(Protocol):
    """Subtask that reads a source."""

    splits_wanted: int
    records_in: int

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def no_more_splits(self) -> None: ...


class SplitsInTurn:
    """Feeder of a subtask's splits in the order of their assignment, as an enumerator would.

    Splits are not added all at once: a reader may read several in turn, and the watermark is the minimum over the
    splits that it has.

    Args:
        chain: the opened subtask.
        dealt: its splits.
        held: returns the unfinished splits of its reader.
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
        """Return whether the reader waits for a split. Called before each poll."""
        if not self._left:
            return False
        if self._chain.splits_wanted:
            return True
        # A reader that has made no progress and has no splits needs one, also without a request.
        before, self._records = self._records, self._chain.records_in
        return before == self._records and not self._held()

    def give(self) -> None:
        """Add the splits that the reader waits for; after the last one, notify it that no more follow."""
        # At least one, as a reader may have run dry without asking.
        self._owed = max(1, self._chain.splits_wanted)
        self._answer()

    def check_all_received(self, name: str, reader: int, readers: int) -> None:
        """Raise ConnectorError if the reader has ended before it had its splits; see the function."""
        check_all_received(name, reader, readers, self._left)

    def _answer(self) -> None:
        chain = self._chain
        while self._owed and self._left:
            chain.add_splits(self._left.popleft())
            self._owed += chain.splits_wanted - 1
        if not self._left:
            chain.no_more_splits()
