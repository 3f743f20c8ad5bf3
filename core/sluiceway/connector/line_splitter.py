"""Bytes into lines: for connectors that read text, wherever the pieces they get happen to break off.

:class:`LineBuffer` finds whole lines in a stream of pieces, :class:`LineDecoder` turns a block of whole
lines into strings. Both work in bulk: a block is searched, decoded and split as one.
"""

from __future__ import annotations

import codecs
from typing import Final, Literal, TypeAlias, get_args

from sluiceway.errors import ConfigurationError, RejectedRecordError

__all__ = ["DEFAULT_MAX_LINE_LENGTH", "DecodeErrors", "LineBuffer", "LineDecoder", "check_encoding"]

DecodeErrors: TypeAlias = Literal["strict", "replace", "ignore", "skip"]
"""Handling of a line with undecodable bytes: the job fails, U+FFFD takes their place, they are left out,
or the line is left out."""

DEFAULT_MAX_LINE_LENGTH: Final = 16 * 1024 * 1024
"""Bytes in a line before it is taken for a sign that the delimiter is wrong."""

# Bytes of a character can be mistaken for those of a delimiter, or mean different things at different places.
_NOT_BY_BYTES: Final = (
    "utf-16",
    "utf-32",
    "utf-7",
    "utf-8-sig",
    "hz",
    "iso2022",
    "punycode",
    "idna",
    "undefined",
    "unicode-escape",
    "raw-unicode-escape",
)
# A second byte may be any from 0x30 on, also that of an ASCII letter or sign.
_WIDE: Final = ("gb", "big5", "cp932", "cp949", "cp950", "euc_j", "euc_k", "johab", "shift_j")
_LOWEST_SECOND_BYTE: Final = 0x30
# Here, decoding and then splitting gives the same as splitting and then decoding.
_BULK: Final = ("utf-8", "ascii", "iso8859-1")
_SHOWN: Final = 60


class LineBuffer:
    """Buffer of the beginning of a line whose delimiter has not been read yet.

    Args:
        delimiter: what ends a line; may straddle the pieces.
        max_line_length: bytes of a line, without its delimiter, above which :meth:`feed` fails.
        where: the place for messages: ``127.0.0.1:9999``, a path.
    """

    def __init__(self, delimiter: bytes, max_line_length: int, where: str) -> None:
        self._delimiter = delimiter
        self._max = max_line_length
        self._where = where
        self._pending = bytearray()
        # "aa" in "aaa" ends at 2 seen from the left, at 3 from the right.
        self._overlaps = any(delimiter.startswith(delimiter[k:]) for k in range(1, len(delimiter)))

    def feed(self, data: bytes) -> bytes:
        """Take the next piece; return the lines that are complete now, delimiters included, or ``b""``.

        Raises:
            RejectedRecordError: a line is longer than allowed.
        """
        pending = self._pending
        if pending:
            # Only the seam is searched: what is pending has no delimiter, so a long line costs its length once,
            # not once for each piece.
            straddle = len(self._delimiter) - 1
            seam = bytes(pending[-straddle:]) + data if straddle else data
            if self._delimiter not in seam:
                pending += data
                self._check_pending()
                return b""
            data = bytes(pending) + data
            pending.clear()
        end = self._end_of_last_line(data)
        if end < len(data):
            pending += data[end:]
            self._check_pending()
            data = data[:end]
        if len(data) > self._max:
            for line in data.split(self._delimiter):
                self._check(line)
        return data

    def finish(self) -> bytes:
        """Return what is left without a delimiter, and forget it."""
        tail = bytes(self._pending)
        self._pending.clear()
        return tail

    def _end_of_last_line(self, data: bytes) -> int:
        if self._overlaps:
            return len(data) - len(data.split(self._delimiter)[-1])
        found = data.rfind(self._delimiter)
        return 0 if found < 0 else found + len(self._delimiter)

    def _check_pending(self) -> None:
        if len(self._pending) > self._max:
            self._check(bytes(self._pending))

    def _check(self, line: bytes) -> None:
        if len(line) > self._max:
            raise RejectedRecordError(
                f"{self._where}: a line is longer than max_line_length={self._max} bytes. It begins with "
                f"{line[:_SHOWN]!r}. Is {self._delimiter!r} what ends a line here? If so, allow more."
            )


class LineDecoder:
    """Decoder of blocks of whole lines into strings.

    A carriage return before a delimiter that is a line feed is taken away with it.

    Args:
        delimiter: what ends a line.
        encoding: name of a Python text encoding.
        errors: what to do with undecodable bytes.
        where: the place for messages.

    Attributes:
        lines: how many lines have come so far.
        skipped: how many of them were left out.

    Raises:
        ConfigurationError: such lines cannot be told apart in bytes, or there is no such encoding or policy.
    """

    def __init__(self, delimiter: str, encoding: str, errors: DecodeErrors, where: str) -> None:
        name = check_encoding(encoding, delimiter)
        if errors not in get_args(DecodeErrors):
            raise ConfigurationError(
                f"errors={errors!r} must be one of {', '.join(map(repr, get_args(DecodeErrors)))}"
            )
        self._text_delimiter = delimiter
        self.delimiter = delimiter.encode(encoding)
        self._encoding = encoding
        self._errors = errors
        self._where = where
        self._cr = "\r".encode(encoding) if delimiter == "\n" else b""
        self._bulk = name in _BULK
        self.lines = 0
        self.skipped = 0

    def decode(self, block: bytes) -> list[str]:
        """Return the lines of a block that ends with a delimiter.

        Raises:
            RejectedRecordError: bytes cannot be decoded and the policy is ``strict``.
        """
        if not block:
            return []
        if self._bulk:
            try:
                text = block.decode(self._encoding)
            except UnicodeDecodeError:
                pass
            else:
                if self._cr and "\r" in text:
                    text = text.replace("\r\n", "\n")
                lines = text.split(self._text_delimiter)
                lines.pop()
                self.lines += len(lines)
                return lines
        parts = block.split(self.delimiter)
        parts.pop()
        if self._cr:
            parts = [part.removesuffix(self._cr) for part in parts]
        return self._one_by_one(parts)

    def decode_tail(self, tail: bytes) -> list[str]:
        """Return the last line, which no delimiter ended: none if it is empty."""
        return self._one_by_one([tail]) if tail else []

    def _one_by_one(self, parts: list[bytes]) -> list[str]:
        encoding, errors = self._encoding, self._errors
        policy = "strict" if errors == "skip" else errors
        lines = []
        for part in parts:
            self.lines += 1
            try:
                lines.append(part.decode(encoding, policy))
            except UnicodeDecodeError as error:
                if errors != "skip":
                    raise RejectedRecordError(
                        f"{self._where}, line {self.lines}: byte 0x{part[error.start]:02x} at position "
                        f"{error.start} is not {encoding} ({error.reason}), in {part[:_SHOWN]!r}. Set encoding=, "
                        f"or say what is to become of such lines: errors='replace', 'ignore' or 'skip'"
                    ) from error
                self.skipped += 1
        return lines


def check_encoding(encoding: str, delimiter: str) -> str:
    """Return the canonical name of ``encoding``, if the delimiter's bytes separate lines in it.

    Raises:
        ConfigurationError: they do not, or there is no such encoding, or the delimiter is empty.
    """
    try:
        info = codecs.lookup(encoding)
        "".encode(encoding)
    except (LookupError, UnicodeError):
        raise ConfigurationError(f"encoding={encoding!r} is not a text encoding that Python knows") from None
    if not delimiter:
        raise ConfigurationError("delimiter= is empty; lines end with at least one character")
    name = info.name.lower()
    try:
        ending = delimiter.encode(encoding)
    except UnicodeEncodeError:
        raise ConfigurationError(f"delimiter={delimiter!r} cannot be written in encoding={encoding!r}") from None
    wide = name.startswith(_WIDE) and max(ending) >= _LOWEST_SECOND_BYTE
    if name.startswith(_NOT_BY_BYTES) or wide:
        raise ConfigurationError(
            f"lines that end with {delimiter!r} cannot be told apart in bytes of encoding={encoding!r}: "
            "have the text sent or stored as utf-8"
        )
    return name
