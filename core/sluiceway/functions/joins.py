"""Functions of two records, or of two groups of records, that belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from sluiceway.functions.base import Function, OutputTag

__all__ = ["CoGroupFunction", "FlatJoinFunction", "JoinFunction", "ProcessJoinFunction", "TaggedUnion"]

L = TypeVar("L")
R = TypeVar("R")
OUT = TypeVar("OUT")


class TaggedUnion(NamedTuple, Generic[L]):
    """Record of one of two streams, for assigners, triggers and evictors of a window join.

    Attributes:
        side: the stream that it is from.
        value: the record.
    """

    side: Literal["left", "right"]
    value: L


class JoinFunction(Function, ABC, Generic[L, R, OUT]):
    """Function that returns one record for each pair."""

    @abstractmethod
    def join(self, left: L, right: R) -> OUT:
        """Return the result for ``left`` and ``right``."""


class FlatJoinFunction(Function, ABC, Generic[L, R, OUT]):
    """Function that returns any number of records for each pair."""

    @abstractmethod
    def join(self, left: L, right: R) -> Iterable[OUT] | None:
        """Yield the results for ``left`` and ``right``, or return an iterable of them, or None."""


class CoGroupFunction(Function, ABC, Generic[L, R, OUT]):
    """Function that returns any number of records for the records of two streams with one key in one window."""

    @abstractmethod
    def co_group(self, lefts: Sequence[L], rights: Sequence[R]) -> Iterable[OUT] | None:
        """Return the results for two groups, or None. One of the two may be empty, never both."""


class ProcessJoinFunction(Function, ABC, Generic[L, R, OUT]):
    """Process function of the pairs of an interval join, with results for the main output and side outputs.

    State that it asks for in :meth:`open` is that of the pair's key.
    """

    class Context(ABC):
        """Context of a pair."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the left record's event time in ms."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the right record's event time in ms."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Return the later of the two, which is the event time of the results."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], value: Any) -> None:
            """Emit ``value`` to the side output ``tag`` with the pair's timestamp."""

    @abstractmethod
    def process_element(self, left: L, right: R, ctx: ProcessJoinFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for a pair, or return an iterable of them, or None."""
