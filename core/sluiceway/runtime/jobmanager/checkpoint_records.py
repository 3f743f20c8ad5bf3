"""What a checkpoint coordinator works with: its policy, who takes part, what was completed, and the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluiceway.checkpoint import HistoryEntry
from sluiceway.config.settings import Settings
from sluiceway.network.channel_state import InFlight
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot

__all__ = [
    "CheckpointPolicy",
    "CheckpointRecord",
    "CompletedCheckpoint",
    "Participants",
    "SavepointRequest",
    "Subtask",
]

_REASON: Final = 500
"""Characters of the reason of a failure that metadata keep."""

Subtask = tuple[int, int]
"""Id of a job vertex, and the index of the subtask."""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When checkpoints are taken. Times in ms.

    Attributes:
        interval_ms: from one to the next; 0: none by themselves.
        timeout_ms: one that takes longer is given up.
        min_pause_ms: least time between the end of one and the next.
        max_concurrent: how many at a time.
        tolerated_failures: how many in a row may fail before the job does.
        retained: how many completed ones are kept.
        aligned_ms: for how long their barriers keep their place among the records; -1: for ever. Those of
            savepoints, and of the checkpoint that a job ends with, always do.
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
        """That of a run."""
        return cls(
            settings.checkpoint_interval_ms,
            settings.checkpoint_timeout_ms,
            settings.checkpoint_min_pause_ms,
            settings.checkpoint_max_concurrent,
            settings.checkpoint_tolerated_failures,
            settings.checkpoint_retained,
            settings.checkpoint_aligned_timeout_ms if settings.checkpoint_unaligned else -1,
        )


@dataclass(frozen=True, slots=True)
class Participants:
    """Who takes part in a checkpoint that begins now.

    Attributes:
        running: by attempt id, the subtasks that have to acknowledge.
        first: those of them that have no producer that still runs: the barriers start there.
        finished: the subtasks that have finished.
    """

    running: Mapping[str, Subtask]
    first: tuple[str, ...]
    finished: tuple[Subtask, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that a job can go on from.

    Attributes:
        checkpoint_id: its number.
        timestamp_ms: when it was triggered.
        tasks: what each subtask has acknowledged with, the finished ones included, in the order of the job.
        enumerators: per uid of a source, what its enumerator's snapshot returned.
        savepoint: path or URL of its own directory, if it is a savepoint; else empty.
        stops: whether the job ends with it.
        history: what became of those before it.
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
        """What the job goes on from."""
        operators = tuple(s for where in sorted(self.tasks) for s in self.tasks[where].operators)
        in_flight = (part for where in sorted(self.tasks) for part in self.tasks[where].in_flight)
        kept = tuple(part for part in in_flight if isinstance(part, InFlight))
        return JobSnapshot(operators, self.enumerators, in_flight=kept)


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """Somebody wants a savepoint.

    Attributes:
        place: path or URL of the directory in which it gets one of its own.
        job: the job's id, for the name of that.
        stops: whether the job is to end with it.
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
        """Path or URL of the savepoint's own directory; empty: it is a checkpoint."""
        if self.suspends:
            return ""
        return f"{self.place.rstrip('/')}/savepoint-{self.job}-{timestamp_ms}-{checkpoint_id}"


@dataclass(slots=True)
class CheckpointRecord:
    """One checkpoint in the history of a job.

    Attributes:
        checkpoint_id: its number.
        triggered_ms: when it was triggered, ms since the epoch.
        duration_ms: how long it took, or has taken until it was given up; None: it is under way.
        status: ``pending``, ``completed`` or ``failed``.
        reason: why it was given up.
        size: bytes of serialized state.
        tasks: how each subtask took part; its state is not kept here.
        savepoint: path or URL, if it is a savepoint; else empty.
        acknowledged_ms: from the trigger to the last acknowledgement; None: not all subtasks have acknowledged it.
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

    def entry(self) -> HistoryEntry:
        """Without its subtasks, for the metadata of those that come after it."""
        return HistoryEntry(
            checkpoint_id=self.checkpoint_id,
            status=self.status,
            triggered_ms=self.triggered_ms,
            duration_ms=self.duration_ms,
            size=self.size,
            reason=self.reason[:_REASON],
            savepoint=self.savepoint,
            in_flight=sum(snapshot.in_flight_size for snapshot in self.tasks.values()),
        )
