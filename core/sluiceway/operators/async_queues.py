"""Queues of records under way in an asynchronous step, with the control elements between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from sluiceway.elements import Element

__all__ = ["Entry", "OrderedQueue", "Queue", "UnorderedQueue"]


class Entry:
    """Record under way.

    Attributes:
        value: the record.
        timestamp: its event time in ms, or None.
        attempts: how often it was called for.
        deadline: when its time is up, in ms since the epoch.
        expired: whether its time was up.
        done: whether ``result`` is there.
        result: what is to be emitted for it.
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
        """Add a control element, which no record passes in either direction."""

    @abstractmethod
    def done(self, entry: Entry) -> None:
        """Note that a record has its result."""

    @abstractmethod
    def take(self) -> tuple[list[Entry], Element | None]:
        """Return results that may be emitted, and the control element behind them if its turn has come."""

    @property
    @abstractmethod
    def has_ready(self) -> bool:
        """True if :meth:`take` would return something."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Records that were not taken."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records and control elements that were not taken."""


class OrderedQueue(Queue):
    """Queue that emits results in the order of the records."""

    def __init__(self) -> None:
        self._items: deque[Entry | Element] = deque()

    def put(self, entry: Entry) -> None:
        """Append a record."""
        self._items.append(entry)

    def put_control(self, element: Element) -> None:
        """Append a control element."""
        self._items.append(element)

    def done(self, entry: Entry) -> None:
        """Mark the record as done."""
        entry.done = True

    def take(self) -> tuple[list[Entry], Element | None]:
        """Return what is done at the head."""
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

    def entries(self) -> Iterator[Entry]:
        """Records in their order."""
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
        self._segments.append(_Segment())

    def done(self, entry: Entry) -> None:
        """Release the record as soon as its segment is the first."""
        entry.done = True
        segment = entry.segment
        del segment.waiting[entry]
        segment.done.append(entry)

    def take(self) -> tuple[list[Entry], Element | None]:
        """Return what is done in the first segment, and its end if no record of it is under way."""
        first = self._segments[0]
        gone, first.done = first.done, []
        if first.waiting or first.end is None:
            return gone, None
        self._segments.popleft()
        return gone, first.end

    @property
    def has_ready(self) -> bool:
        """True if the first segment has a record that is done."""
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
