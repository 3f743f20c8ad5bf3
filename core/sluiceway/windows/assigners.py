"""Window assigners: tumbling, sliding and global windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

from sluiceway.errors import ConfigurationError
from sluiceway.windows.base import GLOBAL_WINDOW, AssignerContext, TimeWindow, Trigger, Window, WindowAssigner
from sluiceway.windows.durations import Duration, offset_milliseconds, positive_milliseconds, shown
from sluiceway.windows.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger

__all__ = [
    "CumulativeEventTimeWindows",
    "GlobalWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
]


_MOST_WINDOWS: Final = 10_000_000
"""Most windows of one record. Each has a result of its own, so that more are a mistake in a unit."""


def _check_number(name: str, size_ms: int, step_ms: int, step: str) -> None:
    if size_ms // step_ms > _MOST_WINDOWS:
        raise ConfigurationError(
            f"{name}: a size of {shown(size_ms)} and a {step} of {shown(step_ms)} put each record into"
            f" {size_ms // step_ms} windows; at most {_MOST_WINDOWS} are allowed: make the {step} longer"
        )


class _Tumbling(WindowAssigner):
    """Base of tumbling windows, of either time."""

    def __init__(self, size: Duration, offset: Duration = 0) -> None:
        name = type(self).__name__
        self.size_ms = positive_milliseconds(f"{name}(size={size!r})", size)
        self.offset_ms = offset_milliseconds(f"{name}(offset={offset!r})", offset)
        # The start and the window of the last record: it most often is that of the next one, too.
        self._known: tuple[int | None, list[Window]] = None, []
        if abs(self.offset_ms) >= self.size_ms:
            raise ConfigurationError(
                f"{name}: the offset ({shown(self.offset_ms)}) must be shorter than the size"
                f" ({shown(self.size_ms)})"
            )

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> Self:
        """Return a new assigner; Flink's name for the constructor."""
        return cls(size, offset)

    def _at(self, timestamp: int) -> list[Window]:
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        known = self._known
        if known[0] != start:
            known = self._known = start, [TimeWindow(start, start + self.size_ms)]
        return known[1]

    def __repr__(self) -> str:
        offset = f", offset={shown(self.offset_ms)}" if self.offset_ms else ""
        return f"{type(self).__name__}({shown(self.size_ms)}{offset})"


class TumblingEventTimeWindows(_Tumbling):
    """Assigner of windows of one size in event time, end to end.

    Args:
        size: length of a window.
        offset: windows begin at multiples of ``size`` since the epoch (UTC) plus this, which may be negative:
            days of a place 8 hours ahead of UTC have ``size="1d", offset="-8h"``.

    Attributes:
        size_ms: the size.
        offset_ms: the offset.

    Raises:
        ConfigurationError: no durations, ``size`` is 0, or ``offset`` is not shorter than ``size``.
    """

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the window that includes ``timestamp``."""
        return self._at(timestamp)

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the watermark passes the end."""
        return EventTimeTrigger()


class TumblingProcessingTimeWindows(_Tumbling):
    """Assigner of windows of one size in processing time, end to end.

    Like :class:`TumblingEventTimeWindows`, by the machine's clock at the moment when a record arrives at the step.
    """

    event_time: ClassVar[bool] = False

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the window that includes the current time."""
        return self._at(context.current_processing_time())

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the clock passes the end."""
        return ProcessingTimeTrigger()


class _Sliding(WindowAssigner):
    """Base of sliding windows, of either time."""

    def __init__(self, size: Duration, slide: Duration, offset: Duration = 0) -> None:
        name = type(self).__name__
        self.size_ms = positive_milliseconds(f"{name}(size={size!r})", size)
        self.slide_ms = positive_milliseconds(f"{name}(slide={slide!r})", slide)
        self.offset_ms = offset_milliseconds(f"{name}(offset={offset!r})", offset)
        if abs(self.offset_ms) >= self.slide_ms:
            raise ConfigurationError(
                f"{name}: the offset ({shown(self.offset_ms)}) must be shorter than the slide"
                f" ({shown(self.slide_ms)})"
            )
        _check_number(name, self.size_ms, self.slide_ms, "slide")

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Return a new assigner; Flink's name for the constructor."""
        return cls(size, slide, offset)

    def _at(self, timestamp: int) -> list[Window]:
        last = timestamp - (timestamp - self.offset_ms) % self.slide_ms
        size = self.size_ms
        # From the last window that has begun, back to the first one that has not ended. With a slide longer than
        # the size the last one may have ended as well.
        return [TimeWindow(start, start + size) for start in range(last, timestamp - size, -self.slide_ms)]

    def __repr__(self) -> str:
        offset = f", offset={shown(self.offset_ms)}" if self.offset_ms else ""
        return f"{type(self).__name__}({shown(self.size_ms)}, {shown(self.slide_ms)}{offset})"


class SlidingEventTimeWindows(_Sliding):
    """Assigner of windows of one size in event time that begin at regular intervals and may overlap.

    A ``slide`` longer than the ``size`` leaves gaps; records in them belong to no window.

    Args:
        size: length of a window.
        slide: time from the start of one window to that of the next.
        offset: windows begin at multiples of ``slide`` since the epoch (UTC) plus this, which may be negative.

    Attributes:
        size_ms: the size.
        slide_ms: the slide.
        offset_ms: the offset.

    Raises:
        ConfigurationError: no durations, ``size`` or ``slide`` is 0, ``offset`` is not shorter than ``slide``, or
            a record has more than 10 million windows.
    """

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return every window that includes ``timestamp``, the latest first."""
        return self._at(timestamp)

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the watermark passes the end."""
        return EventTimeTrigger()


class SlidingProcessingTimeWindows(_Sliding):
    """Assigner of windows of one size in processing time that begin at regular intervals and may overlap.

    Like :class:`SlidingEventTimeWindows`, by the machine's clock at the moment when a record arrives at the step.
    """

    event_time: ClassVar[bool] = False

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return every window that includes the current time, the latest first."""
        return self._at(context.current_processing_time())

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the clock passes the end."""
        return ProcessingTimeTrigger()


class CumulativeEventTimeWindows(WindowAssigner):
    """Assigner of windows in event time that begin together and end one step after the other, up to a size.

    With a step of an hour and a size of a day: results of the day so far, every hour. Flink's ``CUMULATE``.

    Args:
        step: time from the end of one window to that of the next.
        size: length of the last and longest window, a multiple of ``step``.
        offset: windows begin at multiples of ``size`` since the epoch (UTC) plus this, which may be negative.

    Attributes:
        step_ms: the step.
        size_ms: the size.
        offset_ms: the offset.

    Raises:
        ConfigurationError: no durations, one is 0, ``size`` is no multiple of ``step``, ``offset`` is not
            shorter than ``size``, or a record has more than 10 million windows.
    """

    def __init__(self, step: Duration, size: Duration, offset: Duration = 0) -> None:
        name = type(self).__name__
        self.step_ms = positive_milliseconds(f"{name}(step={step!r})", step)
        self.size_ms = positive_milliseconds(f"{name}(size={size!r})", size)
        self.offset_ms = offset_milliseconds(f"{name}(offset={offset!r})", offset)
        if self.size_ms % self.step_ms:
            raise ConfigurationError(
                f"{name}: the size ({shown(self.size_ms)}) must be a multiple of the step ({shown(self.step_ms)})"
            )
        _check_number(name, self.size_ms, self.step_ms, "step")
        if abs(self.offset_ms) >= self.size_ms:
            raise ConfigurationError(
                f"{name}: the offset ({shown(self.offset_ms)}) must be shorter than the size"
                f" ({shown(self.size_ms)})"
            )

    @classmethod
    def of(cls, step: Duration, size: Duration, offset: Duration = 0) -> Self:
        """Return a new assigner."""
        return cls(step, size, offset)

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return every window that includes ``timestamp``, the shortest first."""
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        # The shortest window ends with the step that the timestamp is in.
        first = timestamp - (timestamp - self.offset_ms) % self.step_ms + self.step_ms
        return [TimeWindow(start, end) for end in range(first, start + self.size_ms + 1, self.step_ms)]

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the watermark passes the end."""
        return EventTimeTrigger()

    def __repr__(self) -> str:
        offset = f", offset={shown(self.offset_ms)}" if self.offset_ms else ""
        return f"{type(self).__name__}({shown(self.step_ms)}, {shown(self.size_ms)}{offset})"


class GlobalWindows(WindowAssigner):
    """Assigner of one window for all records, which never ends: only a trigger of yours has it evaluated."""

    event_time: ClassVar[bool] = False

    def __init__(self) -> None:
        self._trigger: Trigger = NeverTrigger()

    @classmethod
    def create(cls) -> Self:
        """Return a new assigner; Flink's name for the constructor."""
        return cls()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> Self:
        """Return an assigner whose window is evaluated once, at the end of the input."""
        windows = cls()
        windows._trigger = EventTimeTrigger()
        return windows

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the global window."""
        return _GLOBAL

    def default_trigger(self) -> Trigger:
        """Return a trigger that never fires, or only at the end of the stream if that was asked for."""
        return self._trigger

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


_GLOBAL: Sequence[Window] = (GLOBAL_WINDOW,)
