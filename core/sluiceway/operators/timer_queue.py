"""Queue of the timers of one operator, without a clock: the operator passes the current time.

A timer is a timestamp, a key and a namespace; registering it again has no effect. Timers fire in the
order of their timestamps, those of one timestamp in the order in which they were registered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

__all__ = ["Timer", "TimerQueue"]

Timer: TypeAlias = tuple[int, Any, Hashable]
"""Timestamp in ms, key, namespace."""

# Buckets of 2**10 ms. Timers with an id up to that of the near bucket are in the near part.
_SHIFT: Final = 10
_SPARE: Final = 64
"""Timers or buckets that are deleted at least before any of them is dropped."""
_by_timestamp: Final = itemgetter(0)


class TimerQueue:
    """Timers of one time domain of one operator in one subtask. From the task's thread only.

    Calendar queue (R. Brown, CACM 31(10), 1988) with buckets of 1,024 ms: far timers are unsorted in the
    bucket of their time, where adding one costs a dict entry. The nearest bucket is sorted when its turn
    comes; timers that are added to it after that are in a small heap beside it.
    """

    __slots__ = ("_buckets", "_deleted", "_emptied", "_ids", "_late", "_live", "_near_id", "_order", "_sorted")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Timer, None]] = {}
        self._ids: list[int] = []
        # The near part: timers in _live are valid; others that are still in _sorted or _late were deleted.
        self._near_id = -(2**63)
        self._live: dict[Timer, None] = {}
        self._sorted: list[Timer] = []
        self._late: list[tuple[int, int, Timer]] = []
        self._order = 0
        # Timers that were deleted from the near part, and buckets that were emptied, since any were dropped.
        self._deleted = self._emptied = 0

    def __len__(self) -> int:
        return len(self._live) + sum(map(len, self._buckets.values()))

    def register(self, timestamp: int, key: Any, namespace: Hashable) -> None:
        """Add a timer, unless it is registered already."""
        timer = (timestamp, key, namespace)
        id_ = timestamp >> _SHIFT
        if id_ > self._near_id:
            bucket = self._buckets.get(id_)
            if bucket is None:
                self._buckets[id_] = {timer: None}
                heappush(self._ids, id_)
            else:
                bucket[timer] = None
        elif timer not in self._live:
            self._live[timer] = None
            self._order += 1
            heappush(self._late, (timestamp, self._order, timer))

    def delete(self, timestamp: int, key: Any, namespace: Hashable) -> bool:
        """Delete a timer; return whether it was registered."""
        # Deleted timers stay in `_sorted` and `_late` until they are first there, or outnumber the others:
        # removing one would be a search. Empty buckets stay likewise.
        timer = (timestamp, key, namespace)
        id_ = timestamp >> _SHIFT
        near = id_ <= self._near_id
        timers = self._live if near else self._buckets.get(id_, {})
        # The default of pop() is any object but None, the value of a timer.
        if timers.pop(timer, self) is not None:
            return False
        if near:
            self._deleted += 1
            if self._deleted > len(timers) + _SPARE:
                self._drop_deleted()
        elif not timers:
            self._emptied += 1
            if self._emptied > len(self._buckets) // 2 + _SPARE:
                self._drop_empty()
        return True

    def next_timestamp(self) -> int | None:
        """Return the earliest timestamp that has a timer, or None."""
        timer = self._head()
        return None if timer is None else timer[0]

    def is_due(self, until: int) -> bool:
        """Return whether a timer has a timestamp of at most ``until``; sorts no later bucket."""
        timer = self._head(until)
        return timer is not None and timer[0] <= until

    def due(self, until: int) -> Iterator[Timer]:
        """Remove and yield timers with a timestamp of at most ``until``, in order.

        Timers that are registered or deleted meanwhile are taken into account. A caller may stop at any time, and
        continue with another call.
        """
        # Bound once: these are changed in place and never replaced.
        live, near, late = self._live, self._sorted, self._late
        while True:
            if near and not late:
                # The usual case: the timers are in order, and none was registered since.
                timer = near[-1]
                if timer[0] > until:
                    return
                near.pop()
                if live.pop(timer, self) is None:
                    yield timer
                continue
            head = self._head(until)
            if head is None or head[0] > until:
                return
            del live[head]
            yield head

    def timers(self) -> Iterator[Timer]:
        """Return all timers, in no particular order."""
        yield from self._live
        for bucket in self._buckets.values():
            yield from bucket

    def copy(self) -> list[Timer]:
        """Return a copy of all timers, in no particular order; cheaper than :meth:`timers`."""
        return [*self._live, *chain.from_iterable(self._buckets.values())]

    def _drop_deleted(self) -> None:
        """Remove deleted timers from the near part, in place, as :meth:`due` may be at work on it."""
        live, near = self._live, self._sorted
        near[:] = [timer for timer in near if timer in live]
        # A timer that was registered again has several entries, of which the first counts.
        seen = set(near)
        late = []
        for entry in sorted(self._late):
            timer = entry[2]
            if timer in live and timer not in seen:
                seen.add(timer)
                late.append(entry)
        self._late[:] = late  # sorted, and so a heap
        self._deleted = 0

    def _drop_empty(self) -> None:
        for id_ in [id_ for id_, bucket in self._buckets.items() if not bucket]:
            del self._buckets[id_]
        self._ids = sorted(self._buckets)
        self._emptied = 0

    def _head(self, until: int | None = None) -> Timer | None:
        """Return the first timer without removing it; buckets that begin after ``until`` are not sorted."""
        live, near, late = self._live, self._sorted, self._late
        while True:
            while near and near[-1] not in live:
                near.pop()
            while late and late[0][2] not in live:
                heappop(late)
            if near:
                # Of one timestamp those that were sorted go first: they were registered before.
                return late[0][2] if late and late[0][0] < near[-1][0] else near[-1]
            if late:
                return late[0][2]
            if not self._ids or (until is not None and self._ids[0] << _SHIFT > until):
                return None
            self._near_id = heappop(self._ids)
            bucket = self._buckets.pop(self._near_id)
            live.update(bucket)
            # Reversed, so that the first timer is popped from the end. With sorted(reverse=True)
            # ties would be popped last in, first out.
            near.extend(sorted(bucket, key=_by_timestamp))
            near.reverse()
