"""Writes records into a table."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, Wait, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError

from sluiceway_sqlite._database import quoted

__all__ = ["SqliteSink"]

_RETRY_S = 0.01
_ROWS_HELD = 10_000


class SqliteSink(Sink[Any]):
    """Writes each record as a row; makes the table where there is none.

    Records are mappings with the columns' names, or sequences with a value for each column. With ``key``, a
    record replaces the row with the same key, so writing it again after a recovery changes nothing: the sink
    is idempotent. Without, rows are appended, at least once.

    Args:
        database: the database file; made where there is none.
        table: name of the table.
        columns: the columns to write.
        key: those of them that say which row is meant. A table that exists needs a unique index on them.

    Raises:
        ConfigurationError: no columns, or a key that is not among them.
    """

    def __init__(
        self,
        database: str | PathLike[str],
        table: str,
        columns: tuple[str, ...] | list[str],
        *,
        key: tuple[str, ...] | list[str] = (),
    ) -> None:
        if not columns:
            raise ConfigurationError("SqliteSink needs columns=, the names of the columns to write")
        if missing := [name for name in key if name not in columns]:
            raise ConfigurationError(
                f"SqliteSink(key=...): {missing[0]!r} is not one of the columns {', '.join(columns)}"
            )
        self.database = Path(database)
        self.table = table
        self.columns = tuple(columns)
        self.key = tuple(key)

    @property
    def name(self) -> str:
        """The table's name."""
        return f"sqlite {self.table}"

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """Idempotent with a key, else at least once."""
        return DeliveryGuarantee.IDEMPOTENT if self.key else DeliveryGuarantee.AT_LEAST_ONCE

    @property
    def max_writers(self) -> int:
        """SQLite lets one write at a time."""
        return 1

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make the writer."""
        return _Writer(context, self)

    def create_statement(self) -> str:
        """SQL that makes the table."""
        columns = ", ".join(map(quoted, self.columns))
        key = f", PRIMARY KEY ({', '.join(map(quoted, self.key))})" if self.key else ""
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} ({columns}{key})"

    def write_statement(self) -> str:
        """SQL that writes a row."""
        columns = ", ".join(map(quoted, self.columns))
        marks = ", ".join("?" * len(self.columns))
        statement = f"INSERT INTO {quoted(self.table)} ({columns}) VALUES ({marks})"
        if not self.key:
            return statement
        changes = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in self.columns if c not in self.key)
        target = ", ".join(map(quoted, self.key))
        return f"{statement} ON CONFLICT ({target}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


class _Writer(SinkWriter[Any]):
    """Collects rows and writes them in one transaction. Where the database is locked, it waits for its turn."""

    def __init__(self, context: WriterContext, sink: SqliteSink) -> None:
        self._context = context
        self._sink = sink
        self._statement = sink.write_statement()
        self._connection: sqlite3.Connection | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._locked = False

    def open(self) -> None:
        try:
            # Statements fail at once where another process holds the lock: waiting is the runtime's business.
            self._connection = sqlite3.connect(self._sink.database, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise ConnectorError(f"cannot write {self._sink.database}: {error}") from error

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._rows.extend(map(self._row, values))
        if len(self._rows) >= _ROWS_HELD:
            self.flush()

    def _row(self, value: Any) -> tuple[Any, ...]:
        columns = self._sink.columns
        if isinstance(value, Mapping):
            try:
                return tuple([value[name] for name in columns])
            except KeyError as missing:
                raise ConnectorError(
                    f"{self._sink.name}: the record {value!r} has no {missing}; columns: {', '.join(columns)}"
                ) from None
        if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == len(columns):
            return tuple(value)
        raise ConnectorError(
            f"{self._sink.name}: the record {value!r} is neither a mapping nor a sequence of {len(columns)} "
            f"values ({', '.join(columns)})"
        )

    def flush(self) -> None:
        if not self._rows:
            return
        assert self._connection is not None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute(self._sink.create_statement())
                self._connection.executemany(self._statement, self._rows)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            # The low byte is the primary code; the rest says how it came about.
            self._locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not self._locked:
                where = f"table {self._sink.table!r} of {self._sink.database}"
                raise ConnectorError(f"cannot write {where}: {error}") from error
        else:
            self._locked = False
            self._rows.clear()

    def blocked(self) -> Wait | None:
        if self._locked:
            self.flush()
        return Wait(until=self._context.clock.monotonic() + _RETRY_S) if self._locked else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
