"""A task's part in checkpoints: from the barrier to the acknowledgement, and what is told of them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.elements import CancelCheckpointMarker, CheckpointBarrier, Element
from sluiceway.errors import CheckpointFailedError, SerializationError
from sluiceway.operators import Operator, OperatorSnapshot
from sluiceway.runtime.inputs import TaskInput
from sluiceway.runtime.snapshots import TaskSnapshot, with_own_objects

__all__ = ["CheckpointReports", "TaskCheckpoints"]


class CheckpointReports(Protocol):
    """How a task answers the checkpoint coordinator. Calls return at once."""

    def acknowledge(self, attempt_id: str, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """The task has done its part."""

    def decline(self, attempt_id: str, checkpoint_id: int, cause: BaseException) -> None:
        """The task does not take part."""

    def drained(self, attempt_id: str) -> None:
        """The task has processed all its input, and waits for a checkpoint in order to finish."""


class TaskCheckpoints:
    """Takes a task through its checkpoints. From the task's thread.

    A barrier that has come is kept until the task calls :meth:`take`, with everything before it processed: then
    what sinks hold is handed to the outside, and when they have got rid of it the state is taken, the barrier goes
    on, and the coordinator is told.

    Args:
        attempt_id: the task's.
        clock: for durations.
        source: where the barriers come from.
        send: sends a control element to every consumer.
        snapshots: the state of all steps, for the checkpoint of that id.
        reports: the way to the coordinator.

    Attributes:
        barrier: the one that has come and was not passed on yet.
        operators: the chain, head first.
        drained: whether the task has processed all its input.
        finished: whether a checkpoint is complete that holds the state at the end of the input, or the job ends
            with it.
        standing_still: whether the job is to end with the savepoint that was taken last, when it is complete.
    """

    def __init__(
        self,
        attempt_id: str,
        clock: Clock,
        source: TaskInput,
        send: Callable[[Element], None],
        snapshots: Callable[[int], list[OperatorSnapshot]],
        reports: CheckpointReports,
    ) -> None:
        self.barrier: CheckpointBarrier | None = None
        self.operators: Sequence[Operator] = ()
        self.drained = False
        self.finished = False
        self.standing_still = False
        self._attempt_id = attempt_id
        self._clock = clock
        self._source = source
        self._send = send
        self._snapshots = snapshots
        self._reports = reports
        self._begun = self._told = 0
        self._drained_in: int | None = None
        self._stops_with: int | None = None
        self._came_at = 0.0
        self._alignment_began: float | None = None
        self._alignment_s = 0.0

    # ---- barriers -------------------------------------------------------------------------------------------

    def alignment_began(self) -> None:
        """Some channels of the gate wait for others."""
        self._alignment_began = self._clock.monotonic()

    def came(self, element: CheckpointBarrier | CancelCheckpointMarker) -> None:
        """The input has given a barrier, or says that one will not come."""
        now = self._clock.monotonic()
        self._alignment_s = 0.0 if self._alignment_began is None else now - self._alignment_began
        self._alignment_began = None
        if isinstance(element, CancelCheckpointMarker):
            missing = CheckpointFailedError("its barrier has not come by every channel")
            self._give_up(element.checkpoint_id, missing)
        else:
            self._came_at = now
            self.barrier = element

    def take(self) -> Wait | None:
        """Take the checkpoint whose barrier has come; or what to wait for before calling this again.

        Raises:
            Exception: what a function or a sink has raised on the way. The task has to fail with it.
        """
        for operator in self.operators:
            operator.before_barrier()
        for operator in self.operators:
            wait = operator.blocked()
            if wait is not None:
                return wait
        barrier = self.barrier
        assert barrier is not None
        self.barrier = None
        began = self._clock.monotonic()
        try:
            taken = tuple(map(with_own_objects, self._snapshots(barrier.checkpoint_id)))
        except SerializationError as error:
            # The task is as it was. After anything else that functions and sinks raise here, nobody knows that.
            self._give_up(barrier.checkpoint_id, error)
            return None
        finally:
            self._source.checkpoint_taken()
        self._send(barrier)
        if self.drained and self._drained_in is None:
            self._drained_in = barrier.checkpoint_id
        if barrier.stops:
            self._stops_with, self.standing_still = barrier.checkpoint_id, True
        snapshot = TaskSnapshot(
            taken,
            drained=self.drained,
            start_delay_ms=max(0, self._clock.now_ms() - barrier.timestamp_ms),
            alignment_ms=round(self._alignment_s * 1000),
            flush_ms=round((began - self._came_at) * 1000),
            sync_ms=round((self._clock.monotonic() - began) * 1000),
            checkpoint_id=barrier.checkpoint_id,
            savepoint=barrier.savepoint,
        )
        self._reports.acknowledge(self._attempt_id, barrier.checkpoint_id, snapshot)
        return None

    def _give_up(self, checkpoint_id: int, cause: BaseException) -> None:
        self._send(CancelCheckpointMarker(checkpoint_id))
        self._reports.decline(self._attempt_id, checkpoint_id, cause)

    # ---- what the coordinator says --------------------------------------------------------------------------

    def start(self, barrier: CheckpointBarrier) -> None:
        """A checkpoint begins with this task, unless that or a newer one has."""
        if barrier.checkpoint_id > self._begun:
            self._begun = barrier.checkpoint_id
            self._source.start_checkpoint(barrier)

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: what waited for that may become visible. Once, and not after a newer one."""
        if checkpoint_id <= self._told:
            return
        self._told = checkpoint_id
        for operator in self.operators:
            operator.checkpoint_completed(checkpoint_id)
        at_the_end = self._drained_in is not None and checkpoint_id >= self._drained_in
        if at_the_end or checkpoint_id == self._stops_with:
            self.finished = True

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint is given up, whatever this task has done for it."""
        self._source.abort_checkpoint(checkpoint_id)
        if checkpoint_id == self._stops_with:
            self._stops_with, self.standing_still = None, False
        if self.barrier is not None and self.barrier.checkpoint_id == checkpoint_id:
            self.barrier = None
            self._source.checkpoint_taken()
            self._send(CancelCheckpointMarker(checkpoint_id))
        for operator in self.operators:
            operator.checkpoint_aborted(checkpoint_id)

    def input_ended(self) -> None:
        """Everything was processed and the consumers were told: wait for a checkpoint of that."""
        self.drained = True
        self._reports.drained(self._attempt_id)
