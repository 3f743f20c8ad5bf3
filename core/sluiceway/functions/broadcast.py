"""Functions of a stream and a broadcast stream, of which each subtask has a complete copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from sluiceway.functions.base import Function
from sluiceway.functions.process import KeyedProcessFunction, ProcessFunction
from sluiceway.state import MapStateDescriptor, StateDescriptor

__all__ = [
    "BroadcastProcessFunction",
    "BroadcastState",
    "KeyedBroadcastProcessFunction",
    "ReadOnlyBroadcastState",
]

K = TypeVar("K")
V = TypeVar("V")
KEY = TypeVar("KEY")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")


class ReadOnlyBroadcastState(Mapping[K, V], ABC):
    """Read-only mapping of which every subtask has a copy: ``state[key]``, ``state.get(key)``.

    Entries are in the order in which they were added. Their values must not be changed in place.
    """

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether the state has such an entry; the same as ``key in state``."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the state has no entry."""


class BroadcastState(ReadOnlyBroadcastState[K, V], MutableMapping[K, V], ABC):
    """Mapping of which every subtask has a copy; ``state[key] = value`` and ``del state[key]`` change it.

    Every subtask sees the same broadcast records, perhaps in another order, and has to arrive at the same
    entries: so do not depend on anything else, such as time, chance or the subtask's index.
    """

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set one entry."""

    @abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set several entries."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry if it is there."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

    @abstractmethod
    def __setitem__(self, key: K, value: V) -> None: ...

    @abstractmethod
    def __delitem__(self, key: K) -> None: ...


class BroadcastProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Process function that looks records up in what another stream has broadcast.

    The order of records of both streams is undefined: a record may arrive before the broadcast record that it
    needs. ``ctx.current_watermark()`` is the lower one of both streams.
    """

    class ReadOnlyContext(ProcessFunction.Context):
        """Context of a record of the stream."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """Return the state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class Context(ProcessFunction.Context):
        """Context of a broadcast record."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
            """Return the state of that name.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    @abstractmethod
    def process_element(self, value: IN1, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[OUT] | None:
        """Yield the results for a record of the stream, or return an iterable of them, or None."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield or return the results for a broadcast record, or None. Every subtask receives it."""


class KeyedBroadcastProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """Process function of a keyed stream and a broadcast one, with state and timers per key.

    Event-time timers fire when the watermarks of both streams have reached them.
    """

    class ReadOnlyContext(KeyedProcessFunction.Context):
        """Context of a record of the keyed stream."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """Return the state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class OnTimerContext(KeyedProcessFunction.OnTimerContext):
        """Context of a timer. ``timestamp()`` is the time for which it was set."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """Return the state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class Context(BroadcastProcessFunction.Context):
        """Context of a broadcast record, which has no key, so neither keyed state nor timers."""

        @abstractmethod
        def apply_to_keyed_state(
            self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]
        ) -> None:
            """Call ``function(key, state)`` for every key of this subtask that has the state now.

            Args:
                descriptor: a keyed state of any kind, as it was declared in ``open``.
                function: may read, change and clear the state of its key; what it returns is ignored.
            """

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[OUT] | None:
        """Yield the results for a record of the keyed stream, or return an iterable of them, or None."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[OUT] | None:
        """Yield or return the results for a broadcast record, or None. Every subtask receives it."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """Yield or return the results for a timer of the current key.

        Args:
            timestamp: the time for which the timer was set, in ms.
            ctx: the key, its timers, the broadcast state, and side outputs.
        """
