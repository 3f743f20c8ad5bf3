"""What users touch: always the state of the current key, and only from the task's thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

__all__ = ["AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class ValueState(ABC, Generic[T]):
    """One value."""

    @abstractmethod
    def value(self) -> T:
        """The value of the current key, or the descriptor's default.

        An object that can be changed may be changed in place until the call of the user's function ends; the
        change is kept without :meth:`update`. The same goes for all other kinds of state.
        """

    @abstractmethod
    def update(self, value: T) -> None:
        """Set the value of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the value of the current key."""


class ListState(ABC, Generic[T]):
    """A list. Change it through these methods, not through what :meth:`get` returns."""

    @abstractmethod
    def get(self) -> list[T]:
        """The elements of the current key, a list of its own (empty if there are none)."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Append one element."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the list of the current key."""


class MapState(ABC, Generic[K, V]):
    """A mapping; reads and writes go to single entries."""

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The entry, or ``default``."""

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
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]:
        """The entries in insertion order. Changing the state ends the right to go on iterating."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """The keys of the entries."""

    @abstractmethod
    def values(self) -> Iterator[V]:
        """The values of the entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the current key has no entry."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the mapping of the current key."""


class ReducingState(ABC, Generic[T]):
    """One value into which others are reduced."""

    @abstractmethod
    def get(self) -> T | None:
        """The value of the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduce ``value`` into the state."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the value of the current key."""


class AggregatingState(ABC, Generic[IN, OUT]):
    """An accumulator with a result."""

    @abstractmethod
    def get(self) -> OUT | None:
        """The result for the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add ``value`` to the accumulator."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the accumulator of the current key."""
