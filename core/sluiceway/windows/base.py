"""Windows: how a stream is cut into finite parts, when a part is evaluated, and what it keeps.

The contracts behind ``window()``: assigners say to which windows a record belongs, triggers when a window is
evaluated, evictors what is taken out of it before or after that. The built-in ones are in
:mod:`sluiceway.windows`.
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
    """Event or processing time from ``start`` (inclusive) to ``end`` (exclusive), in ms since the epoch."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last ms that belongs to it, and the timestamp of its results."""
        last = self.end - 1
        return last if last < MAX_WATERMARK else MAX_WATERMARK

    def intersects(self, other: TimeWindow) -> bool:
        """Whether they overlap or touch."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that has both in it."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


@persisted("GlobalWindow")
@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """The one window that has everything in it."""

    @property
    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_WATERMARK


GLOBAL_WINDOW = GlobalWindow()

Window: TypeAlias = TimeWindow | GlobalWindow


class TriggerResult(Flag):
    """What a trigger wants done.

    Attributes:
        CONTINUE: nothing.
        FIRE: evaluate the window; it keeps what it has.
        PURGE: forget the records, without evaluating them. Timers and state of the trigger stay.
        FIRE_AND_PURGE: evaluate the window, then forget the records.
    """

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class AssignerContext(ABC):
    """What an assigner may know, and the state that it may have for the key of the record.

    State belongs to the key, not to a window; it is in checkpoints. It is under names of its own, which may be
    those of other state of the step. Nothing removes it but the assigner, or a time to live.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Wall-clock time in ms."""

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Value state of the key. Raises StateError where there is none, as in a test without an operator."""
        raise _no_state()

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """List state of the key."""
        raise _no_state()

    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Map state of the key."""
        raise _no_state()

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Reducing state of the key."""
        raise _no_state()

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Aggregating state of the key."""
        raise _no_state()


def _no_state() -> StateError:
    return StateError("this context of a window assigner has no state: it is not an operator's")


class WindowAssigner(ABC):
    """Says to which windows a record belongs: a description, picklable.

    Attributes:
        event_time: whether windows are of event time: every record must have a timestamp, and those that come
            too late are not let in. Other windows end by the wall clock, or not at all.
    """

    event_time: ClassVar[bool] = True

    @abstractmethod
    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """The windows of a record; none if it belongs to none.

        Args:
            value: the record.
            timestamp: its event time in ms; where it has none, the wall clock's time at its arrival.
            context: what else may be known.
        """

    @abstractmethod
    def default_trigger(self) -> Trigger:
        """The trigger that is used where the user names none."""


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows grow together, as sessions do. They are all of type :class:`TimeWindow`."""

    def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
        """Which windows of a key become one; unless overridden, those that overlap or touch.

        Args:
            windows: those that the key has, and a new one, all different.

        Returns:
            pairs of a merged window and the two or more that go into it.
        """
        merged: list[tuple[TimeWindow, list[TimeWindow]]] = []
        for window in sorted(windows):
            if merged and merged[-1][0].intersects(window):
                cover, parts = merged[-1]
                merged[-1] = (cover.cover(window), [*parts, window])
            else:
                merged.append((window, [window]))
        return [(cover, parts) for cover, parts in merged if len(parts) > 1]


class TriggerContext(Hinting, ABC):
    """What a trigger can do, for the key and the window that it is asked about."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """The key."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time, in ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Wall-clock time in ms."""

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
        """State of this key and window."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Reducing state of this key and window."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """List state of this key and window."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Map state of this key and window."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Aggregating state of this key and window."""

    @abstractmethod
    def merge_state(self, descriptor: StateDescriptor) -> None:
        """In :meth:`Trigger.on_merge`: merge the state of the merged windows into that of the result.

        Values of reducing state are reduced, accumulators merged, lists appended to each other; of
        entries of maps under one key, that of the latest window is left.

        Args:
            descriptor: of any kind but a ValueStateDescriptor, whose values cannot be merged.

        Raises:
            StateError: called from elsewhere, or with a ValueStateDescriptor.
        """

    def merge_reducing_state(self, descriptor: ReducingStateDescriptor) -> None:
        """Do the same as :meth:`merge_state`, for reducing state."""
        self.merge_state(descriptor)


class Trigger(ABC):
    """Decides when a window is evaluated: a description, picklable; its memory is in the context's state.

    One object serves all keys and windows. Per key and window, :meth:`on_element` is called for each record
    after it was added, the two timer methods for timers that it registered and when the window's time is
    over, and :meth:`clear` once, last. Windows that are not empty are evaluated as often as it fires.
    """

    @abstractmethod
    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """A record was added to the window."""

    @abstractmethod
    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """An event-time timer of the window has fired."""

    @abstractmethod
    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        """A processing-time timer of the window has fired."""

    @property
    def can_merge(self) -> bool:
        """Whether :meth:`on_merge` works."""
        return False

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        """Several windows have become ``window``: move what the trigger knows of them.

        The context is that of the result. Timers of the windows that went into it are no more: register those
        of ``window``. :meth:`clear` is called for each of those windows after this.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be used with windows that merge: no on_merge()")

    @abstractmethod
    def clear(self, window: Window, context: TriggerContext) -> None:
        """The window is gone: forget timers and state."""


class Timestamped(NamedTuple, Generic[T]):
    """A record in a window's list, with its timestamp in ms."""

    value: T
    timestamp: int


class EvictorContext(ABC):
    """What an evictor may know."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time, in ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Wall-clock time in ms."""


class Evictor(ABC):
    """Takes records out of a window when it is evaluated: a description, picklable.

    A window with an evictor keeps every record, with its timestamp: its event time, or, where it has none,
    the wall clock's time at its arrival.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """What is left of ``elements`` (in order of arrival): that is given to the window's function.

        The other records are forgotten for good.
        """

    def evict_after(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """What the window keeps after its function has run: all of ``elements`` unless overridden."""
        return elements
