"""Tables as plain dicts, so that operators loop at the speed of a dict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any

from sluiceway.errors import CorruptStreamError, SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.serializers import KEY_SERIALIZER, Row, Serializer, decode_rows, encode_rows
from sluiceway.state import (
    VOID_NAMESPACE,
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableKind,
    TableSchema,
)

__all__ = ["MemoryStateBackend"]


class MemoryStateBackend(StateBackend):
    """Objects on the heap; they are serialized only for a snapshot."""

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """The keyed backend of one subtask."""
        return _MemoryKeyedBackend(context)


class _KeyMapping(MutableMapping[Any, Any]):
    """The entries of one key; there is no dict behind it as long as there are none."""

    __slots__ = ("_key", "_maps")

    def __init__(self, maps: dict[Any, dict[Any, Any]], key: Hashable) -> None:
        self._maps = maps
        self._key = key

    def _entries(self) -> dict[Any, Any]:
        return self._maps.get(self._key) or {}

    def __getitem__(self, name: Any) -> Any:
        return self._entries()[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        entries = self._maps.get(self._key)
        if entries is None:
            hash(name)  # an unhashable name must not leave an empty mapping behind
            entries = self._maps[self._key] = {}
        entries[name] = value

    def __delitem__(self, name: Any) -> None:
        entries = self._entries()
        del entries[name]
        if not entries:
            del self._maps[self._key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def get(self, name: Any, default: Any = None) -> Any:
        return self._entries().get(name, default)

    def keys(self) -> KeysView[Any]:
        return self._entries().keys()

    def values(self) -> ValuesView[Any]:
        return self._entries().values()

    def items(self) -> ItemsView[Any, Any]:
        return self._entries().items()

    def clear(self) -> None:
        self._maps.pop(self._key, None)

    def __repr__(self) -> str:
        return repr(self._entries())


class _MemoryTable(StateTable):
    def __init__(self, schema: TableSchema, operator: str) -> None:
        self.schema = schema
        self._operator = operator
        self._namespaces: dict[Hashable, dict[Any, Any]] = {}

    def _in(self, namespace: Hashable, kind: TableKind) -> dict[Any, Any]:
        meta = self.schema.meta
        if meta.kind is not kind:
            raise StateError(
                f"state {meta.name!r} of operator {self._operator!r} is {meta}: it has no {kind.value}s"
            )
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._namespaces[namespace] = {}
        return found

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        return self._in(namespace, TableKind.VALUE)

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return _KeyMapping(self._in(namespace, TableKind.MAP), key)

    def namespaces(self) -> Iterator[Hashable]:
        return iter([namespace for namespace, entries in self._namespaces.items() if entries])

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return iter(list(self._namespaces.get(namespace, ())))

    def drop(self, namespace: Hashable) -> None:
        self._namespaces.pop(namespace, None)

    def rows(self, index: int, group_of: Callable[[str, Any], int]) -> Iterator[tuple[int, Row]]:
        """Every row with its key group, the values serialized now."""
        dumps, dump_key = self.schema.serializer.dumps, KEY_SERIALIZER.dumps
        is_map = self.schema.meta.kind is TableKind.MAP
        for namespace, entries in self._namespaces.items():
            namespace_bytes = dump_key(namespace)
            for key, value in entries.items():
                group = group_of(self.schema.meta.name, key)
                try:
                    data = [dumps(entry) for entry in value.items()] if is_map else dumps(value)
                except SerializationError as error:
                    raise SerializationError(
                        f"state {self.schema.meta.name!r} of operator {self._operator!r}, key {key!r}: {error}"
                    ) from error
                yield group, Row(index, namespace_bytes, dump_key(key), data)

    def load(self, rows: Iterable[Row], reader: Serializer) -> None:
        """Fill the table from a snapshot."""
        loads, load_key = reader.loads, KEY_SERIALIZER.loads
        is_map = self.schema.meta.kind is TableKind.MAP
        for row in rows:
            if isinstance(row.value, list) is not is_map:
                raise CorruptStreamError(
                    f"a row of state {self.schema.meta.name!r} of operator {self._operator!r} is of the other kind"
                )
            try:
                value = dict(map(loads, row.value)) if is_map else loads(row.value)  # type: ignore[arg-type]
                self._namespaces.setdefault(load_key(row.namespace), {})[load_key(row.key)] = value
            except SerializationError as error:
                raise StateError(
                    f"state {self.schema.meta.name!r} of operator {self._operator!r} cannot be restored as "
                    f"{self.schema.meta}: {error}"
                ) from error


class _MemoryKeyedBackend(KeyedStateBackend):
    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._tables: dict[str, _MemoryTable] = {}
        # What was restored of tables that nobody has asked for yet: by name, rows with their key groups.
        self._unclaimed: dict[str, tuple[StateMeta, list[tuple[int, Row]]]] = {}
        self._may_restore = True
        self._closed = False

    def table(self, descriptor: StateDescriptor) -> StateTable:
        self._check_open()
        self._may_restore = False
        schema = TableSchema.of(descriptor)
        table = self._tables.get(descriptor.name)
        if table is not None:
            table.schema.check_same(schema.meta, self._context.operator)
            return table
        table = _MemoryTable(schema, self._context.operator)
        if (found := self._unclaimed.get(descriptor.name)) is not None:
            meta, rows = found
            table.load((row for _, row in rows), schema.reader_for(meta, self._context.operator))
            del self._unclaimed[descriptor.name]
        self._tables[descriptor.name] = table
        return table

    def snapshot(self) -> KeyedSnapshot:
        self._check_open()
        metas: list[StateMeta] = []
        groups: defaultdict[int, list[Row]] = defaultdict(list)
        for table in self._tables.values():
            for group, row in table.rows(len(metas), self._own_group):
                groups[group].append(row)
            metas.append(table.schema.meta)
        for meta, rows in self._unclaimed.values():
            for group, row in rows:
                groups[group].append(row._replace(table=len(metas)))
            metas.append(meta)
        return KeyedSnapshot(tuple(metas), {group: encode_rows(rows) for group, rows in groups.items()})

    def _own_group(self, state: str, key: Any) -> int:
        context = self._context
        group = key_group(key, context.max_parallelism)
        start, end = context.key_groups
        if start <= group < end:
            return group
        raise StateError(
            f"state {state!r} of operator {context.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {context.subtask} owns the groups {start} to {end - 1}: a key selector must give the same "
            "key for the same record every time"
        )

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._check_open()
        if not self._may_restore:
            raise StateError(f"operator {self._context.operator!r}: state is restored once, before it is used")
        self._may_restore = False
        seen: set[int] = set()
        for snapshot in snapshots:
            self._take(snapshot, self._context.key_groups, seen)

    def _take(self, snapshot: KeyedSnapshot, own: KeyGroupRange, seen: set[int]) -> None:
        operator = self._context.operator
        for meta in snapshot.tables:
            known, _ = self._unclaimed.setdefault(meta.name, (meta, []))
            if known != meta:
                raise StateError(
                    f"the snapshots of operator {operator!r} disagree about state {meta.name!r}: one holds "
                    f"{known}, another {meta}"
                )
        for group, data in snapshot.groups.items():
            if not own.start <= group < own.end:
                continue
            if group in seen:
                raise StateError(f"two snapshots of operator {operator!r} hold key group {group}")
            seen.add(group)
            for row in decode_rows(data):
                if not 0 <= row.table < len(snapshot.tables):
                    raise CorruptStreamError(
                        f"key group {group} of operator {operator!r} has a row of table {row.table}, there are "
                        f"{len(snapshot.tables)} tables"
                    )
                self._unclaimed[snapshot.tables[row.table].name][1].append((group, row))

    def close(self) -> None:
        self._closed = True
        self._tables.clear()
        self._unclaimed.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"the state of operator {self._context.operator!r} is closed")
