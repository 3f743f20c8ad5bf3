"""Contexts of assigners, triggers, evictors and window functions. One object each, for all keys and windows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.functions import OutputTag, WindowContext, WindowState
from sluiceway.isolation import isolated
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.operators.windows.window_state import BoundState, WindowTables, refuse_state_of_merging_windows
from sluiceway.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.util.instants import Instant, instant_ms
from sluiceway.util.overriding import override
from sluiceway.windows.base import (
    GLOBAL_WINDOW,
    AssignerContext,
    EvictorContext,
    TimeWindow,
    TriggerContext,
    Window,
)

__all__ = ["FunctionContext", "Times", "TriggerAccess", "namespace_of"]


def namespace_of(window: Window) -> Hashable:
    """Return the namespace of a window's state: a plain tuple, which is small in snapshots."""
    return window[:] if isinstance(window, TimeWindow) else ()


def _ms(timestamp: Instant) -> int:
    if type(timestamp) is int:
        return timestamp
    try:
        return instant_ms(timestamp)
    except ValueError as error:
        hint = f"; {error}" if str(error) else ""
        raise FunctionContractError(
            "a trigger's timer needs a whole number of ms since the epoch, or an aware datetime, not "
            f"{timestamp!r:.60} ({type(timestamp).__name__}){hint}"
        ) from None


class Times(AssignerContext, EvictorContext):
    """Context of assigners and evictors: times, and state of the key."""

    def __init__(self, operator: KeyedOperator) -> None:
        self._operator = operator

    @cached_property
    def _state(self) -> BoundState:
        store = self._operator.store
        return BoundState(store, WindowTables(store, "assigner"))

    @override
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._state.get_state(descriptor)

    @override
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._state.get_list_state(descriptor)

    @override
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._state.get_map_state(descriptor)

    @override
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._state.get_reducing_state(descriptor)

    @override
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._state.get_aggregating_state(descriptor)

    @override
    def current_watermark(self) -> int:
        return self._operator.current_watermark

    @override
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()


class TriggerAccess(TriggerContext):
    """Context of triggers.

    Args:
        operator: the window operator.
        tables: tables of the trigger's state.
        ends_at: ``ends_at(window, event_time=...)`` returns the end of a window, if it ends in that time domain.

    Attributes:
        current_key: current key.
        window: current window.
        merged: during a merge, the windows that merge into ``window``.
    """

    def __init__(
        self, operator: TimedKeyedOperator, tables: WindowTables, ends_at: Callable[..., int | None]
    ) -> None:
        self._operator = operator
        self._tables = tables
        self._ends_at = ends_at
        self.current_key: Any = None
        self.window: Window = GLOBAL_WINDOW
        self.merged: Sequence[Window] | None = None

    @property
    @override
    def key(self) -> Hashable:
        key: Hashable = self.current_key
        return key

    @override
    def current_watermark(self) -> int:
        return self._operator.current_watermark

    @override
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    @override
    def register_event_time_timer(self, timestamp: Instant) -> None:
        self._operator.event_timers.register(_ms(timestamp), self.current_key, self.window)

    @override
    def register_processing_time_timer(self, timestamp: Instant) -> None:
        self._operator.processing_timers.register(_ms(timestamp), self.current_key, self.window)

    def delete_event_time_timer(self, timestamp: Instant) -> None:
        """Delete an event-time timer, but not the one with which the window ends."""
        timestamp = _ms(timestamp)
        if timestamp != self._ends_at(self.window, event_time=True):
            self._operator.event_timers.delete(timestamp, self.current_key, self.window)

    def delete_processing_time_timer(self, timestamp: Instant) -> None:
        """Delete a processing-time timer, but not the one with which the window ends."""
        timestamp = _ms(timestamp)
        if timestamp != self._ends_at(self.window, event_time=False):
            self._operator.processing_timers.delete(timestamp, self.current_key, self.window)

    @override
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._tables.value_state(descriptor, namespace_of(self.window))

    @override
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._tables.reducing_state(descriptor, namespace_of(self.window))

    @override
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._tables.list_state(descriptor, namespace_of(self.window))

    @override
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._tables.map_state(descriptor, namespace_of(self.window))

    @override
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._tables.aggregating_state(descriptor, namespace_of(self.window))

    def merge_state(self, descriptor: StateDescriptor) -> None:
        """Merge the state of the merging windows into that of ``window``."""
        if self.merged is None:
            raise StateError("merge_state() is for on_merge() alone: no windows are being merged now")
        self._tables.merge(descriptor, namespace_of(self.window), map(namespace_of, self.merged))


class FunctionContext(WindowContext):
    """Context of window functions.

    Attributes:
        current_window: the window that is evaluated or cleared.
        sides: side-output records that were not emitted yet: by name, records and their timestamps.
    """

    def __init__(self, operator: KeyedOperator, tables: WindowTables | None) -> None:
        self._operator = operator
        self._tables = tables
        self._global_state = BoundState(operator.store)
        self.current_window: Window = GLOBAL_WINDOW
        self.sides: dict[str, tuple[list[Any], list[int]]] = {}

    @override
    def window(self) -> Window:
        return self.current_window

    @override
    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    @override
    def current_watermark(self) -> int:
        return self._operator.current_watermark

    @override
    def window_state(self) -> WindowState:
        if self._tables is None:
            raise refuse_state_of_merging_windows(self._operator.step_name)
        return BoundState(self._operator.store, self._tables, namespace_of(self.current_window))

    @override
    def global_state(self) -> WindowState:
        return self._global_state

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        """Buffer a record for a side output."""
        if not isinstance(tag, OutputTag):
            raise FunctionContractError(f"ctx.output(tag, value) needs an OutputTag first, not {tag!r:.100}")
        # Not trusted for its type: the type hint of a tag is not checked elsewhere.
        value = value if self._operator.shares else isolated(value)
        self.aside(tag.name, value, self.current_window.max_timestamp)

    def aside(self, name: str, value: Any, timestamp: int) -> None:
        """Buffer a record for a side output, with its timestamp."""
        values, stamps = self.sides.setdefault(name, ([], []))
        values.append(value)
        stamps.append(timestamp)

    def emit_sides(self) -> None:
        """Emit the buffered side-output records."""
        sides, self.sides = self.sides, {}
        for name, (values, stamps) in sides.items():
            self._operator.output.side(name, Batch(values, stamps))
