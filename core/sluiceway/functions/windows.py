"""Functions of a whole window: its records, or what they were reduced or aggregated to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from sluiceway.functions.base import Function, OutputTag
from sluiceway.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.util.name_hints import Hinting

__all__ = [
    "AllWindowFunction",
    "ProcessAllWindowFunction",
    "ProcessWindowFunction",
    "WindowContext",
    "WindowFunction",
    "WindowState",
]

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class WindowState(ABC):
    """Gives handles of state: of the current key, or of the current key and window."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """One value."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """A mapping."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """One value, into which others are reduced."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """An accumulator with a result."""


class WindowContext(Hinting, ABC):
    """What is known while a window is evaluated or cleared."""

    @abstractmethod
    def window(self) -> Any:
        """A :class:`~sluiceway.windows.base.TimeWindow` with ``start`` and ``end`` in ms, or the global one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The runtime's wall clock, ms since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """How far event time has come, in ms."""

    @abstractmethod
    def window_state(self) -> WindowState:
        """State of this key and window, from one evaluation to the next. Clear it in ``clear()``.

        Raises:
            StateError: the windows merge, as sessions do: there is no telling whose state that would be.
        """

    @abstractmethod
    def global_state(self) -> WindowState:
        """State of this key, for all its windows."""

    @abstractmethod
    def output(self, tag: OutputTag[Any], value: Any) -> None:
        """Emit ``value`` to the side output ``tag``, with the last ms of the window as its timestamp."""


class ProcessWindowFunction(Function, ABC, Generic[K, IN, OUT]):
    """Evaluates a window of one key: any records out, to the main output and to side outputs.

    Each time the trigger fires, :meth:`process` is called with all that is in the window by then; what it
    gives has the last ms of the window as its timestamp.
    """

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, key: K, ctx: WindowContext, elements: list[IN]) -> Iterable[OUT] | None:
        """The results of a window: yield them, or return an iterable, or None.

        Args:
            key: whose window.
            ctx: the window, time, state, side outputs.
            elements: its records in the order in which they came; after ``reduce`` or ``aggregate`` their one
                result. A list of its own.
        """

    def clear(self, ctx: WindowContext) -> None:
        """The window's time is over: clear what ``ctx.window_state()`` holds. Called once, last.

        ``ctx.output`` works here, too.
        """


class WindowFunction(Function, ABC, Generic[K, IN, OUT]):
    """Evaluates a window of one key, given no more than its records."""

    @abstractmethod
    def apply(self, key: K, window: Any, elements: list[IN]) -> Iterable[OUT] | None:
        """The results of a window: yield them, or return an iterable, or None."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT]):
    """Evaluates a window of a stream without keys; else like :class:`ProcessWindowFunction`."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, ctx: WindowContext, elements: list[IN]) -> Iterable[OUT] | None:
        """The results of a window: yield them, or return an iterable, or None."""

    def clear(self, ctx: WindowContext) -> None:
        """The window's time is over: clear what ``ctx.window_state()`` holds. Called once, last."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT]):
    """Evaluates a window of a stream without keys, given no more than its records."""

    @abstractmethod
    def apply(self, window: Any, elements: list[IN]) -> Iterable[OUT] | None:
        """The results of a window: yield them, or return an iterable, or None."""
