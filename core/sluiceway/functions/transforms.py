"""Functions of a record: map, flat map, filter, key, reduce, aggregate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from sluiceway.functions.base import Function

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "MapFunction",
    "ReduceFunction",
]

T = TypeVar("T")
K = TypeVar("K")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
ACC = TypeVar("ACC")


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, one out."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """The record that takes the place of ``value``."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT]:
        """The records that take the place of ``value``."""


class FilterFunction(Function, ABC, Generic[T]):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: T) -> bool:
        """Whether ``value`` goes on."""


class KeySelector(ABC, Generic[IN, K]):
    """Says what a record's key is: the same for the same record, every time, everywhere.

    Shared by all subtasks on both sides of the exchange, so it has neither :meth:`open` nor :meth:`close`.
    """

    @abstractmethod
    def get_key(self, value: IN) -> K:
        """The key of ``value``: hashable, and hashed the same way in every process."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Two records into one of the same type; associative.

    Sliding windows reduce what was reduced in parts of a window: there, the order of records must not matter
    either, and both arguments must be left as they are.
    """

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """``value1`` is what was reduced so far, ``value2`` the new record."""


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """Records into an accumulator, an accumulator into a result."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """The accumulator of a key without records."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with ``value`` in it; may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result; must not change the accumulator."""

    def merge(self, accumulator1: ACC, accumulator2: ACC) -> ACC:
        """Both accumulators in one, which may be either of them, changed.

        Needed where windows merge, and wanted where they overlap: a sliding window is merged from parts, older
        ones first, that it shares with others. Without it every record is added to each of its windows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no merge()")
