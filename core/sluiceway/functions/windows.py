"""Functions of a whole window: of its records, or of what they were reduced or aggregated to."""

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
    """Handles of state: of the current key, or of the current key and window."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return value state."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Return map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Return aggregating state."""


class WindowContext(Hinting, ABC):
    """Context of the evaluation or the end of a window."""

    @abstractmethod
    def window(self) -> Any:
        """Return a :class:`~sluiceway.windows.base.TimeWindow`, ``start`` to ``end`` in ms, or the global one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the current time, ms since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in ms."""

    @abstractmethod
    def window_state(self) -> WindowState:
        """Return state of this key and window, kept between evaluations. Clear it in ``clear()``.

        Raises:
            StateError: the windows merge, as sessions do, so state cannot belong to one of them.
        """

    @abstractmethod
    def global_state(self) -> WindowState:
        """Return state of this key, for all its windows."""

    @abstractmethod
    def output(self, tag: OutputTag[Any], value: Any) -> None:
        """Emit ``value`` to the side output ``tag``, with the last ms of the window as its timestamp."""


class ProcessWindowFunction(Function, ABC, Generic[K, IN, OUT]):
    """Function that evaluates a window of one key, with results for the main output and side outputs.

    Each time the trigger fires, :meth:`process` is called with the contents of the window; its
    results have the last ms of the window as their timestamp.
    """

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, key: K, ctx: WindowContext, elements: list[IN]) -> Iterable[OUT] | None:
        """Yield the results of a window, or return an iterable of them, or None.

        Args:
            key: key of the window.
            ctx: the window, time, state, side outputs.
            elements: its records in the order of their arrival; after ``reduce`` or ``aggregate`` their one
                result. A list of the function's own.
        """

    def clear(self, ctx: WindowContext) -> None:
        """Clear what ``ctx.window_state()`` holds: the window is over. Called once, last.

        ``ctx.output`` works here, too.
        """


class WindowFunction(Function, ABC, Generic[K, IN, OUT]):
    """Function that evaluates a window of one key, from its records alone."""

    @abstractmethod
    def apply(self, key: K, window: Any, elements: list[IN]) -> Iterable[OUT] | None:
        """Yield the results of a window, or return an iterable of them, or None."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT]):
    """Function that evaluates a window of a stream without keys; else like :class:`ProcessWindowFunction`."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, ctx: WindowContext, elements: list[IN]) -> Iterable[OUT] | None:
        """Yield the results of a window, or return an iterable of them, or None."""

    def clear(self, ctx: WindowContext) -> None:
        """Clear what ``ctx.window_state()`` holds: the window is over. Called once, last."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT]):
    """Function that evaluates a window of a stream without keys, from its records alone."""

    @abstractmethod
    def apply(self, window: Any, elements: list[IN]) -> Iterable[OUT] | None:
        """Yield the results of a window, or return an iterable of them, or None."""
