"""What can be set: environment variables, since backends are chosen by name alone."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluiceway.errors import ConfigurationError

__all__ = ["RocksDBOptions"]

_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}
_COMPRESSIONS: Final = ("lz4", "zstd", "snappy", "none")


@dataclass(frozen=True, slots=True)
class RocksDBOptions:
    """The settings of all RocksDB backends of a process.

    Attributes:
        directory: where the databases are; a fast local disk.
        cache: bytes of memory for the objects that are in use, per subtask; an estimate.
        block_cache: bytes of memory for what was read of the files, per subtask.
        write_buffer: bytes of a memtable.
        compression: of the files: ``lz4``, ``zstd``, ``snappy``, ``none``.
        background_jobs: threads that flush and compact, per subtask.
    """

    directory: str = ""
    cache: int = 64 << 20
    block_cache: int = 32 << 20
    write_buffer: int = 32 << 20
    compression: str = "lz4"
    background_jobs: int = 2

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RocksDBOptions:
        """What ``SLUICEWAY_ROCKSDB_...`` says. Raises ConfigurationError, which names the variable."""
        env = os.environ if environ is None else environ
        return cls(
            directory=env.get("SLUICEWAY_ROCKSDB_DIRECTORY") or tempfile.gettempdir(),
            cache=_size(env, "SLUICEWAY_ROCKSDB_CACHE", cls().cache),
            block_cache=_size(env, "SLUICEWAY_ROCKSDB_BLOCK_CACHE", cls().block_cache),
            write_buffer=_size(env, "SLUICEWAY_ROCKSDB_WRITE_BUFFER", cls().write_buffer),
            compression=_compression(env),
            background_jobs=_jobs(env),
        )


def _size(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS or not int(match[1]):
        raise ConfigurationError(f"{name}={text!r} is not a size such as 64mb, 1gb or a number of bytes")
    return int(match[1]) * _UNITS[match[2]]


def _compression(env: Mapping[str, str]) -> str:
    name = "SLUICEWAY_ROCKSDB_COMPRESSION"
    text = (env.get(name) or RocksDBOptions().compression).strip().lower()
    if text not in _COMPRESSIONS:
        raise ConfigurationError(f"{name}={text!r} is not one of {', '.join(_COMPRESSIONS)}")
    return text


def _jobs(env: Mapping[str, str]) -> int:
    name = "SLUICEWAY_ROCKSDB_BACKGROUND_JOBS"
    text = env.get(name)
    if not text:
        return RocksDBOptions().background_jobs
    if not text.strip().isdecimal() or not int(text):
        raise ConfigurationError(f"{name}={text!r} is not a whole number >= 1")
    return int(text)
