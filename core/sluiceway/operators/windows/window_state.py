"""State of a key in a window, for triggers and window functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

from sluiceway.errors import StateError
from sluiceway.functions import ReduceFunction, WindowState
from sluiceway.isolation import unchangeable
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.keyed_state.handles import TableReducingState, TableValueState
from sluiceway.record_errors import MISSING
from sluiceway.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTable,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.util.overriding import override

__all__ = ["BoundState", "WindowTables"]


class WindowTables:
    """Tables whose namespaces are windows, under names that cannot clash with the functions' own state.

    Args:
        store: the store whose current key the handles follow.
        owner: prefix of the names.
    """

    def __init__(self, store: KeyedStateStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        # By name: descriptor as declared, descriptor of the table, table, reduce function.
        self._known: dict[str, tuple[StateDescriptor, Any, StateTable, Callable[[Any, Any], Any] | None]] = {}

    def value_state(self, descriptor: ValueStateDescriptor, namespace: Hashable) -> ValueState[Any]:
        """Return a handle for one value per key and window."""
        named, table, _ = self._table(descriptor, self._store.value_state)
        if named.expires or not unchangeable(named.default):
            return self._store.value_state(named, namespace)
        check = self._store.check(named)
        return TableValueState(self._store, named.name, table.entries(namespace), check, named.default)

    def reducing_state(self, descriptor: ReducingStateDescriptor, namespace: Hashable) -> ReducingState[Any]:
        """Return a handle for a reduced value per key and window."""
        named, table, reduce = self._table(descriptor, self._store.reducing_state)
        if named.expires or reduce is None:
            return self._store.reducing_state(named, namespace)
        check = self._store.check(named)
        return TableReducingState(self._store, named.name, table.entries(namespace), check, reduce)

    def list_state(self, descriptor: ListStateDescriptor, namespace: Hashable) -> ListState[Any]:
        """Return a handle for a list per key and window."""
        return self._store.list_state(self._table(descriptor, self._store.list_state)[0], namespace)

    def map_state(self, descriptor: MapStateDescriptor, namespace: Hashable) -> MapState[Any, Any]:
        """Return a handle for a mapping per key and window."""
        return self._store.map_state(self._table(descriptor, self._store.map_state)[0], namespace)

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: Hashable
    ) -> AggregatingState[Any, Any]:
        """Return a handle for an accumulator per key and window."""
        named = self._table(descriptor, self._store.aggregating_state)[0]
        return self._store.aggregating_state(named, namespace)

    def merge(self, descriptor: StateDescriptor, target: Hashable, sources: Iterable[Hashable]) -> None:
        """Merge the current key's state in ``sources`` into its state in ``target``.

        Raises:
            StateError: it cannot be merged: value state, or an aggregate function without ``merge``.
        """
        if isinstance(descriptor, ReducingStateDescriptor):
            into = self.reducing_state(descriptor, target)
            for state in (self.reducing_state(descriptor, namespace) for namespace in sources):
                if (value := state.get()) is not None:
                    into.add(value)
                    state.clear()
        elif isinstance(descriptor, ListStateDescriptor):
            to = self.list_state(descriptor, target)
            for items in (self.list_state(descriptor, namespace) for namespace in sources):
                to.add_all(items.get())
                items.clear()
        elif isinstance(descriptor, MapStateDescriptor):
            entries = self.map_state(descriptor, target)
            for mapping in (self.map_state(descriptor, namespace) for namespace in sources):
                entries.put_all(dict(mapping.items()))
                mapping.clear()
        elif isinstance(descriptor, AggregatingStateDescriptor):
            self._merge_accumulators(descriptor, target, sources)
        else:
            raise StateError(
                f"merge_state() of {descriptor.name!r}: a {type(descriptor).__name__} does not say how values are "
                "merged; use a ReducingStateDescriptor"
            )

    def _merge_accumulators(
        self, descriptor: AggregatingStateDescriptor, target: Hashable, sources: Iterable[Hashable]
    ) -> None:
        # An accumulator is stored as the value of the key in a VALUE table.
        named, table, _ = self._table(descriptor, self._store.aggregating_state)
        if named.expires:
            raise StateError(
                f"merge_state() of {descriptor.name!r}: accumulators with a time to live are not merged"
            )
        key, check = self._store.current_key, self._store.check(named)
        into = table.entries(target)
        for namespace in sources:
            accumulator = table.entries(namespace).pop(key, MISSING)
            if accumulator is not MISSING:
                kept = into.get(key, MISSING)
                if kept is not MISSING:
                    accumulator = named.aggregate.merge(kept, accumulator)
                    if check is not None:
                        check(accumulator)
                into[key] = accumulator

    def release(self, namespace: Hashable, *, all_keys_done: bool) -> None:
        """Drop a window in which no key has state.

        Args:
            namespace: the window.
            all_keys_done: True if no key has records in it. Tables of mappings are checked only then.
        """
        for _, named, table, _ in self._known.values():
            if not isinstance(named, MapStateDescriptor):
                if not table.entries(namespace):
                    table.drop(namespace)
            elif all_keys_done and next(iter(table.keys(namespace)), MISSING) is MISSING:
                table.drop(namespace)

    def _table(
        self, descriptor: Any, make: Callable[[Any], Any]
    ) -> tuple[Any, StateTable, Callable[[Any, Any], Any] | None]:
        # Triggers ask for their state at each call, so that declarations are checked once per descriptor object.
        if not isinstance(descriptor, StateDescriptor):
            make(descriptor)  # says what it takes
        known = self._known.get(descriptor.name)
        if known is not None and known[0] is descriptor:
            return known[1:]
        named = replace(descriptor, name=f"{self._owner}: {descriptor.name}")
        make(named)  # checked here
        reduce: Any = named.reduce if isinstance(named, ReducingStateDescriptor) else None
        if isinstance(reduce, ReduceFunction):
            reduce = reduce.reduce
        found = named, self._store.table(named), reduce
        self._known[descriptor.name] = (descriptor, *found)
        return found


class BoundState(WindowState):
    """State of a key, or of a key and a window, for a window function.

    Args:
        store: the operator's store.
        tables: tables of windows; None for state of the key alone.
        namespace: the window.
    """

    def __init__(
        self, store: KeyedStateStore, tables: WindowTables | None = None, namespace: Hashable = ()
    ) -> None:
        self._store = store
        self._tables = tables
        self._namespace = namespace

    @override
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        if self._tables is None:
            return self._store.value_state(descriptor)
        return self._tables.value_state(descriptor, self._namespace)

    @override
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        if self._tables is None:
            return self._store.list_state(descriptor)
        return self._tables.list_state(descriptor, self._namespace)

    @override
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        if self._tables is None:
            return self._store.map_state(descriptor)
        return self._tables.map_state(descriptor, self._namespace)

    @override
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        if self._tables is None:
            return self._store.reducing_state(descriptor)
        return self._tables.reducing_state(descriptor, self._namespace)

    @override
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        if self._tables is None:
            return self._store.aggregating_state(descriptor)
        return self._tables.aggregating_state(descriptor, self._namespace)


def refuse_state_of_merging_windows(step: str) -> StateError:
    """Return the error for the use of state per window where windows merge."""
    return StateError(
        f"step {step!r} asks for window_state(), but its windows merge, so no window owns such state: use "
        "global_state()"
    )
