"""What a worker is told in order to run one attempt of one subtask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sluiceway.config.settings import Settings
from sluiceway.graph import JobVertex
from sluiceway.network.channel_state import EdgeName, InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.serializers import Serializer
from sluiceway.steps import WindowStep
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.transport import ChannelId

__all__ = ["InputDescriptor", "OutputDescriptor", "TaskDeployment"]


@dataclass(frozen=True, slots=True)
class InputDescriptor:
    """One edge into a subtask.

    Attributes:
        channels: its channels, one per producer, in the order of the producers.
        port: which input of the head step it feeds.
        feedback: whether it closes a loop.
        record_type: the type of its records where it is known, or None.
        edge: its name in checkpoints.
        partitioner: how records find their consumer.
        overtakes: whether checkpoint barriers may overtake records on it.
        in_flight: records that the subtask begins with, in order.
        dealt: whether all subtasks are given the same of those, and each takes its share.
    """

    channels: tuple[ChannelId, ...]
    port: int
    feedback: bool
    record_type: Any = None
    edge: EdgeName = field(default_factory=EdgeName)
    partitioner: PartitionerSpec = field(default_factory=lambda: PartitionerSpec("forward"))
    overtakes: bool = False
    in_flight: tuple[InFlight, ...] = ()
    dealt: bool = False


@dataclass(frozen=True, slots=True)
class OutputDescriptor:
    """One edge out of a subtask.

    Attributes:
        node: id of the step in the chain that feeds it.
        tag: name of the side output, or None for the main one.
        partitioner: how records find their consumer.
        channels: its channels, one per consumer, in the order of the partitioner's indices.
        consumer_max_parallelism: number of key groups of the consumer.
        record_type: the type of its records where it is known, or None.
        edge: its name in checkpoints.
        overtakes: whether checkpoint barriers may overtake records on it.
        combined: the window step for which records may be combined before they are sent, or None.
    """

    node: int
    tag: str | None
    partitioner: PartitionerSpec
    channels: tuple[ChannelId, ...]
    consumer_max_parallelism: int
    record_type: Any = None
    edge: EdgeName = field(default_factory=EdgeName)
    overtakes: bool = False
    combined: WindowStep | None = None


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """The task deployment descriptor.

    Attributes:
        job_name: the pipeline's name.
        attempt_id: names this attempt in every report.
        vertex: the chain to run.
        subtask: index of the subtask.
        attempt: number of the attempt.
        inputs: the edges in.
        outputs: the edges out.
        settings: the options of the run.
        seed: for partitioners that draw lots.
        restored: state to start from; empty for a first run.
        job: id of the job; in one process, the pipeline's name.
        checkpoint_path: the directory of the run's checkpoints, where they are written into a storage.
        drained: whether it has nothing to do but to say so: the state is that after the end of its input.
        serializers: those that were registered where the job was made.
        epoch: of the job master.
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
