"""Task deployment descriptor: all that a worker needs to run one attempt of a subtask."""

from __future__ import annotations

from typing import Any

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.graph import JobVertex
from sluiceway.network.channel_state import EdgeName, InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.serializers import Serializer
from sluiceway.steps import WindowStep
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.transport import ChannelId

__all__ = ["InputDescriptor", "OutputDescriptor", "TaskDeployment"]


class InputDescriptor(msgspec.Struct, frozen=True):
    """Descriptor of an edge into a subtask.

    Attributes:
        channels: its channels, one per producer, in the order of the producers.
        port: index of the input of the head step.
        feedback: True if it closes a loop.
        record_type: type of its records, or None if not known.
        edge: name of the edge in checkpoints.
        partitioner: name of the partitioner.
        overtakes: whether checkpoint barriers may overtake records on it.
        in_flight: recovered in-flight records, in order.
        dealt: whether all subtasks receive the same of those, and each takes its share.
    """

    channels: tuple[ChannelId, ...]
    port: int
    feedback: bool
    record_type: Any = None
    edge: EdgeName = msgspec.field(default_factory=EdgeName)
    partitioner: PartitionerSpec = msgspec.field(default_factory=lambda: PartitionerSpec("forward"))
    overtakes: bool = False
    in_flight: tuple[InFlight, ...] = ()
    dealt: bool = False


class OutputDescriptor(msgspec.Struct, frozen=True):
    """Descriptor of an edge out of a subtask.

    Attributes:
        node: id of the step in the chain that feeds it.
        tag: name of the side output, or None for the main one.
        partitioner: how records find their consumer.
        channels: its channels, one per consumer, in the order of the partitioner's indices.
        consumer_max_parallelism: number of key groups of the consumer.
        record_type: type of its records, or None if not known.
        edge: name of the edge in checkpoints.
        overtakes: whether checkpoint barriers may overtake records on it.
        combined: the window step for which records may be combined before they are sent, or None.
    """

    node: int
    tag: str | None
    partitioner: PartitionerSpec
    channels: tuple[ChannelId, ...]
    consumer_max_parallelism: int
    record_type: Any = None
    edge: EdgeName = msgspec.field(default_factory=EdgeName)
    overtakes: bool = False
    combined: WindowStep | ColumnWindowStep | None = None


class TaskDeployment(msgspec.Struct, frozen=True):
    """The task deployment descriptor.

    Attributes:
        job_name: the pipeline's name.
        attempt_id: id of the attempt in all messages.
        vertex: the chain to run.
        subtask: index of the subtask.
        attempt: number of the attempt.
        inputs: the edges in.
        outputs: the edges out.
        settings: the options of the run.
        seed: seed of random partitioners.
        restored: state to start from; empty for a first run.
        job: id of the job; in one process, the pipeline's name.
        checkpoint_path: directory of the run's checkpoints in the storage.
        drained: whether the restored state is that after the end of its input.
        serializers: serializers registered in the program.
        epoch: epoch of the job master.
    """

    job_name: str
    attempt_id: str
    vertex: JobVertex
    subtask: int
    attempt: int
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    settings: Settings
    seed: int
    restored: tuple[OperatorSnapshot, ...] = ()
    job: str = ""
    checkpoint_path: str = ""
    drained: bool = False
    serializers: tuple[Serializer, ...] = ()
    epoch: int = 0
