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
    """A record of one of two streams, as assigners, triggers and evictors of a window join see it.

    Attributes:
        side: which stream it is from.
        value: the record.
    """

    side: Literal["left", "right"]
    value: L


class JoinFunction(Function, ABC, Generic[L, R, OUT]):
    """One record out for each pair."""

    @abstractmethod
    def join(self, left: L, right: R) -> OUT:
        """What becomes of ``left`` and ``right``."""


class FlatJoinFunction(Function, ABC, Generic[L, R, OUT]):
    """Any number of records out for each pair."""

    @abstractmethod
    def join(self, left: L, right: R) -> Iterable[OUT] | None:
        """The records that ``left`` and ``right`` give rise to (yield them, or return an iterable), or None."""


class CoGroupFunction(Function, ABC, Generic[L, R, OUT]):
    """Any number of records out for all that two streams have of one key in one window."""

    @abstractmethod
    def co_group(self, lefts: Sequence[L], rights: Sequence[R]) -> Iterable[OUT] | None:
        """The records that the two groups give rise to, or None. One of the two may be empty, never both."""


class ProcessJoinFunction(Function, ABC, Generic[L, R, OUT]):
    """Any records out for each pair of an interval join, to the main output and to side outputs.

    State that it asks for in :meth:`open` is that of the pair's key.
    """

    class Context(ABC):
        """What is known of a pair."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """The left record's event time in ms."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """The right record's event time in ms."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """The later of the two: the event time of what comes out."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], value: Any) -> None:
            """Emit ``value`` to the side output ``tag`` with the pair's timestamp."""

    @abstractmethod
    def process_element(self, left: L, right: R, ctx: ProcessJoinFunction.Context) -> Iterable[OUT] | None:
        """The records that the pair gives rise to (yield them, or return an iterable), or None."""
