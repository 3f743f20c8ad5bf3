"""Consumer's end: a link to each producer's worker, and a receiver for each channel on it."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from sluiceway.elements import Batch, CheckpointBarrier, Element
from sluiceway.errors import CorruptStreamError
from sluiceway.network.element_codec import decode_element, is_batch
from sluiceway.network.frames import (
    DATA,
    DATA_HEAD,
    ELEMENT,
    ELEMENT_HEAD,
    FAIL,
    GONE,
    HEAD,
    PAIR,
    SEQUENCE,
    SMALL,
    URGENT,
    WAITING,
    pack_credit,
    pack_open,
)
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver
from sluiceway.transport.carrier import Link, LinkLostError, Payload

__all__ = ["ConsumerLink"]


class ConsumerLink:
    """Link from this worker, as consumer, to one producer's worker.

    Args:
        link: the carrier's link; nothing has been received on it yet.
        soon: calls an action after the current turn of the tasks.
        load_error: decodes an exception.
        lost: called with this link when the connection is lost.
    """

    def __init__(
        self,
        link: Link,
        soon: Callable[[Callable[[], None]], None],
        load_error: Callable[[bytes], BaseException],
        lost: Callable[[ConsumerLink], None],
    ) -> None:
        self.peer = link.peer
        self._link = link
        self._soon = soon
        self._load_error = load_error
        self._lost = lost
        self._receivers: dict[int, _NetworkReceiver] = {}
        self._grants: dict[int, int] = {}
        # Numbers are never used again on a link, so that frames of a closed channel cannot reach a later one.
        self._next = 0
        link.on_frame = self._frame
        link.on_lost = self._link_lost

    def open(
        self, channel: ChannelId, ledger: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open a channel at the producer's worker."""
        number = self._next
        self._next += 1
        receiver = self._receivers[number] = _NetworkReceiver(self, number, channel, ledger, wake, serializer)
        self._link.send(pack_open(number, channel, ledger.initial()))
        return receiver

    def close(self, number: int) -> None:
        """Close a channel by its number, and notify the producer."""
        if self._receivers.pop(number, None) is not None:
            self._grants.pop(number, None)
            self._link.send(HEAD.pack(GONE, number))

    def drop(self) -> None:
        """Close all channels."""
        for receiver in list(self._receivers.values()):
            receiver.close()

    def grant(self, number: int, credit: int) -> None:
        """Grant credit, in one frame with all other grants of this turn."""
        grants = self._grants
        # Collected over a turn of the tasks: one frame instead of one per batch that was taken.
        if not grants:
            self._soon(self._send_grants)
        grants[number] = grants.get(number, 0) + credit

    def _send_grants(self) -> None:
        grants, self._grants = self._grants, {}
        for frame in pack_credit(grants):
            self._link.send(frame)

    def _frame(self, header: bytes, payload: Payload | None) -> None:
        try:
            _, number = HEAD.unpack_from(header)
        except struct.error:
            # Released by nobody else: the link could not return its memory, or end.
            if payload is not None:
                payload.release()
            self._break(f"a frame that is too short: {header[:40]!r}")
            return
        try:
            receiver = self._receivers.get(number)
            if receiver is None:  # closed here while the frame was in flight
                if payload is not None:
                    payload.release()
                return
            receiver.frame(header, payload, self._load_error)
        except struct.error:
            self._break(f"a frame that is too short: {header[:40]!r}")
        except Exception as error:  # bytes from outside may end the link, never the worker
            self._break(f"a frame that cannot be read: {type(error).__name__}: {error}: {header[:40]!r}")

    def _break(self, what: str) -> None:
        self._link.close()
        self._link_lost(LinkLostError(f"worker {self.peer!r} sent {what}"))

    def _link_lost(self, error: LinkLostError) -> None:
        # Channels fail with what has arrived still readable: a consumer may have all it needs, the end included.
        self._lost(self)
        for receiver in list(self._receivers.values()):
            receiver.fail(error)


class _NetworkReceiver(Receiver):
    def __init__(
        self,
        link: ConsumerLink,
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
        initial = ledger.initial()
        self._limited = initial is not None
        # Credit that the producer has, or that is on its way there; covers as many batches of its backlog.
        self._granted = initial or 0
        self._wake = wake
        self._serializer = serializer
        self._queue: deque[Payload | bytearray | bytes] = deque()
        self._urgent: deque[Element] = deque()
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
        # Decoded here, not on arrival: a queued batch costs bytes and no Python objects.
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
            self._grant(self._ledger.batch_taken(self._uncovered()))
        return element

    @property
    def urgent(self) -> bool:
        return bool(self._urgent)

    def receive_urgent(self) -> Element | None:
        return self._urgent.popleft() if self._urgent else None

    # Called for a recording: batches are copied as bytes, as their segments go back to the producer before the
    # snapshot is written.
    def waiting(self) -> list[Element | bytes]:
        found: list[Element | bytes] = []
        for number, frame in enumerate(self._queue, self._taken + 1):
            data = memoryview(frame) if isinstance(frame, (bytes, bytearray)) else frame.data
            if is_batch(data):
                found.append(bytes(data))
            else:
                where = f"channel {self._channel}, element {number}"
                found.append(decode_element(data, self._serializer, where))
        return found

    def queued(self) -> int:
        failed = self._failure is not None and not self._closed
        return len(self._queue) + failed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._drop()
        self._ledger.closed()
        self._link.close(self._number)

    # ---- the link -------------------------------------------------------------------------------------------

    def frame(self, header: bytes, payload: Payload | None, load_error: Callable[[bytes], BaseException]) -> None:
        """Process a frame of this channel. Raises struct.error if it is too short."""
        kind = header[0]
        if kind == DATA and payload is not None:
            try:
                _, _, sequence, backlog, more = DATA_HEAD.unpack_from(header)
            except struct.error:
                payload.release()
                raise
            self._backlog = backlog
            if self._in_order(sequence):
                self._piece(payload, bool(more))
            else:
                payload.release()
            return
        # A carrier may attach a payload to any frame; no other kind uses one.
        if payload is not None:
            payload.release()
        if kind in (ELEMENT, SMALL, URGENT):
            _, _, sequence, self._backlog = ELEMENT_HEAD.unpack_from(header)
            if self._in_order(sequence):
                self._whole(kind, header[ELEMENT_HEAD.size :])
        elif kind == WAITING:
            _, _, self._backlog = PAIR.unpack_from(header)
            if self._limited:
                self._grant(self._ledger.backlog_announced(self._uncovered()))
        elif kind == FAIL:
            self.fail(self._producers_failure(header[HEAD.size :], load_error))
        else:
            self.fail(CorruptStreamError(f"channel {self._channel}: a frame of the unknown kind {kind}"))

    def _producers_failure(self, dumped: bytes, load_error: Callable[[bytes], BaseException]) -> BaseException:
        try:
            return load_error(dumped)
        except Exception as error:
            return CorruptStreamError(
                f"channel {self._channel}: its producer failed, and why cannot be read: {error}"
            )

    def fail(self, cause: BaseException) -> None:
        """Raise ``cause`` from :meth:`receive` after everything received before has been read."""
        if self._failure is None:
            self._failure = cause
            if not self._closed:
                self._wake()

    def _in_order(self, sequence: int) -> bool:
        # After a gap in the sequence everything that follows is ignored: records must be lost with an error or not
        # at all.
        if self._failure is not None:
            return False
        if sequence != self._sequence & SEQUENCE:
            self.fail(
                CorruptStreamError(
                    f"channel {self._channel}: frame {sequence} came where {self._sequence} was expected:"
                    " buffers were lost, repeated or reordered on the way"
                )
            )
            return False
        self._sequence += 1
        return True

    def _whole(self, kind: int, frame: bytes) -> None:
        if kind == URGENT:
            self._overtaking(frame)
            return
        if kind == SMALL:
            self._granted -= 1
            self.bytes_in += len(frame)
        self._queue.append(frame)
        self._wake()

    def _overtaking(self, frame: bytes) -> None:
        where = f"channel {self._channel}, an urgent element"
        try:
            element = decode_element(memoryview(frame), self._serializer, where)
        except CorruptStreamError as error:
            self.fail(error)
            return
        self._urgent.append(element)
        if type(element) is CheckpointBarrier and element.aligned_ms == 0:
            self._queue.append(frame)  # marks its place: what arrives later is behind it
            self._wake()
        if self.on_urgent is not None:
            self.on_urgent()

    def _piece(self, payload: Payload, more: bool) -> None:
        self.bytes_in += len(payload.data)
        # A batch in one segment is read in place.
        if self._partial is None and not more:
            self._batch_came(payload)
            return
        # Copy batches that span several segments, so that the producer gets its segments back at once: it may need
        # them for the rest of this very batch.
        if self._partial is None:
            self._partial = bytearray()
        self._partial += payload.data
        payload.release()
        if not more:
            whole, self._partial = self._partial, None
            self._batch_came(whole)

    def _batch_came(self, frame: Payload | bytearray) -> None:
        self._granted -= 1
        self._queue.append(frame)
        self._wake()

    def _uncovered(self) -> int:
        """Return the batches of the backlog that no credit was granted for yet."""
        # Credit on its way already covers part of the backlog. Counting that twice drained the floating credits
        # into channels that were idle again by the time it arrived.
        return max(0, self._backlog - self._granted)

    def _grant(self, credit: int) -> None:
        if credit:
            self._granted += credit
            self._link.grant(self._number, credit)

    def _drop(self) -> None:
        for frame in self._queue:
            if not isinstance(frame, (bytes, bytearray)):
                frame.release()
        self._queue.clear()
        self._urgent.clear()
        self._partial = None
