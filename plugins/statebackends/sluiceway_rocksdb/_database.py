"""Database of one subtask: working state on disk, which need not survive the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from sluiceway.errors import StateError
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._row_keys import upper

__all__ = ["Database", "rows_of"]

_BATCH: Final = 500  # rows; a batch is written without letting other threads go on
_SORTED: Final = 4_000  # rows; more take longer than another thread should wait


class Database:
    """Database of sorted rows of bytes.

    Used from the thread that has the state, and from the one that makes a snapshot, of which one at a time writes.

    Args:
        path: of the directory; made if it is not there.
        options: of all databases.

    Raises:
        StateError: it cannot be opened; names the directory.
    """

    def __init__(self, path: str, options: RocksDBOptions) -> None:
        self.path = path
        try:
            self._db = Rdict(path, _options(options))
        except Exception as error:  # the library has no errors of its own
            raise StateError(f"state backend 'rocksdb' cannot open its database in {path}: {error}") from error
        # A checkpoint has all that must outlive the process, so there is no log.
        write_options = WriteOptions()
        write_options.disable_wal = True  # type: ignore[method-assign, assignment]  # it is an attribute
        self._db.set_write_options(write_options)

    def get(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        try:
            return self._db.get(key)
        except Exception as error:
            raise self._cannot_read(error) from error

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the rows of many keys, None for missing ones."""
        try:
            return self._db.get(keys)  # type: ignore[arg-type, return-value]  # a list of bytes is one
        except Exception as error:
            raise self._cannot_read(error) from error

    def _cannot_read(self, error: Exception) -> StateError:
        return StateError(f"state backend 'rocksdb' cannot read its database in {self.path}: {error}")

    def _cannot_write(self, error: Exception) -> StateError:
        return StateError(f"state backend 'rocksdb' cannot write to {self.path}: {error}")

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put rows; those with None are deleted. Each has a key of its own."""
        rows = iter(rows)
        while chunk := list(islice(rows, _SORTED)):
            chunk.sort(key=itemgetter(0))  # neighbours are put much faster than what is all over the place
            for begin in range(0, len(chunk), _BATCH):
                batch = WriteBatch(raw_mode=True)
                put = batch.put
                for key, value in chunk[begin : begin + _BATCH]:
                    if value is None:
                        batch.delete(key)
                    else:
                        put(key, value)
                self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            raise self._cannot_write(error) from error

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete the rows from ``begin`` to before ``end``."""
        try:
            self._db.delete_range(begin, end)
        except Exception as error:
            raise self._cannot_write(error) from error

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows whose keys begin with ``prefix``, as of the first step."""
        try:
            yield from rows_of(self._db, prefix)
        except Exception as error:
            raise self._cannot_read(error) from error

    def first_key(self, at_least: bytes) -> bytes | None:
        """Return the least key that is not less than a key."""
        iterator = self._db.iter()
        iterator.seek(at_least)
        if iterator.valid():
            return bytes(iterator.key())
        try:
            iterator.status()
        except Exception as error:
            raise self._cannot_read(error) from error
        return None

    def checkpoint(self, path: str) -> None:
        """Make a copy of hard links. Other threads go on meanwhile."""
        try:
            self._db.flush(
                True
            )  # so that there is little left to be done by the next line, which lets nobody go on
            Checkpoint(self._db).create_checkpoint(path)
        except Exception as error:
            raise StateError(
                f"state backend 'rocksdb' cannot make a checkpoint of {self.path} in {path}: {error}"
            ) from error

    def close(self) -> None:
        """Close it. What it cannot write any more is in no checkpoint, so nobody needs it."""
        with suppress(Exception):
            self._db.close()

    @staticmethod
    def read_only(path: str, options: RocksDBOptions) -> Rdict:
        """Return a database that no process has open for writing.

        Raises:
            StateError: it cannot be opened; names the directory.
        """
        try:
            return Rdict(path, _options(options), access_type=AccessType.read_only())
        except Exception as error:
            raise StateError(f"state backend 'rocksdb' cannot read the database in {path}: {error}") from error


def rows_of(db: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys begin with ``prefix``."""
    end = upper(prefix)
    iterator = db.iter()
    iterator.seek(prefix)
    while iterator.valid():
        key = iterator.key()
        if key[: len(end)] >= end:
            return
        yield key, iterator.value()
        iterator.next()
    # An iterator that has failed looks like one at the end; only this call raises its error.
    iterator.status()


_COMPRESSION: Final = {
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
    "snappy": DBCompressionType.snappy,
    "none": DBCompressionType.none,
}


def _options(given: RocksDBOptions) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(given.write_buffer)
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(given.background_jobs)
    options.set_compression_type(_COMPRESSION[given.compression]())
    options.set_level_compaction_dynamic_level_bytes(True)
    # Most of what is looked up was written long ago: that it is in no memtable is known without a search.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_bytes_per_sync(1 << 20)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(given.block_cache))
    if given.bloom_bits:
        table.set_bloom_filter(given.bloom_bits, False)
    table.set_cache_index_and_filter_blocks(False)
    table.set_block_size(4 << 10)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    options.set_block_based_table_factory(table)
    return options
