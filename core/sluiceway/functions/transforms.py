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
    """Function that returns one record for each record."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Return the result for ``value``."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """Function that returns any number of records for each record."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT]:
        """Return the results for ``value``."""


class FilterFunction(Function, ABC, Generic[T]):
    """Function that decides which records to keep."""

    @abstractmethod
    def filter(self, value: T) -> bool:
        """Return whether to keep ``value``."""


class KeySelector(ABC, Generic[IN, K]):
    """Function that returns a record's key: the same for the same record, every time, everywhere.

    Shared by all subtasks on both sides of the exchange, so it has neither :meth:`open` nor :meth:`close`.
    """

    @abstractmethod
    def get_key(self, value: IN) -> K:
        """Return the key of ``value``: hashable, and hashed the same way in every process."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Function that reduces two records to one of the same type; associative.

    Sliding windows reduce what was reduced in parts of a window: there, the order of records must not matter
    either, and neither argument may be changed.
    """

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """Return the reduction of ``value1``, the result so far, and ``value2``, the new record."""


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """Function that adds records to an accumulator, and makes results of accumulators."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return the accumulator of a key without records."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with ``value`` added; may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result; must not change the accumulator."""

    def merge(self, accumulator1: ACC, accumulator2: ACC) -> ACC:
        """Return both accumulators merged, which may be either of them, changed.

        Required where windows merge, and useful where they overlap: a sliding window is merged from parts, older
        ones first, that it shares with others. Without it every record is added to each of its windows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no merge()")
