"""JSON lines in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.util.overriding import override
from sluiceway_files._blocks import COLUMNS_CHUNK, LF, Blocks
from sluiceway_files._lined import UNDECODABLE, Decoder, JsonLines, LineReader, OnError
from sluiceway_files._rows import RowsEncoder
from sluiceway_files._splits import FileSplit, OpenFile, SplitReader
from sluiceway_files._typed import arrow_type, certain, of_strings, shape_of, targeted

__all__ = ["JsonColumns"]


@dataclass(frozen=True)
class JsonColumns(JsonLines):
    """Format with a JSON object per line, whose fields are columns."""

    @property
    @override
    def output_type(self) -> Any:
        return Columns

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        blocks = Blocks(file, split, self.max_line_length, COLUMNS_CHUNK)
        return _ColumnsReader(blocks, self.decoder, split, file)

    def decoder(self, name: str) -> Decoder:
        return _ColumnsDecoder(self.type, self.schema, self.on_error, name)


class _ColumnsReader(LineReader):
    def read(self, limit: int) -> Any:
        rows = super().read(limit * ROWS_PER_RECORD)
        return Batch.of_columns(rows.data) if isinstance(rows, Columns) else rows


class _Object(msgspec.Struct):
    """A JSON object, whatever its fields."""


class _ColumnsDecoder:
    """Decoder by Arrow's parser; a block that it may read differently goes to msgspec."""

    def __init__(self, of_type: Any, schema: Any, on_error: OnError, name: str) -> None:
        import pyarrow
        import pyarrow.json

        self._decode = msgspec.json.Decoder(of_type).decode
        self._objects = msgspec.json.Decoder(_Object).decode_lines
        self._schema = schema
        self._rows = RowsEncoder(schema, on_error, name)
        self._shape = None if issubclass(of_type, tuple) else shape_of(of_type)
        self._errors = (*UNDECODABLE, pyarrow.ArrowException)
        if self._shape is not None:
            self._parse = pyarrow.json.ParseOptions(
                explicit_schema=pyarrow.schema([(name, arrow_type(leaf)) for name, leaf in self._shape]),
                unexpected_field_behavior="ignore",
            )
        self.lines = 0

    @property
    def skipped(self) -> int:
        return self._rows.skipped

    def decode(self, block: bytes) -> Columns:
        lines = block.count(LF) + (not block.endswith(LF))
        try:
            data = self._at_once(block, lines)
        except self._errors:
            data = None
        if data is None:
            return Columns(self._one_by_one(block))
        self.lines += lines
        return Columns(data)

    def _at_once(self, block: bytes, lines: int) -> Any:
        """Return the rows; None if it is not certain that msgspec would return the same."""
        import pyarrow
        import pyarrow.json

        if self._shape is None:
            return None
        # A line with two objects beside one without would make up the number.
        if block.count(b"}\r\n{" if block.endswith(b"\r\n") else b"}\n{") != lines - 1:
            return None
        str(block, "utf-8")  # neither of the two checks this everywhere
        # Arrow takes NaN, and a null among objects ends the process (pyarrow 26).
        if len(self._objects(block)) != lines:
            return None
        table = pyarrow.json.read_json(
            pyarrow.BufferReader(block),  # type: ignore[arg-type]
            # One block, so that no object lies across two; a thread of its own would take longer.
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=self._parse,
        )
        if table.num_rows != lines:
            return None
        arrays = []
        for name, leaf in self._shape:
            array = table.column(name).combine_chunks()
            if not certain(array, leaf):
                return None
            if array.type != self._schema.field(name).type and pyarrow.types.is_string(array.type):
                array = of_strings(array, leaf)
                if array is None:
                    return None
            arrays.append(array)
        return targeted(arrays, self._schema)

    def _one_by_one(self, block: bytes) -> Any:
        decode = self._decode
        records, numbers = [], []
        for line in block.removesuffix(LF).split(LF):
            self.lines += 1
            if not line.strip():
                continue
            try:
                records.append(decode(line))
                numbers.append(self.lines)
            except UNDECODABLE as error:
                self._rows.reject(self.lines, f"{error}, in {line[:80]!r}", error)
        return self._rows.encode(records, numbers)
