"""Handles of the five kinds of state over a table. Each belongs to one namespace and follows the current key.

Only the lookup of the key is in a ``try``: errors of the user's own function pass unchanged.
"""

# ruff: noqa: D102 - the methods are those of the contract, documented in sluiceway.state

from __future__ import annotations

from collections.abc import (
    Callable,
    Hashable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from copy import deepcopy
from typing import Any, Final

from sluiceway.keygroups import check_key
from sluiceway.operators.keyed_state.current_key import CurrentKey
from sluiceway.state import AggregatingState, ListState, MapState, ReducingState, StateTable, ValueState
from sluiceway.state.declared import Check, EntryCheck
from sluiceway.state.descriptors import SupportsAggregate

__all__ = [
    "BulkState",
    "TableAggregatingState",
    "TableListState",
    "TableMapState",
    "TableReducingState",
    "TableValueState",
    "ValueStateWithDefault",
]

MISSING: Final[Any] = object()


class BulkState:
    """Handle whose state can be accessed for all keys at once."""

    __slots__ = ()

    _store: CurrentKey

    def belongs_to(self, store: CurrentKey) -> bool:
        """Return whether the handle was made by a store."""
        return self._store is store

    def bulk(self) -> MutableMapping[Any, Any] | Mapping[Any, MutableMapping[Any, Any]]:
        """Return the live mapping from key to value; for a map state, from key to the live mapping of the key."""
        raise NotImplementedError


class _EntryHandle(BulkState):
    """Base of the four kinds over a VALUE table."""

    __slots__ = ("_check", "_entries", "_name", "_store")

    def __init__(
        self, store: CurrentKey, name: str, entries: MutableMapping[Any, Any], check: Check | None
    ) -> None:
        self._store = store
        self._name = name
        self._entries = entries
        self._check = check

    def bulk(self) -> MutableMapping[Any, Any]:
        return self._entries

    def _lookup(self) -> Any:
        try:
            return self._entries.get(self._store.current_key, MISSING)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None

    def _insert(self, value: Any) -> None:
        """Store the first value of a key that :meth:`_lookup` did not find."""
        key = self._store.current_key
        check_key(key)
        self._entries[key] = value

    def clear(self) -> None:
        try:
            self._entries.pop(self._store.current_key, None)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None


class TableValueState(_EntryHandle, ValueState[Any]):
    """Handle of value state."""

    __slots__ = ("_default",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        default: Any,
    ) -> None:
        super().__init__(store, name, entries, check)
        self._default = default

    def value(self) -> Any:
        try:
            return self._entries.get(self._store.current_key, self._default)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None

    def update(self, value: Any) -> None:
        if (check := self._check) is not None:
            check(value)
        try:
            key = self._store.current_key
            if key not in self._entries:
                check_key(key)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None
        self._entries[key] = value


class ValueStateWithDefault(TableValueState):
    """Handle of value state with a mutable default: each key gets a copy, which is stored if it is changed."""

    __slots__ = ("_namespace",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        default: Any,
        namespace: Hashable,
    ) -> None:
        super().__init__(store, name, entries, check, default)
        self._namespace = namespace

    def value(self) -> Any:
        found = self._lookup()
        if found is not MISSING:
            return found
        key = self._store.current_key
        given = self._store.defaults.setdefault((self._name, self._namespace), {})
        if key not in given:
            check_key(key)
            given[key] = deepcopy(self._default)
        return given[key]

    def update(self, value: Any) -> None:
        super().update(value)
        self._forget()

    def clear(self) -> None:
        super().clear()
        self._forget()

    def _forget(self) -> None:
        if (given := self._store.defaults.get((self._name, self._namespace))) is not None:
            given.pop(self._store.current_key, None)


class TableListState(_EntryHandle, ListState[Any]):
    """Handle of list state: a list as the key's value. An empty list is not stored.

    Args:
        fixed: whether values of the declared type cannot be changed. An element that the state has given was
            checked when it was written, and is not checked again.
    """

    __slots__ = ("_fixed",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        *,
        fixed: bool = False,
    ) -> None:
        super().__init__(store, name, entries, check)
        self._fixed = fixed

    def get(self) -> list[Any]:
        found = self._lookup()
        return [] if found is MISSING else list(found)

    def __len__(self) -> int:
        found = self._lookup()
        return 0 if found is MISSING else len(found)

    def add(self, value: Any) -> None:
        if (check := self._check) is not None:
            check(value)
        self._extend([value])

    def add_all(self, values: Iterable[Any]) -> None:
        self._extend(self._checked(values))

    def update(self, values: Iterable[Any]) -> None:
        held = self._lookup() if self._fixed else MISSING
        self._replace(self._checked(values, () if held is MISSING else held))

    def _checked(self, values: Iterable[Any], held: Sequence[Any] = ()) -> list[Any]:
        values = list(values)
        if (check := self._check) is not None:
            # By identity: most often a list is written that lacks some of its elements, or has a few more.
            known = set(map(id, held))
            for value in values:
                if id(value) not in known:
                    check(value)
        return values

    def _extend(self, values: list[Any]) -> None:
        found = self._lookup()
        if not values:
            return
        if found is MISSING:
            self._insert(values)
        else:
            # Changed in place: a table outside memory sees only the assignment.
            found += values
            self._entries[self._store.current_key] = found

    def _replace(self, values: list[Any]) -> None:
        if not values:
            self.clear()
        elif self._lookup() is MISSING:
            self._insert(values)
        else:
            self._entries[self._store.current_key] = values


class _Mappings(Mapping[Any, MutableMapping[Any, Any]]):
    """Mappings of all keys of a MAP table in one namespace; every key has one, which may be empty."""

    __slots__ = ("_namespace", "_table")

    def __init__(self, table: StateTable, namespace: Hashable) -> None:
        self._table = table
        self._namespace = namespace

    def __getitem__(self, key: Any) -> MutableMapping[Any, Any]:
        return self._table.mapping(key, self._namespace)

    def __contains__(self, key: object) -> bool:
        return bool(self[key])

    def __iter__(self) -> Iterator[Any]:
        return self._table.keys(self._namespace)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class TableMapState(BulkState, MapState[Any, Any]):
    """Handle of map state: the mapping of the current key, looked up once per key object."""

    __slots__ = ("_check", "_checked", "_last_key", "_last_mapping", "_name", "_namespace", "_store", "_table")

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        table: StateTable,
        namespace: Hashable,
        check: EntryCheck | None,
    ) -> None:
        self._store = store
        self._name = name
        self._table = table
        self._check = check
        self._namespace = namespace
        self._last_key: Any = MISSING
        self._last_mapping: MutableMapping[Any, Any] = {}
        self._checked = False

    def bulk(self) -> Mapping[Any, MutableMapping[Any, Any]]:
        return _Mappings(self._table, self._namespace)

    def _mapping(self) -> MutableMapping[Any, Any]:
        try:
            key = self._store.current_key
            # By identity, which costs less than a comparison: the last key is kept, so that no other object has
            # its address.
            if key is not self._last_key:
                hash(key)  # not every backend would raise this
                self._last_mapping = self._table.mapping(key, self._namespace)
                self._last_key = key
                self._checked = False
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None
        return self._last_mapping

    def get(self, key: Any, default: Any = None) -> Any:
        return self._mapping().get(key, default)

    def put(self, key: Any, value: Any) -> None:
        if (check := self._check) is not None:
            check(key, value)
        mapping = self._mapping()
        if not self._checked:
            self._check_key()
        mapping[key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        if (check := self._check) is not None:
            for key, value in entries.items():
                check(key, value)
        mapping = self._mapping()
        if not self._checked:
            self._check_key()
        mapping.update(entries)

    def _check_key(self) -> None:
        if not self._last_mapping:
            check_key(self._last_key)
        self._checked = True

    def remove(self, key: Any) -> None:
        self._mapping().pop(key, None)

    def contains(self, key: Any) -> bool:
        return key in self._mapping()

    def items(self) -> ItemsView[Any, Any]:
        return self._mapping().items()

    def keys(self) -> KeysView[Any]:
        return self._mapping().keys()

    def values(self) -> ValuesView[Any]:
        return self._mapping().values()

    def is_empty(self) -> bool:
        return not self._mapping()

    def clear(self) -> None:
        self._mapping().clear()


class TableReducingState(_EntryHandle, ReducingState[Any]):
    """Handle of reducing state."""

    __slots__ = ("_reduce",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        reduce: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(store, name, entries, check)
        self._reduce = reduce

    def get(self) -> Any:
        found = self._lookup()
        return None if found is MISSING else found

    def add(self, value: Any) -> None:
        found = self._lookup()
        if found is not MISSING:
            value = self._reduce(found, value)
        if (check := self._check) is not None:
            check(value)
        if found is MISSING:
            self._insert(value)
        else:
            self._entries[self._store.current_key] = value


class TableAggregatingState(_EntryHandle, AggregatingState[Any, Any]):
    """Handle of aggregating state."""

    __slots__ = ("_aggregate",)

    def __init__(
        self,
        store: CurrentKey,
        name: str,
        entries: MutableMapping[Any, Any],
        check: Check | None,
        aggregate: SupportsAggregate[Any, Any],
    ) -> None:
        super().__init__(store, name, entries, check)
        self._aggregate = aggregate

    def get(self) -> Any:
        found = self._lookup()
        return None if found is MISSING else self._aggregate.get_result(found)

    def add(self, value: Any) -> None:
        found = self._lookup()
        before = self._aggregate.create_accumulator() if found is MISSING else found
        accumulator = self._aggregate.add(value, before)
        if (check := self._check) is not None:
            check(accumulator)
        if found is MISSING:
            self._insert(accumulator)
        else:
            self._entries[self._store.current_key] = accumulator
