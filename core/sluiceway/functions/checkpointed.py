"""Functions with operator state: state of a subtask, not of a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from sluiceway.errors import StateError
from sluiceway.functions.base import FunctionObject, RuntimeContext
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import ListState, ListStateDescriptor

__all__ = [
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "OperatorStateStore",
    "RawKeyedState",
    "RawOperatorState",
]

T = TypeVar("T")


class OperatorStateStore(ABC):
    """Access of a function to its operator state. A name belongs to one state of the step.

    The content of a list is copied when a snapshot is taken, not before: until then a function may change its
    elements in place.
    """

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list of this subtask. A restore with another parallelism deals all elements out in turn.

        Raises:
            StateError: the name was asked for, or saved, in another way or with another type.
        """

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list of this subtask. After a restore, each subtask has the elements of all.

        A function that keeps only its own part has to update the list with it before the next snapshot;
        otherwise the elements multiply.

        Raises:
            StateError: as for :meth:`get_list_state`.
        """


class FunctionInitializationContext(ABC):
    """Context in which a function gets its state."""

    @property
    @abstractmethod
    def is_restored(self) -> bool:
        """True if the job starts from a snapshot that includes this step."""

    @property
    @abstractmethod
    def operator_state_store(self) -> OperatorStateStore:
        """State of the subtask."""

    @property
    @abstractmethod
    def keyed_state_store(self) -> RuntimeContext:
        """Handles of keyed state; asking for one is an error in a step without keys."""

    @property
    @abstractmethod
    def raw_operator_state(self) -> list[bytes]:
        """Chunks that functions of this step have written for the snapshot, this subtask's share.

        Each goes to one subtask: to the one that has written it, or, after a restore with another parallelism, to
        one subtask after the other in turn.
        """

    @property
    @abstractmethod
    def raw_keyed_state(self) -> dict[int, bytes]:
        """Bytes that functions have written by key group, in order, of this subtask's key groups.

        Raises:
            StateError: the step has no keys.
        """


class RawOperatorState:
    """Chunks of bytes that belong to a subtask, as a function writes them for one snapshot.

    Args:
        chunks: existing chunks.
    """

    def __init__(self, chunks: Iterable[bytes] = ()) -> None:
        self.chunks = list(chunks)

    def write(self, chunk: bytes) -> None:
        """Append a chunk. It stays whole: after a restore one subtask has all of it."""
        self.chunks.append(bytes(chunk))


class RawKeyedState:
    """Stream of bytes for each key group of a subtask, as a function writes them for one snapshot.

    Args:
        step: name of the step, for messages.
        key_groups: key groups of the subtask; None: the step has no keys.
    """

    def __init__(self, step: str = "", key_groups: KeyGroupRange | None = None) -> None:
        self._step = step
        self._key_groups = key_groups
        self.streams: dict[int, bytearray] = {}

    @property
    def key_groups(self) -> KeyGroupRange:
        """Key groups of the subtask. Raises StateError: the step has no keys."""
        if self._key_groups is None:
            raise StateError(
                f"step {self._step!r} has no keys, and so no raw keyed state: use raw_operator_state, or put "
                "key_by(...) before it"
            )
        return self._key_groups

    def write(self, key_group: int, data: bytes) -> None:
        """Append to the stream of a key group (:func:`sluiceway.keygroups.key_group` tells that of a key).

        Raises:
            StateError: it is none of the subtask's, or the step has no keys.
        """
        start, end = self.key_groups
        if not start <= key_group < end:
            raise StateError(
                f"raw keyed state of step {self._step!r} is written for key group {key_group}, and this subtask "
                f"has the groups {start} to {end - 1}"
            )
        self.streams.setdefault(key_group, bytearray()).extend(data)


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """Context of a snapshot, to which a function writes all of its raw state, each time.

    Attributes:
        checkpoint_timestamp: time of the snapshot, ms since the epoch.
        checkpoint_id: number of the checkpoint, which increases from one to the next, also after a restart; 0 for
            a snapshot without a checkpoint.
        raw_operator_state: receives chunks of bytes.
        raw_keyed_state: receives bytes for key groups.
    """

    checkpoint_timestamp: int
    checkpoint_id: int = 0
    raw_operator_state: RawOperatorState = field(default_factory=RawOperatorState)
    raw_keyed_state: RawKeyedState = field(default_factory=RawKeyedState)


class CheckpointedFunction(FunctionObject, ABC):
    """Mixin for function objects, and sink writers, with operator state: put it behind the first base class.

    Call order: :meth:`initialize_state` once, before ``open``; then, between any two batches of records,
    :meth:`snapshot_state` for each snapshot. An object for each subtask, all calls from the task's thread.
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Ask for the state, and take over what was restored."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Bring the state up to date for a snapshot."""


class CheckpointListener:
    """Mixin for function objects, and sink writers, that are notified of checkpoints.

    Put it behind the first base class. Calls come from the task's thread, between any two batches of records. A
    call may be missing where a task or a worker has failed meanwhile: what a checkpoint's completion allows must
    be allowed by that of a later one, too.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint: the job will not restart from an earlier one by itself.

        An exception fails the task.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint; a later one replaces it."""
