"""Format of comma-separated values."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_origin

import msgspec
from msgspec import inspect

from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.errors import RejectedRecordError
from sluiceway_files._blocks import Blocks, FileShortenedError
from sluiceway_files._lined import OnError
from sluiceway_files._splits import FileSplit, Format, OpenFile, SplitReader

__all__ = ["Csv", "CsvReader", "EncodingErrors", "converter", "is_by_position"]

EncodingErrors = Literal["strict", "replace", "ignore"]

_NO_TEXT: Final[frozenset[type]] = frozenset(
    {
        inspect.NoneType,
        inspect.BoolType,
        inspect.IntType,
        inspect.FloatType,
        inspect.DecimalType,
        inspect.DateTimeType,
        inspect.DateType,
        inspect.TimeType,
        inspect.TimeDeltaType,
        inspect.UUIDType,
    }
)
"""Types whose values have no empty text."""


class _FieldLimits:
    """Limit of the fields of the csv module, which is the process's: jobs in other threads read, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_use: list[int] = []
        self._before = 0

    @contextmanager
    def of(self, limit: int) -> Iterator[None]:
        """Let fields be as long as that, or longer, meanwhile."""
        with self._lock:
            if not self._in_use:
                self._before = csv.field_size_limit()
            self._in_use.append(limit)
            csv.field_size_limit(max(self._in_use))
        try:
            yield
        finally:
            with self._lock:
                self._in_use.remove(limit)
                csv.field_size_limit(max(self._in_use, default=self._before))


_limits: Final = _FieldLimits()


@dataclass(frozen=True)
class Csv(Format):
    """Format with a record per row; a quoted field may hold line ends, so a file is one split.

    Attributes:
        schema: the ``pyarrow.Schema`` that the type was made of, or None.
    """

    delimiter: str
    quotechar: str
    header: bool | tuple[str, ...]
    type: Any
    encoding: str
    errors: EncodingErrors
    on_error: OnError
    max_line_length: int
    schema: Any = None
    suffix = ".csv"

    @property
    def output_type(self) -> Any:
        """Return the declared type, or the row type that the header implies."""
        if self.type is not None:
            return self.type
        return dict[str, str] if self.header else tuple[str, ...]

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        return CsvReader(self, file, split)


class CsvReader(SplitReader):
    """Reader of the rows of a file as records."""

    chunk: int | None = None

    def __init__(self, form: Csv, file: OpenFile, split: FileSplit) -> None:
        self._form = form
        self._file = file
        self._split = split
        self._skipped = file.metrics.counter("records_skipped")
        self._blocks: Blocks | None = None
        self._offset = 0  # offset of the block of the line read last
        self._lines: Sequence[str] = ()
        self._taken = 0
        self._line = 0  # number of the line read last
        self._block_line = 0  # number of lines before the block
        self._names: tuple[str, ...] | None = None
        self._convert: Callable[[list[str]], Any] | None = None
        self._rows: Iterator[list[str]] = iter(())
        self._ended = False
        self._to_skip = 0  # lines before the position, in the block that is read next

    def read(self, limit: int) -> Any:
        if self._ended:
            return END_OF_INPUT
        with self._field_limit():
            return self._read(limit)

    def _read(self, limit: int) -> Any:
        if self._convert is None:
            self._begin()
        assert self._convert is not None
        assert self._blocks is not None
        if self._blocks.behind:
            self._blocks.read()
            return Wait(until=0.0)  # other tasks run in between
        if self._to_skip:
            lines = self._physical_lines()
            while self._to_skip:
                if next(lines, None) is None:
                    raise self._lacking()
                self._to_skip -= 1
        convert, width = self._convert, None if self._names is None else len(self._names)
        records: list[Any] = []
        taken = 0
        while taken < limit:
            taken += 1
            try:
                row = next(self._rows, None)
                if row is None:
                    self._ended = True
                    break
                if not row:  # a blank line
                    continue
                if width is not None and len(row) != width:
                    raise ValueError(f"{len(row)} fields where there are {width} columns")
                records.append(convert(row))
            except (csv.Error, ValueError) as error:  # msgspec's ValidationError is a ValueError
                if self._form.on_error == "fail":
                    raise RejectedRecordError(
                        f"{self._file.name}, line {self._line}: {self._reason(error)}. on_error='skip' leaves "
                        "such rows out"
                    ) from error
                self._skipped.inc()
        if records:
            return records
        return END_OF_INPUT if self._ended else Wait(until=0.0)

    def names(self) -> tuple[str, ...] | None:
        """Return the names of the columns, or None."""
        if self._convert is None:
            with self._field_limit():
                self._begin()
        return self._names

    def position(self) -> FileSplit | None:
        if self._ended:
            return None
        if self._convert is None or self._blocks is None or self._to_skip or self._blocks.behind:
            return self._split
        if self._taken == len(self._lines):
            offset = self._blocks.offset
            return replace(self._split, offset=offset, skip=0, line=self._line, seen=self._blocks.seen_before())
        seen = self._blocks.seen(self._taken)
        return replace(self._split, offset=self._offset, skip=self._taken, line=self._block_line, seen=seen)

    def close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()

    @contextmanager
    def _field_limit(self) -> Iterator[None]:
        """Let a field be as long as a line meanwhile: the limit is the process's, 128 KiB by default."""
        with _limits.of(min(self._form.max_line_length, sys.maxsize)):
            yield

    def _reason(self, error: Exception) -> str:
        """Return the message of an error, in words of its own where the advice of the csv module does not help."""
        if "new-line character" in str(error):
            return (
                "a carriage return is neither in quotes nor followed by a line feed: rows end with a line feed, "
                "or with both"
            )
        if "field limit" not in str(error):
            return str(error)
        return (
            f"a field is longer than {self._form.max_line_length} characters. Is a quote not closed? Otherwise "
            "set max_line_length="
        )

    def _begin(self) -> None:
        """Read the header, seek to the position, and build the function that turns a row into a record."""
        form = self._form
        names = form.header if isinstance(form.header, tuple) else None
        if form.header is True:
            self._open(replace(self._split, offset=None, skip=0, line=0, seen=0))
            try:
                first = next((row for row in self._parse() if row), None)
            except csv.Error as error:
                raise RejectedRecordError(
                    f"{self._file.name}, line {self._line}: the header cannot be read: {self._reason(error)}"
                ) from error
            if first is not None:
                names = tuple(first)
                if len(set(names)) < len(names):
                    raise RejectedRecordError(
                        f"{self._file.name}: two columns have the same name: {', '.join(names)}"
                    )
        # Otherwise the blocks are behind the header already, where the records begin.
        if form.header is not True or self._split.offset is not None:
            self._open(self._split)
        self._rows = self._parse()
        self._names = names
        self._convert = converter(names, form.type)

    def _open(self, split: FileSplit) -> None:
        if self._blocks is not None:
            self._blocks.close()
        self._file.raw.seek(0)
        self._blocks = Blocks(self._file, split, self._form.max_line_length, self.chunk)
        self._lines, self._taken = (), 0
        self._line = self._block_line = split.line
        self._skip_lines(split.skip)

    def _skip_lines(self, count: int) -> None:
        self._to_skip = count

    def _lacking(self) -> FileShortenedError:
        assert self._blocks is not None
        return self._blocks.lacking(self._split.skip, self._to_skip, "lines")

    def _parse(self) -> Iterator[list[str]]:
        form = self._form
        # The reader consumes no line beyond the row that it returns, so the position is that of the lines.
        return csv.reader(self._physical_lines(), delimiter=form.delimiter, quotechar=form.quotechar, strict=True)

    def _physical_lines(self) -> Iterator[str]:
        assert self._blocks is not None
        while True:
            while self._taken < len(self._lines):
                self._taken += 1
                self._line += 1
                yield self._lines[self._taken - 1]
            if self._blocks.ended:
                return
            offset, block = self._blocks.read()
            if not block:
                continue
            self._take(offset, self._decoded(block))

    def _take(self, offset: int, text: str) -> None:
        """Make the lines of a block those to read next."""
        # Not splitlines(), which ends lines at U+2028, vertical tabs and more. In quotes the line feed belongs to
        # the field.
        lines = [f"{line}\n" for line in text.split("\n")]
        last = lines.pop()[:-1]
        if last:
            lines.append(last)
        self._lines = lines
        self._offset, self._block_line, self._taken = offset, self._line, 0

    def _decoded(self, block: bytes) -> str:
        try:
            return block.decode(self._form.encoding, self._form.errors)
        except UnicodeDecodeError as error:
            line = self._line + block.count(b"\n", 0, error.start) + 1
            raise RejectedRecordError(
                f"{self._file.name}, line {line}: byte 0x{block[error.start]:02x} is not "
                f"{self._form.encoding} ({error.reason}). Set encoding=, or errors='replace' or 'ignore'"
            ) from error


def is_by_position(names: tuple[str, ...] | None, of_type: Any) -> bool:
    """Return whether the fields of a row become those of the type by position, not by name."""
    fields = _fields_of_tuple(of_type)
    if names is not None and fields is not None:
        return not set(names).issuperset(fields)
    plain = get_origin(of_type) or of_type
    return names is None or (isinstance(plain, type) and issubclass(plain, (tuple, list)))


def _fields_of_tuple(of_type: Any) -> tuple[str, ...] | None:
    """Return the names of a NamedTuple's fields; None for other types."""
    plain = get_origin(of_type) or of_type
    return getattr(plain, "_fields", None) if isinstance(plain, type) and issubclass(plain, tuple) else None


def converter(names: tuple[str, ...] | None, of_type: Any) -> Callable[[list[str]], Any]:
    """Return the function that makes a record of a row. It may change the row."""
    if of_type is None:
        if names is None:
            return tuple
        return lambda row: dict(zip(names, row, strict=True))
    by_position = is_by_position(names, of_type)
    fields = _fields_of_tuple(of_type)
    if names is not None and fields is not None and not by_position:  # msgspec makes NamedTuples of lists alone
        of_fields, places = converter(None, of_type), [names.index(field) for field in fields]
        return lambda row: of_fields([row[at] for at in places])
    makes = _by_position(of_type) if by_position else _by_name(names or (), of_type)
    blanks = _blank_is_none(names, of_type, by_position)
    if not blanks:
        return makes

    def convert(row: list[Any]) -> Any:
        for at in blanks:
            if at < len(row) and not row[at]:
                row[at] = None
        return makes(row)

    return convert


def _by_position(of_type: Any) -> Callable[[list[str]], Any]:
    return lambda row: msgspec.convert(row, of_type, strict=False)


def _by_name(names: tuple[str, ...], of_type: Any) -> Callable[[list[str]], Any]:
    return lambda row: msgspec.convert(dict(zip(names, row, strict=True)), of_type, strict=False)


def _blank_is_none(names: tuple[str, ...] | None, of_type: Any, by_position: bool) -> list[int]:
    """Return the positions of the fields that can be None and not text: an empty one can only mean None."""
    try:
        info = inspect.type_info(of_type)
    except TypeError:
        return []
    if isinstance(info, inspect.TupleType):
        return [at for at, item in enumerate(info.item_types) if _is_blank_none(item)]
    if isinstance(info, inspect.DictType):
        return list(range(len(names or ()))) if _is_blank_none(info.value_type) else []
    fields = [(field.encode_name, field.type) for field in getattr(info, "fields", ())]
    if by_position:
        return [at for at, (_, kind) in enumerate(fields) if _is_blank_none(kind)]
    blank = {name for name, kind in fields if _is_blank_none(kind)}
    return [at for at, name in enumerate(names or ()) if name in blank]


def _is_blank_none(info: inspect.Type) -> bool:
    if not isinstance(info, inspect.UnionType):
        return False
    kinds = {type(one) for one in info.types}
    return inspect.NoneType in kinds and kinds <= _NO_TEXT
