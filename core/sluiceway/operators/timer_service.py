"""Timer service of user functions: registers and deletes the timers of the current key."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK
from sluiceway.functions import TimerService
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.state import VOID_NAMESPACE
from sluiceway.util.instants import Instant, timer_ms
from sluiceway.util.overriding import override

__all__ = ["KeyedTimerService"]

_TIMER: Final = "a timer's timestamp"
"""Name of the value in errors of :func:`timer_ms`."""


class KeyedTimerService(TimerService):
    """Timer service of user functions, for timers of the store's current key.

    Args:
        operator: the operator with the timers.
        namespace: the namespace of the timers.
    """

    def __init__(self, operator: TimedKeyedOperator, namespace: Hashable = VOID_NAMESPACE) -> None:
        self._operator = operator
        self._namespace = namespace
        self._register_event_timer = operator.event_timers.register

    @override
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    @override
    def current_watermark(self) -> int:
        return self._operator.current_watermark

    @override
    def register_event_time_timer(self, timestamp: Instant) -> None:
        # The fast path of timer_ms(), inlined: some functions register a timer for every record.
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = timer_ms(_TIMER, timestamp)
        self._register_event_timer(timestamp, self._operator.store.current_key, self._namespace)

    @override
    def register_processing_time_timer(self, timestamp: Instant) -> None:
        self._operator.processing_timers.register(timer_ms(_TIMER, timestamp), self._key(), self._namespace)

    @override
    def delete_event_time_timer(self, timestamp: Instant) -> None:
        self._operator.event_timers.delete(timer_ms(_TIMER, timestamp), self._key(), self._namespace)

    @override
    def delete_processing_time_timer(self, timestamp: Instant) -> None:
        self._operator.processing_timers.delete(timer_ms(_TIMER, timestamp), self._key(), self._namespace)

    def _key(self) -> Any:
        return self._operator.store.current_key
