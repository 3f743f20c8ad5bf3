"""Triggers that fire periodically while a window is open."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from sluiceway.elements import MAX_WATERMARK
from sluiceway.state import ReducingStateDescriptor
from sluiceway.util.overriding import override
from sluiceway.windows.base import Trigger, TriggerContext, TriggerResult, Window
from sluiceway.windows.durations import Duration, positive_milliseconds, shown

__all__ = ["ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger"]

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class _Continuous(Trigger):
    """Base of both triggers: the next time to fire, in state."""

    # Reducing, as value state cannot be merged: of merged windows the earliest firing counts.
    _NEXT = ReducingStateDescriptor("next firing", int, min)

    def __init__(self, interval: Duration) -> None:
        name = type(self).__name__
        self.interval_ms = positive_milliseconds(f"{name}(interval={interval!r})", interval)

    @property
    @override
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Keep the earliest next firing of all merged windows."""
        context.merge_reducing_state(self._NEXT)
        at = context.get_reducing_state(self._NEXT).get()
        if at is not None:
            self._register(at, context)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Take the next firing back."""
        state = context.get_reducing_state(self._NEXT)
        at = state.get()
        if at is not None:
            self._delete(at, context)
            state.clear()

    def _start(self, now: int, window: Window, context: TriggerContext) -> None:
        """Register the next firing, at multiples of the interval since the epoch, if there is none."""
        if context.get_reducing_state(self._NEXT).get() is None:
            self._go_on(now - now % self.interval_ms, window, context)

    def _go_on(self, since: int, window: Window, context: TriggerContext) -> None:
        at = self._following(since, window)
        state = context.get_reducing_state(self._NEXT)
        # Cleared first, as add() reduces by min() and would keep the earlier time, which has passed.
        state.clear()
        state.add(at)
        self._register(at, context)

    @abstractmethod
    def _following(self, since: int, window: Window) -> int:
        """Return the time of the firing after that at ``since``."""

    def _next_multiple(self, since: int) -> int:
        """Return the next multiple of the interval: a firing may have been at the end of a window that grew."""
        return since - since % self.interval_ms + self.interval_ms

    @abstractmethod
    def _register(self, at: int, context: TriggerContext) -> None: ...

    @abstractmethod
    def _delete(self, at: int, context: TriggerContext) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.interval_ms)})"


class ContinuousEventTimeTrigger(_Continuous):
    """Trigger that fires when the watermark has advanced by an interval, and when it passes the window's end.

    Args:
        interval: time between firings, which are at its multiples since the epoch, from the first record on.
    """

    @classmethod
    def of(cls, interval: Duration) -> ContinuousEventTimeTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(interval)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at once if the watermark has passed the end already."""
        if window.max_timestamp <= context.current_watermark():
            return FIRE
        context.register_event_time_timer(window.max_timestamp)
        self._start(timestamp, window, context)
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at the next firing and at the end."""
        if timestamp >= window.max_timestamp:
            return FIRE if timestamp == window.max_timestamp else CONTINUE
        # At the end of the input, a window without an end would fire for each interval of all time to come.
        if window.max_timestamp == MAX_WATERMARK == context.current_watermark():
            return CONTINUE
        # A timer of a window that has merged into this one, or of a time that an earlier one has replaced.
        if context.get_reducing_state(self._NEXT).get() != timestamp:
            return CONTINUE
        self._go_on(timestamp, window, context)
        return FIRE

    @override
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Take both timers back."""
        super().clear(window, context)
        context.delete_event_time_timer(window.max_timestamp)

    def _following(self, since: int, window: Window) -> int:
        # The end has a timer of its own: a window that grows would keep a firing at the end that it had.
        return self._next_multiple(since)

    def _register(self, at: int, context: TriggerContext) -> None:
        context.register_event_time_timer(at)

    def _delete(self, at: int, context: TriggerContext) -> None:
        context.delete_event_time_timer(at)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Trigger that fires each time the clock has advanced by an interval while the window is open.

    Args:
        interval: time between firings, which are at its multiples since the epoch, from the first record on; one
            more is when the clock passes the window's end, the last one of a processing-time window.
    """

    @classmethod
    def of(cls, interval: Duration) -> ContinuousProcessingTimeTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(interval)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Register the next firing."""
        self._start(context.current_processing_time(), window, context)
        return CONTINUE

    @override
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at the next firing."""
        if context.get_reducing_state(self._NEXT).get() != timestamp:
            return CONTINUE
        self._go_on(timestamp, window, context)
        return FIRE

    def _following(self, since: int, window: Window) -> int:
        at = self._next_multiple(since)
        # A window of event time may be open for long after its end by the clock.
        return window.max_timestamp if since < window.max_timestamp < at else at

    def _register(self, at: int, context: TriggerContext) -> None:
        context.register_processing_time_timer(at)

    def _delete(self, at: int, context: TriggerContext) -> None:
        context.delete_processing_time_timer(at)
