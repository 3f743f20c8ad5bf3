"""Encoders of records: one per file, for each format."""

from __future__ import annotations

import csv
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sluiceway.elements import Columns
from sluiceway.errors import ConnectorError, RejectedRecordError, unknown_column
from sluiceway.util.overriding import override
from sluiceway_files._places import failing_with

__all__ = ["CsvFormat", "FileEncoder", "JsonLinesFormat", "ParquetFormat", "SinkFormat", "TextFormat"]

_SHOWN: Final = 200


class FileEncoder(ABC):
    """Encoder of one file.

    Attributes:
        written: bytes that the encoder has written to the file itself.
    """

    written: int = 0

    @property
    def held(self) -> int:
        """Number of records in memory that :meth:`release` writes."""
        return 0

    def release(self) -> None:
        """Write the records in memory."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the bytes to write for these records."""

    def finish(self) -> None:
        """Write the trailer of the format. The file stays open."""

    def abandon(self) -> None:
        """Release resources: the file will be removed."""


class SinkFormat(ABC):
    """Format of files; picklable."""

    suffix: str

    @abstractmethod
    def encoder(self, file: Any, where: str) -> FileEncoder:
        """Create the encoder of a file; ``where`` is for messages."""

    def problems_of_columns(self, schema: Any) -> list[str]:
        """Return why rows with the columns of a ``pyarrow.Schema`` cannot be written."""
        return []


# ---- text and JSON lines -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFormat(SinkFormat):
    """Format with a line per record."""

    encoding: str
    to_text: Callable[[Any], str]
    suffix = ".txt"

    @override
    def encoder(self, file: Any, where: str) -> FileEncoder:
        return _TextEncoder(self, where)


class _TextEncoder(FileEncoder):
    def __init__(self, form: TextFormat, where: str) -> None:
        self._form = form
        self._where = where

    def encode(self, values: Sequence[Any]) -> bytes:
        lines: list[str] = []
        for value in values:
            try:
                lines.append(self._form.to_text(value))
            except Exception as error:
                error.add_note(f"record: {value!r:.{_SHOWN}}")
                raise
        lines.append("")
        try:
            return "\n".join(lines).encode(self._form.encoding)
        except (TypeError, UnicodeEncodeError):
            # Only where a batch fails is each record encoded by itself, to name the one that is wrong.
            return b"".join(self._line(value, line) for value, line in zip(values, lines, strict=False))

    def _line(self, value: Any, line: Any) -> bytes:
        if not isinstance(line, str):
            raise RejectedRecordError(
                f"{self._where}: to_text= must give str; for {value!r:.{_SHOWN}} it gave {type(line).__name__}"
            )
        try:
            return f"{line}\n".encode(self._form.encoding)
        except UnicodeEncodeError as error:
            sign = error.object[error.start : error.end]
            raise RejectedRecordError(
                f"{self._where}: {self._form.encoding} has no {sign!r}, in {value!r:.{_SHOWN}}. Set encoding="
            ) from error


@dataclass(frozen=True)
class JsonLinesFormat(SinkFormat):
    """Format with a JSON value per line."""

    suffix = ".jsonl"

    @override
    def encoder(self, file: Any, where: str) -> FileEncoder:
        return _JsonEncoder(where)


class _JsonEncoder(FileEncoder):
    def __init__(self, where: str) -> None:
        self._where = where
        self._encoder = msgspec.json.Encoder()

    def encode(self, values: Sequence[Any]) -> bytes:
        try:
            return self._encoder.encode_lines(values)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
            # As above: this finds the record.
            return b"".join(map(self._line, values))

    def _line(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value) + b"\n"
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise RejectedRecordError(
                f"{self._where}: {value!r:.{_SHOWN}} cannot be written as JSON ({error}). A map before the "
                "sink can make it of dicts, lists, strings, numbers and dataclasses"
            ) from error


# ---- rows --------------------------------------------------------------------------------------------------


def columns_of(value: Any) -> tuple[str, ...] | None:
    """Return the column names of a record, or None."""
    if isinstance(value, Mapping):
        return tuple(map(str, value))
    if dataclasses.is_dataclass(value):
        return tuple(f.name for f in dataclasses.fields(value))
    names = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None)
    return None if names is None else tuple(names)


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """Return a record with named fields as a mapping, or None."""
    if isinstance(value, Mapping):
        return value
    names = columns_of(value)
    return None if names is None else {name: getattr(value, name) for name in names}


@dataclass(frozen=True)
class CsvFormat(SinkFormat):
    """Format with a row per record."""

    columns: tuple[str, ...] | None
    header: bool
    delimiter: str
    quotechar: str
    encoding: str
    suffix = ".csv"

    def problems_of_columns(self, schema: Any) -> list[str]:
        """Return which of ``columns=`` are missing, which others there are, and which have no text."""
        import pyarrow

        found = [
            f"column {field.name!r} has {field.type}, for which CSV has no text: drop() it, or write JSON "
            "lines or Parquet"
            for field in schema
            if pyarrow.types.is_nested(field.type) or "binary" in str(field.type)
        ]
        if self.columns is None:
            return found
        missing = [name for name in self.columns if name not in schema.names]
        more = [name for name in schema.names if name not in self.columns]
        found += [f"columns=: {unknown_column(name, schema.names)}" for name in missing]
        return found + [f"columns= has no {name!r}, which the rows have: drop() it or name it" for name in more]

    @override
    def encoder(self, file: Any, where: str) -> FileEncoder:
        return _CsvEncoder(self, where)


class _Rows:
    """Text of rows that a ``csv.writer`` ends with CR LF, with LF at the end of each."""

    def __init__(self) -> None:
        self._rows: list[str] = []
        self.write = self._rows.append

    def text(self) -> str:
        return "".join([row[:-2] + "\n" for row in self._rows])


class _CsvEncoder(FileEncoder):
    def __init__(self, form: CsvFormat, where: str) -> None:
        self._form = form
        self._where = where
        self._columns = form.columns
        self._width: int | None = None if form.columns is None else len(form.columns)
        self._begun = False

    def encode(self, values: Sequence[Any]) -> bytes:
        rows = _Rows()
        # Python 3.11 quotes what has a character of the end of a line, and a reader takes both for one.
        writer = csv.writer(
            rows, delimiter=self._form.delimiter, quotechar=self._form.quotechar, lineterminator="\r\n"
        )
        if not self._begun:
            self._begun = True
            if self._columns is None:
                self._columns = columns_of(values[0])
            if self._form.header and self._columns is not None:
                writer.writerow(self._columns)
        for value in values:
            try:
                writer.writerow(self._row(value))
            except csv.Error as error:
                raise RejectedRecordError(f"{self._where}: {value!r:.{_SHOWN}}: {error}") from error
        try:
            return rows.text().encode(self._form.encoding)
        except UnicodeEncodeError as error:
            sign = error.object[error.start : error.end]
            raise RejectedRecordError(
                f"{self._where}: {self._form.encoding} has no {sign!r}. Set encoding="
            ) from error

    def _row(self, value: Any) -> Sequence[Any]:
        fields = as_mapping(value)
        if fields is not None:
            if self._columns is None or fields.keys() != set(self._columns):
                columns = "no named" if self._columns is None else ", ".join(self._columns)
                raise RejectedRecordError(
                    f"{self._where}: {value!r:.{_SHOWN}} has the fields {', '.join(map(str, fields))}, the file "
                    f"has {columns} columns. columns= says which"
                )
            return [fields[name] for name in self._columns]
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise RejectedRecordError(
                f"{self._where}: {value!r:.{_SHOWN}} ({type(value).__name__}) is no row: a dict, a tuple, a list "
                "or a dataclass is"
            )
        if self._width is None:
            self._width = len(value)
        if len(value) != self._width:
            raise RejectedRecordError(
                f"{self._where}: {value!r:.{_SHOWN}} has {len(value)} fields, the file has {self._width} columns"
            )
        return value


@dataclass(frozen=True)
class ParquetFormat(SinkFormat):
    """Format with a row per record, in row groups."""

    schema: Any
    row_group_size: int
    codec: str
    suffix = ".parquet"

    def problems_of_columns(self, schema: Any) -> list[str]:
        """Return which columns of ``schema=`` are missing, or of a type that cannot be converted."""
        import pyarrow

        from sluiceway.columns.exact import converts_exactly

        found = []
        for field in () if self.schema is None else self.schema:
            if field.name not in schema.names:
                found.append(f"schema=: {unknown_column(field.name, schema.names)}")
                continue
            kind = schema.field(field.name).type
            is_kept = converts_exactly(kind, field.type, as_records=True)
            try:
                pyarrow.array([], kind).cast(field.type)
            except pyarrow.ArrowException:
                is_kept = False
            if not is_kept:
                found.append(
                    f"schema= has {field.name!r} with {field.type}, and the column has {kind}: cast it before"
                )
        return found

    @override
    def encoder(self, file: Any, where: str) -> FileEncoder:
        return _ParquetEncoder(self, file, where)


class _ParquetEncoder(FileEncoder):
    def __init__(self, form: ParquetFormat, file: Any, where: str) -> None:
        self._form = form
        self._file = file
        self._where = where
        self._schema = form.schema
        self._rows: list[Mapping[str, Any]] = []
        self._columns: list[Any] = []
        self._kept = 0  # rows in these
        self._writer: Any = None

    def encode(self, values: Sequence[Any]) -> bytes:
        if type(values) is Columns:
            self._encode_columns(values.data)
            return b""
        for value in values:
            row = as_mapping(value)
            if row is None:
                raise RejectedRecordError(
                    f"{self._where}: {value!r:.{_SHOWN}} ({type(value).__name__}) has no named fields; Parquet "
                    "takes dicts, dataclasses and named tuples"
                )
            self._rows.append(row)
        size = self._form.row_group_size
        while len(self._rows) >= size:
            group, self._rows = self._rows[:size], self._rows[size:]
            with failing_with(f"write {self._where}"):
                self._write_group(group)
        return b""

    def _encode_columns(self, data: Any) -> None:
        self._columns.append(data)
        self._kept += data.num_rows
        if self._kept >= self._form.row_group_size:
            with failing_with(f"write {self._where}"):
                self._write_columns()

    def _write_columns(self) -> None:
        import pyarrow

        from sluiceway.columns.not_null import checked_cast

        columns, self._columns, self._kept = self._columns, [], 0
        try:
            table = pyarrow.Table.from_batches(columns)
            schema = table.schema if self._schema is None else self._schema
            table = checked_cast(table.select(schema.names), schema)
        except (pyarrow.ArrowException, KeyError, ValueError) as error:
            raise RejectedRecordError(f"{self._where}: columns do not fit into schema=: {error}") from error
        self._write_table(table)

    @property
    def held(self) -> int:
        return self._kept + len(self._rows)

    def release(self) -> None:
        if self._columns:
            self._write_columns()
        if self._rows:
            rows, self._rows = self._rows, []
            self._write_group(rows)

    def finish(self) -> None:
        self.release()
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._writer.is_open = False  # else it would try again when it is garbage-collected

    def _write_group(self, rows: list[Mapping[str, Any]]) -> None:
        import pyarrow

        from sluiceway.columns.exact import exact_array

        try:
            # Without schema= the types are those of the first values: integers are no reason to cut off later
            # fractions, nor dates to cut off the time of later days.
            schema = self._schema
            if schema is None:
                columns = [exact_array([row.get(name) for row in rows]) for name in rows[0]]
                table = pyarrow.Table.from_arrays(columns, list(rows[0]))
            else:
                columns = [exact_array([row.get(field.name) for row in rows], field.type) for field in schema]
                table = pyarrow.Table.from_arrays(columns, schema=schema)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._misfit(error) from error
        extra = {name for row in rows for name in row} - set(table.schema.names)
        if extra:
            raise RejectedRecordError(
                f"{self._where}: no column for the fields {', '.join(sorted(map(str, extra)))}; the columns "
                f"are {', '.join(table.schema.names)}. schema= says which there are"
            )
        self._write_table(table)

    def _write_table(self, table: Any) -> None:
        import pyarrow
        import pyarrow.parquet as pq

        try:
            if self._writer is None:
                self._schema = table.schema
                self._writer = pq.ParquetWriter(self._file, self._schema, compression=self._form.codec)  # type: ignore[arg-type]
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        except (pyarrow.ArrowException, TypeError, OverflowError) as error:
            raise self._misfit(error) from error
        self.written += table.nbytes

    def _misfit(self, error: Exception) -> ConnectorError:
        return RejectedRecordError(
            f"{self._where}: rows cannot be written as columns ({error}). schema= says what types they have"
        )
