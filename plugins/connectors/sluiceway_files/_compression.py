"""Compressed files, by suffix or by name."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from sluiceway.errors import ConfigurationError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override

__all__ = ["SUFFIXES", "Compression", "check", "compressing", "damaged_errors", "decompressing", "of_name"]

Compression: TypeAlias = Literal["gzip", "bz2", "xz", "zstd"]

SUFFIXES: Final[dict[Compression, str]] = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "zstd": ".zst"}
_BY_SUFFIX: Final[dict[str, Compression]] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}

_READ: Final = 1 << 14
"""Bytes that are read at a time."""

_ZSTD_READ: Final = 1 << 10
"""Compressed bytes of Zstandard at a time, whose library has no limit for the others: four may be 128 KiB."""


def damaged_errors() -> tuple[type[Exception], ...]:
    """Return the errors of decompressors for damaged data, besides OSError and EOFError."""
    zstandard = sys.modules.get("zstandard")
    return (zlib.error, lzma.LZMAError) if zstandard is None else (zlib.error, lzma.LZMAError, zstandard.ZstdError)


def check(compression: str | None, *more: str) -> None:
    """Raise ConfigurationError for an unknown name, MissingExtraError for a missing library."""
    if compression is None or compression in more:
        return
    if compression not in SUFFIXES:
        known = ", ".join(map(repr, [*more, *SUFFIXES]))
        raise ConfigurationError(f"compression={compression!r} must be one of {known}, or None")
    if compression == "zstd":
        _zstandard()


def of_name(name: str) -> Compression | None:
    """Return the compression that a file name implies."""
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.lower().endswith(suffix)), None)


def decompressing(raw: Any, compression: Compression | None) -> Any:
    """Return ``raw`` itself or a decompressing file over it. Closing it leaves ``raw`` open."""
    if compression is None:
        return raw
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if compression == "bz2":
        streams = _Streams(raw, bz2.BZ2Decompressor)
    elif compression == "xz":
        # Without its format, a decompressor takes other data, such as zeros, for the older one that has no checks.
        streams = _Streams(raw, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), is_padded=True)
    else:
        streams = _Streams(raw, _ZstdFrame)
    return io.BufferedReader(streams, _READ)


def compressing(raw: Any, compression: Compression | None) -> Any:
    """Return ``raw`` itself or a compressing file over it. Closing it leaves ``raw`` open."""
    if compression is None:
        return raw
    if compression == "gzip":
        return gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
    if compression == "bz2":
        return bz2.BZ2File(raw, "wb")
    if compression == "xz":
        return lzma.LZMAFile(raw, "wb")
    # As the other formats and the program zstd have it, not as the library has it by default.
    return _zstandard().ZstdCompressor(write_checksum=True).stream_writer(raw, closefd=False)


class _Streams(io.RawIOBase):
    """Decompressed bytes of all streams of a file, the last of which has to be whole. An empty file has none.

    The files of :mod:`bz2` and :mod:`lzma` take damage at the beginning of a further stream for the end of the
    data, and the ``stream_reader`` of ``zstandard`` the end of the file for the end of a frame: what they return
    then is less than was written, without an error.

    Args:
        raw: the compressed file.
        create: returns the decompressor of a stream, an object as :class:`bz2.BZ2Decompressor`.
        is_padded: True if zeros may stand behind a stream.
    """

    def __init__(self, raw: Any, create: Callable[[], Any], *, is_padded: bool = False) -> None:
        self._raw, self._create, self._is_padded = raw, create, is_padded
        self._stream: Any = None  # before the first one, and between two
        self._is_first = True
        self._compressed = b""

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        while self._stream is not None or self._begin():
            if self._stream.needs_input and not self._compressed:
                self._compressed = self._raw.read(_READ)
                if not self._compressed:
                    raise EOFError("Compressed file ended before the end of a stream")
            data = self._stream.decompress(self._compressed, len(buffer))
            self._compressed = b""
            if self._stream.eof:
                self._compressed, self._stream = self._stream.unused_data, None
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def _begin(self) -> bool:
        """Begin the next stream, if there is one."""
        while True:
            self._compressed = self._compressed or self._raw.read(_READ)
            if not self._compressed:
                return False
            if self._is_padded and not self._is_first:
                self._compressed = self._compressed.lstrip(b"\0")
            if self._compressed:
                self._stream, self._is_first = self._create(), False
                return True


class _ZstdFrame:
    """A frame of Zstandard, with the methods of :class:`bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._frame = _zstandard().ZstdDecompressor().decompressobj()
        self._compressed = memoryview(b"")
        self._ready = memoryview(b"")

    @property
    def needs_input(self) -> bool:
        return not self._ready and not self._compressed

    @property
    def eof(self) -> bool:
        return bool(self._frame.eof) and not self._ready

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data) + bytes(self._compressed)

    def decompress(self, data: bytes, max_length: int) -> memoryview:
        if data:
            self._compressed = memoryview(data)
        if not self._ready:
            self._ready = memoryview(self._frame.decompress(self._compressed[:_ZSTD_READ]))
            self._compressed = self._compressed[_ZSTD_READ:]
        part, self._ready = self._ready[:max_length], self._ready[max_length:]
        return part


def _zstandard() -> Any:
    if importlib.util.find_spec("zstandard") is None:
        raise MissingExtraError(f"files compressed with zstd need zstandard: {install_command('sluiceway[zstd]')}")
    import zstandard

    return zstandard
