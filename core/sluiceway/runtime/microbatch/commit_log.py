"""Commit log: the committables of each batch, so that a retried batch is not written twice."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.persisted import persisted
from sluiceway.serializers.byvalue import dumps_with_classes

__all__ = ["CommitLog", "CommitRecord"]

_MAGIC: Final = b"sluiceway commit 1\n"
_SIZES: Final = struct.Struct(">IIII")  # size and checksum of the record, and of what commits the batch
_AT_ONCE: Final = 1 << 16
_KEPT: Final = 10


@persisted("CommitRecord")
@dataclass(frozen=True)
class CommitRecord:
    """Decision to commit a batch, with the writers' state for the next batch.

    Attributes:
        batch: number of the batch.
        owner: name of the query that writes the batches.
        kept: state for the next batch; picklable by cloudpickle.
    """

    batch: int
    owner: str
    kept: Any = None


class CommitLog:
    """Log of the last batches, in a directory of a storage.

    A record is written, whole, before anything of its batch is committed. From then on each retry of the batch
    commits exactly the committables of the record.

    Args:
        storage: storage that every driver of the query can read and write.
        directory: directory in the storage.
    """

    def __init__(self, storage: CheckpointStorage, directory: str = "commits") -> None:
        self._storage = storage
        self._directory = directory

    def __str__(self) -> str:
        return self._storage.shown(self._directory)

    def newest(self) -> CommitRecord | None:
        """Return the newest record, None if there is none. Batches up to it are decided.

        Raises:
            CheckpointError: the log cannot be read.
        """
        batch = max(self._batches(), default=None)
        return None if batch is None else self.read(batch)

    def read(self, batch: int) -> CommitRecord | None:
        """Return the record of a batch, or None. Raises as :meth:`newest`."""
        name = self._name(batch)
        # Records are small; the committables behind them are needed by ready() alone.
        data = self._load(name, _AT_ONCE)
        if data is None:
            return None
        begin, end, checksum = self._parts(name, data)[0]
        if len(data) < end:
            data = self._storage.read(name, 0, end)
        record: CommitRecord = self._unpickled(name, data[begin:end], checksum)
        return record

    def check(self, record: CommitRecord, owner: str) -> None:
        """Raise ConfigurationError if a record belongs to another owner."""
        if record.owner != owner:
            raise ConfigurationError(
                f"{self} has the commits of another query ({record.owner}; this one is {owner}): batches of "
                "numbers that it has committed would not be written. Give each query a directory of its own, also "
                "one that starts with another checkpointLocation"
            )

    def ready(self, batch: int) -> list[Any]:
        """Return the committables of a batch; empty if it has no record, or none any more.

        Raises as :meth:`newest`.
        """
        name = self._name(batch)
        data = self._load(name, None)
        if data is None:
            return []
        begin, end, checksum = self._parts(name, data)[1]
        found: list[Any] = self._unpickled(name, data[begin:end], checksum)
        return found

    def write(self, record: CommitRecord, ready: Sequence[Any]) -> None:
        """Write a record durably, with the committables of the batch, and delete old records.

        Raises:
            CheckpointError: the record cannot be written; nothing of the batch may be committed.
        """
        parts = [dumps_with_classes(part) for part in (record, list(ready))]
        sizes = _SIZES.pack(*(number for part in parts for number in (len(part), crc32(part))))
        self._storage.write(self._name(record.batch), [_MAGIC, sizes, *parts])
        old = sorted(self._batches())[:-_KEPT]
        if old:
            self._storage.delete(self._name(batch) for batch in old)

    def _load(self, name: str, size: int | None) -> bytes | None:
        try:
            return self._storage.read(name, 0, size)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _parts(self, name: str, data: bytes) -> list[tuple[int, int, int]]:
        """Return begin, end and checksum of each part."""
        begin = len(_MAGIC) + _SIZES.size
        if not data.startswith(_MAGIC) or len(data) < begin:
            raise self._damaged(name)
        first, first_sum, second, second_sum = _SIZES.unpack_from(data, len(_MAGIC))
        return [
            (begin, begin + first, first_sum),
            (begin + first, begin + first + second, second_sum),
        ]

    def _unpickled(self, name: str, data: bytes, checksum: int) -> Any:
        if crc32(data) != checksum:
            raise self._damaged(name)
        return pickle.loads(data)

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(f"{self._storage.shown(name)} is no record of a commit, or it is damaged")

    def _batches(self) -> list[int]:
        names = (file.name.rpartition("/")[2] for file in self._storage.files(self._directory))
        return [int(name) for name in names if name.isdecimal()]

    def _name(self, batch: int) -> str:
        return f"{self._directory}/{batch}"
