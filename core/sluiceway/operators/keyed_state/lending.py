"""Handles of values that may be changed in place, over backends that do not store the objects themselves.

A function may change an object that state has returned, and the change is kept without ``update()``. Where a table
stores objects, as on the heap, that needs no support. Elsewhere the returned objects are *lent*: a second read
returns the same object, and at the end of the batch each is assigned to the table again. Whether it was changed is
not checked, as that would cost as much as the assignment.

Values that cannot be changed are never lent; where the declared type promises that, the table itself is used.
"""

# ruff: noqa: D102 - the methods are those of the contracts, documented in sluiceway.state

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any

from sluiceway.isolation import ATOMS, all_unchangeable, unchangeable, unchangeable_type
from sluiceway.keygroups import check_key
from sluiceway.operators.keyed_state.current_key import CurrentKey
from sluiceway.operators.keyed_state.handles import MISSING, TableListState, TableValueState
from sluiceway.state import VOID_NAMESPACE, MapStateDescriptor, StateDescriptor, StateTable
from sluiceway.state.declared import Check

__all__ = ["LendingTable", "LentEntries", "LentListState", "LentValueState", "must_lend"]


def must_lend(descriptor: StateDescriptor, table: StateTable) -> bool:
    """Return whether handles need a :class:`LendingTable`."""
    if table.keeps_objects:
        return False
    # Elements of lists and entries of maps are returned to functions; the key of an entry is hashable.
    return not unchangeable_type(descriptor.type)


class LentEntries(MutableMapping[Any, Any]):
    """Mapping of a table that returns the same object until the end of the batch.

    It holds no state of its own, so several of them over one mapping are consistent.

    Args:
        entries: the table's mapping.
        lent: the lent objects of the whole table, by place.
        place: place of the mapping: the namespace, and for a MAP table the key.

    Attributes:
        stored: the table's mapping.
        lent: the lent objects of the whole table.
    """

    __slots__ = ("_get", "_place", "lent", "stored")

    def __init__(
        self,
        entries: MutableMapping[Any, Any],
        lent: dict[tuple[Hashable, ...], dict[Any, Any]],
        place: tuple[Hashable, ...],
    ) -> None:
        self.stored = entries
        self._get = entries.get
        self.lent = lent
        self._place = place

    def peek(self, key: Any, default: Any) -> Any:
        """Return the value for a caller that only reads it or assigns it again."""
        if self.lent and (mine := self.lent.get(self._place)) is not None:
            found = mine.get(key, MISSING)
            if found is not MISSING:
                return found
        return self.stored.get(key, default)

    def assign(self, key: Any, value: Any, *, lent: bool) -> None:
        """Set a value; with ``lent``, other code may hold it and change it."""
        self.stored[key] = value
        if lent:
            self.lend(key, value)
        # Another object takes the place of the lent one, which settle() must not write back.
        elif self.lent and (mine := self.lent.get(self._place)) is not None and mine.get(key) is not value:
            mine.pop(key, None)

    def replace(self, key: Any, value: Any) -> None:
        """Set a value, which is lent if the one before it was."""
        self.stored[key] = value
        if self.lent and (mine := self.lent.get(self._place)) is not None and key in mine:
            mine[key] = value

    def lend(self, key: Any, value: Any) -> Any:
        """Record that other code holds the value and may change it. Return the value."""
        mine = self.lent.get(self._place)
        if mine is None:
            mine = self.lent[self._place] = {}
        mine[key] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        found = self.peek(key, MISSING) if self.lent else self._get(key, MISSING)
        if type(found) in ATOMS:
            return found
        if found is MISSING:
            return default
        return found if unchangeable(found) else self.lend(key, found)

    def __getitem__(self, key: Any) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.stored[key] = value
        self.note(key, value)

    def note(self, key: Any, value: Any) -> None:
        """Record that a value was assigned by code that may still hold it."""
        if type(value) not in ATOMS and not unchangeable(value):
            self.lend(key, value)
        elif self.lent:
            self._forget(key)

    def __delitem__(self, key: Any) -> None:
        del self.stored[key]
        self._forget(key)

    def _forget(self, key: Any) -> Any:
        mine = self.lent.get(self._place) if self.lent else None
        return MISSING if mine is None else mine.pop(key, MISSING)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        lent = self._forget(key)
        found = self.stored.pop(key, MISSING)
        if found is not MISSING:
            return found if lent is MISSING else lent
        if default is MISSING:
            raise KeyError(key)
        return default

    def clear(self) -> None:
        self.lent.pop(self._place, None)
        self.stored.clear()

    def __contains__(self, key: object) -> bool:
        return key in self.stored

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __bool__(self) -> bool:
        return bool(self.stored)

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def walk(self) -> Iterator[tuple[Any, Any]]:
        """Return the items, and lend those that can be changed."""
        for key, stored in self.stored.items():
            value = stored
            if self.lent and (mine := self.lent.get(self._place)) is not None:
                value = mine.get(key, stored)
            if type(value) not in ATOMS and not unchangeable(value):
                self.lend(key, value)
            yield key, value

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        entries: LentEntries = self._mapping  # type: ignore[attr-defined]
        return entries.walk()


class _Values(ValuesView[Any]):
    def __iter__(self) -> Iterator[Any]:
        entries: LentEntries = self._mapping  # type: ignore[attr-defined]
        return (value for _, value in entries.walk())


class LendingTable(StateTable):
    """Table whose mappings lend.

    Args:
        table: table of the backend.
        is_map: True for a MAP table.

    Attributes:
        lent: by place (see :class:`LentEntries`), the objects returned since the last :meth:`settle`.
    """

    def __init__(self, table: StateTable, *, is_map: bool) -> None:
        self._table = table
        self._is_map = is_map
        self.lent: dict[tuple[Hashable, ...], dict[Any, Any]] = {}

    @classmethod
    def over(cls, table: StateTable, descriptor: StateDescriptor) -> LendingTable:
        """Return the lending table over the table of ``descriptor``."""
        return cls(table, is_map=isinstance(descriptor, MapStateDescriptor))

    def settle(self) -> None:
        """Assign all lent objects to the table. Code that still holds one must not change it any more."""
        # Emptied in place, as mappings and handles refer to this dict.
        lent = dict(self.lent)
        self.lent.clear()
        for place, values in lent.items():
            entries = self._table.mapping(place[1], place[0]) if self._is_map else self._table.entries(place[0])
            for key, value in values.items():
                entries[key] = value

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return LentEntries(self._table.entries(namespace), self.lent, (namespace,))

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return LentEntries(self._table.mapping(key, namespace), self.lent, (namespace, key))

    def set_aside(self, make: Callable[[], Mapping[Any, Any]]) -> Callable[[], None]:
        return self._table.set_aside(make)

    def namespaces(self) -> Iterator[Hashable]:
        return self._table.namespaces()

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return self._table.keys(namespace)

    def visit_keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return self._table.visit_keys(namespace)

    def drop(self, namespace: Hashable) -> None:
        for place in [place for place in self.lent if place[0] == namespace]:
            del self.lent[place]
        self._table.drop(namespace)


class LentValueState(TableValueState):
    """Value state that reads the table's own mapping as long as no object is lent or has to be."""

    __slots__ = ("_get", "_lending", "_lent", "_stored")

    def __init__(
        self, store: CurrentKey, name: str, entries: LentEntries, check: Check | None, default: Any
    ) -> None:
        super().__init__(store, name, entries, check, default)
        self._lending = entries
        self._stored, self._lent = entries.stored, entries.lent
        self._get = entries.stored.get

    def value(self) -> Any:
        try:
            if not self._lent:
                found = self._get(self._store.current_key, self._default)
                if type(found) in ATOMS:
                    return found
            return self._entries.get(self._store.current_key, self._default)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None

    def update(self, value: Any) -> None:
        if (check := self._check) is not None:
            check(value)
        try:
            key = self._store.current_key
            if key not in self._stored:
                check_key(key)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None
        self._stored[key] = value
        if self._lent or type(value) not in ATOMS:
            self._lending.note(key, value)


class LentListState(TableListState):
    """List state that lends a list only if its elements can be changed; the list itself is never returned."""

    __slots__ = ("_lending",)

    def __init__(
        self, store: CurrentKey, name: str, entries: LentEntries, check: Check | None, *, fixed: bool = False
    ) -> None:
        super().__init__(store, name, entries, check, fixed=fixed)
        self._lending = entries

    def _lookup(self) -> Any:
        try:
            return self._lending.peek(self._store.current_key, MISSING)
        except (AttributeError, TypeError) as error:
            raise self._store.explain(self._name, error) from None

    def get(self) -> list[Any]:
        found = self._lookup()
        if found is MISSING:
            return []
        if not all_unchangeable(found):
            self._lending.lend(self._store.current_key, found)
        return list(found)

    def _extend(self, values: list[Any]) -> None:
        found = self._lookup()
        if not values:
            return
        if found is MISSING:
            self._insert_list(values)
        else:
            found += values
            self._assign(found, values)

    def _replace(self, values: list[Any]) -> None:
        if not values:
            self.clear()
        elif self._lookup() is MISSING:
            self._insert_list(values)
        else:
            self._assign(values, values)

    def _insert_list(self, values: list[Any]) -> None:
        check_key(self._store.current_key)
        self._assign(values, values)

    def _assign(self, values: list[Any], new: list[Any]) -> None:
        self._lending.assign(self._store.current_key, values, lent=not all_unchangeable(new))
