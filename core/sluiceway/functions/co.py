"""Functions of two connected streams: one method per stream, one object, so that both share its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

from sluiceway.functions.base import Function
from sluiceway.functions.process import KeyedProcessFunction, ProcessFunction

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction"]

K = TypeVar("K")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")


class CoMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Function that returns one record for each record of two streams.

    The order of records of different streams is undefined.
    """

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """Return the result for ``value``, a record of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """Return the result for ``value``, a record of the second stream."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Function that returns any number of records for each record of two streams.

    The order of records of different streams is undefined.
    """

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT]:
        """Return the results for ``value``, a record of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT]:
        """Return the results for ``value``, a record of the second stream."""


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Process function of two streams, with results for the main output and for side outputs.

    ``ctx.current_watermark()`` is the lower one of both streams. The order of records of
    different streams is undefined.
    """

    Context: TypeAlias = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for a record of the first stream, or return an iterable of them, or None."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for a record of the second stream, or return an iterable of them, or None."""


class KeyedCoProcessFunction(Function, ABC, Generic[K, IN1, IN2, OUT]):
    """Process function of two keyed streams, with state and timers per key that both streams share.

    Event-time timers fire when the watermarks of both streams have reached them.
    """

    Context: TypeAlias = KeyedProcessFunction.Context
    OnTimerContext: TypeAlias = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for a record of the first stream, or return an iterable of them, or None."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for a record of the second stream, or return an iterable of them, or None."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """Yield or return the results for a timer of the current key.

        Args:
            timestamp: the time for which the timer was set, in ms.
            ctx: the key, its timers, and side outputs.
        """
