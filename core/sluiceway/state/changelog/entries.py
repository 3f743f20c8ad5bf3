"""Dict that records which keys were assigned or removed."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.state.heap.entries import HeapEntries

__all__ = ["TrackedEntries"]

_ABSENT: Final[Any] = object()


class TrackedEntries(HeapEntries):
    """Dict that records changes; reading it costs the same as a dict.

    Attributes:
        changed: the keys that were assigned or removed since somebody emptied this set.
        before: what was in it when it was cleared, if nothing was changed before that.
    """

    # Never frozen: freeze() would put a class in the place of this one that records nothing.
    __slots__ = ("before", "changed")

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[Any] = set()
        self.before: dict[Any, Any] | None = None

    def __setitem__(self, key: Any, value: Any) -> None:
        dict.__setitem__(self, key, value)
        self.changed.add(key)

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, key)
        self.changed.add(key)

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value, like dict."""
        found = dict.pop(self, key, _ABSENT)
        if found is not _ABSENT:
            self.changed.add(key)
            return found
        if not default:
            raise KeyError(key)
        return default[0]

    def popitem(self) -> tuple[Any, Any]:
        """Remove and return an entry, like dict."""
        key, value = dict.popitem(self)
        self.changed.add(key)
        return key, value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return a value, inserting the default if there is none, like dict."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **named: Any) -> None:
        """Assign several entries, like dict."""
        new = dict(*others, **named)
        dict.update(self, new)
        self.changed.update(new)

    def __ior__(self, other: Any) -> TrackedEntries:  # type: ignore[misc]
        self.update(other)
        return self

    def clear(self) -> None:
        """Remove all entries, like dict."""
        if self:
            if not self.changed:
                self.before = dict(self)
            self.changed.update(self)
            dict.clear(self)
