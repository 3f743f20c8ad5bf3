"""Producer's end of the edges between tasks: result partitions, which split, buffer and send batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.elements import ROWS_PER_RECORD, BarrierAnnouncement, Batch, CheckpointBarrier, Element
from sluiceway.isolation import isolated_all
from sluiceway.network.partitioners import BroadcastPartitioner, HashPartitioner
from sluiceway.partitioner import Partitioner
from sluiceway.transport import Sender

__all__ = ["ResultPartition"]

_AT_ONCE_S = 0.005
"""Longest wait in seconds with a buffer timeout of 0, while the task has more to do: too short to be noticed as
latency, long enough that many channels do not mean tiny batches.
"""


class ResultPartition:
    """Output of one subtask along one edge.

    Small parts for one consumer are joined before they are sent, because every batch has a fixed cost at both
    ends. They are sent when there are ``full`` records, before a control element, when the buffer timeout is over,
    and, with a timeout of 0, as soon as the task has nothing more to do. From the task's thread only.

    Args:
        partitioner: set up for this subtask.
        senders: one per consumer, in the order of the partitioner's channel indices.
        buffer_timeout_ms: longest time that records are buffered, if positive; 0: until the task has nothing more
            to do, and 5 ms at most; -1: until there are ``full`` of them.
        full: records that make a full batch.
        overtakes: whether checkpoint barriers may overtake what is buffered in the senders.
        shares: whether consumers in this process may receive the same objects.
        sent_to_all: called when each of several consumers has been sent the very same batch.
    """

    def __init__(
        self,
        partitioner: Partitioner,
        senders: Sequence[Sender],
        buffer_timeout_ms: int = 0,
        full: int = 1024,
        overtakes: bool = False,
        sent_to_all: Callable[[], None] = lambda: None,
        shares: bool = False,
    ) -> None:
        if isinstance(partitioner, HashPartitioner):
            partitioner.carry_keys(all(s.by_reference for s in senders))
        self._partition = partitioner.partition
        self._senders = list(senders)
        self._only = self._senders[0] if len(self._senders) == 1 else None
        # A broadcast batch is buffered once and joined once.
        self._to_all = isinstance(partitioner, BroadcastPartitioner) and len(self._senders) > 1
        self._sent_to_all = sent_to_all
        # Consumers that receive objects by reference get copies. The last does not where nobody else uses the
        # originals after it: a sender to another worker may have them in its queue, and encode them later.
        by_reference = [i for i, sender in enumerate(self._senders) if sender.by_reference]
        if len(by_reference) == len(self._senders):
            by_reference.pop()
        self._by_reference = frozenset(() if shares else by_reference)
        self._at_once = buffer_timeout_ms == 0
        self._hold_s = _AT_ONCE_S if self._at_once else buffer_timeout_ms / 1000
        self._full = full
        # A piece for a consumer in this process costs nothing to send, and its copy into a larger one would leave
        # the processor's cache: word count took 10 % longer.
        self._enough = max(1, full // 2) if self._only is not None and self._only.by_reference else full
        self._overtakes = overtakes
        self._pieces: list[list[Batch[Any]]] = [[] for _ in self._senders]
        self._records = [0] * len(self._senders)
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """Deadline of buffered records in monotonic seconds; None if no record has one."""
        return self._due

    def available(self) -> bool:
        """Return whether a batch would be sent to every consumer at once."""
        if self._only is not None:
            return self._only.available()
        return all(s.available() for s in self._senders)

    def backlog(self) -> int:
        """Return the number of batches that wait for credit."""
        return sum(s.backlog() for s in self._senders)

    @property
    def bytes_out(self) -> int:
        """Bytes written for other workers."""
        return sum(s.bytes_out for s in self._senders)

    @property
    def buffers(self) -> int:
        """Network buffers that the senders may hold."""
        return sum(s.buffers[1] for s in self._senders)

    @property
    def buffers_in_use(self) -> int:
        """Network buffers that the senders hold."""
        return sum(s.buffers[0] for s in self._senders)

    def waiting(self) -> int:
        """Return the number of consumers with buffered records."""
        return len(self._senders) if self._to_all and self._pieces[0] else sum(map(bool, self._pieces))

    def emit(self, batch: Batch[Any], now: float) -> None:
        """Partition a batch, and send or buffer the parts. ``now`` is in monotonic seconds."""
        pieces, records, full, enough = self._pieces, self._records, self._full, self._enough
        waits = False
        for index, part in ((0, batch),) if self._to_all else self._partition(batch):
            held = pieces[index]
            size = len(part.values)
            if part.columns is not None:
                size = -(-size // ROWS_PER_RECORD)
            if not held:
                if size >= enough:
                    self._give(index, part)
                    continue
            # Batches are joined by appending lists, so pieces with and without timestamps cannot share one.
            elif size >= enough or not _alike(held[0], part):
                self._send(index)
                if size >= enough:
                    self._give(index, part)
                    continue
            held.append(part)
            records[index] += size
            if records[index] >= full:
                self._send(index)
            else:
                waits = True
        # The deadline of the oldest record: later ones go with it.
        if waits and self._due is None and self._hold_s >= 0:
            self._due = now + self._hold_s

    def control(self, element: Element) -> None:
        """Send a control element to every consumer, after everything emitted before it."""
        # Flushed first: a watermark or barrier that passed buffered records would make them late or lose them.
        self.flush()
        for sender in self._senders:
            sender.send(element)

    def barrier(self, barrier: CheckpointBarrier) -> list[tuple[int, list[Batch[Any]]]]:
        """Send a checkpoint barrier to every consumer: behind what was emitted, or, if unaligned, ahead of it.

        Returns:
            pairs of a consumer's index and the batches in its sender that were overtaken.
        """
        # Buffered records go to the senders even if the barrier overtakes them: the senders return what they hold,
        # channel by channel, for the checkpoint.
        self.flush()
        if self._overtakes and barrier.aligned_ms == 0:
            return [(i, some) for i, sender in enumerate(self._senders) if (some := sender.overtake(barrier))]
        for sender in self._senders:
            sender.send(barrier)
        if self._overtakes and barrier.aligned_ms > 0:
            # The announcement carries the alignment timeout: the consumer begins the checkpoint when it ends, even
            # if the barrier is still queued behind batches.
            announcement = BarrierAnnouncement(barrier.checkpoint_id, barrier.timestamp_ms, barrier.aligned_ms)
            for sender in self._senders:
                sender.send_urgent(announcement)
        return []

    def holds(self, checkpoint_id: int) -> bool:
        """Return whether the barrier of a checkpoint is still in a sender and may overtake."""
        return self._overtakes and any(sender.holds(checkpoint_id) for sender in self._senders)

    def overtake(self, barrier: CheckpointBarrier) -> list[tuple[int, list[Batch[Any]]]]:
        """Send a queued barrier ahead of the batches in the senders; return what :meth:`barrier` does."""
        return [
            (i, some)
            for i, sender in enumerate(self._senders)
            if sender.holds(barrier.checkpoint_id) and (some := sender.overtake(barrier))
        ]

    def idle(self) -> None:
        """Flush if the buffer timeout is 0; call when the task has nothing more to do."""
        if self._at_once and self._due is not None:
            self.flush()

    def flush(self) -> None:
        """Send all buffered records."""
        self._due = None
        for index, held in enumerate(self._pieces):
            if held:
                self._send(index)

    def fail(self, cause: BaseException) -> None:
        """Report to every consumer that this subtask has failed."""
        for sender in self._senders:
            sender.fail(cause)

    def close(self) -> None:
        """Close the senders; what they have queued is still sent."""
        for sender in self._senders:
            sender.close()

    def discard(self) -> None:
        """Close the senders and drop what they have queued: the subtask was cancelled or has failed."""
        for sender in self._senders:
            sender.discard()

    def _send(self, index: int) -> None:
        held = self._pieces[index]
        # A single piece is sent as it is; several are copied, as their lists may be shared with other edges.
        whole = held[:] if len(held) == 1 else _joined(held)
        held.clear()
        self._records[index] = 0
        for batch in whole:
            self._give(index, batch)

    def _give(self, index: int, batch: Batch[Any]) -> None:
        # Broadcast: the batch was buffered under index 0 for all.
        if not self._to_all:
            self._senders[index].send(batch)
            return
        for i, sender in enumerate(self._senders):
            if i in self._by_reference:
                values = isolated_all(batch.values)
                if values is not batch.values:
                    sender.send(Batch(values, batch.timestamps, batch.keys))
                    continue
            sender.send(batch)
        self._sent_to_all()


def _alike(one: Batch[Any], other: Batch[Any]) -> bool:
    return (one.timestamps is None) == (other.timestamps is None) and (one.keys is None) == (other.keys is None)


def _joined(pieces: list[Batch[Any]]) -> list[Batch[Any]]:
    """Return batches as one, or as several where a batch of columns cannot have the rows of all."""
    if pieces[0].columns is not None:
        from sluiceway.columns.joining import joined

        return joined(pieces)
    values: list[Any] = []
    for piece in pieces:
        values += piece.values
    stamps: list[int] | None = None
    if pieces[0].timestamps is not None:
        stamps = []
        for piece in pieces:
            stamps += piece.timestamps or ()
    keys: list[Any] | None = None
    if pieces[0].keys is not None:
        keys = []
        for piece in pieces:
            keys += piece.keys or ()
    return [Batch(values, stamps, keys)]
