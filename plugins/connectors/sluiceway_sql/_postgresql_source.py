"""Source that reads a table of PostgreSQL in bulk."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from sluiceway.connector import (
    END_OF_INPUT,
    Alternatives,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleReader,
    Source,
)
from sluiceway.connector.discovery import SearchingEnumerator
from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.errors import (
    ConfigurationError,
    ConnectorError,
    MissingExtraError,
    RejectedRecordError,
    SluicewayError,
    unknown_column,
)
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway_sql._databases import DatabaseLike, Opened, database_of

__all__ = ["KeyRange", "PostgreSqlSource"]

_KEYS: Final = ("int2", "int4", "int8")
_ROWS_PER_SPLIT: Final = 500_000
_LOCKED_MS: Final = 10_000
_MOST_SPLITS: Final = 1_000
_MOST_BYTES: Final = 1 << 25
"""Bytes of a batch, about."""

_COLUMNS: Final = """
SELECT a.attname, t.typname, a.atttypmod, t.typcategory, a.attnotnull, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_IS_UNIQUE: Final = """
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1
AND a.attname = %s)
"""


class PostgreSqlSource(Source[Any]):
    """Source of the rows of a table of PostgreSQL, copied in bulk by psycopg; needs the extra ``columns``.

    ``Pipeline.table()`` reads them in columns, ``source()`` as dicts. It reads the table once, and ends.

    The table is split by ranges of a key, which readers take one at a time and read in the order of the key. The
    position in a range is the last key that was read: with checkpoints each row counts once, whatever fails. A
    range is read as it is when its reader comes to it, and what is left of it anew after a failure: rows that are
    inserted, changed or deleted while the job runs are read or not. So is what is left of a range whose connection
    is lost after it gave rows.

    Calls of the database are made in the task's thread, as by ``SqlSink``.

    Args:
        database: URL as SQLAlchemy has it, ``postgresql+psycopg://user@host/shop``; or a function without
            arguments that returns a connection of psycopg 3.
        table: name of the table, ``schema.table`` where it is in a schema.
        key: an integer column, NOT NULL and with a unique index of its own, such as the primary key.
        columns: which columns to read; None: all.
        splits: number of ranges, from 1 to 1000; None: by the number of rows that PostgreSQL estimates, one for
            each 500,000, and at least four for each reader.

    Raises:
        ConfigurationError: one of them cannot be used.
        MissingExtraError: pyarrow, psycopg or SQLAlchemy is not installed.
    """

    def __init__(
        self,
        database: DatabaseLike,
        table: str,
        *,
        key: str,
        columns: Iterable[str] | None = None,
        splits: int | None = None,
    ) -> None:
        for module, extra in (("pyarrow", "sluiceway[columns]"), ("psycopg", "psycopg[binary]")):
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(f"PostgreSqlSource needs {module}: {install_command(extra)}")
        for name, value in (("table", table), ("key", key)):
            if not isinstance(value, str) or not all(value.split(".") if name == "table" else [value]):
                raise ConfigurationError(f"{name}={value!r:.100} must be the name of a {_WORDS[name]}")
        if isinstance(columns, str) or (columns is not None and not (columns := tuple(columns))):
            raise ConfigurationError(f"columns={columns!r} must be a list of names, of one at least")
        if splits is not None and (type(splits) is not int or not 1 <= splits <= _MOST_SPLITS):
            raise ConfigurationError(f"splits={splits!r} must be a whole number from 1 to {_MOST_SPLITS}, or None")
        if not callable(database) and not str(database).startswith("postgresql"):
            raise ConfigurationError(
                f"database={str(database).partition('://')[0]!r:.40} must be a URL that begins with "
                "postgresql+psycopg://, or a function that returns a connection of psycopg"
            )
        self._database = database_of(database, None)
        self._table = table
        self._key = key
        self._columns: tuple[str, ...] | None = columns
        self._splits = splits
        self._read: tuple[Any, ...] | None = None  # the columns in columns

    def __repr__(self) -> str:
        return f"PostgreSqlSource({str(self._database)!r}, {self._table!r})"

    def __str__(self) -> str:
        return f"table {self._table!r} of {self._database}"

    @property
    def name(self) -> str:
        """Name with that of the table."""
        return f"postgresql {self._table}"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded."""
        return Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Columns, or dict."""
        return dict[str, Any] if self._read is None else Columns

    @property
    def gives_timestamps(self) -> bool:
        """False."""
        return False

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the rows in columns, and their schema.

        Raises:
            ConnectorError: the table or a column does not exist, a type cannot be read, or ``key`` is none.
        """
        import pyarrow

        source = copy(self)
        source._read = self._found()
        return source, pyarrow.schema([one.field for one in source._read])

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that leaves out columns."""
        import pyarrow

        if self._read is None or columns is None:
            return None
        source = copy(self)
        # One column is read, if none is needed, for the number of the rows.
        source._read = tuple(one for one in self._read if one.field.name in columns) or self._read[:1]
        return source, pyarrow.schema([one.field for one in source._read])

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Create the enumerator of the ranges, which are chosen when the job starts."""
        return SearchingEnumerator(context, self._ranges, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Create a reader of ranges."""
        return _RangeReader(context, self, self._found() if self._read is None else self._read)

    # ---- what the table has ---------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Open a connection, closed at the end. Raises ConnectorError for what the driver raises."""
        try:
            opened = self._database.open()
            connection = opened.connection
            with closing(connection):
                if "psycopg" not in {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}:
                    raise ConnectorError(
                        f"{self}: the connection is of {type(connection).__module__.partition('.')[0]}; rows are "
                        "copied by psycopg: begin the URL with postgresql+psycopg://"
                    )
                yield opened
        except SluicewayError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConnectorError(f"cannot read {self}: {reason}") from error

    def _found(self) -> tuple[Any, ...]:
        """Return the columns to read."""
        from sluiceway_sql._postgresql_types import column_of

        with self.opened() as opened:
            cursor = opened.connection.cursor()
            table = opened.dialect.identifier(self._table).replace("%%", "%")
            cursor.execute(_COLUMNS, (table,))
            there = {name: rest for name, *rest in cursor.fetchall()}
            if not there:
                raise ConnectorError(f"cannot read {self}: it does not exist")
            for argument, name in [("columns", name) for name in self._columns or ()] + [("key", self._key)]:
                if name not in there:
                    raise ConnectorError(f"{self}: {argument}=: {unknown_column(name, list(there))}")
            kind, _, _, is_required, shown = there[self._key]
            cursor.execute(_IS_UNIQUE, (table, self._key))
            if kind not in _KEYS or not is_required or not cursor.fetchone()[0]:
                raise ConnectorError(
                    f"{self}: key={self._key!r} is {shown}{'' if is_required else ', may be null'}; it must be an "
                    "integer column, NOT NULL, with a unique index of its own, such as a primary key: by it the "
                    "table is split, and reading goes on after a failure"
                )
        found = []
        for name in self._columns or there:
            kind, modifier, category, is_required, shown = there[name]
            column = column_of(name, kind, modifier, category, required=is_required)
            if column is None:
                raise ConnectorError(
                    f"{self}: column {name!r} has type {shown}, which has no type in columns: leave it out with "
                    "columns=, or have another column hold it in such a type, as text or numeric(38, 9)"
                )
            found.append(column)
        return tuple(found)

    def _ranges(self, readers: int) -> list[KeyRange]:
        with self.opened() as opened:
            cursor, dialect = opened.connection.cursor(), opened.dialect
            key, table = dialect.column(self._key), dialect.identifier(self._table)
            # A table that somebody has locked is an error soon: the job would seem to run.
            cursor.execute(f"SET lock_timeout = {_LOCKED_MS}")
            # The index has both at its ends. With a parameter: without one, drivers read percent signs otherwise.
            cursor.execute(f"SELECT min({key}), max({key}) FROM {table} WHERE 1 = %s", (1,))
            first, last = cursor.fetchone()
            cursor.execute(
                "SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)", (table.replace("%%", "%"),)
            )
            (rows,) = cursor.fetchone() or (0,)
        if first is None:
            return []
        wanted = self._splits or max(4 * readers, int(rows) // _ROWS_PER_SPLIT)
        count = min(wanted, _MOST_SPLITS, last - first + 1)
        ends = [first + (last - first + 1) * number // count for number in range(count + 1)]
        # The first and the last range are open: rows may have come since.
        bounds = [None, *ends[1:-1], None]
        return [KeyRange(str(number), bounds[number], bounds[number + 1]) for number in range(count)]


_WORDS: Final = {"table": "table", "key": "column"}


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range of keys.

    Attributes:
        split_id: its number.
        first: the first key; None: from the least on.
        end: the key after the last one; None: up to the largest.
        read: the last key that was read; None: none.
    """

    split_id: str
    first: int | None
    end: int | None
    read: int | None = None


class _RangeReader(SimpleReader[Any]):
    """Reader of one range after the other.

    Args:
        context: given by the runtime.
        source: the source.
        columns: the columns.
    """

    def __init__(self, context: ReaderContext, source: PostgreSqlSource, columns: tuple[Any, ...]) -> None:
        super().__init__(context)
        from sluiceway_sql._postgresql_types import column_of

        self._source = source
        key = column_of(source._key, "int8", -1, "N", required=True)
        self._columns = (*columns, key)
        self._in_columns = source._read is not None
        self._range: KeyRange | None = None
        self._opened_at: int | None = None
        self._opened: Any = None
        self._connection: Any = None
        self._rows: Any = None
        self._copying: Any = None

    @override
    def open_split(self, split: KeyRange) -> None:
        self._range, self._opened_at = split, split.read
        self._opened = self._source.opened()
        opened = self._opened.__enter__()
        self._connection = opened.connection
        with self._failing():
            dialect = opened.dialect
            names = [one.expression.format(dialect.column(one.field.name)) for one in self._columns]
            key = dialect.column(self._source._key)
            bounds = [
                f"{key} {operator} {bound}"
                for operator, bound in ((">=", split.first), ("<", split.end), (">", split.read))
                if bound is not None
            ]
            statement = f"SELECT {', '.join(names)} FROM {dialect.identifier(self._source._table)}"
            if bounds:
                statement += f" WHERE {' AND '.join(bounds)}"
            statement = f"COPY ({statement} ORDER BY {key}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
            self._copying = opened.connection.cursor().copy(statement.replace("%%", "%"))
            self._rows = iter(self._copying.__enter__())

    @override
    def read(self, limit: int) -> Poll[Any]:
        from sluiceway_sql._postgresql_types import decoded

        assert self._range is not None
        try:
            with self._failing():
                rows = self._next_rows(limit)
        except ConnectorError:
            if not self._connection.closed or self._range.read == self._opened_at:
                raise
            # Lost after it gave rows, as one may be that nobody read from for long: read on behind them.
            split = self._range
            self.close_split()
            self.open_split(split)
            return self.read(limit)
        if not rows:
            self._finish()
            return END_OF_INPUT
        data = decoded(rows, self._columns, str(self._source))
        self._range = replace(self._range, read=data.column(data.num_columns - 1)[-1].as_py())
        data = data.select(list(range(data.num_columns - 1)))
        return Batch.of_columns(data) if self._in_columns else self._records(data)

    def _next_rows(self, limit: int) -> list[bytes]:
        rows: list[bytes] = []
        size = 0
        for row in islice(self._rows, limit * ROWS_PER_RECORD if self._in_columns else limit):
            rows.append(bytes(row))  # psycopg uses the memory again
            size += len(row)
            if size >= _MOST_BYTES:
                break
        return rows

    def _records(self, data: Any) -> list[dict[str, Any]]:
        from sluiceway.util.arrow_values import NoPythonValueError, rows_as_dicts  # pyarrow is optional

        try:
            return rows_as_dicts(data)
        except NoPythonValueError as error:
            raise RejectedRecordError(f"cannot read {self._source}: {error}") from error

    @override
    def position(self) -> Any:
        return self._range

    @override
    def close_split(self) -> None:
        self._range = self._rows = self._connection = None
        copying, self._copying = self._copying, None
        opened, self._opened = self._opened, None
        # The connection first: so a copy that was not read to its end is not read on, nor cancelled at the server.
        if opened is not None:
            with suppress(Exception):
                opened.__exit__(None, None, None)
        if copying is not None:
            with suppress(Exception):
                copying.__exit__(GeneratorExit, GeneratorExit(), None)

    def _finish(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            with self._failing():
                copying.__exit__(None, None, None)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except SluicewayError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConnectorError(f"cannot read {self._source}: {reason}") from error
