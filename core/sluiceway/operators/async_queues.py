"""The records under way in an asynchronous step, with the control elements between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from sluiceway.elements import Element

__all__ = ["Entry", "OrderedQueue", "Queue", "UnorderedQueue"]


class Entry:
    """A record under way.

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
    """Decides when the results of a record may go on."""

    @abstractmethod
    def put(self, entry: Entry) -> None:
        """A record comes in."""

    @abstractmethod
    def put_control(self, element: Element) -> None:
        """A control element comes in: no record passes it, in either direction."""

    @abstractmethod
    def done(self, entry: Entry) -> None:
        """A record has its result."""

    @abstractmethod
    def take(self) -> tuple[list[Entry], Element | None]:
        """What may go on: records, and the control element behind them, if it is its turn."""

    @property
    @abstractmethod
    def has_ready(self) -> bool:
        """Whether there is something to take."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """The records that were not taken."""

    @abstractmethod
    def __len__(self) -> int:
        """How many records and control elements were not taken."""


class OrderedQueue(Queue):
    """Results go on in the order of the records."""

    def __init__(self) -> None:
        self._items: deque[Entry | Element] = deque()

    def put(self, entry: Entry) -> None:
        """To the end."""
        self._items.append(entry)

    def put_control(self, element: Element) -> None:
        """To the end."""
        self._items.append(element)

    def done(self, entry: Entry) -> None:
        """Mark it."""
        entry.done = True

    def take(self) -> tuple[list[Entry], Element | None]:
        """What is done at the head."""
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
        """Whether the head may go."""
        if not self._items:
            return False
        first = self._items[0]
        return not isinstance(first, Entry) or first.done

    def entries(self) -> Iterator[Entry]:
        """In order."""
        return (item for item in self._items if isinstance(item, Entry))

    def __len__(self) -> int:
        return len(self._items)


class _Segment:
    """The records between two control elements."""

    __slots__ = ("done", "end", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Entry, None] = {}
        self.done: list[Entry] = []
        self.end: Element | None = None


class UnorderedQueue(Queue):
    """Results go on as they come, as far as no control element lies between."""

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque([_Segment()])

    def put(self, entry: Entry) -> None:
        """Into the last segment."""
        entry.segment = segment = self._segments[-1]
        segment.waiting[entry] = None

    def put_control(self, element: Element) -> None:
        """Close the last segment."""
        self._segments[-1].end = element
        self._segments.append(_Segment())

    def done(self, entry: Entry) -> None:
        """It may go when its segment is the first."""
        entry.done = True
        segment = entry.segment
        del segment.waiting[entry]
        segment.done.append(entry)

    def take(self) -> tuple[list[Entry], Element | None]:
        """What is done in the first segment, and its end if nothing else waits in it."""
        first = self._segments[0]
        gone, first.done = first.done, []
        if first.waiting or first.end is None:
            return gone, None
        self._segments.popleft()
        return gone, first.end

    @property
    def has_ready(self) -> bool:
        """Whether the first segment has something."""
        first = self._segments[0]
        return bool(first.done) or (not first.waiting and first.end is not None)

    def entries(self) -> Iterator[Entry]:
        """Segment by segment."""
        for segment in self._segments:
            yield from segment.done
            yield from segment.waiting

    def __len__(self) -> int:
        ends = sum(s.end is not None for s in self._segments)
        return ends + sum(len(s.waiting) + len(s.done) for s in self._segments)
