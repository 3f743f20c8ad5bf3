"""Writers of the state that a task's checkpoint has taken: to a storage, or by messages to the job master."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as replace_struct

from sluiceway.checkpoint import (
    CheckpointDirectory,
    SharedFileEntry,
    SubtaskEntry,
    shared_files,
    split_location,
    write_subtask,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.network.channel_state import InFlight, Overtaken
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.tasks import StoreStatePart
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import TaskSnapshot, has_objects, without_objects
from sluiceway.runtime.taskmanager.sent_files import SentFiles
from sluiceway.util.overriding import override

__all__ = ["SavepointWriter", "SendingWriter", "SnapshotWriter", "StorageWriter", "TemporaryWriter"]

_MOST_PENDING: Final = 16
"""Checkpoints of an attempt whose files are remembered until one is complete: the latest."""


class SnapshotWriter(ABC):
    """Writer of snapshots; its result is acknowledged to the coordinator."""

    @abstractmethod
    def write(self, deployment: TaskDeployment, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskSnapshot:
        """Read the state and release it. Blocks; called in a helper thread, while the task continues."""

    def written(self, attempt_id: str, checkpoint_id: int, entry: SubtaskEntry | None) -> None:
        """Handle the end of a :meth:`write` of an attempt that has not ended. In the loop's thread."""

    def completed(self, attempt_ids: Collection[str], checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint: its files are retained. In the loop's thread.

        Args:
            attempt_ids: some attempts that took part; a notification may be repeated for a few of them.
            checkpoint_id: the checkpoint.
        """

    def forget(self, attempt_id: str) -> None:
        """Forget an attempt that has ended; unknown ones are ignored. In the loop's thread."""


class SendingWriter(SnapshotWriter):
    """Writer that sends the state to the job master, for workers that share no file system with it.

    Args:
        send: sends a message; from the loop's thread.
        mail: calls an action in the loop's thread, in order; from any thread.
    """

    def __init__(self, send: Callable[[Message], None], mail: Callable[[Callable[[], None]], None]) -> None:
        self._send = send
        self._mail = mail

    @override
    def write(self, deployment: TaskDeployment, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskSnapshot:
        d = deployment

        def send_part(name: str, offset: int, data: bytes, last: bool) -> None:
            part = StoreStatePart(d.job, d.epoch, d.attempt_id, checkpoint_id, name, offset, data, last)
            self._mail(lambda: self._send(part))

        # As rows in one file, which can be read in parts: the files of a backend would have to be sent whole.
        return _written(SentFiles(send_part), d, checkpoint_id, snapshot, canonical=True)


def _kept(snapshot: TaskSnapshot) -> tuple[InFlight, ...]:
    return tuple(part.kept() if isinstance(part, Overtaken) else part for part in snapshot.in_flight)


def _written(
    storage: CheckpointStorage,
    d: TaskDeployment,
    checkpoint_id: int,
    snapshot: TaskSnapshot,
    *,
    canonical: bool = False,
    known: Mapping[str, SharedFileEntry] | None = None,
) -> TaskSnapshot:
    """Write a snapshot for a checkpoint; return what is acknowledged."""
    entry = write_subtask(
        storage,
        CheckpointDirectory(storage, d.checkpoint_path).directory(checkpoint_id),
        f"{d.vertex.id}-{d.subtask}-{d.attempt}.state",
        d.subtask,
        snapshot.operators,
        in_flight=_kept(snapshot),
        finished=snapshot.drained,
        canonical=canonical,
        known=known,
    )
    in_flight_size = sum(part.elements.size for part in entry.in_flight)
    return replace_struct(snapshot, operators=(), entry=entry, in_flight=(), in_flight_size=in_flight_size)


class StorageWriter(SnapshotWriter):
    """Writer to a storage; the snapshot refers to the files.

    Args:
        storage: storage of the checkpoints.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        # By attempt and checkpoint.
        self._written: dict[str, dict[int, SubtaskEntry]] = {}
        # Files that never change, of the last completed checkpoint by attempt. Not those of pending ones: if they
        # are aborted, their files are deleted.
        self._known: dict[str, dict[str, SharedFileEntry]] = {}

    @override
    def write(self, deployment: TaskDeployment, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskSnapshot:
        known = self._known.get(deployment.attempt_id)
        return _written(self._storage, deployment, checkpoint_id, snapshot, known=known)

    @override
    def written(self, attempt_id: str, checkpoint_id: int, entry: SubtaskEntry | None) -> None:
        if entry is not None:
            entries = self._written.setdefault(attempt_id, {})
            entries[checkpoint_id] = entry
            # Those of aborted checkpoints go here: as long as none is complete, nothing else removes them.
            if len(entries) > _MOST_PENDING:
                del entries[next(iter(entries))]

    @override
    def completed(self, attempt_ids: Collection[str], checkpoint_id: int) -> None:
        for attempt_id in attempt_ids:
            entries = self._written.get(attempt_id, {})
            if (entry := entries.get(checkpoint_id)) is not None:
                # Files that never change, which later checkpoints need not write again.
                self._known[attempt_id] = shared_files(entry)
            for id_ in [id_ for id_ in entries if id_ <= checkpoint_id]:
                del entries[id_]

    @override
    def forget(self, attempt_id: str) -> None:
        self._known.pop(attempt_id, None)
        self._written.pop(attempt_id, None)


class TemporaryWriter(StorageWriter):
    """Writer for a job in one process, which keeps objects that may have no serializer in memory.

    Splits, committables, pending records and broadcast state go by reference: in one process they need not be
    pickled, and some cannot be.
    """

    def write(self, deployment: TaskDeployment, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskSnapshot:
        """Write rows, lists and in-flight records."""
        plain = tuple(map(without_objects, snapshot.operators))
        objects = tuple(replace(o, keyed=None, lists=()) for o in snapshot.operators if has_objects(o))
        written = super().write(deployment, checkpoint_id, replace_struct(snapshot, operators=plain))
        return replace_struct(written, operators=objects)


class SavepointWriter(SnapshotWriter):
    """Writer to a savepoint: as rows, which any backend can read.

    Args:
        open_storage: opens the storage at a path or URL.
    """

    def __init__(self, open_storage: Callable[[str], CheckpointStorage]) -> None:
        self._open_storage = open_storage

    @override
    def write(self, deployment: TaskDeployment, checkpoint_id: int, snapshot: TaskSnapshot) -> TaskSnapshot:
        d = deployment
        # Without in-flight records: barriers of savepoints never overtake.
        place, directory = split_location(snapshot.savepoint)
        entry = write_subtask(
            self._open_storage(place),
            directory,
            f"{d.vertex.id}-{d.subtask}-{d.attempt}.state",
            d.subtask,
            snapshot.operators,
            finished=snapshot.drained,
            canonical=True,
        )
        return replace_struct(snapshot, operators=(), entry=entry)
