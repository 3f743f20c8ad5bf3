"""Database of one subtask: working state on disk, which need not survive the process."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
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

_STALLED: Final = "Result incomplete"
"""Begin of the message of a write that RocksDB would have to delay or to stop."""
_STALL_S: Final = 600.0
"""Seconds for which a write is repeated. Compactions that let writes go on again take minutes on a slow disk."""
_FIRST_PAUSE_S: Final = 0.001
# A refused write counts in full against the rate at which RocksDB admits writes that it delays. Pauses that grow
# leave that rate room, where short ones alone would use it up.
_LONGEST_PAUSE_S: Final = 0.1
_AFTER_ERROR_S: Final = 10.0
"""Seconds that a checkpoint waits for RocksDB, where a flush or compaction failed before it."""
_SLOWDOWN_FILES: Final = 20
"""Files in level 0 at which RocksDB delays writes, and a flush waits for compactions."""
_PENDING_BYTES: Final = 64 << 30
"""Bytes to be compacted at which RocksDB delays writes, and a flush waits."""
_UNFINISHED: Final = (
    "its flushes and compactions did not finish. Use a faster disk (SLUICEWAY_ROCKSDB_DIRECTORY), or more "
    "SLUICEWAY_ROCKSDB_BACKGROUND_JOBS."
)
_HARDLY_ANY: Final = 1 << 20
"""Free bytes of a disk below which a failure without a reason is taken for one of a full disk."""
_LOG_TAIL: Final = 1 << 16  # bytes
_ERROR_IN_LOG: Final = re.compile(rb"(?:IO error|Corruption)[^\n]*?(?=, Accumulated|\n|$)")


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
        # A write that RocksDB stops returns only when a flush has made room. On a full disk none does: RocksDB
        # tries again until there is space, and the call lets no signal handler run meanwhile.
        write_options.no_slowdown = True
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

    def _cannot_write(self, error: object) -> StateError:
        return StateError(f"state backend 'rocksdb' cannot write to {self.path}: {error}")

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put rows; those with None are deleted. Each has a key of its own."""
        rows = iter(rows)
        while chunk := list(islice(rows, _SORTED)):
            chunk.sort(key=itemgetter(0))  # neighbours are put much faster than what is all over the place
            for begin in range(0, len(chunk), _BATCH):
                self._admit(partial(self._put, chunk[begin : begin + _BATCH]))

    def _put(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
        self._db.write(batch)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete the rows from ``begin`` to before ``end``."""
        self._admit(partial(self._db.delete_range, begin, end))

    def _admit(self, write: Callable[[], None]) -> None:
        """Write, and repeat it as long as RocksDB has to flush or compact first.

        Raises:
            StateError: a write, flush or compaction failed, or RocksDB admitted no write for 10 minutes.
        """
        try:
            write()
        except Exception as error:
            if not str(error).startswith(_STALLED):
                raise self._cannot_write(error) from error
        else:
            return
        until = time.monotonic() + _STALL_S
        pause = _FIRST_PAUSE_S
        while True:
            # One that RocksDB has recovered from counts as well: the job restarts from its checkpoint once.
            if self._background_errors():
                raise self._cannot_write(f"a flush or compaction failed: {self._logged_error()}")
            if time.monotonic() > until:
                raise self._cannot_write(f"RocksDB has admitted no write for {_STALL_S:.0f} s, as {_UNFINISHED}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            try:
                write()
                return
            except Exception as error:
                if not str(error).startswith(_STALLED):
                    raise self._cannot_write(error) from error

    def _background_errors(self) -> int:
        """Return the number of failed flushes and compactions since the database was opened."""
        return self._number("background-errors")

    def _logged_error(self) -> str:
        """Return the last error in RocksDB's log, which is removed with the database."""
        with suppress(OSError), open(os.path.join(self.path, "LOG"), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            if found := _ERROR_IN_LOG.findall(log.read()):
                return str(found[-1], "utf-8", "replace")
        # The log is on the same disk, and ends before the error where that is full.
        with suppress(OSError):
            if (free := shutil.disk_usage(self.path).free) < _HARDLY_ANY:
                return f"No space left on device, of which {free} bytes are free"
        return "RocksDB's log does not say why"

    def rows(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows whose keys begin with ``prefix``, as of the first step; from the key ``start`` on."""
        try:
            yield from rows_of(self._db, prefix, start)
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
        """Make a copy of hard links. Other threads go on meanwhile.

        Raises:
            StateError: a flush or compaction failed, or they did not finish for 10 minutes; or the copy cannot be
                made.
        """
        try:
            # A flush, also that of a checkpoint, waits inside RocksDB until writes would not be delayed, and until
            # it is done: for ever on a full disk, where flushes are repeated and compactions cancelled. So it is
            # begun when nothing delays it, and there is nothing left to be flushed by the checkpoint, which lets
            # no thread go on.
            self._await(self._flushes_at_once)
            self._db.flush(False)
            self._await(lambda: not self._number("num-immutable-mem-table"))
            self._await(self._flushes_at_once)
            Checkpoint(self._db).create_checkpoint(path)
        except Exception as error:
            raise StateError(
                f"state backend 'rocksdb' cannot make a checkpoint of {self.path} in {path}: {error}"
            ) from error

    def _flushes_at_once(self) -> bool:
        """Return whether a flush that begins now does not wait for others, or for compactions."""
        return (
            not self._number("num-immutable-mem-table")
            and self._number("num-files-at-level0") < _SLOWDOWN_FILES - 1
            and self._number("estimate-pending-compaction-bytes") < _PENDING_BYTES
        )

    def _await(self, done: Callable[[], bool]) -> None:
        errors = self._background_errors()
        until = time.monotonic() + (_AFTER_ERROR_S if errors else _STALL_S)
        pause = _FIRST_PAUSE_S
        while not done():
            if self._background_errors() > errors or (errors and time.monotonic() > until):
                raise StateError(f"a flush or compaction failed: {self._logged_error()}")
            if time.monotonic() > until:
                raise StateError(f"RocksDB has flushed nothing for {_STALL_S:.0f} s, as {_UNFINISHED}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _number(self, name: str) -> int:
        return int(self._db.property_value(f"rocksdb.{name}") or 0)

    def close(self) -> None:
        """Close it. What it cannot write any more is in no checkpoint, so nobody needs it."""
        # RocksDB flushes first, and waits for ever with that where writes are stopped and no compaction can end
        # the stop, as on a full disk. With these options nothing stops writes.
        with suppress(Exception):
            self._db.set_options({"disable_auto_compactions": "true", "max_write_buffer_number": "1000"})
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


def rows_of(db: Any, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys begin with ``prefix``; from the key ``start`` on."""
    end = upper(prefix)
    iterator = db.iter()
    iterator.seek(prefix if start is None else start)
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
    options.set_level_zero_slowdown_writes_trigger(_SLOWDOWN_FILES)
    options.set_soft_pending_compaction_bytes_limit(_PENDING_BYTES)
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
