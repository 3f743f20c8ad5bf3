"""Records of a checkpoint coordinator: policy, participants, completed checkpoints, and history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sluiceway.checkpoint import HistoryEntry
from sluiceway.config.settings import Settings
from sluiceway.monitoring.infos import CheckpointInfo
from sluiceway.network.channel_state import InFlight
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.util.surrogates import encodable

__all__ = [
    "CheckpointPolicy",
    "CheckpointRecord",
    "CompletedCheckpoint",
    "Participants",
    "SavepointRequest",
    "Subtask",
]

_REASON: Final = 500
"""Longest reason of a failure in metadata, in characters."""

Subtask = tuple[int, int]
"""Id of a job vertex, and the index of the subtask."""


class CheckpointPolicy(msgspec.Struct, frozen=True):
    """Policy of periodic checkpoints. Times in ms.

    Attributes:
        interval_ms: time from one to the next; 0: no periodic checkpoints.
        timeout_ms: a checkpoint that takes longer is aborted.
        min_pause_ms: least time between the end of one and the next.
        max_concurrent: largest number of pending checkpoints.
        tolerated_failures: failures in a row that the job tolerates.
        retained: number of completed checkpoints that are retained.
        aligned_ms: alignment timeout, after which barriers overtake records; -1: never. Those of
            savepoints, and of the checkpoint that a job ends with, never overtake.
    """

    interval_ms: int = 0
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerated_failures: int = 0
    retained: int = 1
    aligned_ms: int = -1

    @classmethod
    def of(cls, settings: Settings) -> CheckpointPolicy:
        """Return the policy of a run."""
        return cls(
            settings.checkpoint_interval_ms,
            settings.checkpoint_timeout_ms,
            settings.checkpoint_min_pause_ms,
            settings.checkpoint_max_concurrent,
            settings.checkpoint_tolerated_failures,
            settings.checkpoint_retained,
            settings.checkpoint_aligned_timeout_ms if settings.checkpoint_unaligned else -1,
        )


class Participants(msgspec.Struct, frozen=True):
    """Participants of a checkpoint that begins now.

    Attributes:
        running: by attempt id, the subtasks that have to acknowledge.
        first: those of them that have no producer that still runs: the barriers start there.
        finished: the subtasks that have finished.
    """

    running: Mapping[str, Subtask]
    first: tuple[str, ...]
    finished: tuple[Subtask, ...] = ()


class CompletedCheckpoint(msgspec.Struct, frozen=True):
    """Checkpoint that a job can be restored from.

    Attributes:
        checkpoint_id: id of the checkpoint.
        timestamp_ms: when it was triggered.
        tasks: acknowledged snapshot of each subtask, finished ones included, in the order of the job.
        enumerators: snapshot of the enumerator by uid of a source.
        savepoint: path or URL of its own directory, if it is a savepoint; else empty.
        stops: whether the job ends with it.
        history: records of earlier checkpoints.
    """

    checkpoint_id: int
    timestamp_ms: int
    tasks: dict[Subtask, TaskSnapshot]
    enumerators: Mapping[str, Any]
    savepoint: str = ""
    stops: bool = False
    history: tuple[HistoryEntry, ...] = ()

    @property
    def snapshot(self) -> JobSnapshot:
        """Return the snapshot that the job is restored from."""
        operators = tuple(s for where in sorted(self.tasks) for s in self.tasks[where].operators)
        in_flight = (part for where in sorted(self.tasks) for part in self.tasks[where].in_flight)
        kept = tuple(part for part in in_flight if isinstance(part, InFlight))
        return JobSnapshot(operators, self.enumerators, in_flight=kept)


class SavepointRequest(msgspec.Struct, frozen=True):
    """Request for a savepoint.

    Attributes:
        place: path or URL of the parent directory.
        job: the job's id, for the name of that.
        stops: whether the job is stopped with it.
        done: called once, in the job master's thread: with the savepoint's path or URL and None, or with an
            empty one and with why there is none.
        suspends: whether it is a checkpoint instead, for the job to go on from at once: it is stored where those
            are, and sinks commit with it, but the tasks process nothing behind it and end. ``place`` is empty.
    """

    place: str
    job: str
    stops: bool
    done: Callable[[str, BaseException | None], None]
    suspends: bool = False

    def location(self, checkpoint_id: int, timestamp_ms: int) -> str:
        """Return path or URL of the savepoint's directory; empty: it is a checkpoint."""
        if self.suspends:
            return ""
        return f"{self.place.rstrip('/')}/savepoint-{self.job}-{timestamp_ms}-{checkpoint_id}"


@dataclass(slots=True)
class CheckpointRecord:
    """Entry of a checkpoint in the history of a job.

    Attributes:
        checkpoint_id: id of the checkpoint.
        triggered_ms: when it was triggered, ms since the epoch.
        duration_ms: time until it completed or was aborted; None: it is pending.
        status: ``pending``, ``completed`` or ``failed``.
        reason: reason of its failure.
        size: bytes of serialized state.
        tasks: participation of each subtask, without its state.
        savepoint: path or URL, if it is a savepoint; else empty.
        acknowledged_ms: from the trigger to the last acknowledgement; None: not all subtasks have acknowledged it.
        info: the record as clients receive it, once one has asked for it after its end. Made once: it has an entry
            per subtask, and pages ask for all records each second.
    """

    checkpoint_id: int
    triggered_ms: int
    duration_ms: int | None = None
    status: str = "pending"
    reason: str = ""
    size: int = 0
    tasks: dict[Subtask, TaskSnapshot] = field(default_factory=dict)
    savepoint: str = ""
    acknowledged_ms: int | None = None
    info: CheckpointInfo | None = field(default=None, compare=False, repr=False)

    @property
    def is_pending(self) -> bool:
        """True until the checkpoint has ended; its fields do not change any more then."""
        return self.status == "pending"

    def entry(self) -> HistoryEntry:
        """Return the record without its subtasks, for the metadata of later checkpoints."""
        return HistoryEntry(
            checkpoint_id=self.checkpoint_id,
            status=self.status,
            triggered_ms=self.triggered_ms,
            duration_ms=self.duration_ms,
            size=self.size,
            reason=encodable(self.reason[:_REASON]),
            savepoint=self.savepoint,
            in_flight=sum(snapshot.in_flight_size for snapshot in self.tasks.values()),
        )
