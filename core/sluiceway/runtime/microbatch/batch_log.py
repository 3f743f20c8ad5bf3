"""Batch log: the plan of each batch and the polls of each reader, in files beside the engine's own checkpoint."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError
from sluiceway.persisted import persisted
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.serializers.program_classes import ProgramClasses, using

__all__ = ["PLAN", "BatchLog", "BatchPlan", "BatchRead", "PollRead"]

_MAGIC: Final = b"sluiceway batch 1\n"

PLAN: Final = "plan"
"""Name of the file with the plan of a batch; the other files of a batch are named by the number of a reader."""

_READERS: Final = "readers"


@persisted("BatchPlan")
@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Plan of one batch of one source, written by the driver before any reader starts.

    Attributes:
        assigned: splits newly assigned with this batch, by reader.
        no_more: readers that get no further splits.
        ended: readers that reached their end in an earlier batch and do not run.
        resting: readers that read nothing in this batch.
        enumerator: snapshot of the enumerator after the assignment.
        time_ms: time of planning, in ms since the epoch.
        wait_s: maximum time that a reader waits for its first record.
        linger_s: maximum time after its first record that a reader waits for more.
        time_s: time after which a reader stops, even if more records are available.
        limit: maximum number of records per reader.
        stops: whether readers read nothing and reach their end with this batch.
        since_ms: time since the previous batch was planned; 0 if another driver planned it.
        still_ms: part of ``since_ms`` during which no reader had input.
        given_up: by reader, the number of splits at the end of its queue that others are assigned with this batch.
        together: ids of queued splits that their reader receives with the one before them, of any reader.
        pushed: ids of queued splits that were assigned without a request, each the first of such an assignment.
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
    given_up: dict[int, int] = field(default_factory=dict)
    together: frozenset[str] = frozenset()
    pushed: frozenset[str] = frozenset()

    def __setstate__(self, state: list[Any]) -> None:
        _restore(self, state)


@persisted("PollRead")
@dataclass(frozen=True, slots=True)
class PollRead:
    """Result of one poll of a reader.

    Attributes:
        split_id: the split of all its records; None: the reader does not name one.
        count: number of records.
        finished: ids of splits that ended with this poll.
        begun: ids of splits that the reader received before this poll.
    """

    split_id: str | None
    count: int
    finished: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()


@persisted("BatchRead")
@dataclass(frozen=True, slots=True)
class BatchRead:
    """Record of one reader in one batch: enough to repeat the batch, and to start the next one.

    Attributes:
        polls: the polls, in order.
        splits: unfinished splits, each with its position after the batch.
        queued: number of splits at the end of ``splits`` that the reader has not received yet.
        asked: whether the reader has an unanswered split request.
        ended: whether the reader has reached its end.
        dry: whether the batch ended because the reader had no more input.
        waiting: results of the calls of ``waiting_splits``, in order.
        payload: data of the engine, stored with the record.
        token: random name of this file, different for each attempt.
        asks: whether the reader requests its splits; one that never does receives at once those that are pushed.
        together: ids of queued splits that the reader receives with the one before them.
        pushed: ids of queued splits that were assigned without a request, each the first of such an assignment.
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
    asks: bool = False
    together: frozenset[str] = frozenset()
    pushed: frozenset[str] = frozenset()

    def __setstate__(self, state: list[Any]) -> None:
        _restore(self, state)

    @property
    def count(self) -> int:
        """Number of records read."""
        return sum(poll.count for poll in self.polls)


def _restore(made: BatchPlan | BatchRead, state: Sequence[Any]) -> None:
    """Set the fields in their order; those that an earlier version did not have get their defaults."""
    for place, each in enumerate(fields(made)):
        if place < len(state):
            value = state[place]
        else:
            value = each.default if each.default_factory is MISSING else each.default_factory()
        object.__setattr__(made, each.name, value)


class BatchLog:
    """Log files of one source in one run. Can be pickled.

    Args:
        storage: storage of the files.
        prefix: directory in the storage, used by this source and run alone.
        classes: the program's, in another process; None: it is in the program's own.
    """

    def __init__(self, storage: CheckpointStorage, prefix: str, classes: ProgramClasses | None = None) -> None:
        self._classes = classes
        self.storage = storage
        self.prefix = prefix
        self._forgotten: int | None = None

    @property
    def where(self) -> str:
        """Path or URL of the directory, for messages."""
        return self.storage.shown(self.prefix)

    def create(self, batch: int, what: str, value: BatchPlan | BatchRead) -> bool:
        """Write an immutable file. Return False if the file exists already; it is kept.

        Raises:
            CheckpointError: the file cannot be written.
        """
        return self.storage.create(self._name(batch, what), [_MAGIC, dumps_with_classes(value)])

    def plan(self, batch: int) -> BatchPlan | None:
        """Return the plan of a batch, None if there is none. Raises CheckpointError."""
        found = self._read(batch, PLAN)
        assert found is None or isinstance(found, BatchPlan)
        return found

    def read(self, batch: int, reader: int) -> BatchRead | None:
        """Return the record of a reader in a batch, None if it did not finish. Raises CheckpointError."""
        found = self._read(batch, str(reader))
        assert found is None or isinstance(found, BatchRead)
        return found

    def readers(self, default: int) -> int:
        """Return the number of readers of the run, which keeps it; a new run gets ``default``.

        Splits are logged by the number of their reader, so fewer readers would leave some unread.

        Raises:
            CheckpointError: the number cannot be read or written.
        """
        name = f"{self.prefix}/{_READERS}"
        found = self._content(name)
        if found is None:
            self.storage.create(name, [str(self._readers_so_far() or default).encode()])
            found = self.storage.read(name)
        try:
            return int(found)
        except ValueError as error:
            raise CheckpointError(f"{self.storage.shown(name)} is damaged: it is no number of readers") from error

    def forget(self, before: int) -> None:
        """Delete the files of all batches before this one."""
        # The first call of a driver lists the directory: an earlier driver may have died before it deleted.
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
                self.storage.delete_directory(f"{self.prefix}/{number}")
        self._forgotten = max(before, self._forgotten or 0)

    def _readers_so_far(self) -> int:
        """Return the number of readers in the newest batches, 0 if there are none."""
        records: dict[int, set[int]] = {}
        for file in self.storage.files(self.prefix):
            batch, _, what = file.name.removeprefix(f"{self.prefix}/").partition("/")
            if batch.isdigit():
                records.setdefault(int(batch), set()).update([int(what)] if what.isdigit() else ())
        newest = max(records, default=0)
        found = records.get(newest, set()) | records.get(newest - 1, set())
        # A batch is planned when each reader has a record of the one before, or has ended earlier.
        if (plan := self.plan(newest)) is not None:
            found |= plan.ended | plan.no_more | plan.assigned.keys()
        return max(found, default=-1) + 1

    def _name(self, batch: int, what: str) -> str:
        return f"{self.prefix}/{batch}/{what}"

    def _read(self, batch: int, what: str) -> Any:
        name = self._name(batch, what)
        data = self._content(name)
        if data is None:
            return None
        if not data.startswith(_MAGIC):
            raise CheckpointError(f"{self.storage.shown(name)} is no file of a batch that this version can read")
        try:
            return self.unpickled(data[len(_MAGIC) :])
        except Exception as error:
            raise CheckpointError(f"{self.storage.shown(name)} is damaged: {error!r}") from error

    def unpickled(self, data: bytes) -> Any:
        """Return a value that :func:`.dumps_with_classes` has pickled, with the classes of the program."""
        with nullcontext() if self._classes is None else using(self._classes):
            return pickle.loads(data)

    def _content(self, name: str) -> bytes | None:
        try:
            return self.storage.read(name)
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
