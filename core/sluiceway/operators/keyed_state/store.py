"""Store of an operator's keyed state, which makes the handles of functions."""

from __future__ import annotations

import sys
from collections.abc import Hashable, MutableMapping, Set
from typing import Any, TypeVar

from sluiceway.clock import Clock
from sluiceway.errors import MisusedStateError
from sluiceway.functions import Function, ReduceFunction
from sluiceway.isolation import unchangeable, unchangeable_type
from sluiceway.operators.keyed_state.current_key import CurrentKey
from sluiceway.operators.keyed_state.expiring import ExpiringEntries, ExpiringListState, ExpiringMapState, Expiry
from sluiceway.operators.keyed_state.handles import (
    TableAggregatingState,
    TableListState,
    TableMapState,
    TableReducingState,
    TableValueState,
    ValueStateWithDefault,
)
from sluiceway.operators.keyed_state.lending import (
    LendingTable,
    LentEntries,
    LentListState,
    LentValueState,
    must_lend,
)
from sluiceway.state import (
    VOID_NAMESPACE,
    AggregatingState,
    AggregatingStateDescriptor,
    KeyedStateBackend,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTable,
    TableSchema,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.state.declared import Check, EntryCheck, check_of, entry_check_of
from sluiceway.types import is_known, type_name

__all__ = ["KeyedStateStore"]

D = TypeVar("D", bound=StateDescriptor)


class KeyedStateStore(CurrentKey):
    """Store that makes state handles over a backend's tables, all bound to one current key.

    Used only from the task's thread. An operator sets :attr:`current_key` before each record that it passes to
    a user's function, and calls :meth:`clear_current_key` when no record is being processed any more.

    A handle checks that a key has a stable hash when the key gets state for the first time. An operator that
    writes to a table's entries by itself does the same with :func:`sluiceway.keygroups.check_key`, where its
    lookup has missed. Such a table has no time to live, which only handles support.

    A value that a handle has returned may be changed in place until :meth:`clear_current_key`, and the change is
    kept on every backend (see :mod:`sluiceway.operators.keyed_state.lending`).

    Args:
        backend: backend of the state.
        clock: the runtime's clock, for times to live; None: state with a time to live is refused.
    """

    __slots__ = (
        "_backend",
        "_checks",
        "_clock",
        "_declared",
        "_entry_checks",
        "_expiring",
        "_lending",
        "_outer",
        "_tables",
        "_written_defaults",
    )

    def __init__(self, backend: KeyedStateBackend, clock: Clock | None = None) -> None:
        super().__init__()
        self._backend = backend
        self._clock = clock
        self._declared: dict[str, StateDescriptor] = {}
        self._checks: dict[str, Check | None] = {}
        self._entry_checks: dict[str, EntryCheck | None] = {}
        self._expiring: dict[str, Expiry] = {}
        self._tables: dict[str, StateTable] = {}
        self._lending: list[LendingTable] = []
        self._written_defaults: dict[str, tuple[StateTable, TableSchema, bytes]] = {}
        # Of a program that runs the job while it handles one.
        self._outer = sys.exception()

    @property
    def declared(self) -> Set[str]:
        """Names of the states that functions have declared."""
        return self._declared.keys()

    def clear_current_key(self) -> None:
        """Clear the current key, after which using a handle is an error. Harmless a second time.

        Settles lent objects, unless an exception is being raised, which another one must not hide.
        """
        # Deleted rather than set to None: a handle that is used without a current key then raises.
        if hasattr(self, "current_key"):
            del self.current_key
        if self._lending or self.defaults:
            error = sys.exception()
            if error is None or error is self._outer:
                self.settle()

    def settle(self) -> None:
        """Write objects that were returned and may have been changed in place. Harmless a second time.

        Raises:
            SerializationError: a value can no longer be serialized.
        """
        if self.defaults:
            self._settle_defaults()
        for table in self._lending:
            if table.lent:
                table.settle()

    def table(self, descriptor: StateDescriptor) -> StateTable:
        """Return the table of a declared state, for more handles like those made here."""
        return self._tables[descriptor.name]

    def before_snapshot(self) -> None:
        """Settle, and remove expired state from tables whose snapshots must not hold it."""
        self.settle()
        for expiry in self._expiring.values():
            if expiry.full_snapshot:
                expiry.clean_all()

    # Each of the five raises StateError if the name was declared with another kind or type.

    def value_state(
        self, descriptor: ValueStateDescriptor, namespace: Hashable = VOID_NAMESPACE
    ) -> ValueState[Any]:
        """Return a handle for one value per key, in a namespace."""
        table = self._table(descriptor, ValueStateDescriptor)
        entries, check = self._entries(table, descriptor, namespace), self.check(descriptor)
        # A default that can be changed in place is copied per key, and written at settle() if it has changed.
        if unchangeable(descriptor.default):
            if isinstance(entries, LentEntries):
                return LentValueState(self, descriptor.name, entries, check, descriptor.default)
            return TableValueState(self, descriptor.name, entries, check, descriptor.default)
        if descriptor.name not in self._written_defaults:
            schema = TableSchema.of(descriptor)
            written = schema.serializer.dumps(descriptor.default)
            self._written_defaults[descriptor.name] = (table, schema, written)
        return ValueStateWithDefault(self, descriptor.name, entries, check, descriptor.default, namespace)

    def list_state(self, descriptor: ListStateDescriptor, namespace: Hashable = VOID_NAMESPACE) -> ListState[Any]:
        """Return a handle for a list per key, in a namespace."""
        table, check = self._table(descriptor, ListStateDescriptor), self.check(descriptor)
        if (expiry := self._expiring.get(descriptor.name)) is not None:
            return ExpiringListState(self, descriptor.name, table.entries(namespace), check, expiry)
        entries, fixed = table.entries(namespace), unchangeable_type(descriptor.type)
        if isinstance(entries, LentEntries):
            return LentListState(self, descriptor.name, entries, check, fixed=fixed)
        return TableListState(self, descriptor.name, entries, check, fixed=fixed)

    def map_state(
        self, descriptor: MapStateDescriptor, namespace: Hashable = VOID_NAMESPACE
    ) -> MapState[Any, Any]:
        """Return a handle for a mapping per key, in a namespace."""
        table = self._table(descriptor, MapStateDescriptor)
        if descriptor.name not in self._entry_checks:
            self._entry_checks[descriptor.name] = entry_check_of(descriptor)
        check = self._entry_checks[descriptor.name]
        if (expiry := self._expiring.get(descriptor.name)) is not None:
            return ExpiringMapState(self, descriptor.name, table, namespace, check, expiry)
        return TableMapState(self, descriptor.name, table, namespace, check)

    def reducing_state(
        self, descriptor: ReducingStateDescriptor, namespace: Hashable = VOID_NAMESPACE
    ) -> ReducingState[Any]:
        """Return a handle for a reduced value per key, in a namespace."""
        table = self._table(descriptor, ReducingStateDescriptor)
        reduce: Any = descriptor.reduce
        if isinstance(reduce, ReduceFunction):
            _never_opened(descriptor, reduce)
            reduce = reduce.reduce
        entries = self._entries(table, descriptor, namespace)
        return TableReducingState(self, descriptor.name, entries, self.check(descriptor), reduce)

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor, namespace: Hashable = VOID_NAMESPACE
    ) -> AggregatingState[Any, Any]:
        """Return a handle for an accumulator per key, in a namespace."""
        table = self._table(descriptor, AggregatingStateDescriptor)
        _never_opened(descriptor, descriptor.aggregate)
        entries = self._entries(table, descriptor, namespace)
        check = self.check(descriptor)
        return TableAggregatingState(self, descriptor.name, entries, check, descriptor.aggregate)

    def check(self, descriptor: StateDescriptor) -> Check | None:
        """Return the check of the values that are written to a state, made once for all of its handles."""
        if descriptor.name not in self._checks:
            self._checks[descriptor.name] = check_of(descriptor)
        return self._checks[descriptor.name]

    def _table(self, descriptor: D, kind: type[D]) -> StateTable:
        if not isinstance(descriptor, kind):
            raise MisusedStateError(
                f"{_word(kind)} state is declared by a {kind.__name__}, not by {type(descriptor).__name__}"
            )
        known = self._declared.setdefault(descriptor.name, descriptor)
        if type(known) is not type(descriptor) or _types(known) != _types(descriptor):
            raise MisusedStateError(
                f"state {descriptor.name!r} is declared twice: as {_described(known)}, and as "
                f"{_described(descriptor)}. Give one of them another name"
            )
        if known.ttl != descriptor.ttl:
            raise MisusedStateError(
                f"state {descriptor.name!r} is declared twice with different times to live: {known.ttl}, and "
                f"{descriptor.ttl}. Use one descriptor for both"
            )
        table = self._backend.table(descriptor)
        # One lending table per state: all of its handles see the same lent objects.
        if (known_table := self._tables.get(descriptor.name)) is not None:
            return known_table
        if must_lend(descriptor, table):
            table = LendingTable.over(table, descriptor)
            self._lending.append(table)
        if descriptor.expires:
            self._expiring[descriptor.name] = self._expiry(descriptor, table)
        self._tables[descriptor.name] = table
        return table

    def _settle_defaults(self) -> None:
        defaults = dict(self.defaults)
        self.defaults.clear()
        for (name, namespace), copies in defaults.items():
            table, schema, written = self._written_defaults[name]
            entries = self._entries(table, self._declared[name], namespace)
            for key, value in copies.items():
                # Bytes are compared, as not every class defines equality of its objects.
                if key not in entries and schema.serializer.dumps(value) != written:
                    entries[key] = value

    def _expiry(self, descriptor: StateDescriptor, table: StateTable) -> Expiry:
        if self._clock is None:
            raise MisusedStateError(f"state {descriptor.name!r} has a time to live, but there is no clock here")
        config = descriptor.ttl
        assert config is not None
        if config.cleanup_in_compaction and not self._backend.expires_in_compaction:
            raise MisusedStateError(
                f"the time to live of state {descriptor.name!r} has cleanup_in_compaction, which this state "
                "backend does not support: use cleanup_incrementally or cleanup_full_snapshot, or another backend"
            )
        return Expiry(descriptor, table, self._clock)

    def _entries(
        self, table: StateTable, descriptor: StateDescriptor, namespace: Hashable
    ) -> MutableMapping[Any, Any]:
        entries = table.entries(namespace)
        expiry = self._expiring.get(descriptor.name)
        return entries if expiry is None else ExpiringEntries(entries, expiry)


def _word(kind: type) -> str:
    return kind.__name__.removesuffix("StateDescriptor").lower()


def _types(descriptor: StateDescriptor) -> tuple[Any, Any]:
    # A descriptor looks for a hint, in a thousand times the time of a lookup, for an attribute that it lacks.
    return descriptor.type, descriptor.key_type if isinstance(descriptor, MapStateDescriptor) else None


def _described(descriptor: StateDescriptor) -> str:
    value, key = (type_name(t) if is_known(t) else "anything" for t in _types(descriptor))
    if isinstance(descriptor, MapStateDescriptor):
        value = f"{key} to {value}"
    return f"{_word(type(descriptor))} state of {value}"


def _never_opened(descriptor: StateDescriptor, function: object) -> None:
    if isinstance(function, Function) and type(function).open is not Function.open:
        raise MisusedStateError(
            f"the function of state {descriptor.name!r} has its own open(), which is never called: move its work "
            "to the open() of the function that uses the state"
        )
