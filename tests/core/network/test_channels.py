"""Channels over a link that does what the test says."""

from __future__ import annotations

import pickle
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.elements import Batch, CancelCheckpointMarker, Watermark
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.network.credit import GateCredits, Unlimited
from sluiceway.network.frames import (
    CREDIT,
    DATA,
    ELEMENT,
    FAIL,
    OPEN,
    SMALL,
    URGENT,
    WAITING,
    pack_credit,
    pack_open,
)
from sluiceway.network.transport import NetworkTransport
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId
from sluiceway.transport.buffers import Buffer, NetworkBufferPool
from sluiceway.transport.carrier import Carrier, CarrierContext, Link

PICKLE = PickleSerializer()
CHANNEL = ChannelId("edge", 1, 2, producer_at="far", consumer_at="near")


class Said(Link):
    """Notes what is said."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.frames: list[bytes] = []
        self.payloads: list[Buffer] = []
        self.closed = False

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        self.frames.append(header)
        if payload is not None:
            self.payloads.append(payload)

    def close(self) -> None:
        self.closed = True

    def kinds(self) -> list[int]:
        kinds = [frame[0] for frame in self.frames]
        self.frames.clear()
        return kinds


class OneLink(Carrier):
    def __init__(self) -> None:
        self.link = Said("far")

    def start(self, context: CarrierContext) -> str:
        return ""

    def segments(self, count: int, size: int) -> list[memoryview]:
        return [memoryview(bytearray(size)) for _ in range(count)]

    def connect(self, peer: str, address: str) -> Link:
        return self.link

    def close(self) -> None:
        pass


class Near:
    """A worker whose turns end when the test says so."""

    def __init__(self, segments: int = 4) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.woken = 0
        carrier = OneLink()
        self.link = carrier.link
        self.buffers = NetworkBufferPool(carrier.segments(segments, 1024))
        self.transport = NetworkTransport(
            carrier, self.buffers, lambda name: "", self.soon.append, pickle.dumps, pickle.loads
        )

    def wake(self) -> None:
        self.woken += 1

    def end_turn(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def sender(self, credit: int | None = 2) -> Any:
        self.transport.accepted(self.link)
        self.link.on_frame(pack_open(5, CHANNEL, credit), None)
        return self.transport.sender(CHANNEL, self.wake, PICKLE)


def element(kind: int, sequence: int, body: bytes, backlog: int = 0) -> bytes:
    return struct.pack("<BIII", kind, 0, sequence, backlog) + body


def watermark(sequence: int) -> bytes:
    return element(ELEMENT, sequence, b"\x03\x91\x01")


# ---- what comes in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [0, 2])
def test_a_gap_or_a_repeat_fails_the_channel_behind_what_was_right(second: int) -> None:
    near = Near()
    receiver = near.transport.receiver(CHANNEL, Unlimited(), near.wake, PICKLE)
    for sequence in (0, second):
        near.link.on_frame(watermark(sequence), None)
    assert receiver.receive() == Watermark(1)
    with pytest.raises(CorruptStreamError, match=rf"edge\[1->2\]: frame {second} came where 1 was expected"):
        receiver.receive()


def test_sequence_numbers_start_again() -> None:
    near = Near()
    receiver: Any = near.transport.receiver(CHANNEL, Unlimited(), near.wake, PICKLE)
    receiver._sequence = 2**32 - 1
    near.link.on_frame(watermark(2**32 - 1), None)
    near.link.on_frame(watermark(0), None)
    assert [receiver.receive(), receiver.receive()] == [Watermark(1), Watermark(1)]


def test_a_frame_that_is_too_short_ends_the_link() -> None:
    near = Near()
    receiver = near.transport.receiver(CHANNEL, Unlimited(), near.wake, PICKLE)
    near.link.on_frame(struct.pack("<BI", ELEMENT, 0), None)
    assert near.link.closed
    with pytest.raises(ConnectionError, match="worker 'far' sent a frame that is too short"):
        receiver.receive()


def test_a_failure_that_cannot_be_read_is_still_one() -> None:
    near = Near()
    receiver = near.transport.receiver(CHANNEL, Unlimited(), near.wake, PICKLE)
    near.link.on_frame(struct.pack("<BI", FAIL, 0) + b"?", None)
    with pytest.raises(CorruptStreamError, match="its producer failed, and why cannot be read"):
        receiver.receive()


def test_credit_of_a_turn_is_granted_in_one_frame() -> None:
    near = Near()
    gate = GateCredits(exclusive=4, floating=0)
    receivers = [
        near.transport.receiver(ChannelId("edge", n, 0), gate.channel(), near.wake, PICKLE) for n in range(3)
    ]
    assert near.link.kinds() == [OPEN] * 3
    for number, receiver in enumerate(receivers):
        for sequence in range(2):
            small = struct.pack("<BIII", SMALL, number, sequence, 0) + b"\x01" + PICKLE.dumps([1])
            near.link.on_frame(small, None)
            receiver.receive()
    assert near.link.frames == []
    near.end_turn()
    assert near.link.frames == [struct.pack("<B6I", CREDIT, 0, 2, 1, 2, 2, 2)]


def test_what_has_credit_on_its_way_is_given_no_more() -> None:
    near = Near()
    gate = GateCredits(exclusive=1, floating=10)
    near.transport.receiver(CHANNEL, gate.channel(), near.wake, PICKLE)
    for _ in range(3):
        near.link.on_frame(struct.pack("<BII", WAITING, 0, 5), None)
    assert gate.free == 10 - (5 - 1), "one is its own"


def test_a_channel_number_that_is_used_twice_ends_the_link() -> None:
    near = Near()
    sender = near.sender()
    near.link.on_frame(pack_open(5, ChannelId("other", 0, 0), 2), None)
    assert near.link.closed
    assert near.woken
    sender.send(Batch([1]))
    assert near.link.frames == []


# ---- what goes out -----------------------------------------------------------------------------------------


def test_a_later_attempt_takes_the_place_of_a_producer_whose_consumer_never_came() -> None:
    near = Near()
    first = near.transport.sender(CHANNEL, near.wake, PICKLE)
    other = near.transport.sender(ChannelId("edge", 1, 3), near.wake, PICKLE)
    for sender in (first, other):
        sender.send(Batch([1]))
        sender.close()
    assert near.transport.sender_of(CHANNEL) is first, "its consumer may still come"
    again = ChannelId("edge", 1, 2, attempt=1)
    second = near.transport.sender(again, near.wake, PICKLE)
    assert near.transport.sender_of(CHANNEL) is None
    assert near.transport.sender_of(again) is second
    assert near.transport.sender_of(ChannelId("edge", 1, 3)) is other
    assert first.backlog() == 0


def test_a_small_batch_needs_no_buffer_and_a_larger_one_does() -> None:
    near = Near()
    sender = near.sender()
    sender.send(Batch([1]))
    assert near.link.kinds() == [SMALL]
    assert near.link.payloads == []
    sender.send(Batch([bytes(2000)]))
    assert near.link.kinds() == [DATA, DATA]
    assert [p.size for p in near.link.payloads] == [1024, sender.bytes_out - 1024 - len(PICKLE.dumps([1])) - 1]
    assert sender.buffers == (2, 4)


def test_a_backlog_is_told_once_a_turn_and_only_if_it_lasts() -> None:
    near = Near()
    sender = near.sender(credit=1)
    for n in range(4):
        sender.send(Batch([n]))
    assert near.link.kinds() == [SMALL]
    near.end_turn()
    assert near.link.frames == [struct.pack("<BII", WAITING, 5, 3)]
    sender.send(Batch([4]))
    for frame in pack_credit({5: 4}):
        near.link.on_frame(frame, None)
    near.link.frames.clear()
    near.end_turn()
    assert near.link.frames == []


def test_an_urgent_element_goes_between_the_pieces_of_a_batch() -> None:
    near = Near(segments=2)
    sender = near.sender()
    sender.send(Batch([bytes(5000)]))
    sender.send_urgent(CancelCheckpointMarker(1))
    assert near.link.kinds() == [DATA, DATA, URGENT]
    for _ in range(4):
        near.link.payloads.pop(0).release()
    assert near.link.kinds() == [DATA, DATA, DATA]
    assert sender.available()


def test_a_consumer_that_comes_and_goes_before_the_producer_leaves_nothing() -> None:
    near = Near()
    near.transport.accepted(near.link)
    near.link.on_frame(pack_open(5, CHANNEL, 2), None)
    near.link.on_frame(struct.pack("<BI", 7, 5), None)
    sender = near.transport.sender(CHANNEL, near.wake, PICKLE)
    assert not sender.available()
    near.link.on_frame(pack_open(6, CHANNEL, 2), None)
    assert sender.available()


def test_partitions_give_their_share_back_with_their_last_channel() -> None:
    near = Near()
    channels = [ChannelId("edge", 0, n) for n in range(4)]
    for _ in range(3):
        senders = [near.transport.sender(c, near.wake, PICKLE) for c in channels]
        near.transport.accepted(near.link)
        for number, channel in enumerate(channels):
            near.link.on_frame(pack_open(number, channel, 2), None)
        for sender in senders:
            sender.close()
    pool = near.buffers.create_pool(4, on_available=near.wake)
    assert pool.size == 4


def test_a_record_that_waited_and_cannot_be_serialized_fails_its_channel_alone() -> None:
    near = Near()
    sender = near.sender(credit=0)
    for batch in (Batch([1]), Batch([lambda: None]), Batch([3])):
        sender.send(batch)
    near.link.frames.clear()
    near.link.on_frame(struct.pack("<BII", CREDIT, 5, 3), None)
    assert not near.link.closed, "the link is as good as before"
    first, second = near.link.frames
    assert (first[0], second[0]) == (SMALL, FAIL)
    cause = pickle.loads(second[5:])
    assert isinstance(cause, SerializationError)
    assert sender.backlog() == 0


def test_nothing_is_remembered_of_channels_that_are_over() -> None:
    near = Near()
    for attempt in range(100):
        channel = ChannelId(f"job-{attempt}/edge", 1, 2, attempt=attempt, producer_at="far", consumer_at="near")
        sender = near.transport.sender(channel, near.wake, PICKLE)
        sender.discard()
    held = (near.transport._latest, near.transport._senders, near.transport._partitions, near.transport._opened)
    assert not any(held), held
