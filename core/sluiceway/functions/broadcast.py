"""Functions of a stream and a broadcast one: each subtask keeps all of what was broadcast, and looks it up."""

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
    """A mapping of which every subtask has a copy, to look things up in: ``state[key]``, ``state.get(key)``.

    Entries are in the order in which they came. Their values must not be changed in place either.
    """

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry; the same as ``key in state``."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""


class BroadcastState(ReadOnlyBroadcastState[K, V], MutableMapping[K, V], ABC):
    """The same, to be changed. ``state[key] = value`` and ``del state[key]`` do, too.

    Every subtask sees the same broadcast records, if perhaps in another order, and has to come to the same
    entries: so do not go by anything else, such as time, chance or the subtask's index.
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
    """Looks records up in what another stream has broadcast.

    Nothing says in which order records of both streams come: a record may be there before what it is to be
    looked up in. ``ctx.current_watermark()`` is the lower one of both streams.
    """

    class ReadOnlyContext(ProcessFunction.Context):
        """What is known while a record of the stream is processed."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """The state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class Context(ProcessFunction.Context):
        """What is known while a broadcast record is processed."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
            """The state of that name.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    @abstractmethod
    def process_element(self, value: IN1, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[OUT] | None:
        """What a record of the stream gives rise to (yield it, or return an iterable), or None."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastProcessFunction.Context) -> Iterable[OUT] | None:
        """What a broadcast record gives rise to, or None. Every subtask is given every one of them."""


class KeyedBroadcastProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """The same for a keyed stream, with state and timers per key on its side.

    Event-time timers fire when both streams have come that far.
    """

    class ReadOnlyContext(KeyedProcessFunction.Context):
        """What is known while a record of the keyed stream is processed."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """The state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class OnTimerContext(KeyedProcessFunction.OnTimerContext):
        """What is known while a timer fires. ``timestamp()`` is when it was set to fire."""

        @abstractmethod
        def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """The state of that name. Writing to it raises StateError.

            Raises:
                StateError: the descriptor was not given to ``broadcast()``.
            """

    class Context(BroadcastProcessFunction.Context):
        """For a broadcast record, which has no key, so neither keyed state nor timers."""

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
        """What a record of the keyed stream gives rise to (yield it, or return an iterable), or None."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[OUT] | None:
        """What a broadcast record gives rise to, or None. Every subtask is given every one of them."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer of the current key has fired; what it gives rise to, as for a record.

        Args:
            timestamp: when the timer was set to fire, in ms.
            ctx: the key, its timers, the broadcast state, and side outputs.
        """
