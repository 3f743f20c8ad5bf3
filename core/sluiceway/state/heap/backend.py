"""Backend of tables as dicts, so that operators loop at the speed of a dict."""

# ruff: noqa: D102 - the methods are those of the contract

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, MutableMapping
from itertools import chain, count
from typing import Any, TypeAlias

from sluiceway.errors import CorruptStreamError, SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import KEY_SERIALIZER, Block, Row, Serializer, decode_block, decode_blocks
from sluiceway.state import (
    VOID_NAMESPACE,
    BackendContext,
    IncrementalRows,
    KeyedSnapshot,
    KeyedStateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableKind,
    TableSchema,
)
from sluiceway.state.heap.entries import Frozen, HeapEntries
from sluiceway.state.heap.shared import SharedNamespace, shared_namespaces
from sluiceway.state.heap.snapshots import HeapSnapshot, Layer
from sluiceway.state.map_view import KeyMapping
from sluiceway.util.garbage_collector import gc_frozen

__all__ = ["HeapKeyedBackend", "HeapTable"]

MakeSnapshot: TypeAlias = "Callable[[BackendContext, list[Layer], list[tuple[int, Row | Block]]], HeapSnapshot]"


class HeapTable(StateTable):
    """Table of dicts, one for each namespace.

    Args:
        schema: schema of the table.
        operator: the operator's uid, for messages.
    """

    keeps_objects = True

    def __init__(self, schema: TableSchema, operator: str) -> None:
        self.schema = schema
        self._operator = operator
        self._namespaces: dict[Hashable, HeapEntries] = {}
        # Namespaces by their encoded form, while a snapshot is loaded.
        self._filling: dict[bytes, HeapEntries] = {}
        # Without entries: it keeps the order of the keys that set_aside() brings from one snapshot to the next.
        self._aside = HeapEntries()
        self._make_aside: Callable[[], Mapping[Any, Any]] | None = None
        # Of a table of blocks: namespaces that the last snapshot has stored apart.
        self._shared: dict[Hashable, SharedNamespace] = {}

    def _in(self, namespace: Hashable, kind: TableKind) -> HeapEntries:
        meta = self.schema.meta
        if meta.kind is not kind:
            raise StateError(
                f"state {meta.name!r} of operator {self._operator!r} is {meta}: it has no {kind.value}s"
            )
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._namespaces[namespace] = self.make_entries()
        return found

    def make_entries(self) -> HeapEntries:
        """Return the dict of a new namespace; for subclasses."""
        return HeapEntries()

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        return self._in(namespace, TableKind.VALUE)

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return KeyMapping(self._in(namespace, TableKind.MAP), key)

    def namespaces(self) -> Iterator[Hashable]:
        return iter([namespace for namespace, entries in self._namespaces.items() if entries])

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return iter(list(self._namespaces.get(namespace, ())))

    def drop(self, namespace: Hashable) -> None:
        self._namespaces.pop(namespace, None)
        self._shared.pop(namespace, None)

    def close(self) -> None:
        """Free the entries; snapshots have their own."""
        for entries in self._namespaces.values():
            dict.clear(entries)

    def set_aside(self, make: Callable[[], Mapping[Any, Any]]) -> Callable[[], None]:
        """Have the reader of the next snapshot make the entries."""
        self._make_aside = make

        def taken() -> None:
            self._make_aside = None

        return taken

    def share(
        self, index: int, max_parallelism: int, new_identity: Callable[[], str]
    ) -> Collection[SharedNamespace]:
        """Return the namespaces of a table of blocks that a snapshot now stores apart; none of another table.

        Args:
            index: index of the table.
            max_parallelism: number of key groups of the job vertex.
            new_identity: makes an identity for a namespace that was changed.
        """
        if self.schema.blocks:
            self._shared = shared_namespaces(
                self._shared, self._namespaces, index, self.schema, self.encode, max_parallelism, new_identity
            )
        return self._shared.values()

    def freeze(self, index: int) -> list[Layer]:
        """Return all state as of now, but what :meth:`share` has returned."""
        layers = [
            Layer(index, self.schema, namespace, entries, entries.freeze(self.encode))
            for namespace, entries in self._namespaces.items()
            if entries and namespace not in self._shared
        ]
        if (make := self._make_aside) is not None:
            # The reader of the snapshot fills it.
            nothing = Frozen({}, self.encode)
            layers.append(Layer(index, self.schema, VOID_NAMESPACE, self._aside, nothing, make))
        return layers

    def encode(self, value: Any) -> bytes | list[bytes]:
        """Return a value as a row has it."""
        dumps = self.schema.serializer.dumps
        return (
            [dumps(entry) for entry in value.items()] if self.schema.meta.kind is TableKind.MAP else dumps(value)
        )

    def load(self, kept: Iterable[Row | Block], reader: Serializer) -> None:
        """Fill the table from a snapshot, once."""
        loads, load_key = reader.loads, KEY_SERIALIZER.loads
        is_map = self.schema.meta.kind is TableKind.MAP
        for row in kept:
            if isinstance(row, Block):
                self._load_block(row, reader)
                continue
            if isinstance(row.value, list) is not is_map:
                raise CorruptStreamError(
                    f"a row of state {self.schema.meta.name!r} of operator {self._operator!r} is of the other kind"
                )
            try:
                value = dict(map(loads, row.value)) if is_map else loads(row.value)  # type: ignore[arg-type]
                self._to_fill(row.namespace)[load_key(row.key)] = value
            except SerializationError as error:
                raise self._cannot(error) from error
        self._filling.clear()

    def _load_block(self, block: Block, reader: Serializer) -> None:
        try:
            keys, values = decode_block(block, reader)
        except SerializationError as error:
            raise self._cannot(error) from error
        self._to_fill(block.namespace).update(zip(keys, values, strict=True))

    def _to_fill(self, encoded: bytes) -> HeapEntries:
        if (found := self._filling.get(encoded)) is not None:
            return found
        namespace = KEY_SERIALIZER.loads(encoded)
        if (entries := self._namespaces.get(namespace)) is None:
            entries = self._namespaces[namespace] = self.make_entries()
        self._filling[encoded] = entries
        return entries

    def _cannot(self, error: Exception) -> StateError:
        meta = self.schema.meta
        return StateError(
            f"state {meta.name!r} of operator {self._operator!r} cannot be restored as {meta}: {error}"
        )


class HeapKeyedBackend(KeyedStateBackend):
    """Keyed backend on the heap.

    Args:
        context: context of the subtask.
        make_snapshot: makes a snapshot of layers.
    """

    def __init__(self, context: BackendContext, make_snapshot: MakeSnapshot = HeapSnapshot) -> None:
        self._make_snapshot = make_snapshot
        self._context = context
        self._tables: dict[str, HeapTable] = {}
        # What was restored of tables that nobody has asked for yet: rows with their key groups, by each form of a
        # table.
        self._unclaimed: dict[StateMeta, list[tuple[int, Row | Block]]] = {}
        # Unique among all attempts that write to one directory, also those of another job manager.
        self._id, self._identities = secrets.token_hex(8), count()
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
        table = self.make_table(schema)
        readers = {meta: schema.reader_for(meta, self._context.operator) for meta in self._forms(descriptor.name)}
        with gc_frozen():
            for meta, reader in readers.items():
                table.load((row for _, row in self._unclaimed[meta]), reader)
        # Only now: what cannot be read stays unclaimed, and so in the next snapshot.
        for meta in readers:
            del self._unclaimed[meta]
        self._tables[descriptor.name] = table
        return table

    def _forms(self, name: str) -> list[StateMeta]:
        """Return the forms of a restored table that nobody has asked for yet."""
        return [meta for meta in self._unclaimed if meta.name == name]

    def make_table(self, schema: TableSchema) -> HeapTable:
        """Return a new table; for subclasses."""
        return HeapTable(schema, self._context.operator)

    def snapshot(self) -> KeyedSnapshot:
        self._check_open()
        metas: list[StateMeta] = []
        layers: list[Layer] = []
        shared: list[SharedNamespace] = []
        kept: list[tuple[int, Row | Block]] = []
        for table in self._tables.values():
            shared += table.share(len(metas), self._context.max_parallelism, self._new_identity)
            layers += table.freeze(len(metas))
            metas.append(table.schema.meta)
        for meta, unclaimed in self._unclaimed.items():
            # Restored tables that nobody has asked for are written again as they were, under indices behind the
            # others.
            kept += [(group, row._replace(table=len(metas))) for group, row in unclaimed]
            metas.append(meta)
        whole = self._make_snapshot(self._context, [*layers, *(each.layer for each in shared)], kept)
        if not shared:
            return KeyedSnapshot(tuple(metas), whole, None, whole.release)
        # Whoever stores the snapshot reads one of the two; nothing is made of the other.
        private = self._make_snapshot(self._context, layers, kept)

        def release() -> None:
            whole.release()
            private.release()

        return KeyedSnapshot(tuple(metas), IncrementalRows(whole, private, shared), None, release)

    def _new_identity(self) -> str:
        return f"blocks-{self._id}-{next(self._identities)}"

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._check_open()
        if not self._may_restore:
            raise StateError(f"operator {self._context.operator!r}: state is restored once, before it is used")
        self._may_restore = False
        seen: set[int] = set()
        for snapshot in snapshots:
            self._take(snapshot, self._context.key_groups, seen)
        # Of a table in several forms only those that the own key groups have.
        have = {meta.name for meta, rows in self._unclaimed.items() if rows}
        self._unclaimed = {meta: rows for meta, rows in self._unclaimed.items() if rows or meta.name not in have}

    def _take(self, snapshot: KeyedSnapshot, own: KeyGroupRange, seen: set[int]) -> None:
        operator = self._context.operator
        rows_of_table: list[list[tuple[int, Row | Block]]] = []
        for meta in snapshot.tables:
            rows_of_table.append(self._unclaimed.setdefault(meta, []))
            known = self._forms(meta.name)[0]
            if not known.is_form_of(meta):
                raise StateError(
                    f"the snapshots of operator {operator!r} disagree about state {meta.name!r}: one holds "
                    f"{known}, another {meta}"
                )
        for group in snapshot.groups:
            # At another parallelism than that of the snapshot, part of its key groups belong to other subtasks.
            if not own.start <= group < own.end:
                continue
            if group in seen:
                raise StateError(f"two snapshots of operator {operator!r} hold key group {group}")
            seen.add(group)
            found: tuple[list[Row], list[Block]] = decode_blocks(snapshot.groups[group])
            kept: Iterator[Row | Block] = chain(*found)
            for row in kept:
                if not 0 <= row.table < len(snapshot.tables):
                    raise CorruptStreamError(
                        f"key group {group} of operator {operator!r} has a row of table {row.table}, there are "
                        f"{len(snapshot.tables)} tables"
                    )
                rows_of_table[row.table].append((group, row))

    def close(self) -> None:
        self._closed = True
        # Ended operators refer to their tables and to each other: the collector would come to them late.
        for table in self._tables.values():
            table.close()
        self._tables.clear()
        self._unclaimed.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"the state of operator {self._context.operator!r} is closed")
