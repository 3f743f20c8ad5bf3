"""Handles of keyed state: always the state of the current key, and only from the task's thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any, ClassVar, Final, Generic, NoReturn, SupportsIndex, TypeVar, overload

__all__ = ["AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"]

_MISSING: Final[Any] = object()

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class _ByMethod:
    """Base of state that is read by a method, which is easily forgotten in a condition or an assignment."""

    __slots__ = ()

    _read: ClassVar[str]

    def __bool__(self) -> NoReturn:
        """Raise TypeError: what counts is whether the state has a value."""
        kind = next(cls.__name__ for cls in type(self).__mro__ if cls.__module__ == __name__)
        raise TypeError(f"a {kind} is neither true nor false: call {self._read}(), which returns what it holds")


class ValueState(_ByMethod, ABC, Generic[T]):
    """State of one value."""

    __slots__ = ()

    _read = "value"

    @abstractmethod
    def value(self) -> T | Any:
        """Return the value of the current key, or the descriptor's default: None if it has none.

        To type checkers it is a ``T`` that may be compared with None, since they cannot know of the default.

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
    """State of a list. Change it through these methods, not through what :meth:`get` returns.

    Beside Flink's methods it has a list's ``append`` and ``extend``, and it can be iterated over, indexed and
    asked for its length. Each of these reads the whole list of the key.
    """

    @abstractmethod
    def get(self) -> list[T]:
        """Return the elements of the current key, in a list of the caller's (empty if there are none)."""

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

    def append(self, value: T) -> None:
        """Append one element, as :meth:`add` does."""
        self.add(value)

    def extend(self, values: Iterable[T]) -> None:
        """Append several elements, as :meth:`add_all` does."""
        self.add_all(values)

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.get())

    def __contains__(self, value: object) -> bool:
        return value in self.get()

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        return self.get()[index]


class MapState(MutableMapping[K, V]):
    """State of a mapping; reads and writes go to single entries.

    It is a ``MutableMapping``, with all methods of a dict: ``state[key]``, ``del state[key]``, ``key in state``,
    ``len(state)``, ``for key in state``, ``state.setdefault(key, value)``; Flink's names are there, too.
    ``len(state)`` counts the entries. An iteration is no longer valid after the state has changed.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """Return the entry, or ``default``."""

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
        """Return whether the state has such an entry."""

    @abstractmethod
    def items(self) -> ItemsView[K, V]:
        """Return the entries in insertion order."""

    @abstractmethod
    def keys(self) -> KeysView[K]:
        """Return the keys of the entries."""

    @abstractmethod
    def values(self) -> ValuesView[V]:
        """Return the values of the entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the current key has no entry."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the mapping of the current key."""

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set several entries, as ``dict.update`` does."""
        self.put_all(dict(other, **more))

    def __getitem__(self, key: K) -> V:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)

    def __contains__(self, key: object) -> bool:
        return self.contains(key)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return not self.is_empty()


class ReducingState(_ByMethod, ABC, Generic[T]):
    """State of one value into which others are reduced."""

    __slots__ = ()

    _read = "get"

    @abstractmethod
    def get(self) -> T | None:
        """Return the value of the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduce ``value`` into the state."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the value of the current key."""


class AggregatingState(_ByMethod, ABC, Generic[IN, OUT]):
    """State of an accumulator with a result."""

    __slots__ = ()

    _read = "get"

    @abstractmethod
    def get(self) -> OUT | None:
        """Return the result for the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add ``value`` to the accumulator."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the accumulator of the current key."""
