"""Built-in triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.errors import ConfigurationError
from sluiceway.state import ReducingStateDescriptor, ValueStateDescriptor
from sluiceway.util.overriding import override
from sluiceway.windows.base import Trigger, TriggerContext, TriggerResult, Window
from sluiceway.windows.durations import Duration, positive_milliseconds, shown

__all__ = [
    "CountTrigger",
    "DeltaTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
]

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


def _add(a: int, b: int) -> int:
    return a + b


class _Shown(Trigger):
    """Base of triggers without arguments."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeTrigger(_Shown):
    """Trigger that fires when the watermark passes the end of the window, and at once for each late record."""

    @classmethod
    def create(cls) -> EventTimeTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls()

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at once if the watermark has passed the end already."""
        if window.max_timestamp <= context.current_watermark():
            return FIRE
        context.register_event_time_timer(window.max_timestamp)
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at the end of the window."""
        return FIRE if timestamp == window.max_timestamp else CONTINUE

    @override
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @property
    @override
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Wait for the new end; if that has been passed, the record that merged the windows makes it fire."""
        if window.max_timestamp > context.current_watermark():
            context.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Take the timer back."""
        context.delete_event_time_timer(window.max_timestamp)


class ProcessingTimeTrigger(_Shown):
    """Trigger that fires when the clock passes the end of the window."""

    @classmethod
    def create(cls) -> ProcessingTimeTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls()

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Wait for the end."""
        context.register_processing_time_timer(window.max_timestamp)
        return CONTINUE

    @override
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at the end."""
        return FIRE

    @property
    @override
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Wait for the new end."""
        if window.max_timestamp > context.current_processing_time():
            context.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Take the timer back."""
        context.delete_processing_time_timer(window.max_timestamp)


class NeverTrigger(_Shown):
    """Trigger that never fires."""

    @override
    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @override
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @override
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @property
    @override
    def can_merge(self) -> bool:
        return True

    @override
    def on_merge(self, window: Window, context: TriggerContext) -> None:
        pass

    @override
    def clear(self, window: Window, context: TriggerContext) -> None:
        pass


class CountTrigger(Trigger):
    """Trigger that fires when a window has received a number of records since it last fired.

    Args:
        count: the number, at least 1.
    """

    _COUNT = ReducingStateDescriptor("count", int, _add)

    def __init__(self, count: int) -> None:
        if type(count) is not int or count < 1:
            raise ConfigurationError(f"CountTrigger({count!r}): must be a whole number of records, at least 1")
        self.count = count

    @classmethod
    def of(cls, count: int) -> CountTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(count)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire when the number is reached, and count from 0 again."""
        state = context.get_reducing_state(self._COUNT)
        state.add(1)
        if (state.get() or 0) >= self.count:
            state.clear()
            return FIRE
        return CONTINUE

    @override
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @override
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @property
    @override
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Add the counts up."""
        context.merge_reducing_state(self._COUNT)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Forget the count."""
        context.get_reducing_state(self._COUNT).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self.count})"


class DeltaTrigger(Trigger):
    """Trigger that fires with a record further than a threshold from the one with which it last fired.

    Args:
        threshold: the distance that must be exceeded.
        delta: ``delta(old, new)``, the distance of two records. The first record of a window is the first old
            one.
    """

    _LAST = ValueStateDescriptor("last element")

    def __init__(self, threshold: float, delta: Callable[[Any, Any], float]) -> None:
        if not callable(delta):
            raise ConfigurationError(
                f"DeltaTrigger: delta must be a function of two records, not {delta!r:.60}"
                f" ({type(delta).__name__})"
            )
        self.threshold = threshold
        self.delta = delta

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float]) -> DeltaTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(threshold, delta)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire when the record is far enough from the last one."""
        last = context.get_state(self._LAST)
        known = last.value()
        if known is None:
            # In a tuple, as a record may be None, and None stands for no value.
            last.update((value,))
        elif self.delta(known[0], value) > self.threshold:
            last.update((value,))
            return FIRE
        return CONTINUE

    @override
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @override
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Forget the record."""
        context.get_state(self._LAST).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger({self.threshold})"


class PurgingTrigger(Trigger):
    """Trigger that drops a window's records whenever another trigger fires.

    Args:
        nested: the other trigger.
    """

    def __init__(self, nested: Trigger) -> None:
        self.nested = _nested("PurgingTrigger", nested)

    @classmethod
    def of(cls, nested: Trigger) -> PurgingTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(nested)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire and purge when the nested trigger fires."""
        return _purging(self.nested.on_element(value, timestamp, window, context))

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire and purge when the nested trigger fires."""
        return _purging(self.nested.on_event_time(timestamp, window, context))

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire and purge when the nested trigger fires."""
        return _purging(self.nested.on_processing_time(timestamp, window, context))

    @property
    def can_merge(self) -> bool:
        """Return whether the nested trigger can merge."""
        return self.nested.can_merge

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Merge the nested trigger's state."""
        self.nested.on_merge(window, context)

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Clear the nested trigger's state."""
        self.nested.clear(window, context)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested!r})"


class ProcessingTimeoutTrigger(Trigger):
    """Trigger that fires when another trigger does, or a time after the first record.

    Args:
        nested: the other trigger. It is asked at timeouts, too: if it purges, so does this one.
        timeout: time after the first record.
        reset_timer_on_new_record: True to count from the latest record instead.
        should_clear_on_timeout: True to clear the other trigger's state at a timeout.
    """

    _TIMEOUT: ValueStateDescriptor[int | None] = ValueStateDescriptor("timeout", int)

    def __init__(
        self,
        nested: Trigger,
        timeout: Duration,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> None:
        self.nested = _nested("ProcessingTimeoutTrigger", nested)
        self.timeout_ms = positive_milliseconds(f"ProcessingTimeoutTrigger(timeout={timeout!r})", timeout)
        self.reset_timer_on_new_record = reset_timer_on_new_record
        self.should_clear_on_timeout = should_clear_on_timeout

    @classmethod
    def of(
        cls,
        nested: Trigger,
        timeout: Duration,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Return a new trigger; Flink's name for the constructor."""
        return cls(nested, timeout, reset_timer_on_new_record, should_clear_on_timeout)

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire when the nested trigger does; else set the timeout."""
        result = self.nested.on_element(value, timestamp, window, context)
        if TriggerResult.FIRE in result:
            self.clear(window, context)
            return result
        state = context.get_state(self._TIMEOUT)
        at = state.value()
        if at is not None and self.reset_timer_on_new_record:
            context.delete_processing_time_timer(at)
            at = None
        if at is None:
            at = context.current_processing_time() + self.timeout_ms
            state.update(at)
            context.register_processing_time_timer(at)
        return result

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at any timer of the window."""
        return self._fire(self.nested.on_event_time(timestamp, window, context), window, context)

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Fire at the timeout, or any other timer of the window."""
        return self._fire(self.nested.on_processing_time(timestamp, window, context), window, context)

    def _fire(self, result: TriggerResult, window: Window, context: TriggerContext) -> TriggerResult:
        if self.should_clear_on_timeout:
            self.clear(window, context)
        return TriggerResult.FIRE_AND_PURGE if TriggerResult.PURGE in result else FIRE

    def clear(self, window: Window, context: TriggerContext) -> None:
        """Take the timeout back, and have the other one clear."""
        state = context.get_state(self._TIMEOUT)
        at = state.value()
        if at is not None:
            context.delete_processing_time_timer(at)
            state.clear()
        self.nested.clear(window, context)

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger({self.nested!r}, {shown(self.timeout_ms)})"


def _nested(name: str, trigger: Any) -> Trigger:
    if not isinstance(trigger, Trigger):
        kind = f"the class {trigger.__name__}" if isinstance(trigger, type) else f"{trigger!r:.60}"
        raise ConfigurationError(f"{name} needs another trigger, not {kind}: {name}(CountTrigger(100))")
    nested: Trigger = trigger
    return nested


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if TriggerResult.FIRE in result else result
