"""Records in flight: what a checkpoint that overtakes them keeps of them, and who gets them afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sluiceway.elements import Batch, CheckpointBarrier, Element, EndOfPartition
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.isolation import isolated_all
from sluiceway.partitioners import HashPartitioner
from sluiceway.serializers import Serializer
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.wire import decode_element, encode_batch

__all__ = [
    "AGAIN",
    "RECEIVED",
    "SENT",
    "EdgeName",
    "InFlight",
    "Overtaken",
    "Recording",
    "apart",
    "deal",
    "may_overtake",
]

AGAIN = 0
"""Of an earlier checkpoint, and not processed since; comes before all else."""
RECEIVED = 1
"""Waited at the consumer."""
SENT = 2
"""Waited at the producer."""

_DEALT_ANEW = frozenset({"hash", "rebalance", "shuffle", "global"})


def may_overtake(partitioner: str) -> bool:
    """Whether barriers may overtake the records of an edge with that partitioner.

    What they overtake may have to go to other consumers later. It cannot where a consumer goes with its producer,
    where each consumer has its copy, or where a user's function says who gets it.
    """
    return partitioner in _DEALT_ANEW


@dataclass(frozen=True, slots=True)
class EdgeName:
    """Names an edge between steps, in a way that outlives the run.

    Attributes:
        source: uid of the step that sends.
        target: uid of the step that receives.
        port: which of its inputs.
        tag: name of the side output, or empty.
        number: tells edges apart that have all that in common.
    """

    source: str = ""
    target: str = ""
    port: int = 0
    tag: str = ""
    number: int = 0

    def __str__(self) -> str:
        side = f", side output {self.tag!r}," if self.tag else ""
        return f"from {self.source!r}{side} to {self.target!r}"


@dataclass(frozen=True, slots=True)
class InFlight:
    """Records of one channel that a checkpoint has overtaken, as it keeps them.

    Attributes:
        edge: the edge that they were on.
        partitioner: name of its partitioner.
        producer: index of the subtask that had sent them.
        consumer: index of the subtask that was to receive them.
        consumers: how many there were of those.
        max_parallelism: the consumer's number of key groups.
        stage: how far they had come: :data:`AGAIN`, :data:`RECEIVED` or :data:`SENT`.
        frames: the batches, each as :mod:`sluiceway.wire` writes it. May be read only when it is asked for.
        size: bytes of all frames.
        serializer: name of the serializer of the edge.
        version: of that serializer.
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
        """The batches, oldest first.

        Args:
            serializer: that of the edge now.

        Raises:
            CheckpointError: they cannot be read, or are damaged.
            SerializationError: they are not what ``serializer`` writes; names the edge.
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


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Records of one channel that a checkpoint has overtaken, as a task holds them.

    Attributes:
        place: the same without any.
        batches: batches, or what they look like on their way from another process.
        serializer: that of the edge.
    """

    place: InFlight
    batches: Sequence[Batch[Any] | bytes]
    serializer: Serializer

    def kept(self) -> InFlight:
        """To be kept. Takes its time; for a helper thread. Raises SerializationError."""
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
    """What is in flight in a gate when a checkpoint begins ahead of it, channel by channel.

    What waits in a channel when it begins is known at once; what comes in later belongs to the checkpoint until
    the channel's own barrier has come, whether the task has processed it by then or not.

    Args:
        checkpoint_id: the checkpoint.

    Attributes:
        batches: by channel.
    """

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.batches: dict[int, list[Batch[Any] | bytes]] = {}
        self._known: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the barrier has come by all channels."""
        return not self._known

    def add(self, channel: int, batch: Batch[Any]) -> None:
        """A batch was taken from a channel and was not processed; before :meth:`begin`."""
        self.batches.setdefault(channel, []).append(apart(batch))

    def begin(self, channel: int, waiting: Sequence[Element | bytes]) -> None:
        """Begin with what waits in a channel."""
        if not self._take(channel, waiting):
            self._known[channel] = len(waiting)

    def announced(self, channel: int, waiting: Sequence[Element | bytes]) -> None:
        """The barrier has come by a channel, in which all of that waits now."""
        known = self._known.pop(channel, None)
        if known is not None:
            self._take(channel, waiting[known:])

    def received(self, channel: int, element: Element) -> None:
        """The task gets an element of a channel."""
        known = self._known.get(channel)
        if known:
            self._known[channel] = known - 1
        elif known is not None and self._take(channel, (element,)):
            del self._known[channel]

    def _take(self, channel: int, elements: Iterable[Element | bytes]) -> bool:
        """Whether the barrier is among them, or will never come."""
        batches = self.batches.setdefault(channel, [])
        for element in elements:
            if isinstance(element, bytes) or type(element) is Batch:
                batches.append(apart(element))
            elif self._ends(element):
                return True
        return False

    def _ends(self, element: Element) -> bool:
        if type(element) is CheckpointBarrier:
            return element.checkpoint_id >= self.checkpoint_id
        return type(element) is EndOfPartition


BatchOrBytes = TypeVar("BatchOrBytes", bound=Batch[Any] | bytes)


def apart(batch: BatchOrBytes) -> BatchOrBytes:
    """Return a batch with records that nobody changes any more.

    It is written later, in a helper thread, while its consumer may be changing the records.
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
    """What one subtask gets of batches that were sent when there were other subtasks, in their order.

    By key where the edge goes by keys, so that a record gets to where its state is; else in turn. All subtasks
    have to be given the same batches.
    """
    if partitioner.name == "broadcast":
        yield from batches
        return
    if partitioner.name == "hash":
        by_key = HashPartitioner(getattr(partitioner.key, "get_key", partitioner.key), max_parallelism)
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
            yield Batch(values, None if stamps is None else stamps[turn::parallelism])
        turn = (turn - len(batch.values)) % parallelism
