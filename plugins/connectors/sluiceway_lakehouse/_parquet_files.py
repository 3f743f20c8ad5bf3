"""Writer of Parquet files that a table takes later, one for each partition at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluiceway.columns.partitions import partitions

__all__ = ["FileStore", "ParquetFiles", "WrittenFile"]

_ROWS_HELD: Final = 2_000_000
"""Rows in memory, of all open files."""
_SMALL: Final = 1024
"""Batches that are put together at a time: many small ones take more memory than their rows."""


class FileStore:
    """Filesystem of a table."""

    def create(self, path: str) -> Any:
        """Return a new file, open for writing."""
        raise NotImplementedError

    def close(self, file: Any) -> None:
        """Close a complete file."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete file.

    Attributes:
        path: where it is, as the store takes it.
        size: in bytes.
        partition: value of each partition column.
        metadata: ``pyarrow.parquet.FileMetaData``.
        has_nan: names of the columns with a NaN among their values.
    """

    path: str
    size: int
    partition: Mapping[str, Any]
    metadata: Any
    has_nan: frozenset[str]


@dataclass(slots=True)
class _Open:
    path: str
    partition: Mapping[str, Any]
    file: Any
    writer: Any
    batches: list[Any] = field(default_factory=list)
    rows: int = 0  # in these
    has_nan: set[str] = field(default_factory=set)


class ParquetFiles:
    """Files that are being written, and those that are complete.

    Args:
        store: where they go.
        schema: columns of the rows, those of partitions included.
        partition_by: columns that are not in the files, but say in which of them a row is.
        path_of: returns the path of a file, from the values of its partition and its name.
        row_group_size: rows that are written together.
        file_size: bytes after which a file is complete.
        max_open: files that are open at a time; a further one completes the one written to the longest time ago.
        options: of ``pyarrow.parquet.ParquetWriter``, such as ``compression``.
    """

    def __init__(
        self,
        store: FileStore,
        schema: pa.Schema,
        partition_by: tuple[str, ...],
        path_of: Callable[[Mapping[str, Any], str], str],
        *,
        row_group_size: int,
        file_size: int,
        max_open: int,
        options: Mapping[str, Any],
    ) -> None:
        self._store = store
        self._partition_by = partition_by
        self._path_of = path_of
        self._row_group_size = row_group_size
        self._file_size = file_size
        self._max_open = max_open
        self._options = dict(options)
        self._attempt = uuid.uuid4().hex
        self._number = 0
        self._schema = pa.schema([f for f in schema if f.name not in partition_by])
        self._floats = [f.name for f in self._schema if pa.types.is_floating(f.type)]
        self._open: dict[Any, _Open] = {}  # the one written to last at the end
        self._held = 0
        self._complete: list[WrittenFile] = []

    def write(self, data: pa.RecordBatch) -> None:
        """Write rows that have exactly the columns of the table."""
        if not data.num_rows:
            return
        for partition, rows in partitions(data, self._partition_by) if self._partition_by else [({}, data)]:
            key = tuple(partition.values())
            one = self._open.pop(key, None) or self._begin(partition)
            self._open[key] = one
            one.batches.append(rows)
            one.rows += rows.num_rows
            self._held += rows.num_rows
            if one.rows >= self._row_group_size:
                self._write_rows(one)
                if one.file.tell() >= self._file_size:
                    self._finish(key)
            elif len(one.batches) >= _SMALL:
                try:
                    one.batches = pa.Table.from_batches(one.batches).combine_chunks().to_batches()
                except pa.ArrowInvalid:  # more text in lists than an array can have: a row group's worth
                    self._write_rows(one)
        # The bound on memory: the largest group is written first, so that few row groups are cut short.
        while self._held > _ROWS_HELD:
            self._write_rows(max(self._open.values(), key=lambda one: one.rows))

    def take(self) -> list[WrittenFile]:
        """Complete all files, and return those that were not taken yet."""
        for key in list(self._open):
            self._finish(key)
        complete, self._complete = self._complete, []
        return complete

    def abandon(self) -> None:
        """Remove the files that were not taken."""
        opened, self._open = list(self._open.values()), {}
        for one in opened:
            with suppress(Exception):  # what is not complete counts for nothing
                one.writer.close()
            one.writer.is_open = False  # else it tries again when it is garbage-collected
            with suppress(Exception):
                one.file.close()
        complete, self._complete = self._complete, []
        for path in [*(one.path for one in opened), *(one.path for one in complete)]:
            with suppress(Exception):
                self._store.remove(path)

    def _begin(self, partition: Mapping[str, Any]) -> _Open:
        if len(self._open) >= self._max_open:
            self._finish(next(iter(self._open)))
        path = self._path_of(partition, f"part-{self._number:05d}-{self._attempt}.parquet")
        self._number += 1
        file = self._store.create(path)
        try:
            writer = pq.ParquetWriter(file, self._schema, **self._options)
        except BaseException:
            file.close()
            self._store.remove(path)
            raise
        return _Open(path, partition, file, writer)

    def _write_rows(self, one: _Open) -> None:
        if not one.rows:
            return
        table = pa.Table.from_batches(one.batches, self._schema)
        self._held -= one.rows
        one.batches, one.rows = [], 0
        one.has_nan.update(self._with_nan(table))
        one.writer.write_table(table, row_group_size=table.num_rows)

    def _with_nan(self, table: pa.Table) -> Iterator[str]:
        import pyarrow.compute as pc

        for name in self._floats:
            if pc.any(pc.is_nan(table.column(name))).as_py():
                yield name

    def _finish(self, key: Any) -> None:
        one = self._open[key]
        self._write_rows(one)
        one.writer.close()
        # After the footer, and before the file is closed.
        size = one.file.tell()
        self._store.close(one.file)
        del self._open[key]
        metadata = one.writer.writer.metadata
        self._complete.append(WrittenFile(one.path, size, one.partition, metadata, frozenset(one.has_nan)))
