"""Base of keyed operators with timers: fired in order, in parts, and kept with the keyed state."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Any, Final

from sluiceway.elements import MIN_WATERMARK, Watermark
from sluiceway.functions import TimeDomain
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.timer_queue import Timer, TimerQueue
from sluiceway.state import VOID_NAMESPACE, ValueStateDescriptor
from sluiceway.util.overriding import override

__all__ = ["BURST", "DUE", "TIMERS", "TimedKeyedOperator", "timers_in"]

BURST: Final = 1024
"""Timers that fire before mails are processed."""

TIMERS: Final = ValueStateDescriptor("timers of the operator")
"""Timers of a key in the form of the state: see :func:`timers_in`."""

DUE: Final = ValueStateDescriptor("watermark at which timers were firing", int)
"""Watermark by key, for keys with timers that were due but had not fired when the snapshot was taken."""


class TimedKeyedOperator(KeyedOperator, TimedOperator):
    """Base of keyed operators with timers.

    Timers are in queues beside the state; a snapshot writes them into a table of their own, by key, so that
    they are redistributed with the key groups.

    A snapshot may be taken while a watermark's timers fire. A job restored from it fires the others before
    anything else, and forgets the watermark then, as every restore does.
    """

    own_tables = frozenset({TIMERS.name, DUE.name})

    # Between two bursts a snapshot is correct: it notes in DUE how far timers were firing.
    interruptible = True

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._was_firing = False
        self.event_timers = TimerQueue()
        self.processing_timers = TimerQueue()
        self._held: Watermark | None = None
        # Processing-time timers that were pending when the input ended.
        self._last: deque[Timer] = deque()

    @abstractmethod
    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
        """Process the timers in order; taking one from the iterator removes it from the queue."""

    # ---- time ------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        """Fire due timers in parts; the watermark is emitted after the last of them."""
        # Held back until then, so that results of the timers are not late for consumers.
        self._held = watermark
        self.has_work = True
        self.work()

    @override
    def work(self) -> None:
        # The input has ended: processing-time timers fire at once, whatever their timestamps are.
        if self._last:
            part = [self._last.popleft() for _ in range(min(BURST, len(self._last)))]
            self.fire(TimeDomain.PROCESSING_TIME, self._taken(part))
            self.has_work = bool(self._last)
            return
        until = self.current_watermark
        if self.event_timers.is_due(until):
            self.fire(TimeDomain.EVENT_TIME, islice(self.event_timers.due(until), BURST))
            if self.event_timers.is_due(until):
                return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(held)
        else:
            # The timers of a restored snapshot have fired. Its watermark is not emitted: inputs send theirs again.
            self.current_watermark = MIN_WATERMARK

    @override
    def next_processing_time(self) -> int | None:
        return self.processing_timers.next_timestamp()

    @override
    def on_processing_time(self, now_ms: int) -> None:
        # One burst: the rest stays due, so that the task calls again after its mails.
        self.fire(TimeDomain.PROCESSING_TIME, islice(self.processing_timers.due(now_ms), BURST))

    def finish(self) -> None:
        """Fire the processing-time timers set before the end of the input, in parts."""
        # A copy of the queue: timers that these timers register do not fire, or finishing might not end.
        self._last.extend(sorted(self.processing_timers.timers(), key=lambda timer: timer[0]))
        if self._last:
            self.has_work = True
            self.work()

    def _taken(self, timers: Sequence[Timer]) -> Iterator[Timer]:
        for timer in timers:
            if self.processing_timers.delete(*timer):  # else an earlier timer has deleted it
                yield timer

    # ---- state -----------------------------------------------------------------------------------------------

    @override
    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        super().initialize_state(restored)
        self._was_firing = any(
            meta.name == DUE.name for s in restored if s.keyed is not None for meta in s.keyed.tables
        )

    def open(self) -> None:
        """Move the timers from the state into the queues."""
        super().open()
        # The table is empty while the task runs: timers are written by snapshots, not by each registration.
        entries = self.backend.table(TIMERS).entries()
        for key, timers in entries.items():
            for is_event, timestamp, namespace in timers_in(timers):
                queue = self.event_timers if is_event else self.processing_timers
                queue.register(timestamp, key, namespace)
        entries.clear()
        if self._was_firing:
            due = self.backend.table(DUE).entries()
            self._go_on_firing(due)
            due.clear()

    def _go_on_firing(self, due: Mapping[Any, int]) -> None:
        """Fire timers that were due, up to the first one that was not: subtasks may have had other watermarks."""
        # Operators may work off, at the first timer of a key, all that the watermark covers: the lowest one.
        until = min(due.values(), default=MIN_WATERMARK)
        # Timers fire in order of time over all keys, so firing stops before the first that its own watermark had
        # not reached. Those behind it wait for the next watermark.
        others = (t for t, key, _ in self.event_timers.timers() if t > due.get(key, MIN_WATERMARK))
        until = min(until, min(others, default=until + 1) - 1)
        if self.event_timers.is_due(until):
            self.current_watermark = until
            self.has_work = True

    @override
    def snapshot(self) -> OperatorSnapshot:
        # Copied now: a backend may call the function in another thread, when the queues have changed.
        event, processing = self.event_timers.copy(), self.processing_timers.copy()
        taken = [self.backend.table(TIMERS).set_aside(lambda: _by_key(event, processing))]
        if self.has_work:
            until = self.current_watermark
            due = self.backend.table(DUE)
            taken.append(due.set_aside(lambda: {key: until for at, key, _ in event if at <= until}))
        try:
            return super().snapshot()
        finally:
            # Only the snapshot has the timers in the table; the queues stay the place where they are looked up.
            for call in taken:
                call()


def _by_key(event: Iterable[Timer], processing: Iterable[Timer]) -> dict[Any, Any]:
    """Return timers in the form of the state."""
    kept: dict[Any, Any] = {}
    several: dict[Any, list[tuple[bool, int, Hashable]]] = {}
    for is_event, timers in ((True, event), (False, processing)):
        for timestamp, key, namespace in timers:
            # The usual case is one timer for a key, without a namespace: a tuple of plain values, which snapshots
            # encode in blocks. A list is begun for the second one.
            known = kept.get(key)
            if known is None and namespace is VOID_NAMESPACE:
                kept[key] = is_event, timestamp
                continue
            if (listed := several.get(key)) is None:
                listed = several[key] = [] if known is None else list(timers_in(known))
                kept[key] = listed
            listed.append((is_event, timestamp, namespace))
    for key, listed in several.items():
        if all(namespace is VOID_NAMESPACE for _, _, namespace in listed):
            kept[key] = tuple(chain.from_iterable((is_event, at) for is_event, at, _ in listed))
    return kept


def timers_in(kept: Sequence[Any]) -> Iterable[tuple[bool, int, Hashable]]:
    """Return the timers of a key, as (is event time, timestamp, namespace), from the form of the state.

    The form is a list of timers; or, if none has a namespace, one flat tuple: is event time, timestamp, ...
    """
    if kept and type(kept[0]) is bool:
        return zip(kept[::2], kept[1::2], repeat(VOID_NAMESPACE))
    return kept
