"""Which batches are committed, with what: so that a batch that comes again is not written twice."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import cloudpickle

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.persisted import persisted

__all__ = ["CommitLog", "CommitRecord"]

_MAGIC: Final = b"sluiceway commit 1\n"
_SIZES: Final = struct.Struct(">IIII")  # size and checksum of the record, and of what commits the batch
_AT_ONCE: Final = 1 << 16
_KEPT: Final = 10


@persisted("CommitRecord")
@dataclass(frozen=True)
class CommitRecord:
    """That a batch is going to be committed, and what the next one begins with.

    Attributes:
        batch: number of the batch.
        owner: whose batches these are.
        kept: what the next batch begins with; picklable by cloudpickle.
    """

    batch: int
    owner: str
    kept: Any = None


class CommitLog:
    """Records of the last batches, in a directory of a storage.

    A record is written, whole, before anything of its batch is committed. From then on the batch will be committed
    with what the record says, and with nothing else, however often it comes again.

    Args:
        storage: a place that every driver of the stream sees.
        directory: in there.
    """

    def __init__(self, storage: CheckpointStorage, directory: str = "commits") -> None:
        self._storage = storage
        self._directory = directory

    def __str__(self) -> str:
        return self._storage.shown(self._directory)

    def newest(self) -> CommitRecord | None:
        """The newest record. All batches up to it are committed, or will be as their records say.

        Raises:
            CheckpointError: it cannot be read.
        """
        batch = max(self._batches(), default=None)
        return None if batch is None else self.read(batch)

    def read(self, batch: int) -> CommitRecord | None:
        """The record of a batch, or None. Raises as :meth:`newest`."""
        name = self._name(batch)
        data = self._load(name, _AT_ONCE)
        if data is None:
            return None
        begin, end, checksum = self._parts(name, data)[0]
        if len(data) < end:
            data = self._storage.read(name, 0, end)
        record: CommitRecord = self._unpickled(name, data[begin:end], checksum)
        return record

    def check(self, record: CommitRecord, owner: str) -> None:
        """Raise ConfigurationError if a record is not this owner's."""
        if record.owner != owner:
            raise ConfigurationError(
                f"{self} has the commits of another query ({record.owner}; this one is {owner}): batches of "
                "numbers that it has committed would not be written. Give each query a directory of its own, also "
                "one that begins anew with another checkpointLocation"
            )

    def ready(self, batch: int) -> list[Any]:
        """What commits a batch, as :meth:`write` was given it. Empty if there is no record, or no more.

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
        """Write a record, durably, with what commits the batch; delete old ones.

        Raises:
            CheckpointError: it cannot be written; nothing of the batch may be committed then.
        """
        parts = [cloudpickle.dumps(part, protocol=5) for part in (record, list(ready))]
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
        """Where each part begins and ends, with its checksum."""
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
