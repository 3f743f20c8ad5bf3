"""Producer's end: a link from each consumer's worker, and a sender for each channel on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from sluiceway.elements import Batch, CheckpointBarrier, Element
from sluiceway.network.backlog import Backlog
from sluiceway.network.element_codec import encode_batch, encode_control
from sluiceway.network.frames import (
    CREDIT,
    DATA,
    DATA_HEAD,
    ELEMENT,
    ELEMENT_HEAD,
    FAIL,
    GONE,
    HEAD,
    OPEN,
    PAIR,
    SEQUENCE,
    SMALL,
    URGENT,
    WAITING,
    unpack_credit,
    unpack_open,
)
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, Sender
from sluiceway.transport.buffers import Buffer, ChannelBuffers, PartitionBuffers
from sluiceway.transport.carrier import Link, LinkLostError, Payload

__all__ = ["NetworkSender", "ProducerLink", "Senders"]

_SMALL_BYTES: Final = 512
"""Largest batch in bytes that is sent beside its header; taking and returning a segment would cost more."""


class Senders(Protocol):
    """Interface of the transport that links and senders use."""

    def soon(self, action: Callable[[], None]) -> None:
        """Call an action after the current turn of the tasks."""

    def dump_error(self, error: BaseException) -> bytes:
        """Encode an exception as bytes."""

    def sender_of(self, channel: ChannelId) -> NetworkSender | None:
        """Return the sender of a channel, or None."""

    def consumer_opened(self, link: ProducerLink, channel: ChannelId, number: int, credit: int | None) -> None:
        """Register a consumer that has opened a channel."""

    def forget_sender(self, channel: ChannelId) -> None:
        """Remove the sender of a closed channel."""

    def forget_opened(self, link: ProducerLink) -> None:
        """Remove requests of a lost link for channels that no producer has opened yet."""

    def forget_consumer(self, channel: ChannelId) -> None:
        """Remove a consumer that has closed its channel."""


class ProducerLink:
    """Link from a consumer's worker to this one, as producer."""

    def __init__(self, link: Link, senders: Senders) -> None:
        self.send = link.send
        self._link = link
        self._senders = senders
        self._channels: dict[int, ChannelId] = {}
        self._announcing: dict[NetworkSender, None] = {}
        link.on_frame = self._frame
        link.on_lost = self._lost

    def announce(self, sender: NetworkSender) -> None:
        """Send a sender's backlog to the consumer, once per turn and only if it is still there by then."""
        if not self._announcing:
            self._senders.soon(self._announce)
        self._announcing[sender] = None

    def _announce(self) -> None:
        senders, self._announcing = self._announcing, {}
        for sender in senders:
            sender.announce()

    def _frame(self, header: bytes, payload: Payload | None) -> None:
        if payload is not None:
            payload.release()
        try:
            self._understand(header)
        except Exception as error:  # bytes from outside may end the link, never the worker
            self._link.close()
            why = f"worker {self._link.peer!r} sent an invalid frame: {type(error).__name__}: {error}"
            self._lost(LinkLostError(why))

    def _understand(self, header: bytes) -> None:
        kind = header[0]
        if kind == OPEN:
            number, channel, credit = unpack_open(header)
            # A second OPEN under one number would route grants to the wrong sender.
            if number in self._channels:
                raise ValueError(f"channel {number} opened twice")
            self._channels[number] = channel
            self._senders.consumer_opened(self, channel, number, credit)
        elif kind == CREDIT:
            for number, credit in unpack_credit(header):
                # The channel may be closed here while the grant was in flight.
                sender = self._sender(number)
                if sender is not None:
                    sender.granted(credit)
        elif kind == GONE:
            _, number = HEAD.unpack_from(header)
            channel_or_none = self._channels.pop(number, None)
            if channel_or_none is not None:
                self._senders.forget_consumer(channel_or_none)
        else:
            raise ValueError(f"unknown kind {kind}")

    def _sender(self, number: int) -> NetworkSender | None:
        channel = self._channels.get(number)
        return None if channel is None else self._senders.sender_of(channel)

    def _lost(self, error: LinkLostError) -> None:
        self._senders.forget_opened(self)
        for channel in self._channels.values():
            sender = self._senders.sender_of(channel)
            if sender is not None:
                sender.consumer_gone()


class NetworkSender(Sender):
    """Producer's end of one channel to another worker. From the worker's thread only."""

    def __init__(
        self,
        senders: Senders,
        channel: ChannelId,
        wake: Callable[[], None],
        serializer: Serializer,
        partition: PartitionBuffers,
    ) -> None:
        self._senders = senders
        self._channel = channel
        self._wake = wake
        self._serializer = serializer
        self._buffers: ChannelBuffers = partition.channel(self._pump)
        self._link: ProducerLink | None = None
        self._number = 0
        # No credit until the consumer opens the channel; None: no limit.
        self._credit: int | None = 0
        self._sequence = 0
        self._urgent: list[Element] = []
        self._backlog = Backlog()
        # Rest of the batch that is being sent, last part first, while it waits for buffers; ``_going`` is that
        # batch. It has cost its credit already.
        self._pieces: list[bytes | memoryview] = []
        self._going: Batch[Any] | None = None
        self._gone = False
        self._ending: bytes | None = None
        self._closing = False

    # ---- the producer ---------------------------------------------------------------------------------------

    def send(self, element: Element) -> None:
        """Send an element, or queue it if it has to wait for credit, buffers or the consumer."""
        if self._gone:
            return
        # Nothing passes what is queued, control elements included: a barrier marks a place in the stream.
        if self._link is None or self._backlog or self._pieces:
            self._wait_in_line(element)
        elif type(element) is not Batch:
            self._control(ELEMENT, element)
        elif self._credit is None or self._credit:
            self._batch(element)
        else:
            self._wait_in_line(element)

    def send_urgent(self, element: Element) -> None:
        """Send a control element ahead of the queue. Raises TypeError for a batch."""
        if type(element) is Batch:
            raise TypeError("a batch cannot overtake: only control elements can")
        if self._gone:
            return
        if self._link is None:
            self._urgent.append(element)
        else:
            self._control(URGENT, element)

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        """Send a barrier ahead of the queue; return overtaken batches, with one that is sent in part."""
        batches = self._backlog.overtaken_by(barrier)
        # The consumer ignores the pieces it has until the rest arrives behind the barrier, so the whole batch
        # belongs to this checkpoint.
        if self._pieces and self._going is not None:
            batches.insert(0, self._going)
        self.send_urgent(barrier)
        return batches

    def holds(self, checkpoint_id: int) -> bool:
        """Return whether the barrier of a checkpoint is in the queue."""
        return self._backlog.holds(checkpoint_id)

    def available(self) -> bool:
        """Return whether a batch would be sent now."""
        if self._gone:
            return True
        return (
            self._link is not None
            and not self._backlog
            and not self._pieces
            and (self._credit is None or self._credit > 0)
        )

    def backlog(self) -> int:
        """Return the number of queued batches."""
        return self._backlog.batches

    @property
    def buffers(self) -> tuple[int, int]:
        """Network buffers in use, and this channel's share of the partition's."""
        return self._buffers.in_use, self._buffers.size

    def fail(self, cause: BaseException) -> None:
        """Drop the queue, and send the cause."""
        # The failure restarts the consumer, too, so nobody reads what is queued.
        self._backlog.drop()
        self._ending = self._senders.dump_error(cause)
        if self._link is not None:
            self._send_failure()

    def close(self) -> None:
        """Send what is queued, then remove the sender."""
        self._closing = True
        self._forget_when_done()

    def discard(self) -> None:
        """Drop everything, without waiting for a consumer that may never open the channel."""
        self._drop()
        self._closing = True
        self._forget_when_done()

    # ---- the link -------------------------------------------------------------------------------------------

    def opened(self, link: ProducerLink, number: int, credit: int | None) -> None:
        """Connect the consumer that has opened the channel, and send what is queued."""
        self._link = link
        self._number = number
        self._credit = credit
        # Urgent elements first: they were sent ahead of everything that is queued.
        for element in self._urgent:
            self._control(URGENT, element)
        self._urgent.clear()
        if self._ending is not None:
            self._send_failure()
            return
        self._pump()
        if self._backlog:
            link.announce(self)

    def granted(self, credit: int) -> None:
        """Add credit, and send what it allows."""
        if self._credit is not None:
            self._credit += credit
        self._pump()

    def consumer_gone(self) -> None:
        """Drop everything sent from now on: the consumer has closed the channel or was lost."""
        if not self._gone:
            self._drop()
            self._forget_when_done()
            self._wake()

    def announce(self) -> None:
        """Send the number of batches that wait for credit."""
        if self._credit == 0 and self._backlog.batches and self._link is not None and not self._gone:
            self._link.send(PAIR.pack(WAITING, self._number, self._backlog.batches))

    # ---- inside ---------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        self._gone = True
        self._urgent.clear()
        self._backlog.drop()
        self._pieces.clear()
        self._going = None

    def _wait_in_line(self, element: Element) -> None:
        self._backlog.add(element)
        if type(element) is Batch and self._credit == 0 and self._link is not None:
            self._link.announce(self)

    def _head(self, kind: int) -> bytes:
        # The backlog goes with every frame: the consumer grants by it without a message of its own.
        head = ELEMENT_HEAD.pack(kind, self._number, self._sequence & SEQUENCE, self._backlog.batches)
        self._sequence += 1
        return head

    def _control(self, kind: int, element: Element) -> None:
        assert self._link is not None
        self._link.send(self._head(kind) + encode_control(element))

    def _batch(self, batch: Batch[Any]) -> None:
        assert self._link is not None
        if self._credit is not None:
            self._credit -= 1
        parts = encode_batch(batch, self._serializer)
        size = sum(map(len, parts))
        if size <= _SMALL_BYTES:
            self.bytes_out += size
            self._link.send(b"".join((self._head(SMALL), *parts)))
            return
        # Last part first, as parts are popped from the end.
        self._pieces = [memoryview(part) for part in reversed(parts)]
        self._going = batch
        self._push()

    def _push(self) -> None:
        """Write pieces into segments until there are no pieces or no segments left."""
        assert self._link is not None
        pieces = self._pieces
        while pieces:
            # Without a free buffer the rest waits: the pool calls ``_pump`` when one is returned.
            buffer = self._buffers.request()
            if buffer is None:
                return
            _fill(buffer, pieces)
            self.bytes_out += buffer.size
            head = DATA_HEAD.pack(
                DATA, self._number, self._sequence & SEQUENCE, self._backlog.batches, bool(pieces)
            )
            self._sequence += 1
            self._link.send(head, buffer)
        self._going = None

    def _pump(self) -> None:
        """Send what new credit, buffers or a new consumer allow.

        A queued record that cannot be serialized fails the channel, as this runs outside the task's own step: what
        it raised would count as an invalid frame of the peer that has granted credit.
        """
        try:
            self._pump_all()
        except Exception as error:  # a record's own code runs while it is serialized
            self._pieces.clear()
            self._going = None
            self.fail(error)

    def _pump_all(self) -> None:
        if self._gone or self._link is None:
            return
        if self._pieces:
            self._push()
        backlog = self._backlog
        while backlog and not self._pieces:
            element = backlog[0]
            if type(element) is Batch:
                if self._credit == 0:
                    break
                backlog.take()
                self._batch(element)
            else:
                self._control(ELEMENT, backlog.take())
        self._forget_when_done()
        if self.available():
            self._wake()

    def _send_failure(self) -> None:
        assert self._link is not None
        assert self._ending is not None
        self._link.send(HEAD.pack(FAIL, self._number) + self._ending)
        self._ending = None
        self._forget_when_done()

    def _forget_when_done(self) -> None:
        done = self._gone or not (self._backlog or self._pieces or self._ending or self._link is None)
        if self._closing and done and not self._buffers.closed:
            self._buffers.close()
            self._senders.forget_sender(self._channel)


def _fill(buffer: Buffer, pieces: list[Any]) -> None:
    """Move as much as fits from ``pieces``, last one first, into the buffer."""
    memory = buffer.memory
    room = len(memory)
    at = 0
    while pieces and at < room:
        piece = pieces[-1]
        size = min(len(piece), room - at)
        memory[at : at + size] = piece[:size]
        at += size
        if size == len(piece):
            pieces.pop()
        else:
            pieces[-1] = piece[size:]
    buffer.size = at
