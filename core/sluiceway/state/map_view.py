"""View of the mapping of one key of a map table, over a mapping of all keys."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any

__all__ = ["KeyMapping"]


class KeyMapping(MutableMapping[Any, Any]):
    """Entries of one key: a dict, which is assigned again after each change, and removed when it is empty.

    Args:
        maps: from keys to dicts.
        key: the key.
    """

    __slots__ = ("_key", "_maps")

    def __init__(self, maps: MutableMapping[Any, dict[Any, Any]], key: Hashable) -> None:
        self._maps = maps
        self._key = key

    def _entries(self) -> dict[Any, Any]:
        # A dict of its own for a missing key: reading creates no state.
        return self._maps.get(self._key) or {}

    def __getitem__(self, name: Any) -> Any:
        return self._entries()[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        entries = self._maps.get(self._key)
        if entries is None:
            entries = {}
        entries[name] = value  # first, for an unhashable name must not leave an empty mapping behind
        self._maps[self._key] = entries

    def __delitem__(self, name: Any) -> None:
        entries = self._entries()
        del entries[name]
        if entries:
            self._maps[self._key] = entries
        else:
            del self._maps[self._key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def get(self, name: Any, default: Any = None) -> Any:
        """Return an entry, or the default."""
        return self._entries().get(name, default)

    def keys(self) -> KeysView[Any]:
        """Return the keys of the dict."""
        return self._entries().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the dict."""
        return self._entries().values()

    def items(self) -> ItemsView[Any, Any]:
        """Return the items of the dict."""
        return self._entries().items()

    def clear(self) -> None:
        """Remove all entries, and the dict."""
        self._maps.pop(self._key, None)

    def __repr__(self) -> str:
        return repr(self._entries())
