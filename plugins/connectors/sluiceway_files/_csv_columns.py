"""CSV in columns."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from typing import Any

from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.errors import RejectedRecordError
from sluiceway.util.overriding import override
from sluiceway_files._blocks import COLUMNS_CHUNK, LF
from sluiceway_files._csv import Csv, CsvReader, is_by_position
from sluiceway_files._rows import RowsEncoder
from sluiceway_files._splits import FileSplit, OpenFile, SplitReader
from sluiceway_files._typed import Leaf, Shape, of_strings, shape_of, targeted

__all__ = ["CsvColumns"]

_TEXT = Leaf(str, null=False, optional=False)


@dataclass(frozen=True)
class CsvColumns(Csv):
    """Format with a row per record, whose fields are columns."""

    @property
    @override
    def output_type(self) -> Any:
        return Columns

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        return _ColumnsReader(self, file, split)


class _ColumnsReader(CsvReader):
    """Reader of rows by Arrow's parser, block by block; blocks with quotes inside of fields by the csv module.

    Text that Arrow may convert to anything else than msgspec does goes to msgspec.
    """

    chunk = COLUMNS_CHUNK

    def __init__(self, form: Csv, file: OpenFile, split: FileSplit) -> None:
        super().__init__(form, file, split)
        self._encoder = RowsEncoder(form.schema, form.on_error, file.name)
        self._data: Any = None  # rows of the block, of which `_taken` were returned
        self._shape: list[tuple[int, Leaf]] | None = None  # position among the fields of a row, and type

    @override
    def _read(self, limit: int) -> Any:
        if self._convert is None:
            self._begin()
        most = limit * ROWS_PER_RECORD
        skipped = self._encoder.skipped
        try:
            data = self._next(most)
        finally:
            self._skipped.inc(self._encoder.skipped - skipped)
        if data is not None and data.num_rows:
            return Batch.of_columns(data)
        return END_OF_INPUT if self._ended else Wait(until=0.0)

    # ---- inside --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        if self._form.header is True and self._split.offset is None:
            position = self.position()
            assert position is not None
            self._open(position)  # the block of the header once more, at once
            self._rows = self._parse()
        names = self._names
        if self._form.type is None and names is not None and set(names) != set(self._form.schema.names):
            raise RejectedRecordError(
                f"{self._file.name} has other columns than the first file ({', '.join(self._form.schema.names)}): "
                f"{', '.join(names)}"
            )
        self._shape = self._positions()

    def _positions(self) -> list[tuple[int, Leaf]] | None:
        """Return where the columns are in a row; None if only msgspec can tell."""
        names, form = self._names, self._form
        if form.type is None:
            return [(names.index(name), _TEXT) for name in form.schema.names] if names else None
        shape: Shape | None = shape_of(form.type)
        if shape is None or any(leaf.kind in (list, dict) for _, leaf in shape):
            return None
        if is_by_position(names, form.type):
            fits = issubclass(form.type, tuple) and (names is None or len(names) == len(shape))
            return [(at, leaf) for at, (_, leaf) in enumerate(shape)] if fits else None
        assert names is not None
        if any(name not in names for name, _ in shape):
            return None
        return [(names.index(name), leaf) for name, leaf in shape]

    def _skip_lines(self, count: int) -> None:
        super()._skip_lines(count)
        self._data = None

    def _next(self, most: int) -> Any:
        """Return the next rows, or None."""
        assert self._blocks is not None
        if self._data is None and self._taken == len(self._lines):
            if self._blocks.ended:
                if self._to_skip:
                    raise self._lacking()
                self._ended = True
                return None
            offset, block = self._blocks.read()
            if not block:
                return None
            self._take_block(offset, block)
        if self._data is None:
            return self._by_rows(most)
        data = self._data.slice(0, most)
        self._data = self._data.slice(most) if self._data.num_rows > most else None
        self._taken += data.num_rows
        self._line += data.num_rows
        return data

    def _take_block(self, offset: int, block: bytes) -> None:
        text = self._decoded(block)
        lines = block.count(LF) + (not block.endswith(LF))
        skip, self._to_skip = self._to_skip, max(0, self._to_skip - lines)
        skip = min(skip, lines)
        start = 0
        for _ in range(skip):
            start = block.find(LF, start) + 1 or len(block)
        data = self._at_once(text, block[start:] if start else block, lines - skip)
        if data is None:
            self._take(offset, text)
        else:
            self._data = data
            self._lines = range(lines)  # type: ignore[assignment] # counted alone
            self._offset, self._block_line = offset, self._line
        self._taken = skip
        self._line = self._block_line + skip

    def _at_once(self, text: str, block: bytes, lines: int) -> Any:
        """Return the rows of a block; None where it is not certain that each of its lines is one row."""
        form = self._form
        quote, comma = form.quotechar, form.delimiter
        if self._shape is None or not lines or "\0" in text or not comma.isascii() or comma in "\r\n":
            return None
        has_quotes = quote in text
        if text.count("\r") != text.count("\r\n"):
            return None  # Arrow takes it for the end of a line, the csv module for an error
        import pyarrow
        import pyarrow.csv

        if form.encoding.lower().replace("_", "-") not in ("utf-8", "utf8") or form.errors != "strict":
            # Arrow reads UTF-8 alone. Lines that are skipped are left out here as they are of the block.
            block = b"\n".join(text.encode().split(b"\n")[-lines - block.endswith(LF) :])
        if has_quotes and not _has_whole_quotes(block, quote, comma):
            return None
        names = self._names or form.schema.names
        try:
            table = pyarrow.csv.read_csv(
                pyarrow.BufferReader(block),  # type: ignore[arg-type]
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=len(block) + 1, column_names=list(names)
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=comma, quote_char=quote if has_quotes else False, double_quote=True
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={name: pyarrow.string() for name in names}, strings_can_be_null=False
                ),
            )
            if table.num_rows != lines:
                return None
            return self._columns([column.combine_chunks() for column in table.columns])
        except (pyarrow.ArrowException, UnicodeDecodeError):
            return None

    def _columns(self, fields: list[Any]) -> Any:
        """Return columns of the fields' text; None if only msgspec can tell what it means."""
        import pyarrow.compute as pc

        assert self._shape is not None
        arrays = []
        limit = min(self._form.max_line_length, sys.maxsize)
        for at, leaf in self._shape:
            # The csv module rejects such a field, with its line. Bytes are never fewer than the characters that it
            # counts.
            if (pc.max(pc.binary_length(fields[at])).as_py() or 0) > limit:
                return None
            array = of_strings(fields[at], leaf, has_null_text=True)
            if array is None:
                return None
            arrays.append(array)
        return targeted(arrays, self._form.schema)

    def _by_rows(self, most: int) -> Any:
        """Return rows up to the end of the block, tokenised by the csv module."""
        rows: list[list[str]] = []
        numbers: list[int] = []
        while len(rows) < most and self._taken < len(self._lines):
            try:
                row = next(self._rows)
            except StopIteration:
                self._ended = True
                break
            except csv.Error as error:
                self._encoder.reject(self._line, self._reason(error), error)
                continue
            if row:
                rows.append(row)
                numbers.append(self._line)
        if not rows:
            return None
        return self._of_rows(rows, numbers)

    def _of_rows(self, rows: list[list[str]], numbers: list[int]) -> Any:
        import pyarrow

        width = len(self._form.schema if self._names is None else self._names)
        if self._shape is not None and all(len(row) == width for row in rows):
            try:
                data = self._columns(
                    [pyarrow.array(column, pyarrow.string()) for column in zip(*rows, strict=True)]
                )
            except (pyarrow.ArrowException, UnicodeEncodeError):
                data = None
            if data is not None:
                return data
        assert self._convert is not None
        records, fitting = [], []
        for row, line in zip(rows, numbers, strict=True):
            try:
                if self._names is not None and len(row) != len(self._names):
                    raise ValueError(f"{len(row)} fields where there are {len(self._names)} columns")
                records.append(self._convert(row))
                fitting.append(line)
            except ValueError as error:
                self._encoder.reject(line, str(error), error)
        return self._encoder.encode(records, fitting)


def _has_whole_quotes(block: bytes, quote: str, comma: str) -> bool:
    """Return whether quotes enclose whole fields of one line alone, and are doubled inside of these.

    Then Arrow and the csv module find the same fields. They differ for other quotes: after the first character of
    a field, behind the closing one, and around line ends, where a row is not a line either.
    """
    import numpy as np

    if not quote.isascii() or quote in "\r\n" or quote == comma:
        return False
    data = np.frombuffer(block, np.uint8)
    at = np.flatnonzero(data == ord(quote))
    if len(at) % 2:
        return False
    opening, closing = at[::2], at[1::2]
    # A doubled quote is the end of one part of a field and the beginning of the next one.
    before = data[np.maximum(opening - 1, 0)]
    is_doubled = np.zeros(len(opening), bool)
    is_doubled[1:] = opening[1:] - closing[:-1] == 1
    begins = is_doubled | (opening == 0) | (before == ord(comma)) | (before == ord("\n"))
    padded = np.append(data, np.frombuffer(b"\n\n", np.uint8))
    after = padded[closing + 1]
    is_line_end = (after == ord("\n")) | ((after == ord("\r")) & (padded[closing + 2] == ord("\n")))
    goes_on = np.append(is_doubled[1:], False)
    if not (begins.all() and (goes_on | is_line_end | (after == ord(comma))).all()):
        return False
    # Each line end has an even number of quotes before it: it is in none of the fields.
    return not (np.searchsorted(at, np.flatnonzero(data == ord("\n"))) % 2).any()
