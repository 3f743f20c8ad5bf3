"""Blocks of whole lines of a file or a part of it."""

from __future__ import annotations

import io
import os
from typing import Any, Final
from zlib import crc32

from sluiceway.connector.line_splitter import LineBuffer
from sluiceway.errors import ConnectorError, SuppressRestartsError
from sluiceway_files._compression import decompressing
from sluiceway_files._splits import FileSplit, OpenFile

__all__ = ["ADVICE", "COLUMNS_CHUNK", "LF", "Blocks", "FileReplacedError", "FileShortenedError", "cut", "tail_of"]

LF: Final = b"\n"
_CHUNK: Final = 256 * 1024
COLUMNS_CHUNK: Final = 2 * 1024 * 1024
"""Bytes to read at once where they become columns: some 30,000 rows."""
_TAIL: Final = 1024
"""Bytes before the end of a file that tell it from another one of its name."""
ADVICE: Final = (
    "Records may be missing: put the whole file back and begin again from the last checkpoint, and write to "
    "another name and rename what is complete"
)
_BOM: Final = b"\xef\xbb\xbf"


class FileShortenedError(ConnectorError, SuppressRestartsError):
    """A file is shorter than what was to be read of it. No restart: it would end quietly, with fewer records."""


class FileReplacedError(ConnectorError, SuppressRestartsError):
    """A file is another one than the file that was begun. No restart: it would mix the records of both."""


class Blocks:
    """Reader of the lines that begin in a split, in blocks.

    A line belongs to the part of the file in which it begins, so it is read beyond the part's end. Lines end
    with a line feed.

    Args:
        file: file to read; owned by the caller.
        split: the part.
        max_line_length: bytes of a line above which reading fails.
        chunk: bytes to read at once; None: 256 KiB.

    Attributes:
        offset: offset of the next block in the (decompressed) file.
        ended: whether all blocks were read.
    """

    def __init__(self, file: OpenFile, split: FileSplit, max_line_length: int, chunk: int | None = None) -> None:
        self._name, self._raw, self._split = file.name, file.raw, split
        self._block = b""  # the last one
        self._file: Any = decompressing(file.raw, file.compression)
        self._owned = self._file is not file.raw
        self._end = split.end
        self._chunk = chunk or _CHUNK
        self._buffer = LineBuffer(LF, max_line_length, file.name)
        self.ended = False
        # A part starts with the first line that begins in it: after the first line feed from the byte before.
        self._aligned = split.offset is not None or split.start == 0
        self.offset = split.offset if split.offset is not None else max(split.start - 1, 0)
        self._begin = self._to_skip = self.offset
        self._read_to = self.offset
        # The file had as many bytes at least: when it was opened, when it was listed, or when it was read before.
        self._least = _size(self._raw) or 0
        if not self._owned:
            # Of a file that is read as a whole and was not begun, another one is as good.
            listed = split.size or 0 if split.tail or split.offset is not None else 0
            self._least = max(self._least, listed, split.start, split.end or 0, self.offset)
            self._check_tail()
            self._check_before()
            self._file.seek(self.offset, io.SEEK_SET)
            self._to_skip = 0

    @property
    def behind(self) -> bool:
        """True while a compressed file is read up to the position; such a chunk has no lines."""
        return self._to_skip > 0

    def read(self) -> tuple[int, bytes]:
        """Read one chunk of the file; return the offset of its lines, and the lines.

        The last line may lack its line feed. Without lines, call again unless ``ended`` is true.

        Raises:
            FileShortenedError: the file ends before the end that it had when it was opened, or before a place up
                to which it was read.
            FileReplacedError: it is another one than the file that was listed or begun.
        """
        if self._to_skip:
            # A compressed file is read from its start. A chunk per call, so that other tasks run in between.
            skipped = self._file.read(min(self._to_skip, _CHUNK))
            if not skipped:
                raise FileShortenedError(
                    f"{self._name} was shortened or replaced since it was read: decompressed, it was read up to "
                    f"byte {self.offset}, and ends at byte {self.offset - self._to_skip} now. {ADVICE}"
                )
            self._to_skip -= len(skipped)
            return self.offset, b""
        data: bytes = self._file.read(self._chunk)
        self._read_to += len(data)
        if not data:
            self._check_size()
        start, block = self._lines_of(data) if self._aligned else self._align(data)
        if self.ended:
            self._check_tail()  # it may have been overwritten after it was opened
        if block:
            self._block = block
            self._check_seen(start)
        return start, block

    def seen(self, lines: int) -> int:
        """Return the CRC-32 of the first lines of the last block."""
        end = 0
        for _ in range(lines):
            end = self._block.find(LF, end) + 1 or len(self._block)
        return crc32(memoryview(self._block)[:end])

    def seen_before(self) -> int:
        """Return the CRC-32 of the bytes before the offset, which the last block ends with; 0: not known."""
        end = self._block[-_TAIL:]
        return crc32(end) if len(end) == min(_TAIL, self.offset) else 0

    def _check_before(self) -> None:
        split = self._split
        if split.offset is None or split.skip or not split.seen or tail_of(self._raw, split.offset) == split.seen:
            return
        self._check_size()
        raise FileReplacedError(
            f"{self._name} was replaced or edited since it was read: the bytes before byte {split.offset}, up to "
            f"which it was read, are others. {ADVICE}"
        )

    def _check_seen(self, start: int) -> None:
        split = self._split
        # Fewer lines are another matter, and the readers'. What follows the position may have been corrected.
        has_them = split.skip and start == split.offset and self._block.count(LF) >= split.skip
        if has_them and split.seen not in (0, self.seen(split.skip)):
            raise FileReplacedError(
                f"{self._name} was replaced or edited since it was read: the {split.skip} lines after byte "
                f"{start} are not those that were read. {ADVICE}"
            )

    def lacking(self, skip: int, lacking: int, unit: str) -> FileShortenedError:
        """Return the error of a file that ends before the position.

        Args:
            skip: records or lines of the position, after its offset.
            lacking: how many of them are not in the file.
            unit: what is counted.
        """
        return FileShortenedError(
            f"{self._name} was shortened or replaced since it was read: {skip} {unit} after byte {self._begin} "
            f"were read, and it has {skip - lacking} there now. {ADVICE}"
        )

    def close(self) -> None:
        """Close the decompressor."""
        if self._owned:
            self._file.close()

    def _check_tail(self) -> None:
        split = self._split
        if not split.tail or split.size is None or tail_of(self._raw, split.size) == split.tail:
            return
        self._check_size()
        raise FileReplacedError(
            f"{self._name} was replaced or edited since it was listed: the bytes up to byte {split.size}, where "
            f"it ended, are others, and it is read in several parts. {ADVICE}"
        )

    def _check_size(self) -> None:
        size = _size(self._raw)
        if size is None:
            size = self._least if self._owned else self._read_to
        if size < self._least:
            read = "" if self._owned else f", and was read up to byte {self._read_to}"
            raise FileShortenedError(
                f"{self._name} was shortened while it was read: it had {self._least} bytes, has {size} now{read}. "
                f"{ADVICE}"
            )

    def _align(self, data: bytes) -> tuple[int, bytes]:
        found = data.find(LF)
        self.offset += len(data) if found < 0 else found + 1
        if not data or (self._end is not None and self.offset >= self._end):
            self.ended = True  # one line covers this whole part
            return self.offset, b""
        if found < 0:
            return self.offset, b""
        self._aligned = True
        rest = data[found + 1 :]
        return self._lines_of(rest) if rest else (self.offset, b"")

    def _lines_of(self, data: bytes) -> tuple[int, bytes]:
        start = self.offset
        if data:
            block = self._buffer.feed(data)
        else:
            block = self._buffer.finish()
            self.ended = True
        self.offset += len(block)
        if self._end is not None and self.offset >= self._end:
            self.ended = True
            if start >= self._end:
                block = b""
            elif self.offset > self._end:
                # The last line of this part is the one that crosses the byte before its end.
                last = block.find(LF, self._end - 1 - start)
                block = block[: last + 1] if last >= 0 else block
            self.offset = start + len(block)
        return start, block[len(_BOM) :] if start == 0 and block.startswith(_BOM) else block


def _size(raw: Any) -> int | None:
    """Return the present size of a file; None if its filesystem does not say."""
    try:
        return os.fstat(raw.fileno()).st_size
    except (AttributeError, OSError, ValueError):
        # Of remote files, the size when they were opened.
        size = getattr(raw, "size", None)
        return size if isinstance(size, int) else None


def tail_of(raw: Any, size: int) -> int:
    """Return the CRC-32 of the last bytes of a file that has this size, or had it. Moves the position."""
    start = max(size - _TAIL, 0)
    raw.seek(start)
    return crc32(raw.read(size - start))


def cut(size: int | None, split_size: int) -> list[tuple[int, int | None]]:
    """Return start and end of the parts of a file; parts have at least half of ``split_size``."""
    parts = 1 if size is None else max(round(size / split_size), 1)
    if size is None or parts == 1:
        return [(0, None)]
    starts = [size * i // parts for i in range(parts)]
    ends: list[int | None] = [*starts[1:], None]
    return list(zip(starts, ends, strict=True))
