"""Reader of SparkSource: reads the files of staged partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluiceway.connector import END_OF_INPUT, Poll, ReaderContext, SimpleReader
from sluiceway.errors import ConnectorError
from sluiceway_spark.conversion.arrow_to_records import ARROW, Convert, converter
from sluiceway_spark.persisted import StagedFile

__all__ = ["PartReader"]


class PartReader(SimpleReader[Any]):
    """Reader of one file after the other, mapped into memory, one of Spark's batches at a time.

    Args:
        context: given by the runtime.
        records: what rows become.
        what: names what is read in messages.
    """

    def __init__(self, context: ReaderContext, records: Any, what: str) -> None:
        super().__init__(context)
        self._records = records
        self._what = what
        self._part: StagedFile | None = None
        self._file: Any = None
        self._batches: Iterator[Any] = iter(())
        self._convert: Convert | None = None
        self._batch: Any = None
        self._taken = 0  # rows of this batch
        self._row = 0  # rows of the file

    def open_split(self, split: StagedFile) -> None:
        """Map the file and skip what is read."""
        import pyarrow as pa

        self._part = split
        path = Path(split.directory, split.file)
        try:
            self._file = pa.memory_map(str(path))
            stream = pa.ipc.open_stream(self._file)
        except (OSError, pa.ArrowException) as error:
            raise ConnectorError(
                f"cannot read {path}, which Spark wrote of {self._what}: {error}. Every worker has to see the "
                "directory that staging= names"
            ) from error
        self._batches = iter(stream)
        self._convert = None if self._records == ARROW else converter(self._records, stream.schema, self._what)
        self._batch, self._taken, self._row = None, 0, 0
        to_skip = split.row
        while to_skip:
            batch = next(self._batches)
            if batch.num_rows > to_skip:
                self._batch, self._taken, self._row = batch, to_skip, split.row
                break
            to_skip -= batch.num_rows
            self._row += batch.num_rows

    def read(self, limit: int) -> Poll[Any]:
        """Up to ``limit`` records; whole batches where these are the records."""
        batch = self._batch
        while batch is None or self._taken == batch.num_rows:
            self._batch = batch = next(self._batches, None)
            self._taken = 0
            if batch is None:
                return END_OF_INPUT
        if self._convert is None:
            rest = batch.slice(self._taken) if self._taken else batch
            self._row += rest.num_rows
            self._taken = batch.num_rows
            return [rest]
        part = batch.slice(self._taken, limit)
        self._taken += part.num_rows
        self._row += part.num_rows
        return self._convert(part)

    def position(self) -> StagedFile | None:
        """Return the file with how far it is read."""
        return None if self._part is None else replace(self._part, row=self._row)

    def close_split(self) -> None:
        """Let go of the file."""
        self._batches, self._batch, self._part = iter(()), None, None
        file, self._file = self._file, None
        if file is not None:
            file.close()
