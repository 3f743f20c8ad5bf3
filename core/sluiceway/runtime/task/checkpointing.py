"""Checkpoints of a task: from the barrier to the acknowledgement, and the notifications afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.elements import BarrierAnnouncement, Batch, CancelCheckpointMarker, CheckpointBarrier
from sluiceway.errors import CheckpointFailedError, SerializationError
from sluiceway.network.channel_state import Overtaken, Recording
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.payload import Cause
from sluiceway.runtime.messages.tasks import DeclineCheckpoint, Drained
from sluiceway.runtime.task.channel_state import received
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.operator_chain import OperatorChain
from sluiceway.runtime.task.outputs import TaskOutputs
from sluiceway.runtime.task.snapshot import TaskSnapshot, with_own_objects
from sluiceway.runtime.task.task_input import TaskInput

__all__ = ["TaskCheckpoints"]

_ABORTED: Final = 32
"""Aborted checkpoints that a task remembers: notifications are repeated for less than two minutes."""


class _Taken(msgspec.Struct):
    """Checkpoint whose state was taken, while its in-flight data is still being recorded."""

    snapshot: TaskSnapshot
    recording: Recording | None
    sent: list[Overtaken] = msgspec.field(default_factory=list)
    waits: bool = False
    """True while the barrier is queued in the output; acknowledged when it was sent or has overtaken."""


class TaskCheckpoints:
    """State machine of a task's checkpoints. From the task's thread only.

    A barrier that has arrived is kept until the task calls :meth:`snapshot`, with everything before it processed.
    That flushes the sinks and, when they hold nothing, takes the snapshot, sends the barrier on and acknowledges.
    After a barrier that has overtaken records (:attr:`early`) the acknowledgement waits until all in-flight data
    is recorded.

    Args:
        deployment: descriptor of the task.
        clock: clock of durations and alignment timeouts.
        source: input with the barriers.
        outputs: outputs that forward them.
        chain: the operators.
        send: sends a message to the job master.
        acknowledge: writes the snapshot, then acknowledges the checkpoint with it.

    Attributes:
        barrier: the barrier that has arrived and was not forwarded yet.
        early: whether it has overtaken records.
        hurry: whether it overtakes queued output as well, and so does not wait for the output.
        attention: whether :meth:`poll_timeouts` must be called.
        due: when, in monotonic seconds; None: whenever something may have changed.
        drained: whether the task has processed all its input.
        finished: whether a checkpoint is complete that holds the state at the end of the input, or the job ends
            with it.
        suspends: whether the job is to end with the savepoint that was taken last, when it is complete.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        clock: Clock,
        source: TaskInput,
        outputs: TaskOutputs,
        chain: OperatorChain,
        send: Callable[[Message], None],
        acknowledge: Callable[[TaskSnapshot], None],
    ) -> None:
        self.barrier: CheckpointBarrier | None = None
        self.early = self.hurry = False
        self.attention = False
        self.due: float | None = None
        self.drained = False
        self.finished = False
        self.suspends = False
        self._deployment = deployment
        self._clock = clock
        self._source = source
        self._outputs = outputs
        self._chain = chain
        self._send = send
        self._acknowledge = acknowledge
        # Highest checkpoints begun and notified here. Triggers and notifications are repeated, and take effect
        # once.
        self._begun = self._notified = 0
        # The last aborted ones. Functions are notified once of each, too.
        self._aborted: deque[int] = deque(maxlen=_ABORTED)
        self._timed: CheckpointBarrier | None = None
        self._taken: _Taken | None = None
        self._drained_in: int | None = None
        self._stops_with: int | None = None
        self._arrived_at = 0.0
        self._alignment_began: float | None = None
        self._alignment_s = 0.0
        source.watch_checkpoints(self.announced, self.overtaken, self.alignment_began)

    # ---- barriers -------------------------------------------------------------------------------------------

    def alignment_began(self) -> None:
        """Record the start of the alignment: some channels of the gate are blocked."""
        self._alignment_began = self._clock.monotonic()

    def on_barrier(self, element: CheckpointBarrier | CancelCheckpointMarker) -> None:
        """Handle a barrier of the input, or a cancel marker."""
        now = self._aligned()
        if isinstance(element, CancelCheckpointMarker):
            missing = CheckpointFailedError("its barrier has not come by every channel")
            self._decline(element.checkpoint_id, missing)
        else:
            self._arrived_at = now
            self.barrier, self.early = element, False
            # An unaligned barrier that came in its turn has overtaken nothing here, but it overtakes what waits in
            # the outputs.
            self.hurry = element.aligned_ms == 0
            self.attention = self.attention or self.hurry

    def announced(self, announcement: BarrierAnnouncement) -> None:
        """Set the alignment timeout of an announced barrier."""
        if self._timed is None or self._timed.checkpoint_id < announcement.checkpoint_id:
            self._watch(announcement.checkpoint_id, announcement.timestamp_ms, announcement.aligned_ms)

    def overtaken(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint whose barrier has overtaken records."""
        self._arrived_at = self._aligned()
        self.barrier = barrier
        self.early = self.hurry = self.attention = True

    def poll_timeouts(self, now: float) -> None:
        """Handle alignment timeouts, and acknowledge complete checkpoints. ``now`` is monotonic seconds."""
        taken, timed = self._taken, self._timed
        if self.due is not None and self.due <= now:
            self.due = None
            assert timed is not None
            # The barrier is in one of three places: taken and queued in the output, still in the input, or arrived
            # and waiting for the task.
            if taken is not None and taken.snapshot.checkpoint_id == timed.checkpoint_id:
                if taken.waits:
                    taken.sent += self._outputs.overtake(timed)
            elif self.barrier is None:
                self._source.overtake(timed)
            else:
                self.hurry = True
        if taken is not None:
            self._acknowledge_if_recorded(taken)
        self.attention = self.hurry or self.due is not None or self._taken is not None

    def snapshot(self, remainder: Batch[Any] | None) -> Wait | None:
        """Take the snapshot of the arrived barrier; or return a wait, after which this must be called again.

        Args:
            remainder: unprocessed part of the last batch; in-flight data after a barrier that has overtaken it.

        Raises:
            Exception: a function or a sink has failed. The task must fail with it.
        """
        wait = self._chain.prepare_snapshot()
        if wait is not None:
            return wait
        barrier, early, timed_out = self.barrier, self.early, self.hurry
        assert barrier is not None
        self.barrier, self.early, self.hurry = None, False, False
        # A newer checkpoint replaces one that is not acknowledged yet: release its keyed snapshots.
        self._drop_taken()
        began = self._clock.monotonic()
        try:
            taken = self._chain.snapshot(barrier.checkpoint_id, drained=self.drained, splits=self._source.snapshot)
            operators = tuple(map(with_own_objects, taken))
        except SerializationError as error:
            # The task is unchanged after these errors. After any other one of functions and sinks its state is
            # unknown.
            self._source.abort_checkpoint(barrier.checkpoint_id)
            self._decline(barrier.checkpoint_id, error)
            return None
        finally:
            self._source.checkpoint_taken()
        recording = self._source.record(barrier.checkpoint_id, remainder) if early else None
        now_ms = self._clock.now_ms()
        # The alignment timeout counts from the trigger, over all tasks: once it has passed, the barrier is
        # forwarded as unaligned, and consumers need not wait for it again. So it is where this task's own wait has
        # timed out, of which the wall clock may know nothing: nobody would time the barrier any more.
        if barrier.aligned_ms > 0 and (timed_out or barrier.aligned_ms <= now_ms - barrier.timestamp_ms):
            barrier = msgspec.structs.replace(barrier, aligned_ms=0)
        # The barrier leaves after the snapshot and before any further record: consumers see the state's output
        # before it, and nothing else.
        sent = self._outputs.barrier(barrier)
        # The first checkpoint that holds the end of the input, or any later one, lets the task finish.
        if self.drained and self._drained_in is None:
            self._drained_in = barrier.checkpoint_id
        if barrier.stops:
            self._stops_with, self.suspends = barrier.checkpoint_id, True
        snapshot = TaskSnapshot(
            operators,
            drained=self.drained,
            start_delay_ms=max(0, now_ms - barrier.timestamp_ms),
            alignment_ms=round(self._alignment_s * 1000),
            flush_ms=round((began - self._arrived_at) * 1000),
            sync_ms=round((self._clock.monotonic() - began) * 1000),
            checkpoint_id=barrier.checkpoint_id,
            savepoint=barrier.savepoint,
            unaligned=early or barrier.aligned_ms == 0,
        )
        waits = barrier.aligned_ms > 0 and self._outputs.holds(barrier.checkpoint_id)
        self._taken = _Taken(snapshot, recording, sent, waits)
        if waits and (self._timed is None or self._timed.checkpoint_id != barrier.checkpoint_id):
            self._watch(barrier.checkpoint_id, barrier.timestamp_ms, barrier.aligned_ms)
        elif not waits and self._timed is not None and self._timed.checkpoint_id <= barrier.checkpoint_id:
            self.due = None
        self.attention = True
        self._acknowledge_if_recorded(self._taken)
        return None

    def close(self) -> None:
        """Release everything; the task has ended."""
        self._drop_taken()

    def _aligned(self) -> float:
        """Record the alignment time; return monotonic seconds."""
        now = self._clock.monotonic()
        self._alignment_s = 0.0 if self._alignment_began is None else now - self._alignment_began
        self._alignment_began = None
        return now

    def _watch(self, checkpoint_id: int, timestamp_ms: int, aligned_ms: int) -> None:
        # Never longer than the timeout, wherever the wall clock stands: it may have been set back since the
        # trigger, or be behind that of the coordinator's machine.
        left_ms = min(aligned_ms, max(0, timestamp_ms + aligned_ms - self._clock.now_ms()))
        self._timed = CheckpointBarrier(checkpoint_id, timestamp_ms, aligned_ms=0)
        self.due = round(self._clock.monotonic() + left_ms / 1000, 9)
        self.attention = True

    def _acknowledge_if_recorded(self, taken: _Taken) -> None:
        """Acknowledge a checkpoint once all of its in-flight data is recorded."""
        if taken.recording is not None and not taken.recording.complete:
            return
        snapshot = taken.snapshot
        if taken.waits and self._outputs.holds(snapshot.checkpoint_id):
            return
        self._taken = None
        if self._timed is not None and self._timed.checkpoint_id == snapshot.checkpoint_id:
            self.due = None
        came = () if taken.recording is None else received(self._deployment, taken.recording)
        # Those received first: they are older than those that were not sent.
        self._acknowledge(msgspec.structs.replace(snapshot, in_flight=(*came, *taken.sent)))

    def _drop_taken(self) -> None:
        # Nobody acknowledges it any more, and so no writer will read and release the snapshots.
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.snapshot.release()

    def _decline(self, checkpoint_id: int, cause: BaseException) -> None:
        # No barrier follows: consumers that align would wait for it.
        self._outputs.send(CancelCheckpointMarker(checkpoint_id))
        d = self._deployment
        self._send(DeclineCheckpoint(d.job, d.epoch, d.attempt_id, checkpoint_id, Cause(cause)))

    # ---- messages of the coordinator ------------------------------------------------------------------------

    def start(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint with this task, unless it or a newer one was begun here before."""
        if barrier.checkpoint_id > self._begun:
            self._begun = barrier.checkpoint_id
            self._source.start_checkpoint(barrier)

    def completed(self, checkpoint_id: int) -> None:
        """Commit output that waited for a checkpoint. Once per checkpoint, and not after a newer one."""
        # Notifications are repeated when tasks do not react, and may arrive out of order.
        if checkpoint_id <= self._notified:
            return
        self._notified = checkpoint_id
        self._chain.notify_checkpoint_completed(checkpoint_id)
        self._source.checkpoint_completed(checkpoint_id)
        at_the_end = self._drained_in is not None and checkpoint_id >= self._drained_in
        if at_the_end or checkpoint_id == self._stops_with:
            self.finished = True

    def aborted(self, checkpoint_id: int) -> None:
        """Abort a checkpoint, at whatever stage it is in this task."""
        self._source.abort_checkpoint(checkpoint_id)
        if checkpoint_id == self._stops_with:
            self._stops_with, self.suspends = None, False
        if self._timed is not None and self._timed.checkpoint_id == checkpoint_id:
            self.due = None
        if self._taken is not None and self._taken.snapshot.checkpoint_id == checkpoint_id:
            self._drop_taken()
        if self.barrier is not None and self.barrier.checkpoint_id == checkpoint_id:
            self.barrier, self.early, self.hurry = None, False, False
            self._source.checkpoint_taken()
            # The barrier was not sent on, and is not going to be.
            self._outputs.send(CancelCheckpointMarker(checkpoint_id))
        if checkpoint_id not in self._aborted:
            self._aborted.append(checkpoint_id)
            self._chain.notify_checkpoint_aborted(checkpoint_id)

    def input_ended(self) -> None:
        """Report to the coordinator that all input is processed, and that the task waits for a checkpoint."""
        self.drained = True
        d = self._deployment
        self._send(Drained(d.job, d.epoch, d.attempt_id))
