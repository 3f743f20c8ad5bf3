"""Compressed files, by suffix or by name."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import sys
import zlib
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

_ZSTD_READ: Final = 1 << 14
"""Compressed bytes at a time: a block of 128 KiB may be written in four."""


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
        return bz2.BZ2File(raw, "rb")
    if compression == "xz":
        return lzma.LZMAFile(raw, "rb")
    return io.BufferedReader(_ZstdFrames(raw), _ZSTD_READ)


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
    return _zstandard().ZstdCompressor().stream_writer(raw, closefd=False)


class _ZstdFrames(io.RawIOBase):
    """Decompressed bytes of all frames of a file, the last of which has to be whole.

    The library's own ``stream_reader`` takes the end of the file for the end of a frame, and returns what it has
    decompressed so far: nothing, or less than was written.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._decompressor = _zstandard().ZstdDecompressor()
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            if not self._compressed:
                self._compressed = self._raw.read(_ZSTD_READ)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of a frame")
                return 0
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(self._compressed))
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _zstandard() -> Any:
    if importlib.util.find_spec("zstandard") is None:
        raise MissingExtraError(f"files compressed with zstd need zstandard: {install_command('sluiceway[zstd]')}")
    import zstandard

    return zstandard
