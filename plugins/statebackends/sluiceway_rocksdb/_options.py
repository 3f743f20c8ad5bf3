"""Options of the backend, set by environment variables as backends are chosen by name alone."""

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
    """Options of all RocksDB backends of a process.

    Attributes:
        directory: where the databases are; a fast local disk.
        cache: bytes of memory for the objects that are in use, per subtask; an estimate.
        block_cache: bytes of memory for what was read of the files, per subtask.
        write_buffer: bytes of a memtable.
        compression: of the files: ``lz4``, ``zstd``, ``snappy``, ``none``.
        background_jobs: threads that flush and compact, per subtask.
        cache_entries: so many objects in use, whatever their size; 0: as many as ``cache`` has room for.
        bloom_bits: bits for each row, by which files are known not to have it; 0: none.
        changes: so many files of changes a checkpoint has at the most, besides the files of a database; 0: what
            has changed is written to the database for each.
        columns: bytes of memory for the aggregates and the kept rows of a step in columns, per subtask; more is in
            the database.
    """

    directory: str = ""
    cache: int = 64 << 20
    block_cache: int = 32 << 20
    write_buffer: int = 32 << 20
    compression: str = "lz4"
    background_jobs: int = 2
    cache_entries: int = 0
    bloom_bits: int = 10
    changes: int = 32
    columns: int = 256 << 20

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RocksDBOptions:
        """Return the options in ``SLUICEWAY_ROCKSDB_...``. Raises ConfigurationError, naming the variable."""
        env = os.environ if environ is None else environ
        return cls(
            directory=env.get("SLUICEWAY_ROCKSDB_DIRECTORY") or tempfile.gettempdir(),
            cache=_size(env, "SLUICEWAY_ROCKSDB_CACHE", cls().cache),
            block_cache=_size(env, "SLUICEWAY_ROCKSDB_BLOCK_CACHE", cls().block_cache),
            write_buffer=_size(env, "SLUICEWAY_ROCKSDB_WRITE_BUFFER", cls().write_buffer),
            compression=_compression(env),
            background_jobs=_number(env, "SLUICEWAY_ROCKSDB_BACKGROUND_JOBS", cls().background_jobs, 1),
            cache_entries=_number(env, "SLUICEWAY_ROCKSDB_CACHE_ENTRIES", cls().cache_entries, 1),
            bloom_bits=_number(env, "SLUICEWAY_ROCKSDB_BLOOM_BITS", cls().bloom_bits, 0),
            changes=_number(env, "SLUICEWAY_ROCKSDB_CHANGES", cls().changes, 0),
            columns=_size(env, "SLUICEWAY_ROCKSDB_COLUMNS", cls().columns),
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


def _number(env: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r} is not a whole number >= {least}")
    return int(text)
