"""Dicts with cheap snapshots.

A snapshot is a copy of the dict, which refers to the same values. A value that can be changed in place must be
serialized before code that may change it gets it; so while a snapshot is being read, the dict is of a class whose
lookups do that. At other times lookups are those of dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from types import NoneType
from typing import Any, Final, TypeAlias
from weakref import ref

__all__ = ["Encode", "Frozen", "HeapEntries"]

_ATOMS: Final = frozenset({NoneType, bool, int, float, str, bytes})
_ABSENT: Final[Any] = object()

Encode: TypeAlias = "Callable[[Any], bytes | list[bytes]]"


class Frozen:
    """Dict as of the moment of a snapshot.

    Args:
        values: by key; also read by the task's thread.
        encode: encodes a value.

    Attributes:
        kept: values that were serialized because the task got them later.
        failed: by key, the error of a value that could not be serialized.
    """

    __slots__ = ("__weakref__", "encode", "failed", "kept", "values")

    def __init__(self, values: dict[Any, Any], encode: Encode) -> None:
        self.values = values
        self.encode = encode
        self.kept: dict[Any, bytes | list[bytes]] = {}
        self.failed: dict[Any, Exception] = {}

    def keep(self, key: Any, value: Any) -> None:
        """Serialize a value before the task gets it and may change it. From the task's thread."""
        # A value that was assigned after the snapshot is no part of it.
        if key not in self.kept and key not in self.failed and self.values.get(key, _ABSENT) is value:
            try:
                self.kept[key] = self.encode(value)
            except Exception as error:  # for whoever reads the snapshot
                self.failed[key] = error

    def handed_out(self, keys: Sequence[Any]) -> Set[Any]:
        """Return those of the keys whose values the task may have changed by now. From any thread."""
        return self.kept.keys() & keys | self.failed.keys() & keys

    def encoded(self, key: Any, value: Any) -> bytes | list[bytes]:
        """Return the value as of the snapshot, encoded. From any thread."""
        try:
            data = self.encode(value)
        except Exception as error:
            if (kept := self.kept.get(key)) is not None:
                return kept  # it was being changed
            raise self.failed.get(key, error) from None
        # Whoever has changed it meanwhile has had it kept before.
        if key in self.failed:
            raise self.failed[key]
        return self.kept.get(key, data)


class HeapEntries(dict[Any, Any]):
    """Dict of a table.

    Attributes:
        order: cached order of the keys, set by readers of snapshots.
    """

    __slots__ = ("_watching", "order")

    _watching: list[ref[Frozen]]
    order: Any

    def freeze(self, encode: Encode) -> Frozen:
        """Return the entries as of now, which stay as they are while the result exists."""
        # The slot is empty until the first snapshot.
        watching = [known for known in self._watching if known() is not None] if type(self) is _Watched else []
        self.__class__ = HeapEntries  # with the lookups of dict it is copied at once
        frozen = Frozen(dict.copy(self), encode)
        self._watching = [*watching, ref(frozen)]
        self.__class__ = _Watched
        return frozen


class _Watched(HeapEntries):
    """Dict that serializes values for its snapshots before it returns them."""

    # Without slots of its own, as __class__ can be assigned only between classes of one layout.
    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key, _ABSENT)
        if type(found) is tuple and self._watching[-1]() is not None:  # the usual cases, written out
            for part in found:
                if type(part) not in _ATOMS:
                    break
            else:
                return found
        return default if found is _ABSENT else _keep(self, key, found)

    def __getitem__(self, key: Any) -> Any:
        return _keep(self, key, dict.__getitem__(self, key))

    def pop(self, key: Any, *default: Any) -> Any:
        found = dict.pop(self, key, _ABSENT)
        if found is not _ABSENT:
            return _keep(self, key, found)
        if not default:
            raise KeyError(key)
        return default[0]

    def popitem(self) -> tuple[Any, Any]:
        key, value = dict.popitem(self)
        return key, _keep(self, key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return _keep(self, key, dict.setdefault(self, key, default))

    def items(self) -> Any:
        # All at once: the view hands out values without a call of a method here.
        for key, value in dict.items(self):
            _keep(self, key, value)
        return dict.items(self)

    def values(self) -> Any:
        self.items()
        return dict.values(self)

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def __iter__(self) -> Iterator[Any]:
        # With one of its own, dict(entries) and the like go by __getitem__.
        return dict.__iter__(self)

    __hash__ = None  # type: ignore[assignment]


def _keep(entries: HeapEntries, key: Any, value: Any) -> Any:
    """Return a value after serializing it for the snapshots; if these are over, end the watch."""
    watching = entries._watching
    if watching[-1]() is None:
        # Never empty, as the last one is looked at first.
        watching = entries._watching = [known for known in watching if known() is not None] or watching
        if watching[-1]() is None:
            entries.__class__ = HeapEntries
            return value
    cls = type(value)
    if cls not in _ATOMS and (cls is not tuple or not all(type(part) in _ATOMS for part in value)):
        for known in watching:
            if (frozen := known()) is not None:
                frozen.keep(key, value)
    return value
