"""The state backend: one private, temporary database per subtask."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.serializers import Row, decode_rows, encode_rows
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableSchema,
)

from sluiceway_sqlite._tables import SqliteTable

__all__ = ["SqliteStateBackend"]


class SqliteStateBackend(StateBackend):
    """Keyed state in a temporary file, in the directory that ``SQLITE_TMPDIR`` or ``TMPDIR`` names.

    It need not fit into memory. A read or a write takes some microseconds where SQLite's cache has the page,
    against a fraction of one for state in memory.
    """

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """The keyed backend of one subtask."""
        return _SqliteKeyedBackend(context)


class _SqliteKeyedBackend(KeyedStateBackend):
    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._tables: dict[str, SqliteTable] = {}
        self._numbers = count()
        # What was restored of tables that nobody has asked for yet: by name, rows with their key groups.
        self._unclaimed: dict[str, tuple[StateMeta, list[tuple[int, Row]]]] = {}
        self._may_restore = True
        # An empty name stands for a file that SQLite makes when its cache is full, and that nobody else can open.
        self._connection: sqlite3.Connection | None = sqlite3.connect("", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("BEGIN")

    def table(self, descriptor: StateDescriptor) -> StateTable:
        connection = self._open()
        self._may_restore = False
        context, schema = self._context, TableSchema.of(descriptor)
        table = self._tables.get(descriptor.name)
        if table is not None:
            table.schema.check_same(schema.meta, context.operator)
            return table
        written, rows = self._unclaimed.get(descriptor.name, (schema.meta, []))
        reader = schema.reader_for(written, context.operator)
        table = SqliteTable(connection, next(self._numbers), schema, context.operator, context.max_parallelism)
        for _, row in rows:
            table.load(row, reader)
        self._unclaimed.pop(descriptor.name, None)
        self._tables[descriptor.name] = table
        return table

    def snapshot(self) -> KeyedSnapshot:
        self._open()
        metas: list[StateMeta] = []
        groups: defaultdict[int, list[Row]] = defaultdict(list)
        start, end = self._context.key_groups
        for name, table in self._tables.items():
            for group, row in table.snapshot_rows(len(metas)):
                if not start <= group < end:
                    raise StateError(self._astray(name, group))
                groups[group].append(row)
            metas.append(table.schema.meta)
        for meta, rows in self._unclaimed.values():
            for group, row in rows:
                groups[group].append(row._replace(table=len(metas)))
            metas.append(meta)
        return KeyedSnapshot(tuple(metas), {group: encode_rows(groups[group]) for group in sorted(groups)})

    def _astray(self, state: str, group: int) -> str:
        start, end = self._context.key_groups
        return (
            f"state {state!r} of operator {self._context.operator!r} holds a key of key group {group}, but "
            f"subtask {self._context.subtask} owns the groups {start} to {end - 1}: a key selector must give "
            "the same key for the same record every time"
        )

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._open()
        operator = self._context.operator
        if not self._may_restore:
            raise StateError(f"operator {operator!r}: state is restored once, before it is used")
        self._may_restore = False
        start, end = self._context.key_groups
        seen: set[int] = set()
        for snapshot in snapshots:
            for meta in snapshot.tables:
                known, _ = self._unclaimed.setdefault(meta.name, (meta, []))
                if known != meta:
                    raise StateError(
                        f"the snapshots of operator {operator!r} disagree about state {meta.name!r}: one holds "
                        f"{known}, another {meta}"
                    )
            for group in snapshot.groups:
                if start <= group < end:
                    if group in seen:
                        raise StateError(f"two snapshots of operator {operator!r} hold key group {group}")
                    seen.add(group)
                    self._take(snapshot.tables, group, decode_rows(snapshot.groups[group]))

    def _take(self, tables: tuple[StateMeta, ...], group: int, rows: list[Row]) -> None:
        for row in rows:
            if not 0 <= row.table < len(tables):
                raise CorruptStreamError(
                    f"key group {group} of operator {self._context.operator!r} has a row of table {row.table}, "
                    f"there are {len(tables)} tables"
                )
            self._unclaimed[tables[row.table].name][1].append((group, row))

    def close(self) -> None:
        self._tables.clear()
        self._unclaimed.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StateError(f"the state of operator {self._context.operator!r} is closed")
        return self._connection
