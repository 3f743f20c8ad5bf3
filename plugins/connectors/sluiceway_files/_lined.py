"""Formats with a record per line: plain text and JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import msgspec

from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.connector.line_splitter import DecodeErrors, LineDecoder
from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway.util.overriding import override
from sluiceway_files._blocks import LF, Blocks, cut, tail_of
from sluiceway_files._compression import Compression
from sluiceway_files._places import Found
from sluiceway_files._splits import FileSplit, Format, OpenFile, SplitReader

__all__ = ["UNDECODABLE", "Decoder", "JsonLines", "LineReader", "OnError", "Text"]

_CHUNK: Final = 1 << 20

OnError = Literal["fail", "skip"]

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a line that is no JSON, or is nested too deep."""


class Decoder(Protocol):
    """Decoder of blocks of whole lines, which counts them."""

    lines: int

    @property
    def skipped(self) -> int:
        """Number of lines left out."""

    def decode(self, block: bytes) -> Any:
        """Return the records of a block, as a list or as Columns."""


@dataclass(frozen=True)
class _Lined(Format):
    max_line_length: int

    def plan(
        self, file: Found, name: str, opener: Callable[[], Any], compression: Compression | None, split_size: int
    ) -> list[FileSplit]:
        whole = FileSplit(file.root, file.path, size=file.size)
        parts = cut(file.size, split_size)
        if compression is not None or file.size is None or len(parts) == 1:
            return [whole]
        with opener() as raw:
            try:
                tail = tail_of(raw, file.size)
            except (OSError, ValueError, NotImplementedError):
                return [whole]  # some HTTP servers send files from their start only
        return [replace(whole, start=start, end=end, tail=tail) for start, end in parts]

    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        return LineReader(Blocks(file, split, self.max_line_length), self.decoder, split, file)

    def decoder(self, name: str) -> Decoder:
        raise NotImplementedError


@dataclass(frozen=True)
class Text(_Lined):
    """Format with a string per line."""

    encoding: str
    errors: DecodeErrors
    suffix = ".txt"

    @property
    def output_type(self) -> Any:
        """Return str."""
        return str

    def decoder(self, name: str) -> Decoder:
        return _TextDecoder(LineDecoder("\n", self.encoding, self.errors, name))


@dataclass(frozen=True)
class JsonLines(_Lined):
    """Format with a JSON value per line that is not blank.

    Attributes:
        type: of the values.
        on_error: what to do with a line that is not of the type.
        schema: the ``pyarrow.Schema`` that the type was made of, or None.
    """

    type: Any
    on_error: OnError
    schema: Any = None
    suffix = ".jsonl"

    @property
    @override
    def output_type(self) -> Any:
        return self.type

    def decoder(self, name: str) -> Decoder:
        return _JsonDecoder(self.type, self.on_error, name)


class _TextDecoder:
    def __init__(self, decoder: LineDecoder) -> None:
        self._decoder = decoder

    @property
    def lines(self) -> int:
        return self._decoder.lines

    @lines.setter
    def lines(self, lines: int) -> None:
        self._decoder.lines = lines

    @property
    def skipped(self) -> int:
        return self._decoder.skipped

    def decode(self, block: bytes) -> list[str]:
        return self._decoder.decode(block) if block.endswith(LF) else self._decoder.decode_tail(block)


class _JsonDecoder:
    def __init__(self, of_type: Any, on_error: OnError, name: str) -> None:
        self._decode = msgspec.json.Decoder(Any if of_type is None else of_type).decode
        self._skips = on_error == "skip"
        self._name = name
        self.lines = 0
        self.skipped = 0

    def decode(self, block: bytes) -> list[Any]:
        # Not decode_lines(): it takes values that share a line, or lie across lines, as long as all of them are
        # right, so what becomes of a line would depend on the others of its block.
        lines = block.removesuffix(LF).split(LF)
        try:
            records = list(map(self._decode, lines))
        except UNDECODABLE:  # of blank lines, too
            return self._one_by_one(lines)
        self.lines += len(lines)
        return records

    def _one_by_one(self, lines: Sequence[bytes]) -> list[Any]:
        records = []
        for line in lines:
            self.lines += 1
            if not line.strip():
                continue
            try:
                records.append(self._decode(line))
            except UNDECODABLE as error:
                if not self._skips:
                    raise RejectedRecordError(
                        f"{self._name}, line {self.lines}: {error}, in {line[:80]!r}. on_error='skip' leaves such "
                        f"lines out"
                    ) from error
                self.skipped += 1
        return records


class LineReader(SplitReader):
    """Reader of the lines of a split.

    Args:
        blocks: of the split.
        decoder_of: creates a decoder; given the name of the file for messages.
        split: the split.
        file: the file.
    """

    def __init__(
        self, blocks: Blocks, decoder_of: Callable[[str], Decoder], split: FileSplit, file: OpenFile
    ) -> None:
        name = file.name if split.start == 0 else f"{file.name}, after byte {split.start}"
        self._blocks = blocks
        self._decoder_of = decoder_of
        self._decoder = decoder = decoder_of(name)
        self._file = file
        self._skipped = file.metrics.counter("records_skipped")
        self._records: Sequence[Any] = []
        self._split = split  # once a block was read, its offset and line are those of the block
        self._begun = False
        self._taken = 0
        self._skip = self._to_skip = split.skip
        decoder.lines = split.line

    def read(self, limit: int) -> Any:
        if self._taken == len(self._records):
            if not self._blocks.ended:
                self._next_block()
            if self._taken == len(self._records):
                if self._blocks.ended and self._to_skip:
                    raise self._blocks.lacking(self._skip, self._to_skip, "records")
                # Of blank lines, for example: there is more to read, and other tasks may run first.
                return END_OF_INPUT if self._blocks.ended else Wait(until=0.0)
        taken = self._taken
        self._taken = min(taken + limit, len(self._records))
        return self._records[taken : self._taken]

    def position(self) -> FileSplit | None:
        if not self._begun:
            return self._split
        if self._taken < len(self._records):
            return replace(self._split, skip=self._taken, seen=self._blocks.seen(self._taken))
        if self._blocks.ended:
            return None
        seen = 0 if self._to_skip else self._blocks.seen_before()
        return replace(
            self._split, offset=self._blocks.offset, skip=self._to_skip, line=self._decoder.lines, seen=seen
        )

    def close(self) -> None:
        self._blocks.close()

    def _next_block(self) -> None:
        line, skipped = self._decoder.lines, self._decoder.skipped
        offset, block = self._blocks.read()
        if not block:
            return
        failure: ConnectorError | None = None
        try:
            self._records = self._decoder.decode(block)
        except ConnectorError as error:
            failure = error
        if failure is not None:
            # Outside of the handler, where the failure would become the context of the one with another number.
            raise self._in_file(failure, block, line)
        if not self._to_skip:  # else the reader before has counted those of this block
            self._skipped.inc(self._decoder.skipped - skipped)
        self._taken = min(self._to_skip, len(self._records))
        self._to_skip -= self._taken
        self._split = replace(self._split, offset=offset, line=line)
        self._begun = True

    def _in_file(self, error: ConnectorError, block: bytes, line: int) -> ConnectorError:
        """Return the error with its line number in the file, if its line is in a part of the file."""
        start = self._split.start
        if start == 0:
            return error
        try:
            before = (
                _count_lines(self._file.raw, start - 1) + 1
            )  # including the line that crosses the start of this part
            decoder = self._decoder_of(self._file.name)
            decoder.lines = before + line
            decoder.decode(block)
        except ConnectorError as numbered:
            return numbered
        except (OSError, ValueError):  # the file is deleted, or cannot be read again
            pass
        return error


def _count_lines(raw: Any, end: int) -> int:
    """Return the number of line feeds before a byte of a file. Moves the position."""
    raw.seek(0)
    count = 0
    while end > 0 and (data := raw.read(min(end, _CHUNK))):
        count += data.count(LF)
        end -= len(data)
    return count
