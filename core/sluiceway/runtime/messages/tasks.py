"""Messages between the job master of a job and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sluiceway.checkpoint import SubtaskEntry
from sluiceway.elements import CheckpointBarrier
from sluiceway.runtime.messages.base import JobMessage, TaskMessage, TasksMessage
from sluiceway.runtime.messages.payload import Cause, Payload

__all__ = [
    "AcknowledgeCheckpoint",
    "AnnounceWatermark",
    "AssignSplits",
    "CancelTask",
    "CheckpointAborted",
    "CheckpointCompleted",
    "DeclineCheckpoint",
    "DeployTasks",
    "Drained",
    "NoMoreSplits",
    "ReportTask",
    "ReportWatermark",
    "RequestSplit",
    "SendEnumeratorEvent",
    "SendReaderEvent",
    "StopSource",
    "StoreStatePart",
    "TriggerCheckpoint",
]


# ---- job master to task manager ------------------------------------------------------------------------------


class DeployTasks(TasksMessage, frozen=True):
    """Run these attempts, each as its task deployment descriptor says.

    All consumers' ends of their channels are opened before any producer's.
    """

    large: ClassVar[bool] = True
    deployments: Payload[Sequence[Any]]


class CancelTask(TaskMessage, frozen=True):
    """Cancel an attempt; unknown ones are ignored."""


class AssignSplits(TaskMessage, frozen=True):
    """Give splits to the reader of an attempt."""

    large: ClassVar[bool] = True
    splits: Payload[Sequence[Any]]


class NoMoreSplits(TaskMessage, frozen=True):
    """The reader of an attempt has all the splits that it will get."""


class SendReaderEvent(TaskMessage, frozen=True):
    """Event of the enumerator for the reader of an attempt."""

    large: ClassVar[bool] = True
    event: Payload[Any]


class StopSource(TaskMessage, frozen=True):
    """End the reader of an attempt, as if its source had ended there."""


class AnnounceWatermark(TaskMessage, frozen=True):
    """Watermark of the slowest reader of an alignment group, in ms; None: no reader counts."""

    mark: int | None


class TriggerCheckpoint(TaskMessage, frozen=True):
    """Begin a checkpoint, or a savepoint, in a task that has no running producer."""

    barrier: CheckpointBarrier


class CheckpointCompleted(TasksMessage, frozen=True):
    """A checkpoint is complete."""

    checkpoint: int


class CheckpointAborted(TasksMessage, frozen=True):
    """A checkpoint was aborted."""

    checkpoint: int


# ---- task manager to job master ------------------------------------------------------------------------------


class ReportTask(TaskMessage, frozen=True):
    """An attempt has changed its state; ``cause`` is why it failed."""

    state: str
    cause: Cause | None = None


class RequestSplit(JobMessage, frozen=True):
    """The reader of a subtask requests a split."""

    vertex: int
    subtask: int


class SendEnumeratorEvent(TaskMessage, frozen=True):
    """Event of the reader of an attempt for its enumerator."""

    large: ClassVar[bool] = True
    event: Payload[Any]


class ReportWatermark(TaskMessage, frozen=True):
    """Watermark of a reader of an alignment group, in ms; None: it does not count for now."""

    group: str
    mark: int | None


class AcknowledgeCheckpoint(TaskMessage, frozen=True):
    """A task has done its part of a checkpoint, or of a savepoint; ``entry`` names the files that have its state.

    ``objects`` has, in one process, what was not written since it may have no serializer.
    """

    checkpoint: int
    entry: SubtaskEntry
    savepoint: str = ""
    unaligned: bool = False
    objects: Payload[tuple[Any, ...]] | None = None


class StoreStatePart(TaskMessage, frozen=True):
    """Part of a file with a task's state, for a checkpoint; precedes the acknowledgement.

    Sent by workers alone that share no file system with the job manager, of a job that names no place for
    checkpoints. ``name`` is that of the file in the storage, ``offset`` the number of bytes in earlier parts; with
    ``last`` the file is complete.
    """

    checkpoint: int
    name: str
    offset: int
    data: bytes
    last: bool


class DeclineCheckpoint(TaskMessage, frozen=True):
    """A task does not take part in a checkpoint."""

    checkpoint: int
    cause: Cause


class Drained(TaskMessage, frozen=True):
    """A task has processed all its input, and waits for a checkpoint in order to finish."""
