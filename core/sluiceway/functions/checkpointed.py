"""Functions with operator state: state of a subtask, not of a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from sluiceway.functions.base import FunctionObject, RuntimeContext
from sluiceway.state import ListState, ListStateDescriptor

__all__ = [
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "OperatorStateStore",
]

T = TypeVar("T")


class OperatorStateStore(ABC):
    """Where a function gets its operator state. A name belongs to one state of the step.

    What is in a list is copied when a snapshot is taken, not before: until then a function may change its
    elements in place.
    """

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask. After a restore with another parallelism, all elements are dealt out in turn.

        Raises:
            StateError: the name was asked for, or saved, in another way or with another type.
        """

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask. After a restore, each subtask has the elements of all.

        A function that keeps only its own part has to put that in place of the list before the next snapshot;
        otherwise the elements multiply.

        Raises:
            StateError: as for :meth:`get_list_state`.
        """


class FunctionInitializationContext(ABC):
    """What a function is given to get its state from."""

    @property
    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the job goes on from a snapshot that knows this step."""

    @property
    @abstractmethod
    def operator_state_store(self) -> OperatorStateStore:
        """The subtask's own state."""

    @property
    @abstractmethod
    def keyed_state_store(self) -> RuntimeContext:
        """Gives handles of keyed state; asking it for one is an error in a step without keys."""


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """What is known of a snapshot.

    Attributes:
        checkpoint_timestamp: when it is being taken, ms since the epoch.
        checkpoint_id: number of the checkpoint, which goes up from one to the next, also after a restart; 0 for a
            snapshot that no checkpoint was the reason for.
    """

    checkpoint_timestamp: int
    checkpoint_id: int = 0


class CheckpointedFunction(FunctionObject, ABC):
    """For a function object, or a sink's writer, with state of its own: a base class beside its first one.

    Call order: :meth:`initialize_state` once, before ``open``; then, between any two batches of records,
    :meth:`snapshot_state` for each snapshot. An object for each subtask, all calls from the task's thread.
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Ask for the state, and take over what was restored."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """A snapshot is about to be taken: bring the state up to date."""


class CheckpointListener:
    """For a function object, or a sink's writer, that wants to know what became of checkpoints.

    A base class beside its first one. Calls come from the task's thread, between any two batches of records. A
    call may be missing where a task or a worker has failed meanwhile: what a checkpoint's completion allows must
    be allowed by that of a later one, too.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete and stored: the job will never go on from an earlier one by itself.

        What this raises fails the task.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up; a later one takes its place."""
