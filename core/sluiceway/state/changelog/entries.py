"""Dicts that record which keys were assigned or removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

from sluiceway.errors import UnstableKeyError
from sluiceway.keygroups import check_key
from sluiceway.state.heap.entries import HeapEntries

__all__ = ["RecordingEntries", "TrackedEntries"]

_ABSENT: Final[Any] = object()


class RecordingEntries(HeapEntries):
    """Base of the dicts that record changes.

    Attributes:
        changed: the keys that were assigned or removed since somebody emptied this set, but for :attr:`worked`.
        worked: keys that may have been assigned besides.
        before: what was in it when it was cleared, if nothing was changed before that.
    """

    # Never frozen: freeze() would put a class in the place of this one that records nothing.
    __slots__ = ("before", "changed", "worked")

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[Any] = set()
        self.worked: set[Any] = set()
        self.before: dict[Any, Any] | None = None

    def working(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return this dict for a loop that assigns these keys alone, without a call of a method for each.

        Until :meth:`settle` other keys must not be assigned. Raises TypeError for an unhashable key.
        """
        self.worked.update(keys)
        self.__class__ = _Worked
        return self

    def settle(self) -> None:
        """Record each assignment again, and those of the loops since the last call."""
        if type(self) is _Worked:
            self.__class__ = TrackedEntries  # type: ignore[assignment]
        if self.worked:
            worked, self.worked = self.worked, set()
            if not all(map(self.__contains__, worked)):
                # A key that is absent was removed, or is that of a record that was skipped, maybe for its key.
                worked = {key for key in worked if key in self or _is_stable(key)}
            self.changed = self.changed | worked if self.changed else worked

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
            self.changed.add(key)
        return dict.setdefault(self, key, default)

    def update(self, *others: Any, **named: Any) -> None:
        """Assign several entries, like dict."""
        new = dict(*others, **named)
        dict.update(self, new)
        self.changed.update(new)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def clear(self) -> None:
        """Remove all entries, like dict."""
        if self:
            if not (self.changed or self.worked):
                self.before = dict(self)
            self.changed.update(self)
            dict.clear(self)


class TrackedEntries(RecordingEntries):
    """Dict that records changes; reading it costs the same as a dict."""

    # Without slots of its own, as __class__ can be assigned only between classes of one layout.
    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        dict.__setitem__(self, key, value)
        self.changed.add(key)

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, key)
        self.changed.add(key)


class _Worked(RecordingEntries):
    """Dict in a loop, whose keys were recorded before: assignment costs the same as a dict.

    It defines neither ``__setitem__`` nor ``__delitem__``: either one makes both of them calls of Python methods,
    by which a running count took twice the time.
    """

    __slots__ = ()


def _is_stable(key: Any) -> bool:
    try:
        check_key(key)
    except UnstableKeyError:
        return False
    return True
