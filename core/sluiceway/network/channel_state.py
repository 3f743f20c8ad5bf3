"""Channel state: the in-flight records that an unaligned checkpoint stores, and their redistribution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from sluiceway.elements import Batch, CheckpointBarrier, Element, EndOfPartition
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.isolation import isolated_all
from sluiceway.network.element_codec import decode_element, encode_batch
from sluiceway.network.partitioners import HashPartitioner
from sluiceway.serializers import Serializer
from sluiceway.streamgraph import PartitionerSpec

__all__ = [
    "RECEIVED",
    "RECOVERED",
    "SENT",
    "EdgeName",
    "InFlight",
    "Overtaken",
    "Recording",
    "apart",
    "deal",
    "may_overtake",
]

RECOVERED = 0
"""Recovered from an earlier checkpoint and not processed since; older than all other stages."""
RECEIVED = 1
"""Queued at the consumer."""
SENT = 2
"""Queued at the producer."""

_DEALT_ANEW = frozenset({"hash", "rebalance", "shuffle", "global"})


def may_overtake(partitioner: str) -> bool:
    """Return whether barriers may overtake the records of an edge with that partitioner.

    Overtaken records may have to be sent to other consumers after a restore with another parallelism. That is not
    possible on pointwise edges, where each consumer has its own copy (broadcast), or where a user's function
    routes.
    """
    return partitioner in _DEALT_ANEW


class EdgeName(msgspec.Struct, frozen=True):
    """Name of an edge between steps that is stable between runs.

    Attributes:
        source: uid of the step that sends.
        target: uid of the step that receives.
        port: index of the target's input.
        tag: name of the side output, or empty.
        number: distinguishes edges that have all the above in common.
    """

    source: str = ""
    target: str = ""
    port: int = 0
    tag: str = ""
    number: int = 0

    def __str__(self) -> str:
        side = f", side output {self.tag!r}," if self.tag else ""
        return f"from {self.source!r}{side} to {self.target!r}"


class InFlight(msgspec.Struct, frozen=True):
    """In-flight records of one channel as a checkpoint stores them.

    Attributes:
        edge: name of the edge.
        partitioner: name of its partitioner.
        producer: index of the subtask that had sent them.
        consumer: index of the subtask that was to receive them.
        consumers: parallelism of the consumer at the time of the checkpoint.
        max_parallelism: the consumer's number of key groups.
        stage: where they were queued: :data:`RECOVERED`, :data:`RECEIVED` or :data:`SENT`.
        frames: the batches, each as :mod:`sluiceway.network.element_codec` writes it. May be read from storage on
            access.
        size: bytes of all frames.
        serializer: name of the serializer of the edge.
        version: version of that serializer.
    """

    edge: EdgeName
    partitioner: str
    producer: int
    consumer: int
    consumers: int
    max_parallelism: int
    stage: int
    frames: Sequence[bytes]
    size: int
    serializer: str
    version: int

    def batches(self, serializer: Serializer) -> Iterator[Batch[Any]]:
        """Decode and yield the batches, oldest first.

        Args:
            serializer: the edge's serializer in this run.

        Raises:
            CheckpointError: the frames cannot be read, or are damaged.
            SerializationError: ``serializer`` cannot read what was written; names the edge.
        """
        for number, frame in enumerate(self.frames, 1):
            where = f"batch {number} of the records that were in flight {self.edge}"
            try:
                batch = decode_element(memoryview(frame), serializer, where)
            except CorruptStreamError as error:
                raise SerializationError(
                    f"{error}; serializer {self.serializer!r}, version {self.version}, has written it, and the "
                    f"edge has {serializer.name!r}, version {serializer.version}, now"
                ) from error
            assert type(batch) is Batch
            yield batch


class Overtaken(msgspec.Struct, frozen=True):
    """Records of one channel that a barrier has overtaken, as a task holds them until they are written.

    Attributes:
        place: description of the channel, without frames.
        batches: batches, or encoded frames of batches from another process.
        serializer: the edge's serializer.
    """

    place: InFlight
    batches: Sequence[Batch[Any] | bytes]
    serializer: Serializer

    def kept(self) -> InFlight:
        """Encode the batches. For a helper thread, as it takes time. Raises SerializationError."""
        frames = [
            batch if isinstance(batch, bytes) else b"".join(encode_batch(batch, self.serializer))
            for batch in self.batches
        ]
        p = self.place
        return InFlight(
            p.edge,
            p.partitioner,
            p.producer,
            p.consumer,
            p.consumers,
            p.max_parallelism,
            p.stage,
            frames,
            sum(map(len, frames)),
            self.serializer.name,
            self.serializer.version,
        )


class Recording:
    """Recorder of the in-flight batches of a gate during one unaligned checkpoint, channel by channel.

    What is queued in a channel when the checkpoint begins is recorded at once. Batches that arrive later belong to
    the checkpoint until the channel's own barrier arrives, whether the task has processed them by then or not.

    Args:
        checkpoint_id: the checkpoint.

    Attributes:
        batches: recorded batches by channel index, oldest first.
    """

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.batches: dict[int, list[Batch[Any] | bytes]] = {}
        # Elements that were queued when the recording began, by channel, and that the gate has not taken since. A
        # channel is removed once its barrier has been found.
        self._known: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """True once all channels have delivered the barrier."""
        return not self._known

    def add(self, channel: int, batch: Batch[Any]) -> None:
        """Record a batch that was taken from a channel and not processed; call before :meth:`begin`."""
        self.batches.setdefault(channel, []).append(apart(batch))

    def begin(self, channel: int, waiting: Sequence[Element | bytes]) -> None:
        """Record what is queued in a channel, and go on recording unless the barrier is among it."""
        if not self._take(channel, waiting):
            self._known[channel] = len(waiting)

    def announced(self, channel: int, waiting: Sequence[Element | bytes]) -> None:
        """Record what is queued in a channel whose barrier has arrived, and stop recording it."""
        # The barrier is urgent, so it arrives before elements that the producer sent earlier. Everything up to the
        # mark of its place in the queue is part of the checkpoint.
        known = self._known.pop(channel, None)
        if known is not None:
            self._take(channel, waiting[known:])

    def received(self, channel: int, element: Element) -> None:
        """Record an element that the gate takes from a channel, unless it was queued at the beginning."""
        # The first ``known`` elements were queued when the recording began, and are in it.
        known = self._known.get(channel)
        if known:
            self._known[channel] = known - 1
        elif known is not None and self._take(channel, (element,)):
            del self._known[channel]

    def _take(self, channel: int, elements: Iterable[Element | bytes]) -> bool:
        """Record batches up to the barrier or the end; return whether one of them was found."""
        batches = self.batches.setdefault(channel, [])
        for element in elements:
            if isinstance(element, bytes) or type(element) is Batch:
                batches.append(apart(element))
            elif self._ends(element):
                return True
        return False

    def _ends(self, element: Element) -> bool:
        if type(element) is CheckpointBarrier:
            # A newer barrier ends the recording as well: the channel has skipped this checkpoint.
            return element.checkpoint_id >= self.checkpoint_id
        return type(element) is EndOfPartition


BatchOrBytes = TypeVar("BatchOrBytes", bound=Batch[Any] | bytes)


def apart(batch: BatchOrBytes) -> BatchOrBytes:
    """Return a batch whose records nobody changes any more: copied, where they are mutable.

    It is written later, in a helper thread, while its consumer may change the records.
    """
    if isinstance(batch, bytes):
        return batch
    values = isolated_all(batch.values)
    return batch if values is batch.values else Batch(values, batch.timestamps, batch.keys)  # type: ignore[return-value]


def deal(
    batches: Iterable[Batch[Any]],
    partitioner: PartitionerSpec,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
) -> Iterator[Batch[Any]]:
    """Yield the part of one subtask of in-flight batches that were sent under another parallelism, in their order.

    Records of a hash edge go by key, so that a record meets its state; those of other edges in turn. Every subtask
    must be given the same batches in the same order, else records are lost or doubled.
    """
    if partitioner.name == "broadcast":
        yield from batches
        return
    if partitioner.name == "hash":
        key = getattr(partitioner.key, "get_key", partitioner.key)
        by_key = HashPartitioner(key, max_parallelism, skips=partitioner.skips)
        # No consumer seed: the route of a key depends on key groups alone.
        by_key.setup(0, parallelism, 0)
        for batch in batches:
            yield from (part for index, part in by_key.partition(batch) if index == subtask)
        return
    turn = subtask
    if partitioner.name == "global":
        parallelism, turn = 1, 0 if subtask == 0 else -1
        if turn:
            return
    for batch in batches:
        values, stamps = batch.values[turn::parallelism], batch.timestamps
        if values:
            # Every subtask counts all records, so that record n of the whole sequence belongs to exactly one of
            # them.
            yield Batch(values, None if stamps is None else stamps[turn::parallelism])
        turn = (turn - len(batch.values)) % parallelism
