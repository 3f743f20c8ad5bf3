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
    """One record in, one out, for each of two streams.

    Nothing says in which order records of different streams come.
    """

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """The record that takes the place of ``value``, a record of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """The record that takes the place of ``value``, a record of the second stream."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """One record in, any number out, for each of two streams.

    Nothing says in which order records of different streams come.
    """

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT]:
        """The records that take the place of ``value``, a record of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT]:
        """The records that take the place of ``value``, a record of the second stream."""


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Any records out for each record of two streams, to the main output and to side outputs.

    ``ctx.current_watermark()`` is the lower one of both streams. Nothing says in which order records of
    different streams come.
    """

    Context: TypeAlias = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """What a record of the first stream gives rise to (yield it, or return an iterable), or None."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """What a record of the second stream gives rise to, or None."""


class KeyedCoProcessFunction(Function, ABC, Generic[K, IN1, IN2, OUT]):
    """A process function of two keyed streams, with state and timers per key that both streams share.

    Event-time timers fire when both streams have come that far.
    """

    Context: TypeAlias = KeyedProcessFunction.Context
    OnTimerContext: TypeAlias = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """What a record of the first stream gives rise to (yield it, or return an iterable), or None."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """What a record of the second stream gives rise to, or None."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer of the current key has fired; what it gives rise to, as for a record.

        Args:
            timestamp: when the timer was set to fire, in ms.
            ctx: the key, its timers, and side outputs.
        """
