"""Channels between workers: credit, order and fragments, over whatever carries frames.

Each channel has a number that its consumer gives it when it opens it at the producer's worker, with its first
credit. From then on the producer sends frames: every one with the channel's number, a sequence number and the
number of batches that wait for credit. A batch costs one credit and is cut into as many pieces as it needs
segments; control elements cost none and keep their place. The consumer grants by the ledger of its gate.

What a frame's header holds, after one byte that says what it is:

======  ==================================================================================================
kind    fields
======  ==================================================================================================
OPEN    channel number, initial credit (-1: no limit), then edge, producer, consumer, attempt of the channel
DATA    channel number, sequence number, backlog, whether more pieces follow; the piece is the payload
ELEMENT channel number, sequence number, backlog, then the control element
CREDIT  channel number, batches
WAITING channel number, backlog
FAIL    channel number, then the pickled cause
GONE    channel number: the consumer is gone
======  ==================================================================================================
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sluiceway.buffers import Buffer, LocalBufferPool, NetworkBufferPool
from sluiceway.carrier import Carrier, Link, LinkLostError, Payload
from sluiceway.elements import Batch, Element
from sluiceway.errors import CorruptStreamError
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport
from sluiceway.wire import decode_element, encode_batch, encode_control

__all__ = ["NetworkTransport"]

_OPEN: Final = 1
_DATA: Final = 2
_ELEMENT: Final = 3
_CREDIT: Final = 4
_WAITING: Final = 5
_FAIL: Final = 6
_GONE: Final = 7

_OPEN_HEAD: Final = struct.Struct("<BIi")
_DATA_HEAD: Final = struct.Struct("<BIIIB")
_ELEMENT_HEAD: Final = struct.Struct("<BIII")
_PAIR: Final = struct.Struct("<BII")
_HEAD: Final = struct.Struct("<BI")


class NetworkTransport(Transport):
    """Channels to and from other workers over one carrier.

    Args:
        carrier: moves the frames; started.
        buffers: the worker's network buffers, in the carrier's own memory.
        address_of: where a worker can be reached, by its name.
        dump_error: an exception as bytes.
        load_error: and back.
    """

    def __init__(
        self,
        carrier: Carrier,
        buffers: NetworkBufferPool,
        address_of: Callable[[str], str],
        dump_error: Callable[[BaseException], bytes],
        load_error: Callable[[bytes], BaseException],
    ) -> None:
        self._carrier = carrier
        self._buffers = buffers
        self._address_of = address_of
        self.dump_error = dump_error
        self._load_error = load_error
        self._to_producers: dict[str, _ConsumerLink] = {}
        self._senders: dict[ChannelId, _Sender] = {}
        self._opened: dict[ChannelId, tuple[Link, int, int | None]] = {}

    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end: tells the producer's worker, at once or as soon as it can be reached."""
        link = self._to_producers.get(channel.producer_at)
        if link is None:
            made = self._carrier.connect(channel.producer_at, self._address_of(channel.producer_at))
            link = self._to_producers[channel.producer_at] = _ConsumerLink(made, self._load_error, self._lost)
        return link.open(channel, credit, wake, serializer)

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end; the consumer may come later."""
        sender = self._senders[channel] = _Sender(self, channel, wake, serializer, self._buffers)
        opened = self._opened.pop(channel, None)
        if opened is not None:
            sender.opened(*opened)
        return sender

    def accepted(self, link: Link) -> None:
        """A consumer's worker has made a link."""
        _ProducerLink(link, self)

    def close(self) -> None:
        """Drop all channels and the carrier's links."""
        for link in list(self._to_producers.values()):
            link.drop()
        for sender in list(self._senders.values()):
            sender.close_now()
        self._senders.clear()
        self._opened.clear()
        self._carrier.close()

    # ---- for the links --------------------------------------------------------------------------------------

    def consumer_opened(self, link: Link, channel: ChannelId, number: int, credit: int | None) -> _Sender | None:
        """A consumer has opened a channel; its sender, if it is there."""
        sender = self._senders.get(channel)
        if sender is None:
            self._opened[channel] = (link, number, credit)
        else:
            sender.opened(link, number, credit)
        return sender

    def sender_of(self, channel: ChannelId) -> _Sender | None:
        """The sender of a channel, if it is there."""
        return self._senders.get(channel)

    def forget_sender(self, channel: ChannelId) -> None:
        """The producer is gone."""
        self._senders.pop(channel, None)

    def _lost(self, link: _ConsumerLink) -> None:
        self._to_producers.pop(link.peer, None)

    def forget_opened(self, link: Link) -> None:
        """A consumer's worker is gone before its producers came."""
        for channel, (opened_by, _, _) in list(self._opened.items()):
            if opened_by is link:
                del self._opened[channel]


# ---- the consumer's side ------------------------------------------------------------------------------------


class _ConsumerLink:
    """A link from this worker, as consumer, to one producer's worker."""

    def __init__(
        self, link: Link, load_error: Callable[[bytes], BaseException], lost: Callable[[_ConsumerLink], None]
    ) -> None:
        self.peer = link.peer
        self.link = link
        self._load_error = load_error
        self._lost = lost
        self._receivers: dict[int, _Receiver] = {}
        self._next = 0
        link.on_frame = self._frame
        link.on_lost = self._link_lost

    def open(
        self, channel: ChannelId, ledger: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> _Receiver:
        number = self._next
        self._next += 1
        receiver = self._receivers[number] = _Receiver(self, number, channel, ledger, wake, serializer)
        initial = ledger.initial()
        name = msgspec.msgpack.encode((channel.edge, channel.producer, channel.consumer, channel.attempt))
        self.link.send(_OPEN_HEAD.pack(_OPEN, number, -1 if initial is None else initial) + name)
        return receiver

    def close(self, number: int) -> None:
        if self._receivers.pop(number, None) is not None:
            self.link.send(_HEAD.pack(_GONE, number))

    def drop(self) -> None:
        for receiver in list(self._receivers.values()):
            receiver.close()

    def grant(self, number: int, credit: int) -> None:
        self.link.send(_PAIR.pack(_CREDIT, number, credit))

    def _frame(self, header: bytes, payload: Payload | None) -> None:
        try:
            _, number = _HEAD.unpack_from(header)
            receiver = self._receivers.get(number)
            if receiver is None:  # closed here; what was under way vanishes
                if payload is not None:
                    payload.release()
                return
            receiver.frame(header, payload, self._load_error)
        except struct.error:
            self.link.close()
            self._link_lost(LinkLostError(f"worker {self.peer!r} sent a frame that is too short: {header[:40]!r}"))

    def _link_lost(self, error: LinkLostError) -> None:
        self._lost(self)
        for receiver in list(self._receivers.values()):
            receiver.fail(error)


class _Receiver(Receiver):
    def __init__(
        self,
        link: _ConsumerLink,
        number: int,
        channel: ChannelId,
        ledger: CreditSource,
        wake: Callable[[], None],
        serializer: Serializer,
    ) -> None:
        self._link = link
        self._number = number
        self._channel = channel
        self._ledger = ledger
        self._limited = ledger.initial() is not None
        self._wake = wake
        self._serializer = serializer
        self._queue: deque[Payload | bytearray | bytes] = deque()
        self._partial: bytearray | None = None
        self._sequence = 0
        self._taken = 0
        self._backlog = 0
        self._failure: BaseException | None = None
        self._closed = False

    # ---- the consumer ---------------------------------------------------------------------------------------

    def receive(self) -> Element | None:
        if not self._queue:
            if self._failure is not None:
                raise self._failure
            return None
        frame = self._queue.popleft()
        self._taken += 1
        where = f"channel {self._channel}, element {self._taken}"
        if isinstance(frame, (bytes, bytearray)):
            element = decode_element(memoryview(frame), self._serializer, where)
        else:
            try:
                element = decode_element(frame.data, self._serializer, where)
            finally:
                frame.release()
        if type(element) is Batch and self._limited:
            self._grant(self._ledger.batch_taken(self._backlog))
        return element

    def queued(self) -> int:
        return len(self._queue) + (self._failure is not None and not self._closed)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._drop()
        self._ledger.closed()
        self._link.close(self._number)

    # ---- the link -------------------------------------------------------------------------------------------

    def frame(self, header: bytes, payload: Payload | None, load_error: Callable[[bytes], BaseException]) -> None:
        kind = header[0]
        if kind == _DATA and payload is not None:
            _, _, sequence, self._backlog, more = _DATA_HEAD.unpack_from(header)
            if self._in_order(sequence):
                self._piece(payload, bool(more))
            else:
                payload.release()
            return
        if payload is not None:
            payload.release()
        if kind == _ELEMENT:
            _, _, sequence, self._backlog = _ELEMENT_HEAD.unpack_from(header)
            if self._in_order(sequence):
                self._arrived(header[_ELEMENT_HEAD.size :])
        elif kind == _WAITING:
            _, _, self._backlog = _PAIR.unpack_from(header)
            if self._limited:
                self._grant(self._ledger.backlog_announced(self._backlog))
        elif kind == _FAIL:
            self.fail(load_error(header[_HEAD.size :]))
        else:
            self.fail(CorruptStreamError(f"channel {self._channel}: a frame of the unknown kind {kind}"))

    def fail(self, cause: BaseException) -> None:
        if self._failure is None:
            self._failure = cause
            if not self._closed:
                self._wake()

    def _in_order(self, sequence: int) -> bool:
        if self._failure is not None:
            return False
        if sequence != self._sequence & 0xFFFFFFFF:
            self.fail(
                CorruptStreamError(
                    f"channel {self._channel}: frame {sequence} came where {self._sequence} was expected:"
                    " buffers were lost, repeated or reordered on the way"
                )
            )
            return False
        self._sequence += 1
        return True

    def _piece(self, payload: Payload, more: bool) -> None:
        self.bytes_in += len(payload.data)
        if self._partial is None and not more:
            self._arrived(payload)
            return
        # What spans several segments is put together here, so that the producer has its segments back.
        if self._partial is None:
            self._partial = bytearray()
        self._partial += payload.data
        payload.release()
        if not more:
            whole, self._partial = self._partial, None
            self._arrived(whole)

    def _arrived(self, frame: Payload | bytearray | bytes) -> None:
        self._queue.append(frame)
        self._wake()

    def _grant(self, credit: int) -> None:
        if credit:
            self._link.grant(self._number, credit)

    def _drop(self) -> None:
        for frame in self._queue:
            if not isinstance(frame, (bytes, bytearray)):
                frame.release()
        self._queue.clear()
        self._partial = None


# ---- the producer's side ------------------------------------------------------------------------------------


class _ProducerLink:
    """A link from a consumer's worker to this one, as producer."""

    def __init__(self, link: Link, transport: NetworkTransport) -> None:
        self._link = link
        self._transport = transport
        self._channels: dict[int, ChannelId] = {}
        link.on_frame = self._frame
        link.on_lost = self._lost

    def _frame(self, header: bytes, payload: Payload | None) -> None:
        if payload is not None:
            payload.release()
        try:
            self._understand(header)
        except (struct.error, msgspec.MsgspecError, TypeError, ValueError, IndexError) as error:
            self._link.close()
            self._lost(LinkLostError(f"worker {self._link.peer!r} sent what is no frame: {error}"))

    def _understand(self, header: bytes) -> None:
        kind = header[0]
        if kind == _OPEN:
            _, number, credit = _OPEN_HEAD.unpack_from(header)
            edge, producer, consumer, attempt = msgspec.msgpack.decode(header[_OPEN_HEAD.size :])
            channel = ChannelId(edge, producer, consumer, attempt)
            self._channels[number] = channel
            self._transport.consumer_opened(self._link, channel, number, None if credit < 0 else credit)
            return
        if kind not in (_CREDIT, _GONE):
            raise ValueError(f"unknown kind {kind}")
        _, number = _HEAD.unpack_from(header)
        known = self._channels.get(number)
        sender = None if known is None else self._transport.sender_of(known)
        if kind == _GONE:
            self._channels.pop(number, None)
            if sender is not None:
                sender.consumer_gone()
        elif sender is not None:
            sender.granted(_PAIR.unpack_from(header)[2])

    def _lost(self, error: LinkLostError) -> None:
        self._transport.forget_opened(self._link)
        for channel in self._channels.values():
            sender = self._transport.sender_of(channel)
            if sender is not None:
                sender.consumer_gone()


class _Sender(Sender):
    def __init__(
        self,
        transport: NetworkTransport,
        channel: ChannelId,
        wake: Callable[[], None],
        serializer: Serializer,
        buffers: NetworkBufferPool,
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._wake = wake
        self._serializer = serializer
        self._pool: LocalBufferPool | None = buffers.create_pool(
            1, on_available=self._pump, name=f"channel {channel}"
        )
        self._link: Link | None = None
        self._number = 0
        self._credit: int | None = 0
        self._sequence = 0
        self._backlog: deque[Element] = deque()
        self._backlog_batches = 0
        self._pieces: list[bytes | memoryview] = []
        self._gone = False
        self._ending: bytes | None = None
        self._closing = False

    # ---- the producer ---------------------------------------------------------------------------------------

    def send(self, element: Element) -> None:
        if self._gone:
            return
        if self._link is None or self._backlog or self._pieces:
            self._wait_in_line(element)
        elif type(element) is not Batch:
            self._control(element)
        elif self._credit is None or self._credit:
            self._batch(element)
        else:
            self._wait_in_line(element)

    def available(self) -> bool:
        if self._gone:
            return True
        return (
            self._link is not None
            and not self._backlog
            and not self._pieces
            and (self._credit is None or self._credit > 0)
        )

    def backlog(self) -> int:
        return self._backlog_batches

    @property
    def buffers(self) -> tuple[int, int]:
        pool = self._pool
        return (0, 0) if pool is None else (pool.in_use, pool.size)

    def fail(self, cause: BaseException) -> None:
        self._backlog.clear()
        self._backlog_batches = 0
        self._ending = self._transport.dump_error(cause)
        if self._link is not None:
            self._send_failure()

    def close(self) -> None:
        """What waits is still sent; then the sender is forgotten."""
        self._closing = True
        self._forget_when_done()

    def close_now(self) -> None:
        """Drop everything."""
        self._gone = True
        self._backlog.clear()
        self._pieces.clear()
        self._backlog_batches = 0
        self._closing = True
        self._forget_when_done()

    # ---- the link -------------------------------------------------------------------------------------------

    def opened(self, link: Link, number: int, credit: int | None) -> None:
        """The consumer has opened the channel."""
        self._link = link
        self._number = number
        self._credit = credit
        if self._ending is not None:
            self._send_failure()
            return
        if self._backlog_batches and credit is not None:
            self._announce()
        self._pump()

    def granted(self, credit: int) -> None:
        """Credit has come in."""
        if self._credit is not None:
            self._credit += credit
        self._pump()

    def consumer_gone(self) -> None:
        """The consumer has closed the channel, or died: what is sent from now on vanishes."""
        if not self._gone:
            self._gone = True
            self._backlog.clear()
            self._pieces.clear()
            self._backlog_batches = 0
            self._forget_when_done()
            self._wake()

    # ---- inside ---------------------------------------------------------------------------------------------

    def _wait_in_line(self, element: Element) -> None:
        self._backlog.append(element)
        if type(element) is Batch:
            self._backlog_batches += 1
            if self._credit == 0 and self._link is not None:
                self._announce()

    def _announce(self) -> None:
        assert self._link is not None
        self._link.send(_PAIR.pack(_WAITING, self._number, self._backlog_batches))

    def _control(self, element: Element) -> None:
        assert self._link is not None
        head = _ELEMENT_HEAD.pack(_ELEMENT, self._number, self._sequence & 0xFFFFFFFF, self._backlog_batches)
        self._sequence += 1
        self._link.send(head + encode_control(element))

    def _batch(self, batch: Batch[Any]) -> None:
        if self._credit is not None:
            self._credit -= 1
        # Popped from the end: the first part last.
        self._pieces = [memoryview(part) for part in reversed(encode_batch(batch, self._serializer))]
        self._push()

    def _push(self) -> None:
        """Write pieces into segments for as long as there are any."""
        assert self._link is not None
        assert self._pool is not None
        pieces = self._pieces
        while pieces:
            buffer = self._pool.request()
            if buffer is None:
                return
            _fill(buffer, pieces)
            self.bytes_out += buffer.size
            head = _DATA_HEAD.pack(
                _DATA, self._number, self._sequence & 0xFFFFFFFF, self._backlog_batches, bool(pieces)
            )
            self._sequence += 1
            self._link.send(head, buffer)

    def _pump(self) -> None:
        """Something has come that was waited for: go on."""
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
                backlog.popleft()
                self._backlog_batches -= 1
                self._batch(element)
            else:
                self._control(backlog.popleft())
        self._forget_when_done()
        if self.available():
            self._wake()

    def _send_failure(self) -> None:
        assert self._link is not None
        assert self._ending is not None
        self._link.send(_HEAD.pack(_FAIL, self._number) + self._ending)
        self._ending = None
        self._forget_when_done()

    def _forget_when_done(self) -> None:
        done = self._gone or not (self._backlog or self._pieces or self._ending or self._link is None)
        if self._closing and done and self._pool is not None:
            self._pool.close()
            self._pool = None
            self._transport.forget_sender(self._channel)


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
