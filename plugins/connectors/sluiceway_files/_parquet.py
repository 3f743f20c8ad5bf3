"""Format of Parquet files, with pyarrow."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import msgspec

from sluiceway.columns.filters import Alternatives, RowFilter
from sluiceway.connector import END_OF_INPUT, EndOfInput, Wait
from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.errors import MissingExtraError, RejectedRecordError
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway_files._blocks import ADVICE, FileReplacedError, FileShortenedError
from sluiceway_files._compression import Compression
from sluiceway_files._directories import values_of
from sluiceway_files._lined import OnError
from sluiceway_files._places import Found
from sluiceway_files._splits import FileSplit, Format, OpenFile, SplitReader

__all__ = ["Parquet", "ParquetColumns", "need_pyarrow"]

_ROWS_AT_ONCE = 1024

_LARGE_RUN = 8 * 1024 * 1024
"""Bytes of row groups from which on opening the file once more costs little."""

_SMALL_DICTIONARY = 1 << 16
"""Bytes of a dictionary of texts, as stored, up to which it is read for each batch: Arrow copies it into each."""

_ROWS_FOR_DICTIONARY = 1 << 12
"""Rows of a row group from which on texts are read by their dictionary: to read it takes as long as hundreds."""

_INDEX_BYTES = 2
"""Bytes of a row, at most, that has an index in a small dictionary, as stored before compression."""

_MOST_BYTES = (1 << 31) - 1
"""Bytes of text that an array can have."""

_BEHIND_FOOTER = 8
"""Bytes behind the footer of a file: its length, and a magic number."""


def need_pyarrow() -> None:
    """Raise MissingExtraError if pyarrow is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"Parquet files need pyarrow: {install_command('sluiceway[arrow]')}")


@dataclass(frozen=True)
class Parquet(Format):
    """Format with a record per row; a split is a row group, or a run of small ones.

    Attributes:
        columns: those to read; None: all.
        type: the class of the records; None: dicts.
        on_error: what becomes of a row that does not fit the type.
        filters: conditions of the rows to read.
        partitions: columns that directories are named after, a ``pyarrow.Schema``; None: there are none.
    """

    columns: tuple[str, ...] | None
    type: Any
    on_error: OnError
    filters: Alternatives | None = None
    partitions: Any = None
    suffix = ".parquet"

    @property
    def output_type(self) -> Any:
        """Return the declared type, else dict."""
        return dict[str, Any] if self.type is None else self.type

    def plan(
        self, file: Found, name: str, opener: Callable[[], Any], compression: Compression | None, split_size: int
    ) -> list[FileSplit]:
        values = self.values_of(file.path, name)
        # Before the file is opened: the names of its directories may exclude it.
        by_directories = self.filter_by(values.schema, name)
        if by_directories is not None and not by_directories.may_hold(values):
            return []
        # What the steps behind the source exclude gets splits, too: they may be others when the job continues.
        if not self.may_hold(file.path, name):
            return [FileSplit(file.root, file.path)]
        with opener() as raw:
            opened, footer = _open(raw, name)
            schema, metadata = opened.schema_arrow, opened.metadata
            _check_different(schema.names if self.columns is None else self.columns, schema, name)
            rows, certain = self.filter_of(schema, name), self.certain_of(schema)
            groups = list(range(opened.num_row_groups)) if rows is None else rows.groups(metadata, values)
            kept = frozenset(groups if certain is None else certain.groups(metadata, values, groups))
            # In some files the number of bytes is 0. Groups without rows that count are not read.
            sizes = [
                max(group.total_byte_size, group.num_rows) if number in kept else 0
                for number, group in ((number, metadata.row_group(number)) for number in groups)
            ]
        runs = _runs_of(groups, sizes, min(split_size, _LARGE_RUN))
        seen = crc32(footer)
        return [FileSplit(file.root, file.path, start, end, seen=seen) for start, end in runs]

    @override
    def least_split(self, *, local: bool) -> int:
        # A row group has the size that its writer chose.
        return 1

    def filter_by(self, directories: Any, name: str) -> RowFilter | None:
        """Return the filter of a file by the columns of its directories, or None. Raises RejectedRecordError."""
        known = None if self.filters is None else _said_of(self.filters, directories.names)
        return None if known is None else RowFilter(known, directories, name)

    def certain_of(self, schema: Any) -> RowFilter | None:
        """Return the filter of what the steps behind the source keep of a file with this schema, or None."""
        return None

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        return _ParquetReader(self, file, split)

    def schema_in(self, raw: Any, name: str) -> Any:
        """Return the ``pyarrow.Schema`` of the columns to read. Raises RejectedRecordError."""
        schema = _open(raw, name)[0].schema_arrow
        self.filter_of(schema, name)
        import pyarrow

        schema = self.whole(schema)
        if self.columns is None:
            return schema
        _check_columns(self.columns, schema, name)
        return pyarrow.schema([schema.field(column) for column in self.columns])

    def whole(self, schema: Any) -> Any:
        """Return the columns of a file with this schema and of its directories, without views."""
        import pyarrow

        from sluiceway.columns.schemas import without_views

        schema = without_views(schema)
        if self.partitions is None:
            return schema
        return pyarrow.schema([*(f for f in schema if f.name not in self.partitions.names), *self.partitions])

    def values_of(self, path: str, name: str) -> Any:
        """Return the values of a file's directories, as one row. Raises RejectedRecordError."""
        import pyarrow

        return values_of(path, pyarrow.schema([]) if self.partitions is None else self.partitions, name)

    def filter_of(self, schema: Any, name: str) -> RowFilter | None:
        """Return the filter of a file with this schema; None without ``filters``. Raises RejectedRecordError."""
        return None if self.filters is None else RowFilter(self.filters, self.whole(schema), name)


@dataclass(frozen=True)
class ParquetColumns(Parquet):
    """Rows in columns, of files with one schema.

    Attributes:
        schema: the ``pyarrow.Schema`` of the columns.
        skipped: conditions of rows that count; others may be read.
    """

    schema: Any = None
    skipped: Alternatives | None = None

    @property
    @override
    def output_type(self) -> Any:
        return Columns

    @override
    def may_hold(self, path: str, name: str) -> bool:
        if self.skipped is None or self.partitions is None:
            return True
        values = self.values_of(path, name)
        known = _said_of(self.skipped, values.schema.names)
        certain = None if known is None else RowFilter.certain(known, values.schema, self.schema)
        return certain is None or certain.may_hold(values)

    @override
    def certain_of(self, schema: Any) -> RowFilter | None:
        return None if self.skipped is None else RowFilter.certain(self.skipped, self.whole(schema), self.schema)

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        return _ColumnsReader(self, file, split)


def _runs_of(groups: Iterable[int], sizes: Iterable[int], most: int) -> list[tuple[int, int]]:
    """Return start and end of runs of adjoining row groups, of one group or of at most ``most`` bytes together."""
    runs: list[tuple[int, int]] = []
    filled = 0
    for group, size in zip(groups, sizes, strict=True):
        if runs and runs[-1][1] == group and filled + size <= most:
            runs[-1] = runs[-1][0], group + 1
            filled += size
        else:
            runs.append((group, group + 1))
            filled = size
    return runs


def _said_of(alternatives: Alternatives, names: Sequence[str]) -> Alternatives | None:
    """Return what alternatives say of some columns; None: one of them says nothing."""
    said = tuple(tuple(c for c in each if c.column in names) for each in alternatives)
    return said if all(said) else None


_latest: tuple[bytes, Any] = (b"", None)
"""Footer of the file that was opened last, and what it says: each split of a file opens it."""


def _open(raw: Any, name: str) -> tuple[Any, bytes]:
    """Return a file as pyarrow opens it, and its footer. Raises RejectedRecordError."""
    global _latest
    need_pyarrow()
    import pyarrow

    footer = _footer_of(raw)
    known, metadata = _latest
    if footer != known:
        metadata = None
    try:
        opened = _opened(raw, metadata)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise RejectedRecordError(f"cannot read {name}: {error}") from error
    if footer and metadata is None:
        # Of hundreds of row groups it takes a millisecond or two to read, once for each of them.
        _latest = footer, opened.metadata
    return opened, footer


def _opened(raw: Any, metadata: Any, *, dictionaries: Sequence[str] = ()) -> Any:
    """Return a file as pyarrow opens it.

    Args:
        raw: the file.
        metadata: what its footer says; None: it is read.
        dictionaries: columns to read with a dictionary.
    """
    import pyarrow.parquet as pq

    # In ns, the default of INT96, times before 1677 and after 2262 become others without an error.
    return pq.ParquetFile(
        raw,
        metadata=metadata,
        read_dictionary=list(dictionaries),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )


def _texts_with_dictionary(opened: Any, groups: Iterable[int], columns: Iterable[str] | None) -> list[str]:
    """Return which columns have texts, and a small dictionary and little else in each of some row groups.

    Args:
        opened: the file.
        groups: the row groups.
        columns: those that are read; None: all.
    """
    import pyarrow

    # A name with a dot may be that of a field inside of a struct, too.
    texts = {f.name for f in opened.schema_arrow if f.type == pyarrow.string() and "." not in f.name}
    if columns is not None:
        texts.intersection_update(columns)
    # By index: of a thousand columns, to look at each one in each row group takes as long as to read a few.
    paths = [opened.schema.column(index).path for index in range(opened.metadata.num_columns)] if texts else []
    found = {index: path for index, path in enumerate(paths) if path in texts}
    for number in groups if found else ():
        group = opened.metadata.row_group(number)
        if group.num_rows < _ROWS_FOR_DICTIONARY:
            return []
        found = {index: path for index, path in found.items() if _is_small(group.column(index))}
    return sorted(found.values())


def _is_small(column: Any) -> bool:
    """Return if a column of a row group has a small dictionary, and few texts that are not in it.

    When a dictionary has its largest size, writers store further texts as they are. To read these with a
    dictionary, Arrow makes one for each batch, which takes ten times as long as to read the texts.
    """
    return bool(
        column.has_dictionary_page
        and column.data_page_offset - column.dictionary_page_offset <= _SMALL_DICTIONARY
        and column.total_uncompressed_size <= _SMALL_DICTIONARY + _INDEX_BYTES * column.num_values
    )


def _footer_of(raw: Any) -> bytes:
    """Return the footer of a file, which has its length and a magic number behind it; empty if these are wrong."""
    size = raw.seek(0, io.SEEK_END)
    raw.seek(max(0, size - _BEHIND_FOOTER))
    end = raw.read(_BEHIND_FOOTER)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length + _BEHIND_FOOTER > size:
        return b""
    raw.seek(size - _BEHIND_FOOTER - length)
    footer: bytes = raw.read(length)
    return footer


def _check_columns(columns: tuple[str, ...], schema: Any, name: str) -> None:
    missing = [c for c in columns if c not in schema.names]
    if missing:
        raise RejectedRecordError(
            f"{name} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, schema.names))}"
        )


def _check_different(columns: Sequence[str], schema: Any, name: str) -> None:
    several = sorted({column for column in columns if schema.names.count(column) > 1})
    if several:
        raise RejectedRecordError(
            f"{name} has several columns {', '.join(map(repr, several))}: say with columns= which others to read"
        )


class _ParquetReader(SplitReader):
    rows_at_once = _ROWS_AT_ONCE

    def __init__(self, form: Parquet, file: OpenFile, split: FileSplit) -> None:
        self._form = form
        self._file = file
        self._split = split
        self._skipped = file.metrics.counter("records_skipped")
        self._batches: Iterator[Any] | None = None
        self._filter: RowFilter | None = None
        self._values: Any = None  # those of the directories, as one row
        self._rows: list[Any] = []  # dicts; None: a row to skip
        self._gaps = False  # whether there are rows to skip among them
        self._group = split.start if split.offset is None else split.offset
        self._skip = 0  # number of rows of the group before the position
        self._row = 0  # number of rows of the group that were read or filtered out
        self._first = 0  # number of the first row of the current batch, in the group
        self._end = 0  # number of the row after the current batch
        self._kept: Any = None  # indices in the batch of the rows that the filter kept; None: all
        self._count = 0  # how many were kept
        self._taken = 0  # how many of them were returned
        self._ended = False
        self._footer = 0  # its CRC-32

    def read(self, limit: int) -> list[Any] | Batch[Any] | Wait | EndOfInput:
        if self._batches is None:
            self._batches = self._open()
        if self._taken == self._count and not self._next_rows(self._batches):
            self._ended = True
            return END_OF_INPUT
        first = self._taken
        rows = self._rows[first : first + limit]
        self._take(len(rows))
        records = self._records(rows, first)
        # All of these rows were skipped: the next ones are read in another call.
        return records or Wait(until=0.0)

    def position(self) -> FileSplit | None:
        if self._ended:
            return None
        if self._batches is None:
            return self._split
        return replace(self._split, offset=self._group, skip=self._row, seen=self._footer)

    def close(self) -> None:
        self._batches = None

    def _open(self) -> Iterator[Any]:
        form, name = self._form, self._file.name
        opened, footer = _open(self._file.raw, name)
        self._footer = crc32(footer)
        schema = opened.schema_arrow
        _check_different(schema.names if form.columns is None else form.columns, schema, name)
        self._values = form.values_of(self._split.path, name)
        columns: list[str] | None = None
        if form.columns is not None:
            _check_columns(form.columns, form.whole(schema), name)
            columns = list(form.columns)
        self._filter = form.filter_of(schema, name)
        self._check_position(opened.metadata)
        end = opened.num_row_groups if self._split.end is None else self._split.end
        groups: Iterable[int] = range(self._group, end)
        for rows in (self._filter, form.certain_of(schema)):
            if rows is not None:
                groups = rows.groups(opened.metadata, self._values, groups)
        if columns is not None and self._filter is not None:
            columns += sorted(self._filter.columns.difference(columns))
        if columns is not None:
            self._values = self._values.select([name for name in self._values.schema.names if name in columns])
        if self._values.num_columns:
            columns = schema.names if columns is None else columns
            columns = [column for column in columns if column not in self._values.schema.names]
        batches = self._batches_of(opened, groups, columns)
        return batches if not self._values.num_columns else map(self._with_values, batches)

    def _check_position(self, metadata: Any) -> None:
        """Raise FileShortenedError if the split goes on behind the end of the file, or of a row group."""
        split = self._split
        groups = max(split.end or 0, self._group + (split.offset is not None))
        if metadata.num_row_groups < groups:
            raise FileShortenedError(
                f"{self._file.name} was shortened or replaced since it was listed: it had {groups} row groups at "
                f"least, and has {metadata.num_row_groups} now. {ADVICE}"
            )
        if split.skip and metadata.row_group(self._group).num_rows < split.skip:
            raise FileShortenedError(
                f"{self._file.name} was shortened or replaced since it was read: of row group {self._group}, "
                f"{split.skip} rows were read, and it has {metadata.row_group(self._group).num_rows} now. {ADVICE}"
            )
        if split.seen not in (0, self._footer):
            raise FileReplacedError(
                f"{self._file.name} was replaced since it was listed: it has another footer now. {ADVICE}"
            )

    def _batches_of(self, opened: Any, groups: Iterable[int], columns: list[str] | None) -> Iterator[Any]:
        """Yield the batches of row groups; rows are counted in each of them."""
        for group in groups:
            self._group, self._row, self._end = group, 0, 0
            self._skip = self._split.skip if group == self._split.offset else 0
            batches = opened.iter_batches(
                batch_size=self.rows_at_once, row_groups=[group], columns=columns, use_threads=False
            )
            yield from self._whole(batches, opened.metadata.row_group(group).num_rows)

    def _whole(self, batches: Iterable[Any], rows: int) -> Iterator[Any]:
        """Yield the batches of the row group, which has this number of rows."""
        count = 0
        for batch in batches:
            count += batch.num_rows
            yield batch
        # Arrow ends without an error where a column has no further page (pyarrow 26).
        if count != rows:
            raise RejectedRecordError(
                f"cannot read {self._file.name}, row group {self._group}: it has {rows} rows by the footer "
                f"of the file, and a column ends after {count}. The file is damaged: replace it by "
                "one that is whole"
            )

    def _with_values(self, batch: Any) -> Any:
        """Return rows with the columns of the file's directories."""
        import pyarrow

        arrays = [pyarrow.repeat(column[0], batch.num_rows) for column in self._values.columns]
        names = self._values.schema.names
        return pyarrow.RecordBatch.from_arrays([*batch.columns, *arrays], [*batch.schema.names, *names])

    def _next_rows(self, batches: Iterator[Any]) -> bool:
        import pyarrow

        from sluiceway.columns.schemas import from_outside

        try:
            while (batch := next(batches, None)) is not None:
                batch = from_outside(batch)  # the filter can't compare views
                self._first, self._end = self._end, self._end + batch.num_rows
                to_skip = self._skip - self._first
                if to_skip >= batch.num_rows:
                    self._row = self._end
                    continue
                if to_skip > 0:
                    batch = batch.slice(to_skip)
                    self._first = self._row = self._skip
                self._keep(batch if self._filter is None else self._filtered(batch, self._filter))
                return True
        except pyarrow.ArrowException as error:
            raise RejectedRecordError(
                f"cannot read {self._file.name}, row group {self._group}: {error}"
            ) from error
        return False

    def _filtered(self, batch: Any, rows: RowFilter) -> Any:
        self._kept = rows.rows(batch)
        if self._form.columns is not None:
            wanted = set(self._form.columns)
            batch = batch.select([name for name in batch.schema.names if name in wanted])
        return batch if len(self._kept) == batch.num_rows else batch.take(self._kept)

    def _keep(self, batch: Any) -> None:
        self._rows = self._dicts(batch)
        self._count, self._taken = batch.num_rows, 0
        self._take(0)

    def _take(self, count: int) -> None:
        """Count rows as returned, together with those filtered out before the next one."""
        self._taken += count
        if self._taken == self._count:
            self._row = self._end
        else:
            self._row = self._number(self._taken)

    def _number(self, index: int) -> int:
        """Return the number in the row group of a row that was kept, by its index among them."""
        return self._first + (index if self._kept is None else int(self._kept[index].as_py()))

    def _dicts(self, batch: Any) -> list[Any]:
        """Return rows as dicts, with None for those to skip, which have a value that Python has none for."""
        from sluiceway.util.arrow_values import NoPythonValueError, rows_as_dicts  # pyarrow is optional

        self._gaps = False
        with suppress(NoPythonValueError):
            return rows_as_dicts(batch)
        self._gaps = True
        rows: list[Any] = []
        for index in range(batch.num_rows):
            try:
                rows += rows_as_dicts(batch.slice(index, 1))
            except NoPythonValueError as error:
                if self._form.on_error == "fail":
                    raise self._rejected(index, error) from error
                rows.append(None)
        return rows

    def _records(self, rows: list[Any], first: int) -> list[Any]:
        form = self._form
        if form.type is None and not self._gaps:
            return rows
        records: list[Any] = []
        for index, row in enumerate(rows, first):
            try:
                if row is None:
                    self._skipped.inc()
                else:
                    records.append(row if form.type is None else msgspec.convert(row, form.type))
            except msgspec.ValidationError as error:
                if form.on_error == "fail":
                    raise self._rejected(index, error) from error
                self._skipped.inc()
        return records

    def _rejected(self, index: int, error: Exception) -> RejectedRecordError:
        return RejectedRecordError(
            f"{self._file.name}, row group {self._group}, row {self._number(index) + 1}: {error}. "
            "on_error='skip' leaves such rows out"
        )


class _ColumnsReader(_ParquetReader):
    rows_at_once = _ROWS_AT_ONCE * ROWS_PER_RECORD

    def __init__(self, form: ParquetColumns, file: OpenFile, split: FileSplit) -> None:
        super().__init__(form, file, split)
        self._schema = form.schema
        self._data: Any = None

    def read(self, limit: int) -> Batch[Any] | Wait | EndOfInput:
        if self._batches is None:
            self._batches = self._open()
        if self._taken == self._count and not self._next_rows(self._batches):
            self._ended = True
            return END_OF_INPUT
        part = self._data.slice(self._taken, limit * ROWS_PER_RECORD)
        self._take(part.num_rows)
        return Batch.of_columns(part) if part.num_rows else Wait(until=0.0)

    def _batches_of(self, opened: Any, groups: Iterable[int], columns: list[str] | None) -> Iterator[Any]:
        groups = list(groups)
        texts = _texts_with_dictionary(opened, groups, columns) if groups else []
        if texts:
            # Arrow takes texts out of a dictionary for a whole batch faster than while it reads.
            opened = _opened(self._file.raw, opened.metadata, dictionaries=texts)
        for batch in super()._batches_of(opened, groups, columns):
            yield from _with_texts(batch, texts)

    def _keep(self, batch: Any) -> None:
        import pyarrow

        from sluiceway.columns.not_null import checked_cast

        if batch.schema != self._schema:
            try:
                batch = batch.select(self._schema.names)
                _check_types(batch.schema, self._schema)
                batch = checked_cast(batch, self._schema)
            except (pyarrow.ArrowException, KeyError, ValueError) as error:
                raise RejectedRecordError(
                    f"{self._file.name} has other columns than the first file ({self._schema.to_string()!r}): "
                    f"{error}"
                ) from error
        self._data = batch
        self._count, self._taken = batch.num_rows, 0
        self._take(0)


def _with_texts(batch: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield rows with the texts of some columns, if they are there, instead of a dictionary."""
    import pyarrow

    found = [index for name in names if (index := batch.schema.get_field_index(name)) >= 0]
    if not found:
        yield batch  # also one without columns, of which a copy would have no rows
        return
    if batch.num_rows > 1 and any(_bytes_of_texts(batch.column(index)) > _MOST_BYTES for index in found):
        half = batch.num_rows // 2
        yield from _with_texts(batch.slice(0, half), names)
        yield from _with_texts(batch.slice(half), names)
        return
    # Not with set_column(), which copies the list of all columns for each one.
    fields, arrays = list(batch.schema), batch.columns
    for index in found:
        arrays[index] = arrays[index].dictionary_decode()
        fields[index] = fields[index].with_type(arrays[index].type)
    schema = pyarrow.schema(fields, batch.schema.metadata)
    yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _bytes_of_texts(coded: Any) -> int:
    """Return the bytes of the texts of an array with a dictionary, or more if that fits into an array, too."""
    import pyarrow.compute as pc

    most: int = coded.dictionary.nbytes * len(coded)
    if most <= _MOST_BYTES:
        return most
    return pc.sum(pc.binary_length(coded.dictionary).take(coded.indices)).as_py() or 0


def _check_types(found: Any, wanted: Any) -> None:
    """Raise ValueError for a column whose values would become others in the type of the first file."""
    from sluiceway.columns.exact import converts_exactly

    for old, new in zip(found, wanted, strict=True):
        if not converts_exactly(old.type, new.type):
            raise ValueError(
                f"column {old.name!r} has {old.type}. source() gives the records of each file as they are, and "
                "to_columns() makes columns of them"
            )
