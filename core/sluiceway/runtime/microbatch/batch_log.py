"""The files beside an engine's own checkpoint: what was planned for each batch, and what was read in it."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import cloudpickle

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError
from sluiceway.persisted import persisted

__all__ = ["PLAN", "BatchLog", "BatchPlan", "BatchRead", "PollRead"]

_MAGIC: Final = b"sluiceway batch 1\n"

PLAN: Final = "plan"
"""Name of the file with the plan of a batch; the other files of a batch are named by the number of a reader."""


@persisted("BatchPlan")
@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the driver has laid down for one batch of one source, before anybody reads it.

    Attributes:
        assigned: splits that readers get with this batch, by reader.
        no_more: the readers that get none after these.
        ended: the readers that have come to their end before, and are not run.
        resting: the readers that read nothing in this batch.
        enumerator: what the enumerator's snapshot says after that.
        time_ms: when it was, in ms since the epoch.
        wait_s: how long a reader may wait for its first record.
        linger_s: for how long after its first record a reader may wait for others.
        time_s: after how long a reader stops, whatever there is.
        limit: how many records a reader may read.
        stops: whether readers read nothing more and come to their end.
        since_ms: how long it was since the batch before was planned; 0: another driver did that.
        still_ms: for how much of that there was nothing to read for anybody.
    """

    assigned: dict[int, list[Any]]
    no_more: frozenset[int]
    ended: frozenset[int]
    resting: frozenset[int]
    enumerator: Any
    time_ms: int
    wait_s: float
    linger_s: float
    time_s: float
    limit: int
    stops: bool = False
    since_ms: int = 0
    still_ms: int = 0


@persisted("PollRead")
@dataclass(frozen=True, slots=True)
class PollRead:
    """What one poll of a reader gave.

    Attributes:
        split_id: the split that all of it is from; None: the reader does not say.
        count: how many records.
        finished: ids of splits that were read to their end with it.
        begun: ids of splits that the reader was given before it.
    """

    split_id: str | None
    count: int
    finished: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()


@persisted("BatchRead")
@dataclass(frozen=True, slots=True)
class BatchRead:
    """What one reader has read in one batch: enough to read the same again, and to go on after it.

    Attributes:
        polls: in order.
        splits: those that are not read to their end, each with its position after the batch.
        queued: how many of them, at the end of the list, the reader was not given yet.
        asked: whether the reader waits for a split that it has asked for.
        ended: whether it has come to its end.
        dry: whether the batch ended because there was nothing more to read.
        waiting: what the reader answered to each question which splits have to wait.
        payload: what the engine keeps with it.
        token: names this very file, in a way that no other attempt at it does.
    """

    polls: tuple[PollRead, ...]
    splits: list[Any]
    asked: bool
    ended: bool
    dry: bool
    waiting: tuple[frozenset[str], ...] = ()
    payload: bytes = b""
    queued: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def count(self) -> int:
        """How many records it read."""
        return sum(poll.count for poll in self.polls)


class BatchLog:
    """The files of one source in one run. Can be pickled.

    Args:
        storage: where they are.
        prefix: the directory in it, of this source and this run alone.
    """

    def __init__(self, storage: CheckpointStorage, prefix: str) -> None:
        self.storage = storage
        self.prefix = prefix
        self._forgotten: int | None = None

    @property
    def where(self) -> str:
        """How messages call the directory."""
        return self.storage.shown(self.prefix)

    def create(self, batch: int, what: str, value: BatchPlan | BatchRead) -> bool:
        """Write a file that never changes again. False: there is one already, which stays.

        Raises:
            CheckpointError: it cannot be written.
        """
        return self.storage.create(self._name(batch, what), [_MAGIC, cloudpickle.dumps(value)])

    def plan(self, batch: int) -> BatchPlan | None:
        """The plan of a batch, or None if there is none. Raises CheckpointError."""
        found = self._read(batch, PLAN)
        assert found is None or isinstance(found, BatchPlan)
        return found

    def read(self, batch: int, reader: int) -> BatchRead | None:
        """What a reader has read in a batch, or None if that was not finished. Raises CheckpointError."""
        found = self._read(batch, str(reader))
        assert found is None or isinstance(found, BatchRead)
        return found

    def forget(self, before: int) -> None:
        """Delete the files of all batches before this one."""
        if self._forgotten is None:
            numbers: Collection[int] = {
                int(part)
                for file in self.storage.files(self.prefix)
                if (part := file.name.removeprefix(f"{self.prefix}/").split("/", 1)[0]).isdigit()
            }
        else:
            numbers = range(self._forgotten, before)
        for number in sorted(numbers):
            if number < before:
                self.storage.delete([file.name for file in self.storage.files(f"{self.prefix}/{number}")])
        self._forgotten = max(before, self._forgotten or 0)

    def _name(self, batch: int, what: str) -> str:
        return f"{self.prefix}/{batch}/{what}"

    def _read(self, batch: int, what: str) -> Any:
        name = self._name(batch, what)
        try:
            data = self.storage.read(name)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        if not data.startswith(_MAGIC):
            raise CheckpointError(f"{self.storage.shown(name)} is no file of a batch that this version can read")
        try:
            return pickle.loads(data[len(_MAGIC) :])
        except Exception as error:
            raise CheckpointError(f"{self.storage.shown(name)} is damaged: {error!r}") from error
