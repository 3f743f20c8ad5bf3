"""Reads a table, in splits of consecutive rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
)
from sluiceway.errors import ConfigurationError

from sluiceway_sqlite._database import open_to_read, quoted, table_error

__all__ = ["SqliteSource"]

Row = dict[str, Any]


@dataclass(frozen=True)
class _Split:
    """The rows with ``after < rowid <= last``; reading moves ``after`` on."""

    split_id: str
    after: int
    last: int


class SqliteSource(Source[Row]):
    """The rows of a table as dicts, in the order of their rowid. Bounded: the rows there when the job starts.

    A row that is changed while the job runs is read as it was or as it is. After a restore, reading goes on
    behind the last row that the checkpoint knows of.

    Args:
        database: the database file.
        table: name of a table (with a rowid, as tables have unless declared WITHOUT ROWID).
        columns: the columns to read; None: all of them.
        splits: into how many parts of about the same range of rowids to cut the table. As many subtasks can
            share the work.

    Raises:
        ConfigurationError: ``splits`` is not at least 1, or ``columns`` is empty.
    """

    def __init__(
        self,
        database: str | PathLike[str],
        table: str,
        *,
        columns: tuple[str, ...] | list[str] | None = None,
        splits: int = 1,
    ) -> None:
        if splits < 1:
            raise ConfigurationError(f"SqliteSource(splits={splits}): there must be at least 1")
        if columns is not None and not columns:
            raise ConfigurationError("SqliteSource(columns=[]): name at least one column, or leave it out for all")
        self.database = Path(database)
        self.table = table
        self.columns = None if columns is None else tuple(columns)
        self.splits = splits

    @property
    def boundedness(self) -> Boundedness:
        """It ends after the last row."""
        return Boundedness.BOUNDED

    @property
    def name(self) -> str:
        """The table's name."""
        return f"sqlite {self.table}"

    @property
    def output_type(self) -> Any:
        """Dicts, by column name."""
        return Row

    @property
    def max_readers(self) -> int:
        """One per split."""
        return self.splits

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Make the enumerator, which cuts the table unless an earlier one has done so."""
        return _Enumerator(context, self, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Row]:
        """Make the reader of one subtask."""
        return _Reader(context, self)


class _Enumerator(SimpleEnumerator):
    def __init__(self, context: EnumeratorContext, source: SqliteSource, restored: list[_Split] | None) -> None:
        super().__init__(context, restored or ())
        self._source = source
        self._is_cut = restored is not None

    def start(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            self.add_splits_back(list(self._cut()), 0)

    def _cut(self) -> Iterator[_Split]:
        source = self._source
        with closing(open_to_read(source.database)) as connection:
            query = f"SELECT min(rowid), max(rowid) FROM {quoted(source.table)}"
            try:
                first, last = connection.execute(query).fetchone()
            except sqlite3.Error as error:
                raise table_error(connection, source.database, source.table, error) from error
        if first is None:
            return
        rows = last - first + 1
        bounds = [first - 1 + rows * i // source.splits for i in range(source.splits + 1)]
        for after, end in pairwise(bounds):
            if end > after:
                yield _Split(f"{source.table}:{after + 1}-{end}", after, end)


class _Reader(SimpleReader[Row]):
    def __init__(self, context: ReaderContext, source: SqliteSource) -> None:
        super().__init__(context)
        self._source = source
        names = "*" if source.columns is None else ", ".join(map(quoted, source.columns))
        self._query = (
            f"SELECT rowid, {names} FROM {quoted(source.table)} "
            "WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
        )
        self._connection: sqlite3.Connection | None = None
        self._split = _Split("", 0, 0)

    def open_split(self, split: _Split) -> None:
        self._split = split
        if self._connection is None:
            self._connection = open_to_read(self._source.database)

    def read(self, limit: int) -> Poll[Row]:
        assert self._connection is not None
        try:
            cursor = self._connection.execute(self._query, (self._split.after, self._split.last, max(limit, 1)))
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise table_error(self._connection, self._source.database, self._source.table, error) from error
        if not rows:
            return END_OF_INPUT
        names = [column[0] for column in cursor.description[1:]]
        self._split = replace(self._split, after=rows[-1][0])
        return [dict(zip(names, row[1:], strict=True)) for row in rows]

    def position(self) -> _Split | None:
        return self._split if self._split.after < self._split.last else None

    def close_split(self) -> None:
        pass

    def close(self) -> None:
        super().close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
