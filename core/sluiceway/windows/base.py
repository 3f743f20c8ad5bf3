"""Contracts of windows: assigners, triggers and evictors.

An assigner decides to which windows a record belongs, a trigger when a window is evaluated, an evictor which
records are removed from it before or after that. The built-in ones are in :mod:`sluiceway.windows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Flag
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import StateError
from sluiceway.persisted import persisted
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
from sluiceway.util.instants import Instant
from sluiceway.util.name_hints import Hinting

__all__ = [
    "GLOBAL_WINDOW",
    "AssignerContext",
    "Evictor",
    "EvictorContext",
    "GlobalWindow",
    "MergingWindowAssigner",
    "TimeWindow",
    "Timestamped",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "Window",
    "WindowAssigner",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@persisted("TimeWindow")
class TimeWindow(NamedTuple):
    """Window of event or processing time from ``start`` (inclusive) to ``end`` (exclusive), ms since the epoch."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """Last ms of the window, and the timestamp of its results."""
        last = self.end - 1
        return last if last < MAX_WATERMARK else MAX_WATERMARK

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether two windows overlap or touch."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that includes both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


@persisted("GlobalWindow")
@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """Window of all records."""

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp."""
        return MAX_WATERMARK


GLOBAL_WINDOW = GlobalWindow()

Window: TypeAlias = TimeWindow | GlobalWindow


class TriggerResult(Flag):
    """Decision of a trigger.

    Attributes:
        CONTINUE: do nothing.
        FIRE: evaluate the window, and keep its contents.
        PURGE: drop the records, without evaluating them. Timers and state of the trigger stay.
        FIRE_AND_PURGE: evaluate the window, then drop the records.
    """

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class AssignerContext(ABC):
    """Context of an assigner: the time, and state for the key of the record.

    State belongs to the key, not to a window; it is in checkpoints. It has names of its own, which may be
    those of other state of the step. Only the assigner, or a time to live, removes it.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the current time in ms."""

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return value state of the key. Raises StateError without an operator, as in a test."""
        raise _no_state()

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return list state of the key."""
        raise _no_state()

    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Return map state of the key."""
        raise _no_state()

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return reducing state of the key."""
        raise _no_state()

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Return aggregating state of the key."""
        raise _no_state()


def _no_state() -> StateError:
    return StateError("this context of a window assigner has no state: it is not an operator's")


class WindowAssigner(ABC):
    """Description, picklable, of the windows to which a record belongs.

    Attributes:
        event_time: True for windows of event time: every record must have a timestamp, and late records
            are dropped or sent to a side output. Other windows end by the clock, or not at all.
    """

    event_time: ClassVar[bool] = True

    @abstractmethod
    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the windows of a record; none if it belongs to none.

        Args:
            value: the record.
            timestamp: its event time in ms; where it has none, the clock's time at its arrival.
            context: the time, and state of the key.
        """

    @abstractmethod
    def default_trigger(self) -> Trigger:
        """Return the trigger for windows without one of the user's."""


class MergingWindowAssigner(WindowAssigner):
    """Assigner of windows that merge, as sessions do. They are all of type :class:`TimeWindow`."""

    def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
        """Return which windows of a key merge; unless overridden, those that overlap or touch.

        Args:
            windows: the windows of the key, and a new one, all different.

        Returns:
            pairs of a merged window and the two or more windows that it replaces.
        """
        merged: list[tuple[TimeWindow, list[TimeWindow]]] = []
        # By their starts, so that a window can meet no other of those before it than the last merged one.
        for window in sorted(windows):
            if merged and merged[-1][0].intersects(window):
                cover, parts = merged[-1]
                merged[-1] = (cover.cover(window), [*parts, window])
            else:
                merged.append((window, [window]))
        return [(cover, parts) for cover, parts in merged if len(parts) > 1]


class TriggerContext(Hinting, ABC):
    """Context of a trigger, for one key and one window."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Key of the window."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark, in ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the current time in ms."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: Instant) -> None:
        """Have :meth:`Trigger.on_event_time` called when the watermark reaches ``timestamp``."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: Instant) -> None:
        """Have :meth:`Trigger.on_processing_time` called at ``timestamp``."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: Instant) -> None:
        """Take a timer back; harmless if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: Instant) -> None:
        """Take a timer back; harmless if there is none."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return value state of this key and window."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return reducing state of this key and window."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return list state of this key and window."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Return map state of this key and window."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Return aggregating state of this key and window."""

    @abstractmethod
    def merge_state(self, descriptor: StateDescriptor) -> None:
        """Merge the state of the merged windows into that of the result. For :meth:`Trigger.on_merge`.

        Values of reducing state are reduced, accumulators merged, lists appended to each other; of
        entries of maps under one key, that of the latest window stays.

        Args:
            descriptor: of any kind but a ValueStateDescriptor, whose values cannot be merged.

        Raises:
            StateError: called outside of ``on_merge``, or with a ValueStateDescriptor.
        """

    def merge_reducing_state(self, descriptor: ReducingStateDescriptor) -> None:
        """Do the same as :meth:`merge_state`, for reducing state."""
        self.merge_state(descriptor)


class Trigger(ABC):
    """Description, picklable, of when a window is evaluated; its memory is in the context's state.

    One object serves all keys and windows. Per key and window, :meth:`on_element` is called for each record
    after it was added, the two timer methods for timers that it registered and when the window's time is
    over, and :meth:`clear` once, last. Windows that are not empty are evaluated as often as it fires.
    """

    @abstractmethod
    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Decide after a record was added to the window.

        Args:
            value: the record.
            timestamp: its event time, or, where it has none, the clock's time at its arrival, in ms.
            window: the window.
            context: times, timers and state of the key and window.
        """

    @abstractmethod
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Decide when an event-time timer of the window fires.

        Args:
            timestamp: time of a timer that the trigger registered, or of the end of the window with its lateness,
                in ms.
            window: the window.
            context: times, timers and state of the key and window.
        """

    @abstractmethod
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """Decide when a processing-time timer of the window fires.

        Args:
            timestamp: time of a timer that the trigger registered, or of the end of the window, in ms.
            window: the window.
            context: times, timers and state of the key and window.
        """

    @property
    def can_merge(self) -> bool:
        """Return whether :meth:`on_merge` is implemented."""
        return False

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Move the trigger's state of several windows that have merged into ``window``.

        The context is that of the result. Timers of the windows that it replaces are deleted: register those
        of ``window``. :meth:`clear` is called for each of those windows after this.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be used with windows that merge: no on_merge()")

    @abstractmethod
    def clear(self, window: Window, context: TriggerContext) -> None:
        """Delete timers and state of a window that is over."""


class Timestamped(NamedTuple, Generic[T]):
    """Record in a window's list, with its timestamp in ms."""

    value: T
    timestamp: int


class EvictorContext(ABC):
    """Context of an evictor."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark, in ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the current time in ms."""


class Evictor(ABC):
    """Description, picklable, of the records that are removed from a window when it is evaluated.

    A window with an evictor stores every record, with its timestamp: its event time, or, where it has none,
    the clock's time at its arrival.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """Return the part of ``elements`` (in order of arrival) that the window's function receives.

        The other records are removed from the window.
        """

    def evict_after(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """Return the part of ``elements`` that stays after the window's function has run; default: all."""
        return elements
