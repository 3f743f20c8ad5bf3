"""The table that is written, and the one that remembers what was committed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sluiceway.errors import ConnectorError, RejectedRecordError, SluicewayError
from sluiceway_sql import _copying
from sluiceway_sql._databases import Database, Opened
from sluiceway_sql._rows import Row

__all__ = ["Part", "Table", "Target"]

Part: TypeAlias = list[Row] | bytes
"""Rows: tuples, or Arrow's IPC stream of those in columns that PostgreSQL is to copy."""

_UNKNOWN_TYPE: Final = re.compile("(?i)binding parameter|(can't|cannot) adapt")
_CONFLICTS: Final = ("40001", "40P01")  # SQLSTATEs: not serializable; deadlock
_ATTEMPTS: Final = 10
_SEARCH: Final = "sluiceway_search"
_ROWS_TRIED: Final = 256
_SHOWN: Final = 200
_WRITER: Final = "writer"
_LAST: Final = "last"


@dataclass(frozen=True)
class Target:
    """Options of a sink.

    Attributes:
        database: where.
        table: name of the table.
        columns: those that are written.
        key: those of them that say which row is meant; empty: rows are added.
        create: the statement that makes the table, or None.
        commit_table: name of the table that remembers what was committed.
    """

    database: Database
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    create: str | None
    commit_table: str

    def __str__(self) -> str:
        return f"table {self.table!r} of {self.database}"


class Table:
    """A connection to the table. All methods may block.

    Args:
        target: what was asked for.

    Raises:
        ConnectorError: from every method, for whatever the driver raises.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._opened: Opened | None = None
        self._write: Callable[[Any, Sequence[Row]], None] = self._insert
        self.copies = False
        """True if rows in columns are copied in bulk: PostgreSQL, by psycopg."""
        self.stores_nan_as_null = False
        self._in_order = False

    def open(self, remembers: bool) -> None:
        """Connect, and make the tables that are not there: with ``remembers``, the one for commits, too."""
        target = self._target
        with self._failing("connect"):
            opened = self._opened = target.database.open()
        dialect, create = opened.dialect, target.create
        self.stores_nan_as_null = dialect.name == "sqlite"
        if target.key:
            self._write = self._upsert if dialect.has_on_conflict else self._update_or_insert
        if create is None and dialect.name == "sqlite":  # its columns need no types
            key = f", PRIMARY KEY ({dialect.columns(target.key)})" if target.key else ""
            # SQLite stores NaN as null, and takes any number of nulls in a primary key.
            made = [f"{dialect.column(n)}{' NOT NULL' if n in target.key else ''}" for n in target.columns]
            create = f"CREATE TABLE {dialect.identifier(target.table)} ({', '.join(made)}{key})"
        self._make(target.table, create)

        def look(cursor: Any) -> None:
            self._probe(cursor, dialect.columns(target.columns), target.table)
            modules = {each.__module__.partition(".")[0] for each in type(cursor).__mro__}
            self.copies = dialect.name == "postgresql" and "psycopg" in modules
            if target.key and dialect.name == "postgresql":
                self._in_order = not self._refers_to_itself(cursor)

        with self._failing("read"):
            self._transact(look)
        if remembers:
            name = dialect.identifier(target.commit_table)
            columns = (
                f"{dialect.column(_WRITER)} VARCHAR(255) PRIMARY KEY, {dialect.column(_LAST)} BIGINT NOT NULL"
            )
            self._make(target.commit_table, f"CREATE TABLE {name} ({columns})")

    def write(self, parts: Sequence[Part]) -> None:
        """Write rows, in a transaction."""

        def write(cursor: Any) -> None:
            for part in parts:
                self._write_part(cursor, part)

        with self._failing("write", parts):
            self._transact(write)

    def introduce(self, writer: str) -> None:
        """Note that a writer is going to commit."""
        statement = self._dialect.insert(self._target.commit_table, (_WRITER, _LAST))
        with self._failing("write"):
            self._transact(lambda cursor: cursor.execute(statement, self._dialect.parameters((writer, 0))))

    def commit(self, transactions: Sequence[tuple[str, int, Part]]) -> None:
        """Write what was not committed yet, all in one transaction.

        Args:
            transactions: for each its writer, its number (they go up), and its rows.
        """
        parts: list[Part] = []

        def write(cursor: Any) -> None:
            parts.clear()
            last = self._committed(cursor, sorted({writer for writer, _, _ in transactions}))
            for writer, number, rows in transactions:
                if number > last[writer]:
                    parts.append(rows)
                    self._write_part(cursor, rows)
                    self._mark(cursor, writer, number)
                    last[writer] = number

        with self._failing("write", parts):
            self._transact(write)

    def close(self) -> None:
        """Close the connection."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.connection.close()

    # ---- inside --------------------------------------------------------------------------------------------

    @property
    def _dialect(self) -> Any:
        assert self._opened is not None
        return self._opened.dialect

    def _committed(self, cursor: Any, writers: Sequence[str]) -> dict[str, int]:
        """Lock the rows of writers, and return the number of each one's last transaction that was committed.

        Rows are written before they are read, so that of two who come with the same one waits for the other; all
        of them, since some databases answer every SELECT of a transaction as of its first one. The number is read,
        as drivers need not say how many rows an UPDATE has found.
        """
        dialect = self._dialect
        table, last, by = self._of_commits()
        where, numbers = f"WHERE {by} = {dialect.mark(0)}", {}
        for writer in writers:
            cursor.execute(f"UPDATE {table} SET {last} = {last} {where}", dialect.parameters((writer,)))
        for writer in writers:
            cursor.execute(f"SELECT {last} FROM {table} {where}", dialect.parameters((writer,)))
            found = cursor.fetchall()
            if not found:
                raise ConnectorError(
                    f"table {self._target.commit_table!r} of {self._target.database} knows nothing of {writer!r}, "
                    f"so that it cannot be told whether its rows are in {self._target.table!r}. Was a row removed?"
                )
            numbers[writer] = found[0][0]
        return numbers

    def _mark(self, cursor: Any, writer: str, number: int) -> None:
        """Mark a transaction as committed."""
        dialect = self._dialect
        table, last, by = self._of_commits()
        cursor.execute(
            f"UPDATE {table} SET {last} = {dialect.mark(0)} WHERE {by} = {dialect.mark(1)}",
            dialect.parameters((number, writer)),
        )

    def _of_commits(self) -> tuple[str, str, str]:
        """Return the table of commits, its column of numbers and its column of writers, in quotes."""
        dialect = self._dialect
        return dialect.identifier(self._target.commit_table), dialect.column(_LAST), dialect.column(_WRITER)

    def _write_part(self, cursor: Any, part: Part) -> None:
        target = self._target
        if not isinstance(part, bytes):
            self._write(cursor, part)
        elif not self.copies:  # the connection was of psycopg when they were written
            self._write(cursor, list(self._rows_of(part)))
        elif target.key:
            names = (target.table, target.columns, target.key)
            _copying.merge(cursor, self._dialect, names, _copying.from_bytes(part))
        else:
            dialect = self._dialect
            table, columns = dialect.identifier(target.table), dialect.columns(target.columns)
            _copying.copy(cursor, table, columns, _copying.from_bytes(part))

    def _insert(self, cursor: Any, rows: Sequence[Row]) -> None:
        self._many(cursor, self._dialect.insert(self._target.table, self._target.columns), rows)

    def _upsert(self, cursor: Any, rows: Sequence[Row]) -> None:
        target = self._target
        if self._in_order:
            # Two subtasks that lock the rows of the same keys in one order cannot end in a deadlock.
            with suppress(TypeError):  # of keys without an order
                rows = sorted(rows, key=itemgetter(*map(target.columns.index, target.key)))
        self._many(cursor, self._dialect.upsert(target.table, target.columns, target.key), rows)

    def _update_or_insert(self, cursor: Any, rows: Sequence[Row]) -> None:
        target, parameters = self._target, self._dialect.parameters
        # Not atomic: two subtasks with rows of one key may both try to insert it, which is why SqlSink asks for a
        # distribution by the key.
        update, order = self._dialect.update(target.table, target.columns, target.key)
        find = self._dialect.find(target.table, target.key)
        insert = self._dialect.insert(target.table, target.columns)
        for row in rows:
            cursor.execute(update, parameters([row[i] for i in order]))
            if cursor.rowcount < 1:  # -1: the driver does not count; 0 may be a row that was the same before
                cursor.execute(find, parameters([row[i] for i in order[-len(target.key) :]]))
                if not cursor.fetchall():
                    cursor.execute(insert, parameters(row))

    def _many(self, cursor: Any, statement: str, rows: Sequence[Row]) -> None:
        cursor.executemany(statement, [self._dialect.parameters(row) for row in rows])

    def _probe(self, cursor: Any, columns: str, table: str) -> None:
        """Fail if they are not there. With a parameter: without one, drivers read percent signs otherwise."""
        dialect = self._dialect
        statement = f"SELECT {columns} FROM {dialect.identifier(table)} WHERE 1 = {dialect.mark(0)}"
        cursor.execute(statement, dialect.parameters((0,)))
        cursor.fetchall()  # drivers of MySQL refuse the next statement before that

    def _refers_to_itself(self, cursor: Any) -> bool:
        """Return whether a row may need another one of the table to be there before it."""
        dialect = self._dialect
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE contype = 'f' AND confrelid = conrelid "
            f"AND conrelid = to_regclass({dialect.mark(0)}))",
            dialect.parameters((dialect.identifier(self._target.table).replace("%%", "%"),)),
        )
        return bool(cursor.fetchone()[0])

    def _make(self, name: str, create: str | None) -> None:
        """Make a table if it is not there; another writer may be doing the same."""
        for attempt in range(3):
            try:
                self._transact(lambda cursor: self._probe(cursor, "1", name))
                return
            except Exception as error:
                if create is None:
                    raise self._error("write", error, "make the table, or have create= do it") from error
            try:
                self._transact(lambda cursor: cursor.execute(create))
            except Exception as error:
                if attempt == 2:
                    raise ConnectorError(
                        f"cannot make table {name!r} of {self._target.database}: {error}"
                    ) from error

    def _transact(self, work: Callable[[Any], object]) -> None:
        """Run a transaction, and again where nothing of it is in the database for no fault of its own.

        That is after a deadlock or a conflict with another transaction, and where the connection was lost before
        the commit: databases and firewalls close those that were idle. One that is lost in the commit is an error,
        as the rows may be there.
        """
        assert self._opened is not None
        is_reopened = False
        for left in reversed(range(_ATTEMPTS)):
            opened, is_committing = self._opened, False
            try:
                cursor = opened.begin()
                try:
                    work(cursor)
                finally:
                    cursor.close()
                is_committing = True
                opened.connection.commit()
                return
            except BaseException as error:
                is_lost = not opened.roll_back()
                if not isinstance(error, Exception):
                    raise
                if is_lost and is_committing:
                    raise ConnectorError(
                        f"the connection was lost in a commit to {self._target}, whose rows may be there or not: "
                        f"{_reason(error)}"
                    ) from error
                if not left or (is_reopened if is_lost else not _is_conflict(error)):
                    raise
                if is_lost:
                    self._opened = self._target.database.open()
                    is_reopened = True
                    with suppress(Exception):  # a lost one may refuse that, too
                        opened.connection.close()

    @contextmanager
    def _failing(self, doing: str, parts: Sequence[Part] = ()) -> Iterator[None]:
        try:
            yield
        except SluicewayError:
            raise
        except Exception as error:
            failure = self._error(doing, error)
            if isinstance(failure, RejectedRecordError):
                # Drivers are given many rows at a time, and do not say which one was refused.
                with suppress(Exception):
                    row = self._first_refused(parts)
                    failure.add_note(f"record: {dict(zip(self._target.columns, row, strict=True))!r:.{_SHOWN}}")
            raise failure from error

    def _rows_of(self, part: Part) -> Iterable[Row]:
        if not isinstance(part, bytes):
            return part
        where = str(self._target)
        return chain.from_iterable(_copying.rows_of(batch, where) for batch in _copying.from_bytes(part))

    def _first_refused(self, parts: Sequence[Part]) -> Row:
        """Return the first row that the database refuses, behind those before it. Writes nothing.

        Raises:
            Exception: it accepts all of them, or what the driver raises.
        """
        assert self._opened is not None
        rows = chain.from_iterable(map(self._rows_of, parts))
        cursor = self._opened.begin()
        try:
            # Some at a time: one by one takes long over a network, and psycopg warns of each failed executemany().
            while some := list(islice(rows, _ROWS_TRIED)):
                cursor.execute(f"SAVEPOINT {_SEARCH}")
                try:
                    self._write(cursor, some)
                except Exception:
                    cursor.execute(f"ROLLBACK TO SAVEPOINT {_SEARCH}")
                    return next(row for row in some if self._refuses(cursor, row))
            raise LookupError("all rows are accepted")
        finally:
            self._opened.connection.rollback()

    def _refuses(self, cursor: Any, row: Row) -> bool:
        try:
            self._write(cursor, [row])
        except Exception:
            return True
        return False

    def _error(self, doing: str, error: Exception, advice: str = "") -> ConnectorError:
        to = "connect to write" if doing == "connect" else doing
        kind = RejectedRecordError if doing == "write" and _is_rejection(error) else ConnectorError
        return kind(f"cannot {to} {self._target}: {_reason(error)}{'; ' if advice else ''}{advice}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_rejection(error: Exception) -> bool:
    """Return whether a driver's error is about a row, which the same row meets again."""
    if isinstance(error, TypeError | ValueError | OverflowError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    # The names of PEP 249, whatever the driver. Where a value's type is unknown to it, it has none for that.
    return bool(names & {"IntegrityError", "DataError"}) or bool(_UNKNOWN_TYPE.search(str(error)))


def _is_conflict(error: BaseException) -> bool:
    """Return whether a database has rolled back a transaction for another one's sake."""
    return (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) in _CONFLICTS
