"""Where a task's elements come from: a gate, or the reader of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import END_OF_INPUT, Reader, Source, Wait
from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Batch,
    Element,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    Watermark,
)
from sluiceway.errors import ConnectorError
from sluiceway.gates import InputGate

__all__ = ["GateInput", "SourceInput", "TaskInput"]

_NOTHING = Wait()


class TaskInput(ABC):
    """What a task reads from. From the task's thread only."""

    def open(self) -> None:
        """Begin."""

    @abstractmethod
    def poll(self) -> Element | Wait:
        """The next element, or what to wait for."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """The watermark of what was read so far, in ms."""

    @property
    def port(self) -> int:
        """Which input of the task the last batch belongs to."""
        return 0

    def queued(self) -> int:
        """Elements that have come in and are not read."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Harmless a second time."""


class GateInput(TaskInput):
    """Reads what other tasks send."""

    def __init__(self, gate: InputGate) -> None:
        self._gate = gate

    def open(self) -> None:
        """Start to read."""
        self._gate.start()

    def poll(self) -> Element | Wait:
        """The next element of the gate."""
        element = self._gate.poll()
        return _NOTHING if element is None else element

    @property
    def watermark(self) -> int:
        """The gate's."""
        return self._gate.watermark

    @property
    def port(self) -> int:
        """That of the gate's last batch."""
        return self._gate.port

    def queued(self) -> int:
        """What the gate holds."""
        return self._gate.queued()

    def close(self) -> None:
        """Close the gate."""
        self._gate.close()


class SourceInput(TaskInput):
    """Reads a source: the reader's batches, latency markers between them, and the end.

    Args:
        source: the source.
        reader: makes the reader.
        clock: the runtime's clock.
        uid: uid of the source, for latency markers.
        subtask: index of the reader.
        batch_size: about how many records to ask for at a time.
        latency_interval_ms: time between latency markers; 0: none.
        restored: splits to go on with.
    """

    def __init__(
        self,
        source: Source[Any],
        reader: Callable[[], Reader[Any]],
        clock: Clock,
        *,
        uid: str,
        subtask: int,
        batch_size: int,
        latency_interval_ms: int,
        restored: Sequence[Any] = (),
    ) -> None:
        self._source = source
        self._make_reader = reader
        self._reader: Reader[Any] | None = None
        self._clock = clock
        self._uid = uid
        self._subtask = subtask
        self._limit = batch_size
        self._interval_s = latency_interval_ms / 1000
        self._next_marker = 0.0
        self._ending: deque[Element] = deque()
        self._watermark = MIN_WATERMARK
        self._before_open: list[Callable[[Reader[Any]], None]] = []
        self._restored = restored
        self.paused = False

    def open(self) -> None:
        """Make the reader and start it."""
        self._reader = self._make_reader()
        self._reader.start()
        if self._restored:
            self._reader.add_splits(self._restored)
        for action in self._before_open:
            action(self._reader)
        self._before_open.clear()

    def tell(self, action: Callable[[Reader[Any]], None]) -> None:
        """Call ``action`` with the reader, as soon as there is one."""
        if self._reader is None:
            self._before_open.append(action)
        else:
            action(self._reader)

    def poll(self) -> Element | Wait:
        """The reader's next batch, a marker, or the end; nothing while :attr:`paused`."""
        if self.paused:
            return _NOTHING
        if self._ending:
            return self._ending.popleft()
        if self._interval_s and (now := self._clock.monotonic()) >= self._next_marker:
            self._next_marker = now + self._interval_s
            return LatencyMarker(now, self._uid, self._subtask)
        assert self._reader is not None
        polled = self._reader.poll(self._limit)
        if type(polled) is list:
            if polled:
                return Batch(polled)
        elif type(polled) is Batch:
            if polled.values:
                return polled
        elif isinstance(polled, Wait):
            if self._interval_s and (polled.until is None or polled.until > self._next_marker):
                return Wait(polled.fileno, polled.write, self._next_marker)
            return polled
        elif polled is END_OF_INPUT:
            self._watermark = MAX_WATERMARK
            self._ending.extend((EndOfData(), EndOfPartition()))
            return Watermark(MAX_WATERMARK)
        else:
            raise ConnectorError(
                f"the reader of {self._source.name} returned {polled!r:.100} ({type(polled).__name__}) "
                "from poll(); it must return a list, a Batch, a Wait or END_OF_INPUT"
            )
        raise ConnectorError(
            f"the reader of {self._source.name} returned no records from poll(); "
            "when there are none it must return a Wait that says when to ask again"
        )

    def snapshot(self) -> tuple[Any, ...]:
        """The reader's splits with their positions."""
        return tuple(self._restored if self._reader is None else self._reader.snapshot())

    @property
    def watermark(self) -> int:
        """The highest watermark sent."""
        return self._watermark

    def close(self) -> None:
        """Close the reader."""
        reader, self._reader = self._reader, None
        self._restored = ()
        if reader is not None:
            reader.close()
