"""Queues of in-flight records in an asynchronous step, with the control elements between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from sluiceway.elements import Element
from sluiceway.util.overriding import override

__all__ = ["Entry", "OrderedQueue", "Queue", "UnorderedQueue"]


class Entry:
    """In-flight record.

    Attributes:
        value: the record.
        timestamp: its event time in ms, or None.
        attempts: number of calls made for it.
        deadline: end of its timeout, by :meth:`Clock.steady_ms`.
        expired: whether its timeout has passed.
        done: whether ``result`` is set.
        result: results to emit for it.
    """

    __slots__ = ("attempts", "deadline", "done", "expired", "result", "segment", "timestamp", "value")

    segment: _Segment

    def __init__(self, value: Any, timestamp: int | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.attempts = 0
        self.deadline = 0
        self.expired = False
        self.done = False
        self.result: Any = None


class Queue(ABC):
    """Queue that decides when the results of a record may be emitted."""

    @abstractmethod
    def put(self, entry: Entry) -> None:
        """Add a record."""

    @abstractmethod
    def put_control(self, element: Element) -> None:
        """Add a control element. Records never pass it, in either direction."""

    @abstractmethod
    def done(self, entry: Entry) -> None:
        """Mark a record as done: it has its result."""

    @abstractmethod
    def take(self) -> tuple[list[Entry], Element | None]:
        """Remove and return the results that may be emitted, and the control element behind them."""

    @property
    @abstractmethod
    def has_ready(self) -> bool:
        """True if :meth:`take` would return something."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Return the records in the queue."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records and control elements in the queue."""


class OrderedQueue(Queue):
    """Queue that emits results in the order of the records."""

    def __init__(self) -> None:
        self._items: deque[Entry | Element] = deque()

    @override
    def put(self, entry: Entry) -> None:
        self._items.append(entry)

    @override
    def put_control(self, element: Element) -> None:
        self._items.append(element)

    @override
    def done(self, entry: Entry) -> None:
        entry.done = True

    def take(self) -> tuple[list[Entry], Element | None]:
        """Remove and return the results at the head that are done."""
        # At most one control element per call: the caller lets the operators behind work it off before the next.
        items = self._items
        gone: list[Entry] = []
        while items:
            first = items[0]
            if not isinstance(first, Entry):
                items.popleft()
                return gone, first
            if not first.done:
                break
            items.popleft()
            gone.append(first)
        return gone, None

    @property
    def has_ready(self) -> bool:
        """True if the head is done."""
        if not self._items:
            return False
        first = self._items[0]
        return not isinstance(first, Entry) or first.done

    @override
    def entries(self) -> Iterator[Entry]:
        return (item for item in self._items if isinstance(item, Entry))

    def __len__(self) -> int:
        return len(self._items)


class _Segment:
    """Records between two control elements."""

    __slots__ = ("done", "end", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Entry, None] = {}
        self.done: list[Entry] = []
        self.end: Element | None = None


class UnorderedQueue(Queue):
    """Queue that emits results as they complete, but never past a control element."""

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque([_Segment()])

    def put(self, entry: Entry) -> None:
        """Append a record to the last segment."""
        entry.segment = segment = self._segments[-1]
        segment.waiting[entry] = None

    def put_control(self, element: Element) -> None:
        """Close the last segment."""
        self._segments[-1].end = element
        # There is always an open last segment that takes the next record.
        self._segments.append(_Segment())

    def done(self, entry: Entry) -> None:
        """Release the record at once if its segment is the first."""
        entry.done = True
        segment = entry.segment
        # In the order of completion; a segment behind the first keeps its results until its turn comes.
        del segment.waiting[entry]
        segment.done.append(entry)

    def take(self) -> tuple[list[Entry], Element | None]:
        """Remove and return what is done in the first segment, and its end if none of its records is in flight."""
        first = self._segments[0]
        gone, first.done = first.done, []
        if first.waiting or first.end is None:
            return gone, None
        self._segments.popleft()
        return gone, first.end

    @property
    def has_ready(self) -> bool:
        """True if a record of the first segment is done."""
        first = self._segments[0]
        return bool(first.done) or (not first.waiting and first.end is not None)

    def entries(self) -> Iterator[Entry]:
        """Records, segment by segment."""
        for segment in self._segments:
            yield from segment.done
            yield from segment.waiting

    def __len__(self) -> int:
        ends = sum(s.end is not None for s in self._segments)
        return ends + sum(len(s.waiting) + len(s.done) for s in self._segments)
