"""Ends of a task: its input gate or source reader, and its result partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sluiceway.clock import Clock
from sluiceway.connector import Reader
from sluiceway.elements import MIN_WATERMARK, Batch, Element, Watermark
from sluiceway.engine import Services
from sluiceway.keygroups import KeyGroupRange
from sluiceway.network.credit import GateCredits, Unlimited
from sluiceway.network.element_codec import edge_serializer
from sluiceway.network.input_gate import InputGate
from sluiceway.network.partitioners import BroadcastPartitioner, HashPartitioner, make_partitioner
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators import OperatorContext
from sluiceway.operators.async_calls import Calls
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.tasks import ReportWatermark
from sluiceway.runtime.task.deployment import OutputDescriptor, TaskDeployment
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.serializers.content import ContentSerializer
from sluiceway.serializers.edges import OnceSerializer
from sluiceway.state import StateBackend
from sluiceway.steps import SourceStep
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.streamgraph import StreamNode
from sluiceway.transport import ChannelId, Sender, Transport

__all__ = ["EdgeOutput", "open_gate", "open_partition", "open_source", "operator_context"]


class _Counts(Protocol):
    records_out: int
    started: float


class EdgeOutput:
    """Output of a step along one edge out of a task.

    Args:
        task: counts records, and knows when its step began.
        partition: result partition of the edge.

    Attributes:
        watermark: the last one sent, in ms.
    """

    def __init__(self, task: _Counts, partition: ResultPartition) -> None:
        self._task = task
        self._partition = partition
        self.watermark = MIN_WATERMARK

    def control(self, element: Element) -> None:
        """Send a control element to every consumer."""
        if type(element) is Watermark:
            self.watermark = element.timestamp
        self._partition.control(element)

    def emit(self, batch: Batch[Any]) -> None:
        """Send a batch to its consumers."""
        self._task.records_out += len(batch.values)
        self._partition.emit(batch, self._task.started)


def open_gate(
    deployment: TaskDeployment,
    transport: Transport,
    data_came: Callable[[InputGate, int], None],
    urgent_came: Callable[[InputGate, int], None] = lambda gate, channel: None,
) -> InputGate:
    """Open the consumer's end of all channels into a task.

    Args:
        deployment: descriptor of the task.
        transport: opens them.
        data_came: called with the index of a channel that is readable.
        urgent_came: called with the index of a channel that has an urgent element.
    """
    gate = InputGate(exactly_once=deployment.settings.checkpoint_mode == "exactly-once")
    gate.on_recorded = lambda: urgent_came(gate, 0)  # wakes the task, even if no data arrives
    limited = (c for descriptor in deployment.inputs if not descriptor.feedback for c in descriptor.channels)
    ledger_of_gate = GateCredits(far=sum(map(_is_far, limited)))
    index = 0
    for descriptor in deployment.inputs:
        serializer = edge_serializer(descriptor.record_type, deployment.serializers)
        for channel in descriptor.channels:
            # A loop under credit could wait for itself.
            ledger = Unlimited() if descriptor.feedback else ledger_of_gate.channel(far=_is_far(channel))
            receiver = transport.receiver(channel, ledger, _waker(data_came, gate, index), serializer)
            gate.add_channel(
                receiver, feedback=descriptor.feedback, port=descriptor.port, overtakes=descriptor.overtakes
            )
            receiver.on_urgent = _waker(urgent_came, gate, index)
            # An urgent element may have arrived before the callback was set.
            if receiver.urgent:
                receiver.on_urgent()
            index += 1
    return gate


def _is_far(channel: ChannelId) -> bool:
    return channel.producer_at != channel.consumer_at


def _waker(data_came: Callable[[InputGate, int], None], gate: InputGate, channel: int) -> Callable[[], None]:
    return lambda: data_came(gate, channel)


def open_source(
    deployment: TaskDeployment,
    step: SourceStep,
    clock: Clock,
    make_reader: Callable[[], Reader[Any]],
    backpressured_s: Callable[[], float],
    send: Callable[[Message], None],
) -> SourceInput:
    """Return the input of a task that reads a source; it is not opened yet."""
    d = deployment
    alignment = None if step.strategy is None else step.strategy.alignment
    group = "" if alignment is None else alignment.group
    return SourceInput(
        step.source,
        make_reader,
        clock,
        uid=deployment.vertex.uid,
        subtask=deployment.subtask,
        settings=deployment.settings,
        restored=[split for s in deployment.restored for split in s.splits],
        strategy=step.strategy,
        step=deployment.vertex.head.name,
        backpressured_s=backpressured_s,
        report=lambda mark: send(ReportWatermark(d.job, d.epoch, d.attempt_id, group, mark)),
        skips=deployment.vertex.head.skips_errors,
    )


def open_partition(
    deployment: TaskDeployment,
    output: OutputDescriptor,
    transport: Transport,
    services: Services,
    credit_came: Callable[[], None],
) -> ResultPartition:
    """Open the producer's end of one edge; every consumer's end is open by now."""
    partitioner = make_partitioner(output.partitioner, output.consumer_max_parallelism, services.partitioner)
    partitioner.setup(deployment.subtask, len(output.channels), deployment.seed + deployment.subtask)
    serializer = edge_serializer(output.record_type, deployment.serializers)
    sent_to_all: Callable[[], None] = lambda: None  # noqa: E731
    if isinstance(partitioner, BroadcastPartitioner):
        serializer = once = OnceSerializer(serializer)
        sent_to_all = once.forget
    senders: list[Sender] = []
    try:
        for channel in output.channels:
            senders.append(transport.sender(channel, credit_came, serializer))
    except BaseException:
        for sender in senders:
            sender.discard()
        # Senders hold network buffers of the worker, which outlive the failed deployment.
        raise
    node = next(n for n in deployment.vertex.nodes if n.id == output.node)
    if output.combined is not None and isinstance(partitioner, HashPartitioner):
        # In one process, with one consumer, records are passed on by reference: nothing costs less.
        far = len(senders) > 1 or not senders[0].by_reference
        in_columns = isinstance(output.combined, ColumnWindowStep)
        if far and (in_columns or isinstance(serializer, ContentSerializer)):
            timeout_ms, full = node.buffer_timeout_ms, deployment.settings.batch_size
            from sluiceway.operators.local_aggregation import combining_partition  # for windows alone

            groups = output.consumer_max_parallelism
            return combining_partition(partitioner, senders, timeout_ms, full, output.combined, node.name, groups)
    return ResultPartition(
        partitioner,
        senders,
        node.buffer_timeout_ms,
        deployment.settings.batch_size,
        output.overtakes,
        sent_to_all,
        deployment.settings.object_reuse,
    )


def operator_context(
    deployment: TaskDeployment,
    node: StreamNode,
    clock: Clock,
    state_backend: StateBackend,
    wake: Callable[[], None],
    backpressured_s: Callable[[], float],
    calls: Callable[[Callable[[], None]], Calls],
) -> OperatorContext:
    """Return the context of an operator of a task; see :class:`OperatorContext`."""
    d = deployment
    return OperatorContext(
        node=node,
        job_name=d.job_name,
        subtask=d.subtask,
        attempt=d.attempt,
        key_groups=KeyGroupRange.of_subtask(d.subtask, node.parallelism, node.max_parallelism),
        clock=clock,
        state_backend=state_backend,
        wake=wake,
        settings=d.settings,
        backpressured_s=backpressured_s,
        calls=calls,
    )
