"""Channel state of a task: in-flight records of a checkpoint, and those that a restored task starts with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from sluiceway.elements import Batch
from sluiceway.errors import IncompatibleStateError
from sluiceway.network.channel_state import RECEIVED, RECOVERED, SENT, InFlight, Overtaken, Recording, apart, deal
from sluiceway.network.element_codec import edge_serializer
from sluiceway.runtime.task.deployment import InputDescriptor, OutputDescriptor, TaskDeployment
from sluiceway.serializers import Serializer
from sluiceway.steps import ColumnWindowStep

__all__ = ["received", "recovered_batches", "sent"]

_AGAIN_FROM = 1 << 32
"""Base of the channel indices that recordings use for recovered batches; the index of the edge is added."""


def recovered_batches(deployment: TaskDeployment) -> Iterator[tuple[int, int, Batch[Any]]]:
    """Yield the recovered batches, which precede all input: channel index in recordings, port, batch.

    Raises:
        CheckpointError: it cannot be read, or is damaged.
        SerializationError: it is not of the edge's format.
        IncompatibleStateError: rows lack a column that the step reads now.
    """
    for index, descriptor in enumerate(deployment.inputs):
        for batch in _again(deployment, descriptor):
            yield _AGAIN_FROM + index, descriptor.port, batch


def _again(deployment: TaskDeployment, descriptor: InputDescriptor) -> Iterator[Batch[Any]]:
    if not descriptor.in_flight:
        return iter(())
    serializer = edge_serializer(descriptor.record_type, deployment.serializers)
    batches: Iterator[Batch[Any]] = chain.from_iterable(part.batches(serializer) for part in descriptor.in_flight)
    step = deployment.vertex.head.step
    if isinstance(step, ColumnWindowStep):
        # The step is sent the columns that it and those behind it read: a changed program may read others.
        names = descriptor.partitioner.columns or step.entering.names
        batches = (_with_columns(batch, names, descriptor, deployment) for batch in batches)
    if not descriptor.dealt:
        return batches
    vertex = deployment.vertex
    return deal(batches, descriptor.partitioner, deployment.subtask, vertex.parallelism, vertex.max_parallelism)


def _with_columns(
    batch: Batch[Any], names: Sequence[str], descriptor: InputDescriptor, deployment: TaskDeployment
) -> Batch[Any]:
    """Return a batch in columns with those of some names. Raises IncompatibleStateError: it lacks one."""
    data = batch.columns
    if data is None or data.schema.names == list(names):
        return batch
    for name in names:
        if name not in data.schema.names:
            raise IncompatibleStateError(
                f"rows that were in flight {descriptor.edge} have no column {name!r}, which step "
                f"{deployment.vertex.head.name!r} or one behind it reads now; they have "
                f"{', '.join(data.schema.names)}: change the program at a savepoint, which holds no rows in "
                "flight, or at an aligned checkpoint"
            )
    return Batch.of_columns(data.select(list(names)), batch.timestamps)


def received(deployment: TaskDeployment, recording: Recording) -> list[Overtaken]:
    """Return the overtaken records of a task's gate."""
    # In the order in which open_gate() adds the channels.
    edges = [(i, channel.producer) for i, d in enumerate(deployment.inputs) for channel in d.channels]
    found = []
    for index, batches in recording.batches.items():
        if not batches:
            continue
        if index >= _AGAIN_FROM:
            edge, producer, stage = index - _AGAIN_FROM, 0, RECOVERED
        else:
            (edge, producer), stage = edges[index], RECEIVED
        descriptor = deployment.inputs[edge]
        # The place alone: the writer adds frames, size and serializer.
        place = InFlight(
            descriptor.edge,
            descriptor.partitioner.name,
            producer,
            deployment.subtask,
            deployment.vertex.parallelism,
            deployment.vertex.max_parallelism,
            stage,
            (),
            0,
            "",
            0,
        )
        found.append(Overtaken(place, batches, _serializer(deployment, descriptor)))
    return found


def sent(
    deployment: TaskDeployment, output: OutputDescriptor, overtaken: Iterable[tuple[int, list[Batch[Any]]]]
) -> Iterator[Overtaken]:
    """Return the overtaken records of one edge out of a task."""
    for index, batches in overtaken:
        place = InFlight(
            output.edge,
            output.partitioner.name,
            deployment.subtask,
            output.channels[index].consumer,
            len(output.channels),
            output.consumer_max_parallelism,
            SENT,
            (),
            0,
            "",
            0,
        )
        # Copies: the consumer may change the records while a helper thread writes them. A recording copies its
        # own.
        yield Overtaken(place, list(map(apart, batches)), _serializer(deployment, output))


def _serializer(deployment: TaskDeployment, descriptor: InputDescriptor | OutputDescriptor) -> Serializer:
    return edge_serializer(descriptor.record_type, deployment.serializers)
