"""Handles over tables with a time to live: each value is in a pair with the time of its last access."""

# ruff: noqa: D102 - the methods are those of the contract, documented in sluiceway.state

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from itertools import islice
from typing import Any, Final, NoReturn

from sluiceway.clock import Clock
from sluiceway.errors import StateError
from sluiceway.operators.keyed_state.current_key import CurrentKey
from sluiceway.operators.keyed_state.handles import MISSING, TableListState, TableMapState
from sluiceway.operators.keyed_state.lending import LentEntries
from sluiceway.state import ListStateDescriptor, MapStateDescriptor, StateDescriptor, StateTable
from sluiceway.state.declared import Check, EntryCheck

__all__ = ["ExpiringEntries", "ExpiringListState", "ExpiringMapState", "Expiry"]

_EVER: Final = -(2**63)
_NEVER: Final = 2**63 - 1
_LOOK: Final = 64
"""Keys that are checked in one part of the incremental cleanup."""


class Expiry:
    """Time to live of one table: expiry of its entries, and cleanup.

    Args:
        descriptor: descriptor of the state, with a time to live.
        table: holds the state.
        clock: the runtime's clock.

    Attributes:
        ttl: time to live in ms.
        on_read: True if reading renews the time to live.
        returns_expired: True if a read returns expired entries that were not removed yet.
        full_snapshot: True if snapshots must not hold expired entries.
        now_ms: returns the runtime's clock.
    """

    __slots__ = (
        "_due",
        "_is_list",
        "_is_map",
        "_oldest",
        "_owed",
        "_size",
        "_table",
        "_walk",
        "full_snapshot",
        "now_ms",
        "on_read",
        "returns_expired",
        "ttl",
    )

    def __init__(self, descriptor: StateDescriptor, table: StateTable, clock: Clock) -> None:
        config = descriptor.ttl
        assert config is not None
        self.ttl = config.ttl_ms
        self.on_read = config.updates_on_read
        self.returns_expired = config.returns_expired
        self.full_snapshot = config.cleanup_full_snapshot
        self.now_ms = clock.now_ms
        self._table = table
        self._is_map = isinstance(descriptor, MapStateDescriptor)
        self._is_list = isinstance(descriptor, ListStateDescriptor)
        self._size = config.cleanup_incrementally
        self._owed = 0
        self._walk: Iterator[tuple[MutableMapping[Any, Any], Any]] = iter(())
        # Lower bound of the last accesses: nothing expires before the oldest entry that the last walk has left, or
        # that was added since it began.
        self._due = _EVER if self._size else _NEVER
        self._oldest = _EVER

    def accessed(self) -> int:
        """Count an access, do a part of the cleanup now and then, and return the time in ms."""
        now = self.now_ms()
        if now >= self._due:
            # The walk goes on by _LOOK keys at a time, not by a few at each access.
            self._owed += self._size
            if self._owed >= _LOOK:
                self._clean(now, self._owed)
                self._owed = 0
        return now

    def since(self, now: int) -> int:
        """Return the time in ms since which entries must have been accessed to be visible."""
        return _EVER if self.returns_expired else now - self.ttl

    def read_all(self, entries: MutableMapping[Any, Any]) -> list[tuple[Any, Any]]:
        """Return the visible entries of a mapping to pairs. As a read, it removes expired entries."""
        now = self.accessed()
        held = list(entries.items())
        for key, (touched, value) in held:
            if touched + self.ttl <= now:
                del entries[key]
            elif self.on_read and touched != now:
                entries[key] = (now, value)
        since = self.since(now)
        return [(key, value) for key, (touched, value) in held if touched > since]

    def clean_all(self) -> None:
        """Remove everything that has expired."""
        now = self.now_ms()
        for entries, key in self._keys():
            self._clean_key(entries, key, now)

    def _clean(self, now: int, keys: int) -> None:
        oldest, seen = self._oldest, 0
        for entries, key in islice(self._walk, keys):
            seen += 1
            left = self._clean_key(entries, key, now)
            if left < oldest:
                oldest = left
        self._oldest = oldest
        # The walk is over. Nothing expires before the oldest entry that it has left, or that was added meanwhile.
        if not seen:
            if oldest != _EVER:
                self._due = oldest + self.ttl
            self._oldest = now
            self._walk = self._keys()

    def _keys(self) -> Iterator[tuple[MutableMapping[Any, Any], Any]]:
        """Yield every key with the mapping that holds it; for a map state, the keys are those of its entries."""
        table = self._table
        for namespace in table.namespaces():
            # If the namespace is dropped between two parts of the walk, this mapping is unused and harmless.
            entries = None if self._is_map else table.entries(namespace)
            for key in table.visit_keys(namespace):
                yield (table.mapping(key, namespace) if entries is None else entries), key

    def _clean_key(self, entries: MutableMapping[Any, Any], key: Any, now: int) -> int:
        """Remove the expired entries of a key; return the time of the last access of the oldest remaining one."""
        since = now - self.ttl
        # Only looked at, so not lent. What is lent has the time at which it was stored.
        lending = entries if isinstance(entries, LentEntries) else None
        if self._is_map:
            stored = entries if lending is None else lending.stored
            touches = [(touched, name) for name, (touched, _) in stored.items()]
            for touched, name in touches:
                if touched <= since:
                    del entries[name]
            return min((touched for touched, _ in touches if touched > since), default=now)
        held = entries.get(key) if lending is None else lending.peek(key, None)
        if held is None:
            return now
        if not self._is_list:
            last: int = held[0]
            if last > since:
                return last
            entries.pop(key, None)
            return now
        left = [element for element in held if element[0] > since]
        if not left:
            entries.pop(key, None)
            return now
        if len(left) < len(held):
            # A lent list that stayed would be written back, with all that has expired.
            (entries.__setitem__ if lending is None else lending.replace)(key, left)
        oldest: int = min(touched for touched, _ in left)
        return oldest


class ExpiringEntries(MutableMapping[Any, Any]):
    """View of a VALUE table of pairs as a mapping to the values that have not expired.

    Getting an entry that has expired removes it.
    """

    __slots__ = ("_entries", "_expiry")

    def __init__(self, entries: MutableMapping[Any, Any], expiry: Expiry) -> None:
        self._entries = entries
        self._expiry = expiry

    def get(self, key: Any, default: Any = None) -> Any:
        expiry = self._expiry
        now = expiry.accessed()
        held = self._entries.get(key)
        if held is None:
            return default
        touched, value = held
        if touched + expiry.ttl <= now:
            self._entries.pop(key, None)
            return value if expiry.returns_expired else default
        if expiry.on_read and touched != now:
            self._entries[key] = (now, value)
        return value

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[key] = (self._expiry.accessed(), value)

    def __delitem__(self, key: Any) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        held = self._entries.get(key)
        return held is not None and held[0] > self._expiry.since(self._expiry.now_ms())

    def __iter__(self) -> Iterator[Any]:
        since = self._expiry.since(self._expiry.now_ms())
        return iter([key for key, (touched, _) in self._entries.items() if touched > since])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> ItemsView[Any, Any]:
        return dict(self._expiry.read_all(self._entries)).items()

    def values(self) -> ValuesView[Any]:
        return dict(self._expiry.read_all(self._entries)).values()

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        value = self.get(key, MISSING)
        self._entries.pop(key, None)
        if value is not MISSING:
            return value
        if default is MISSING:
            raise KeyError(key)
        return default


def _no_bulk(name: str, kind: str) -> StateError:
    return StateError(
        f"{kind} state {name!r} has a time to live for each of its parts, so it has no bulk access: use its "
        "handle after ctx.set_current_key(key)"
    )


class ExpiringListState(TableListState):
    """List state whose elements expire one by one."""

    __slots__ = ("_expiry",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        expiry: Expiry,
    ) -> None:
        super().__init__(store, name, entries, check)
        self._expiry = expiry

    def bulk(self) -> NoReturn:
        raise _no_bulk(self._name, "list")

    def get(self) -> list[Any]:
        expiry = self._expiry
        now = expiry.accessed()
        held = self._lookup()
        if held is MISSING:
            return []
        since = now - expiry.ttl
        alive = [element for element in held if element[0] > since]
        given = held if expiry.returns_expired else alive
        if expiry.on_read:
            self._put([(now, value) for _, value in alive])
        elif len(alive) < len(held):
            self._put(alive)
        return [value for _, value in given]

    def __len__(self) -> int:
        return len(self.get())

    def _put(self, elements: list[tuple[int, Any]]) -> None:
        if elements:
            self._entries[self._store.current_key] = elements
        else:
            self._entries.pop(self._store.current_key, None)

    def _extend(self, values: list[Any]) -> None:
        now = self._expiry.accessed()
        super()._extend([(now, value) for value in values])

    def _replace(self, values: list[Any]) -> None:
        now = self._expiry.accessed()
        super()._replace([(now, value) for value in values])


class ExpiringMapState(TableMapState):
    """Map state whose entries expire one by one."""

    __slots__ = ("_check_alive", "_expiry")

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        table: StateTable,
        namespace: Hashable,
        check: EntryCheck | None,
        expiry: Expiry,
    ) -> None:
        # Without the check of the base, which would be given the pairs of time and value.
        super().__init__(store, name, table, namespace, None)
        self._check_alive = check
        self._expiry = expiry

    def bulk(self) -> NoReturn:
        raise _no_bulk(self._name, "map")

    def get(self, key: Any, default: Any = None) -> Any:
        expiry = self._expiry
        now = expiry.accessed()
        mapping = self._mapping()
        held = mapping.get(key)
        if held is None:
            return default
        touched, value = held
        if touched + expiry.ttl <= now:
            mapping.pop(key, None)
            return value if expiry.returns_expired else default
        if expiry.on_read and touched != now:
            mapping[key] = (now, value)
        return value

    def put(self, key: Any, value: Any) -> None:
        if (check := self._check_alive) is not None:
            check(key, value)
        super().put(key, (self._expiry.accessed(), value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        if (check := self._check_alive) is not None:
            for key, value in entries.items():
                check(key, value)
        now = self._expiry.accessed()
        super().put_all({key: (now, value) for key, value in entries.items()})

    def contains(self, key: Any) -> bool:
        return self.get(key, MISSING) is not MISSING

    def items(self) -> ItemsView[Any, Any]:
        return self._read().items()

    def keys(self) -> KeysView[Any]:
        return self._read().keys()

    def values(self) -> ValuesView[Any]:
        return self._read().values()

    def is_empty(self) -> bool:
        since = self._expiry.since(self._expiry.accessed())
        return not any(touched > since for touched, _ in self._mapping().values())

    def _read(self) -> dict[Any, Any]:
        return dict(self._expiry.read_all(self._mapping()))
