"""State tables that live in a SQLite database: the mappings that operators read and write.

A key is found by its Python hash, which is the same for equal keys while the process lives, and then compared
as Python compares: ``1``, ``1.0`` and ``True`` are one key. Keys and values are stored as a snapshot has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Iterator, MutableMapping
from typing import Any

from sluiceway.errors import CorruptStreamError, SerializationError, StateError
from sluiceway.keygroups import key_group
from sluiceway.serializers import KEY_SERIALIZER, Row, Serializer
from sluiceway.state import VOID_NAMESPACE, StateTable, TableKind, TableSchema

__all__ = ["Entries", "EntriesOfKey", "SqliteTable"]

_PAGE = 500
_load_key, _dump_key = KEY_SERIALIZER.loads, KEY_SERIALIZER.dumps


class SqliteTable(StateTable):
    """One named state: a row per key, and for a map table a row per entry beside it.

    Args:
        connection: to the database of one subtask, used by nobody else.
        number: unique among the tables of the database.
        schema: what the state's descriptor means.
        operator: the operator's uid, for messages.
        max_parallelism: number of key groups.
    """

    def __init__(
        self, connection: sqlite3.Connection, number: int, schema: TableSchema, operator: str, max_parallelism: int
    ) -> None:
        self.schema = schema
        self.keys_table = f"keys_{number}"
        self.entries_table = f"entries_{number}"
        self.execute = connection.execute
        self._operator = operator
        self._max_parallelism = max_parallelism
        self._namespaces: dict[Hashable, int] = {}
        self._last_namespace = 0
        keys, entries = self.keys_table, self.entries_table
        self.execute(f"CREATE TABLE {keys} (id INTEGER PRIMARY KEY, ns, hash, key_group, key, value)")
        self.execute(f"CREATE INDEX {keys}_index ON {keys} (ns, hash)")
        if schema.meta.kind is TableKind.MAP:
            self.execute(f"CREATE TABLE {entries} (id INTEGER PRIMARY KEY, owner, hash, pair)")
            self.execute(f"CREATE INDEX {entries}_index ON {entries} (owner, hash)")

    # ---- what the runtime asks for ------------------------------------------------------------------------

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        self._check_kind(TableKind.VALUE)
        return Entries(self, self._namespace(namespace))

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        self._check_kind(TableKind.MAP)
        hash(key)
        return EntriesOfKey(self, self._namespace(namespace), key)

    def namespaces(self) -> Iterator[Hashable]:
        used = {ns for (ns,) in self.execute(f"SELECT DISTINCT ns FROM {self.keys_table}")}
        return iter([namespace for namespace, ns in self._namespaces.items() if ns in used])

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        ns = self._namespaces.get(namespace)
        return iter(()) if ns is None else (_load_key(key) for key, _ in self.rows_of(ns))

    def drop(self, namespace: Hashable) -> None:
        ns = self._namespaces.pop(namespace, None)
        if ns is None:
            return
        if self.schema.meta.kind is TableKind.MAP:
            owners = f"SELECT id FROM {self.keys_table} WHERE ns = ?"
            self.execute(f"DELETE FROM {self.entries_table} WHERE owner IN ({owners})", (ns,))
        self.execute(f"DELETE FROM {self.keys_table} WHERE ns = ?", (ns,))

    # ---- what the mappings and the backend ask for --------------------------------------------------------

    def find(self, ns: int, key: Any) -> tuple[int, bytes] | None:
        """The row of a key: its id and its value."""
        query = f"SELECT id, key, value FROM {self.keys_table} WHERE ns = ? AND hash = ?"
        for row, stored, value in self.execute(query, (ns, hash(key))):
            if _load_key(stored) == key:
                return row, value
        return None

    def insert(self, ns: int, key: Any, value: bytes | None) -> int:
        """A new row; returns its id."""
        insert = f"INSERT INTO {self.keys_table} (ns, hash, key_group, key, value) VALUES (?, ?, ?, ?, ?)"
        group = key_group(key, self._max_parallelism)
        return self.execute(insert, (ns, hash(key), group, _dump_key(key), value)).lastrowid or 0

    def dump(self, key: Any, value: Any) -> bytes:
        """A value, or an entry of a map, as a snapshot has it."""
        try:
            return self.schema.serializer.dumps(value)
        except SerializationError as error:
            raise SerializationError(f"{self._where()}, key {key!r}: {error}") from error

    def rows_of(self, ns: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a namespace, a page at a time."""
        query = (
            f"SELECT hash, id, key, value FROM {self.keys_table} "
            f"WHERE ns = ? AND (hash, id) > (?, ?) ORDER BY hash, id LIMIT {_PAGE}"
        )
        last = (-(2**63), 0)
        while page := self.execute(query, (ns, *last)).fetchall():
            for row_hash, row, key, value in page:
                last = (row_hash, row)
                yield key, value

    def snapshot_rows(self, index: int) -> Iterator[tuple[int, Row]]:
        """Every key with its key group; ``index`` is the table's place in the snapshot."""
        names = {ns: _dump_key(namespace) for namespace, ns in self._namespaces.items()}
        query = f"SELECT id, ns, key_group, key, value FROM {self.keys_table}"
        for row, ns, group, key, value in self.execute(query):
            yield group, Row(index, names[ns], key, self._pairs(row) if value is None else value)

    def load(self, row: Row, reader: Serializer) -> None:
        """Take a row of a snapshot."""
        if isinstance(row.value, list) is not (self.schema.meta.kind is TableKind.MAP):
            raise CorruptStreamError(f"a row of {self._where()} is of the other kind")
        try:
            ns, key = self._namespace(_load_key(row.namespace)), _load_key(row.key)
            if isinstance(row.value, bytes):
                self.insert(ns, key, self.dump(key, reader.loads(row.value)))
            else:
                entries = EntriesOfKey(self, ns, key)
                for name, value in map(reader.loads, row.value):
                    entries[name] = value
        except SerializationError as error:
            raise StateError(f"{self._where()} cannot be restored as {self.schema.meta}: {error}") from error

    def _pairs(self, owner: int) -> list[bytes]:
        query = f"SELECT pair FROM {self.entries_table} WHERE owner = ? ORDER BY id"
        return [pair for (pair,) in self.execute(query, (owner,))]

    def _namespace(self, namespace: Hashable) -> int:
        ns = self._namespaces.get(namespace)
        if ns is None:
            self._last_namespace += 1
            ns = self._namespaces[namespace] = self._last_namespace
        return ns

    def _check_kind(self, kind: TableKind) -> None:
        if self.schema.meta.kind is not kind:
            raise StateError(f"{self._where()} is a {self.schema.meta.kind.value} table and has no {kind.value}s")

    def _where(self) -> str:
        return f"state {self.schema.meta.name!r} of operator {self._operator!r}"


class Entries(MutableMapping[Any, Any]):
    """The values of a namespace by key. Every access goes to the database."""

    def __init__(self, table: SqliteTable, ns: int) -> None:
        self._table = table
        self._ns = ns

    def __getitem__(self, key: Any) -> Any:
        found = self._table.find(self._ns, key)
        if found is None:
            raise KeyError(key)
        return self._table.schema.serializer.loads(found[1])

    def __setitem__(self, key: Any, value: Any) -> None:
        data = self._table.dump(key, value)
        found = self._table.find(self._ns, key)
        if found is None:
            self._table.insert(self._ns, key, data)
        else:
            self._table.execute(f"UPDATE {self._table.keys_table} SET value = ? WHERE id = ?", (data, found[0]))

    def __delitem__(self, key: Any) -> None:
        found = self._table.find(self._ns, key)
        if found is None:
            raise KeyError(key)
        self._table.execute(f"DELETE FROM {self._table.keys_table} WHERE id = ?", (found[0],))

    def __contains__(self, key: object) -> bool:
        return self._table.find(self._ns, key) is not None

    def __iter__(self) -> Iterator[Any]:
        return (_load_key(key) for key, _ in self._table.rows_of(self._ns))

    def __len__(self) -> int:
        query = f"SELECT count(*) FROM {self._table.keys_table} WHERE ns = ?"
        return int(self._table.execute(query, (self._ns,)).fetchone()[0])


class EntriesOfKey(MutableMapping[Any, Any]):
    """The entries of one key of a map table. The key has a row while it has entries."""

    def __init__(self, table: SqliteTable, ns: int, key: Hashable) -> None:
        self._table = table
        self._ns = ns
        self._key = key

    def _owner(self) -> int | None:
        found = self._table.find(self._ns, self._key)
        return None if found is None else found[0]

    def _find(self, owner: int | None, name: Any) -> tuple[int, Any, Any] | None:
        query = f"SELECT id, pair FROM {self._table.entries_table} WHERE owner = ? AND hash = ?"
        name_hash = hash(name)
        for row, pair in self._table.execute(query, (owner, name_hash)):
            stored, value = self._table.schema.serializer.loads(pair)
            if stored == name:
                return row, stored, value
        return None

    def __getitem__(self, name: Any) -> Any:
        found = self._find(self._owner(), name)
        if found is None:
            raise KeyError(name)
        return found[2]

    def __setitem__(self, name: Any, value: Any) -> None:
        entries, owner = self._table.entries_table, self._owner()
        if (found := self._find(owner, name)) is not None:
            pair = self._table.dump(self._key, (found[1], value))
            self._table.execute(f"UPDATE {entries} SET pair = ? WHERE id = ?", (pair, found[0]))
            return
        pair = self._table.dump(self._key, (name, value))
        if owner is None:
            owner = self._table.insert(self._ns, self._key, None)
        insert = f"INSERT INTO {entries} (owner, hash, pair) VALUES (?, ?, ?)"
        self._table.execute(insert, (owner, hash(name), pair))

    def __delitem__(self, name: Any) -> None:
        owner = self._owner()
        found = self._find(owner, name)
        if found is None:
            raise KeyError(name)
        self._table.execute(f"DELETE FROM {self._table.entries_table} WHERE id = ?", (found[0],))
        if not self._count(owner):
            self._forget(owner)

    def __contains__(self, name: object) -> bool:
        return self._find(self._owner(), name) is not None

    def __iter__(self) -> Iterator[Any]:
        query = f"SELECT pair FROM {self._table.entries_table} WHERE owner = ? ORDER BY id"
        pairs = self._table.execute(query, (self._owner(),)).fetchall()
        return (self._table.schema.serializer.loads(pair)[0] for (pair,) in pairs)

    def __len__(self) -> int:
        return self._count(self._owner())

    def clear(self) -> None:
        owner = self._owner()
        self._table.execute(f"DELETE FROM {self._table.entries_table} WHERE owner = ?", (owner,))
        self._forget(owner)

    def _count(self, owner: int | None) -> int:
        query = f"SELECT count(*) FROM {self._table.entries_table} WHERE owner = ?"
        return int(self._table.execute(query, (owner,)).fetchone()[0])

    def _forget(self, owner: int | None) -> None:
        self._table.execute(f"DELETE FROM {self._table.keys_table} WHERE id = ?", (owner,))
