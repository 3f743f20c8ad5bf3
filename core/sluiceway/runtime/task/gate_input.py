"""Input of a task from other tasks, through an input gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluiceway.connector import Wait
from sluiceway.elements import BarrierAnnouncement, Batch, CheckpointBarrier, Element
from sluiceway.network.channel_state import Recording
from sluiceway.network.input_gate import InputGate
from sluiceway.runtime.task.task_input import NOTHING, TaskInput
from sluiceway.util.overriding import override

__all__ = ["GateInput"]


class GateInput(TaskInput):
    """Input from other tasks.

    Args:
        gate: gate with the channels.
        recovered: returns the recovered in-flight batches of the restored checkpoint: channel index in
            recordings, port, batch.
    """

    def __init__(
        self, gate: InputGate, recovered: Callable[[], Iterable[tuple[int, int, Batch[Any]]]] = tuple
    ) -> None:
        self._gate = gate
        self._recovered = recovered

    def open(self) -> None:
        """Start to read, recovered batches first."""
        for source, port, batch in self._recovered():
            self._gate.add_recovered(source, port, batch)
        self._gate.start()

    @override
    def watch_checkpoints(
        self,
        announced: Callable[[BarrierAnnouncement], None],
        begins: Callable[[CheckpointBarrier], None],
        alignment: Callable[[], None],
    ) -> None:
        self._gate.on_announced, self._gate.on_overtaking = announced, begins
        self._gate.on_alignment = alignment

    def overtake(self, barrier: CheckpointBarrier) -> None:
        """Begin the checkpoint without further alignment."""
        self._gate.overtake(barrier)

    @override
    def record(self, checkpoint_id: int, remainder: Batch[Any] | None) -> Recording:
        return self._gate.record(checkpoint_id, remainder)

    @property
    def may_record_remainder(self) -> bool:
        """True if the unprocessed part of the last batch may be recorded as in-flight data."""
        return self._gate.last.overtakes

    @override
    def poll(self) -> Element | Wait:
        element = self._gate.poll()
        return NOTHING if element is None else element

    @property
    @override
    def watermark(self) -> int:
        return self._gate.watermark

    def start_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint: all producers have finished, or are about to."""
        self._gate.start_checkpoint(barrier)

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Unblock channels that wait for the checkpoint."""
        self._gate.abort_checkpoint(checkpoint_id)

    def loops_ended(self) -> bool:
        """Return whether all feedback channels have finished."""
        return self._gate.loops_ended()

    @property
    def port(self) -> int:
        """Port of the gate's last batch."""
        return self._gate.port

    @property
    @override
    def bytes_in(self) -> int:
        return self._gate.bytes_in

    @property
    @override
    def ready(self) -> bool:
        return self._gate.ready

    @override
    def queued(self) -> int:
        return self._gate.queued()

    @override
    def close(self) -> None:
        self._gate.close()
