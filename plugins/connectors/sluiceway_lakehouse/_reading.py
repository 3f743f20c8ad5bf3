"""Readers of the Parquet files of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluiceway.columns.filters import Alternatives, RowFilter
from sluiceway.columns.not_null import checked_cast
from sluiceway.connector import END_OF_INPUT, Poll, ReaderContext, SimpleReader, Wait
from sluiceway.elements import ROWS_PER_RECORD, Batch
from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway.util.arrow_values import NoPythonValueError, rows_as_dicts

__all__ = ["LakeReader", "LakeSplit", "Layout", "Wanted", "by_name", "values_of"]

_ROWS_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class LakeSplit:
    """A data file of a table, from a row on.

    Attributes:
        path: of the file.
        version: version or snapshot of the table that it was found in.
        partition: values that the table has for all rows of the file.
        row: number of rows that were read, or filtered out.
    """

    path: str
    version: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    row: int = 0

    @property
    def split_id(self) -> str:
        """Version and path."""
        return f"{self.version}:{self.path}"


@dataclass(frozen=True)
class Wanted:
    """Rows to read.

    Attributes:
        schema: columns to return.
        needed: columns to read: these, and those that filters look at.
        filters: conditions on the rows; None: all rows.
        type: class of records; None: dicts.
        in_columns: whether batches are in columns.
        whole: columns of the table.
        skipped: conditions that hold for all rows that count; others may be left out. None: all rows count.
    """

    schema: pa.Schema
    needed: pa.Schema
    filters: Alternatives | None
    type: Any
    in_columns: bool
    whole: pa.Schema
    skipped: Alternatives | None = None


@dataclass(frozen=True)
class Layout:
    """Places of the columns of a table in a file.

    Attributes:
        columns: name in the file of each column that is in it.
        constants: values of columns that are the same in all of its rows, as scalars.
        is_plain: True if each column of the file with the name of one of the table is that one.
        converters: functions that make a column of the file one of the table, where a cast does not.
    """

    columns: Mapping[str, str]
    constants: Mapping[str, Any]
    is_plain: bool = True
    converters: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def values(self) -> pa.RecordBatch:
        """Return the constants as a row."""
        return pa.RecordBatch.from_pydict(
            {name: pa.array([of.as_py()], of.type) for name, of in self.constants.items()}
        )


def by_name(file: pa.Schema, split: LakeSplit, wanted: Wanted) -> Layout:
    """Return the layout of a file whose columns have the names of those of the table."""
    constants = {
        name: pa.scalar(value, wanted.whole.field(name).type)
        for name, value in split.partition.items()
        if name in wanted.whole.names
    }
    there = set(file.names)
    return Layout({name: name for name in wanted.needed.names if name in there}, constants)


def values_of(partition: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return the values of a partition as a row with those of the columns of a schema."""
    fields = [one for one in schema if one.name in partition]
    arrays = [pa.array([partition[one.name]], one.type) for one in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class LakeReader(SimpleReader[Any]):
    """Reader of one data file after the other.

    Args:
        context: given by the runtime.
        wanted: the rows.
        opener: opens a file for reading; raises FileNotFoundError.
        name: of the table, for messages.
        cleaning: what removes files of the table, for messages.
        layout_of: returns the layout of a file.
    """

    def __init__(
        self,
        context: ReaderContext,
        wanted: Wanted,
        opener: Callable[[str], Any],
        name: str,
        *,
        cleaning: str,
        layout_of: Callable[[pa.Schema, LakeSplit, Wanted], Layout] = by_name,
    ) -> None:
        super().__init__(context)
        self._wanted = wanted
        self._opener = opener
        self._table = name
        self._cleaning = cleaning
        self._layout_of = layout_of
        self._layout = Layout({}, {})
        # Whatever files have: columns that were added to the table later are null in earlier ones.
        self._needed = pa.schema([one.with_nullable(True) for one in wanted.needed])
        filters = wanted.filters
        self._filter = None if filters is None else RowFilter(filters, self._needed, name)
        skipped = wanted.skipped
        self._certain = None if skipped is None else RowFilter.certain(skipped, wanted.whole, wanted.whole)
        self._split: LakeSplit | None = None
        self._file: Any = None
        self._batches: Iterator[Any] | None = None
        self._data: Any = None  # rows that were kept of the current batch
        self._numbers: Any = None  # their numbers in the batch; None: all were kept
        self._taken = 0  # rows of it that were returned
        self._begin = self._end = 0  # number in the file of the first row of the batch, and of the one after it

    @property
    def _name(self) -> str:
        return f"{self._table}, file {self._split.path if self._split else ''}"

    def open_split(self, split: LakeSplit) -> None:
        self._split = split
        self._data, self._begin, self._end, self._taken = None, 0, 0, 0
        try:
            self._file = self._opener(split.path)
            # Tables have times in us; in ns, INT96 would have none before 1677 or after 2262.
            opened = pq.ParquetFile(self._file, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
            self._batches = self._open(opened, split)
        except FileNotFoundError as error:
            raise ConnectorError(
                f"{self._name} is not there any more: it was removed by {self._cleaning}, or by hand, before it "
                f"was read"
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ConnectorError(f"cannot read {self._name}: {error}") from error

    def read(self, limit: int) -> Poll[Any]:
        in_columns = self._wanted.in_columns
        if self._data is None:
            try:
                if not self._next():
                    return END_OF_INPUT
            except (pa.ArrowException, OSError) as error:
                raise ConnectorError(f"cannot read {self._name}: {error}") from error
        part = self._data.slice(self._taken, limit * ROWS_PER_RECORD if in_columns else limit)
        self._taken += part.num_rows
        if self._taken == self._data.num_rows:
            self._data = None
        if not part.num_rows:
            return Wait(until=0.0)
        return Batch.of_columns(part) if in_columns else self._records(part)

    def position(self) -> LakeSplit | None:
        if self._split is None:
            return None
        if self._data is None:
            return replace(self._split, row=max(self._split.row, self._end))
        # The row that comes next: what was filtered out before it is not looked at again.
        at = self._taken if self._numbers is None else self._numbers[self._taken].as_py()
        return replace(self._split, row=self._begin + at)

    def close_split(self) -> None:
        self._batches = self._data = None
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self, opened: Any, split: LakeSplit) -> Iterator[Any]:
        self._layout = layout = self._layout_of(opened.schema_arrow, split, self._wanted)
        groups = list(range(opened.num_row_groups))
        kept = set(groups)
        if layout.is_plain:
            values = layout.values()
            # `_filter` is applied row by row, too; `_certain` skips row groups, and the steps behind the source
            # filter again.
            for one in (self._filter, self._certain):
                if one is not None:
                    kept &= set(one.groups(opened.metadata, values))
        columns = [of for name, of in layout.columns.items() if name not in layout.constants]
        rows_at_once = _ROWS_AT_ONCE * (ROWS_PER_RECORD if self._wanted.in_columns else 1)
        return self._rows(opened, groups, kept, columns, rows_at_once)

    def _rows(
        self, opened: Any, groups: list[int], kept: set[int], columns: list[str], most: int
    ) -> Iterator[Any]:
        """Yield batches with the number of their first row in the file."""
        first = 0
        for group in groups:
            count = opened.metadata.row_group(group).num_rows
            assert self._split is not None
            # Positions count the rows of all row groups, skipped ones included, so that they do not depend on the
            # filter.
            if group in kept and first + count > self._split.row:
                at = first
                if columns:
                    for batch in opened.iter_batches(most, row_groups=[group], columns=columns, use_threads=False):
                        yield at, batch
                        at += batch.num_rows
                    # Arrow ends without an error where a column has no further page (pyarrow 26).
                    if at != first + count:
                        raise RejectedRecordError(
                            f"cannot read {self._name}, row group {group}: it has {count} rows by the footer of "
                            f"the file, and a column ends after {at - first}. The file is damaged: replace it by "
                            "one that is whole"
                        )
                else:  # all columns are those of partitions, or were added to the table later
                    yield first, pa.RecordBatch.from_arrays([pa.nulls(count)], [""])
            first += count

    def _next(self) -> bool:
        assert self._batches is not None
        assert self._split is not None
        for first, batch in self._batches:
            skipped = max(0, self._split.row - first)
            if skipped >= batch.num_rows:
                continue
            batch = batch.slice(skipped)
            self._begin, self._end, self._taken = first + skipped, first + skipped + batch.num_rows, 0
            data, self._numbers = self._with_all_columns(batch), None
            if self._filter is not None:
                rows = self._filter.rows(data)
                if len(rows) < data.num_rows:
                    data, self._numbers = data.take(rows), rows
            self._data = checked_cast(data.select(self._wanted.schema.names), self._wanted.schema)
            return True
        return False

    def _with_all_columns(self, batch: Any) -> Any:
        """Return rows with all columns of the table that are needed."""
        layout = self._layout
        arrays = []
        for one in self._wanted.needed:
            if one.name in layout.constants:
                arrays.append(pa.repeat(layout.constants[one.name].cast(one.type), batch.num_rows))
            elif one.name not in layout.columns:
                arrays.append(pa.nulls(batch.num_rows, one.type))
            else:
                column: Any = batch.column(layout.columns[one.name])
                try:
                    if one.name in layout.converters:
                        column = layout.converters[one.name](column)
                    arrays.append(column if column.type == one.type else column.cast(one.type))
                except (pa.ArrowException, ValueError) as error:
                    raise ConnectorError(
                        f"{self._name}: column {one.name!r} has {column.type}, in the table {one.type}: {error}"
                    ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._needed)

    def _records(self, part: Any) -> list[Any]:
        try:
            rows = rows_as_dicts(part)
        except NoPythonValueError as error:
            raise RejectedRecordError(f"{self._name}: {error}") from error
        if self._wanted.type is None:
            return rows
        try:
            return [msgspec.convert(row, self._wanted.type) for row in rows]
        except msgspec.ValidationError as error:
            raise RejectedRecordError(
                f"{self._name}: a row is no {self._wanted.type.__name__}: {error}"
            ) from error
