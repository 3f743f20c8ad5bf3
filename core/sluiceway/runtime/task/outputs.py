"""Outputs of a task: its result partitions, one per outgoing edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.elements import Batch, CheckpointBarrier, Element
from sluiceway.network.channel_state import Overtaken
from sluiceway.network.result_partition import ResultPartition
from sluiceway.runtime.task.channel_state import sent
from sluiceway.runtime.task.deployment import TaskDeployment

__all__ = ["TaskOutputs"]


class TaskOutputs:
    """Result partitions of a task. From the task's thread only.

    Args:
        deployment: the task's.

    Attributes:
        partitions: in the order of the deployment's outputs; added when they are opened.
    """

    def __init__(self, deployment: TaskDeployment) -> None:
        self.partitions: list[ResultPartition] = []
        self._deployment = deployment

    def send(self, element: Element) -> None:
        """Send a control element to every consumer."""
        for partition in self.partitions:
            partition.control(element)

    def barrier(self, barrier: CheckpointBarrier) -> list[Overtaken]:
        """Send a barrier to every consumer; return the records that it has overtaken here."""
        return self._overtaken(lambda partition: partition.barrier(barrier))

    def holds(self, checkpoint_id: int) -> bool:
        """Return whether the barrier of a checkpoint is queued here and may overtake."""
        return any(partition.holds(checkpoint_id) for partition in self.partitions)

    def overtake(self, barrier: CheckpointBarrier) -> list[Overtaken]:
        """Send a queued barrier ahead of queued records; return those."""
        return self._overtaken(lambda partition: partition.overtake(barrier))

    def _overtaken(self, of: Callable[[ResultPartition], list[tuple[int, list[Batch[Any]]]]]) -> list[Overtaken]:
        return [
            overtaken
            for partition, output in zip(self.partitions, self._deployment.outputs, strict=True)
            for overtaken in sent(self._deployment, output, of(partition))
        ]
