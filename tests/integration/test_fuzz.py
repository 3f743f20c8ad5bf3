"""What comes from outside, and reaches a decoder: valid bytes, changed where it hurts.

Random bytes do not get past a length prefix or a tag. These are valid frames in which single values are replaced,
by deep nesting, invalid UTF-8, huge lengths and wrong types, or which are cut, doubled, or put together wrongly.
Each test counts how many have reached its decoder: see it with ``-s``.
"""

from __future__ import annotations

import hmac
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from random import Random
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import msgspec
import pytest

from sluiceway.clock import VirtualClock
from sluiceway.elements import (
    BarrierAnnouncement,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    LatencyMarker,
    TerminationProbe,
    Watermark,
    WatermarkStatus,
)
from sluiceway.errors import CorruptStreamError
from sluiceway.network.credit import GateCredits
from sluiceway.network.element_codec import decode_element, encode_batch, encode_control
from sluiceway.network.frames import CREDIT, DATA_HEAD, ELEMENT_HEAD, GONE, HEAD, PAIR, pack_open
from sluiceway.network.transport import NetworkTransport
from sluiceway.runtime.cluster import connection as connections
from sluiceway.runtime.cluster.connection import BrokenProtocolError, Connection
from sluiceway.runtime.loop.poller import Poller
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages import payload as payloads
from sluiceway.runtime.messages import pickling as shipping
from sluiceway.runtime.messages import protocol
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.protocol import Hello, Proof
from sluiceway.serializers.edges import edge_serializer
from sluiceway.transport import ChannelId
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import CarrierContext, Link, LinkLostError, Payload
from sluiceway_shm._link import ShmLink
from sluiceway_zmq._greeting import Greeting, hello, read_hello
from sluiceway_zmq._links import AcceptedLink

zmq = pytest.importorskip("zmq")
SECRET: Final = b"s" * 32

often = pytest.mark.parametrize(
    "count", [500, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)


class Reached:
    """How many inputs have come to a decoder; said at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.inputs = self.decoded = self.refused = 0

    def tell(self, least: float) -> None:
        print(f"\n{self.what}: {self.inputs} inputs, {self.decoded} reached the decoder, {self.refused} refused")
        assert self.decoded >= least * self.inputs, "they are to reach the decoder"
        assert self.refused, "some are to be refused"


# ---- mutations of msgpack -----------------------------------------------------------------------------------

_BAD_TEXT: Final = (
    b"\xa3\xff\xfe\xfd",
    b"\xa2\xc0\x80",
    b"\xa3\xed\xa0\x80",
    b"\xa1\x80",
    b"\xd9\x04\xf8\x88\x80\x80",
)
_HUGE: Final = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x05",
    b"\xdc\xff\xff",
    b"\xde\xff\xff",
)
_ODD: Final = (
    b"\xc0",
    b"\xc1",
    b"\xc2",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xd6\xff\0\0\0\0",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xd4\x7fx",
    b"\x80",
    b"\x90",
    b"\xa0",
    b"\xc4\0",
)


def mutated(chance: Random, valid: Any, encode: Callable[[Any], bytes] = msgspec.msgpack.encode) -> bytes:
    """A valid value as bytes, with one to three changes that keep most of its structure."""
    data = bytearray(encode(valid))
    for _ in range(chance.randint(1, 3)):
        _mutate(chance, data)
    return bytes(data)


def _mutate(chance: Random, data: bytearray) -> None:
    starts = list(_starts(bytes(data))) or [0]
    at = chance.choice(starts)
    end = min((start for start in starts if start > at), default=len(data))
    what = chance.randrange(9)
    if what == 0:
        data[at:end] = b"\x91" * chance.choice((20, 500, 5_000, 100_000)) + b"\xc0"
    elif what == 1:
        data[at:end] = b"\x81\xa1k" * chance.choice((20, 500, 5_000, 50_000)) + b"\xc0"
    elif what == 2:
        data[at:end] = chance.choice(_BAD_TEXT)
    elif what == 3:
        data[at:end] = chance.choice(_HUGE)
    elif what == 4:
        data[at:end] = chance.choice(_ODD)
    elif what == 5:
        del data[chance.randrange(len(data) + 1) :]
    elif what == 6:
        data[at:at] = data[at:end] * chance.randint(1, 3)
    elif what == 7:
        del data[at:end]
    elif data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _starts(data: bytes) -> Iterator[int]:
    """Where values begin, as far as that can be followed."""
    at, left = 0, 1
    while left and at < len(data) and at < 4096:
        yield at
        left -= 1
        tag = data[at]
        at += 1
        if tag < 0x80 or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
            continue
        if tag < 0x90:
            left += 2 * (tag & 15)
        elif tag < 0xA0:
            left += tag & 15
        elif tag < 0xC0:
            at += tag & 31
        elif tag in (0xC4, 0xD9):
            at += 1 + (data[at] if at < len(data) else 0)
        elif tag in (0xC5, 0xDA):
            at += 2 + int.from_bytes(data[at : at + 2], "big")
        elif tag in (0xC6, 0xDB):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        elif tag in (0xDC, 0xDE):
            left += int.from_bytes(data[at : at + 2], "big") * (1 + (tag == 0xDE))
            at += 2
        elif tag in (0xDD, 0xDF):
            left += int.from_bytes(data[at : at + 4], "big") * (1 + (tag == 0xDF))
            at += 4
        else:
            at += {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}.get(
                tag, 2
            )


# ---- the control protocol -----------------------------------------------------------------------------------


def value_of(chance: Random, kind: Any) -> Any:
    """Some value of a type that messages have in them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Literal) or str(origin) == "typing.Union":
        return value_of(chance, chance.choice(arguments))
    if origin is list:
        return [value_of(chance, arguments[0]) for _ in range(chance.randrange(4))]
    if origin is tuple:
        kinds = [arguments[0]] * chance.randrange(4) if arguments[-1] is Ellipsis else arguments
        return tuple(value_of(chance, each) for each in kinds)
    if origin in (dict, Mapping):
        return {value_of(chance, arguments[0]): value_of(chance, arguments[1]) for _ in range(chance.randrange(4))}
    if origin is not None and issubclass(origin, payloads.Payload):
        return payloads.Payload.received(chance.randbytes(20))
    if kind is payloads.Cause:
        return payloads.Cause.received(chance.randbytes(20))
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        hints = get_type_hints(kind).items()
        return kind(**{name: value_of(chance, hint) for name, hint in hints if get_origin(hint) is not ClassVar})
    simple: dict[Any, Callable[[], Any]] = {
        str: lambda: chance.choice(("", "a", "job-1", "é\u20ac" * 5, "x" * 40)),
        bytes: lambda: chance.randbytes(chance.choice((0, 1, 32, 100))),
        int: lambda: chance.choice((0, 1, -1, 7, 1 << 31, -(1 << 63), (1 << 63) - 1)),
        bool: lambda: chance.random() < 0.5,
        float: chance.random,
        NoneType: lambda: None,
        Any: lambda: chance.choice(("a", 1, None, [1], {"a": 1})),
    }
    return simple[kind]()


KINDS: Final = [Hello, Proof, protocol.LargeMessage, *protocol.MESSAGES]


class FakeStream:
    """One end of a connection: what is to be read is put into it."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def fileno(self) -> int:
        return 9

    def setblocking(self, flag: bool, /) -> None: ...

    def recv(self, size: int, /) -> bytes:
        if not self.data:
            raise BlockingIOError
        some, self.data = self.data[:size], self.data[size:]
        return some

    def send(self, data: memoryview, /) -> int:
        return len(data)

    def close(self) -> None:
        self.closed = True


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("proved", [False, True], ids=["before the proof", "after the proof"])
@often
def test_the_control_protocol(count: int, proved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(count + proved)
    reached = Reached(f"control protocol {'after' if proved else 'before'} the proof")

    def counted(data: bytes, *, handshake: bool) -> Message:
        reached.decoded += 1
        return protocol.decode(data, handshake=handshake)

    monkeypatch.setattr(connections, "decode", counted)
    for _ in range(count):
        reached.inputs += 1
        loop = TaskletLoop(VirtualClock(), Mock(spec=Poller))
        stream = FakeStream()
        closed: list[tuple[Connection, Any]] = []
        made = Connection(
            stream,
            loop,
            SECRET,
            "manager",
            on_open=lambda connection: pytest.fail("opened"),
            on_message=lambda connection, message: None,
            on_closed=lambda *told, closed=closed: closed.append(told),
        )
        kind = chance.choice(KINDS if proved else [Hello, Proof, Hello, chance.choice(KINDS)])
        data = mutated(chance, value_of(chance, kind), protocol.encode)
        if proved:
            made.peer, made._proved = "worker", True
        else:
            data = data[: connections._LONGEST_BEFORE_PROOF]
            if kind is Proof:
                stream.data = framed(protocol.encode(Hello("worker", b"n" * 32)))
                reached.decoded -= 1
        stream.data += framed(data)
        loop.run_ready()
        assert not stream.data or closed
        if closed:
            reached.refused += 1
            assert isinstance(closed[0][1], BrokenProtocolError), closed
            assert len(str(closed[0][1])) < 1000
            assert stream.closed
            assert not loop.alive()
    reached.tell(0.99)


# ---- elements -----------------------------------------------------------------------------------------------


class Point(msgspec.Struct):
    x: int
    name: str


CONTROLS: Final = [
    Watermark(7),
    WatermarkStatus(True),
    LatencyMarker(1.5, "source", 2),
    CheckpointBarrier(3, 4, "place", True, 5),
    CancelCheckpointMarker(9),
    TerminationProbe("loop", 3),
    EndOfData(),
    BarrierAnnouncement(1, 2, 3),
]
VALUES: Final[list[tuple[Any, list[Any]]]] = [
    (int, [1, 2, 1 << 40]),
    (str, ["a", "é", "x" * 50]),
    (tuple[str, int], [("a", 1), ("b", 2)]),
    (dict[str, list[int]], [{"a": [1, 2]}, {}]),
    (Point, [Point(1, "a"), Point(2, "b")]),
    (Any, [1, "a", None, {"a": (1, 2)}]),
]


def element(chance: Random) -> tuple[bytes, Any]:
    """The frame of an element that is none, or nearly one, and the serializer of its edge."""
    kind, values = chance.choice(VALUES)
    serializer = edge_serializer(kind)
    if chance.random() < 0.4:
        frame = encode_control(chance.choice(CONTROLS))
        return frame[:1] + mutated(chance, frame[1:], bytes), serializer
    stamps = [1] * len(values) if chance.random() < 0.5 else None
    frame = b"".join(encode_batch(Batch(list(values), stamps), serializer))
    at = 1 if stamps is None else 5 + 8 * len(stamps)
    if stamps is not None and chance.random() < 0.2:
        frame = frame[:1] + struct.pack("<I", chance.choice((0, 2, 1 << 31, (1 << 32) - 1))) + frame[5:]
    return frame[:at] + mutated(chance, frame[at:], bytes), serializer


@often
def test_elements_between_workers(count: int) -> None:
    chance = Random(count)
    reached = Reached("elements")
    told = set()
    for _ in range(count):
        frame, serializer = element(chance)
        reached.inputs += 1
        reached.decoded += 1
        try:
            decode_element(memoryview(frame), serializer, "channel 1, element 1")
        except CorruptStreamError as error:
            reached.refused += 1
            told.add(str(error)[:33])
    assert told == {"channel 1, element 1: a frame of "}
    reached.tell(1.0)


# ---- frames about channels ----------------------------------------------------------------------------------


class FakeLink(Link):
    """A link of a carrier: frames are put into it."""

    def __init__(self) -> None:
        self.peer = "worker-2"
        self.on_frame = lambda header, payload: None
        self.on_lost = lambda error: None
        self.closed = False

    def send(self, header: bytes, payload: Any = None) -> None:
        if payload is not None:
            payload.release()

    def close(self) -> None:
        self.closed = True


class Piece:
    """A payload that must be released once."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.released = 0

    def release(self) -> None:
        self.released += 1


def channel_frame(chance: Random, channel: ChannelId) -> bytes:
    """About channel 0, mostly."""
    number = chance.choice((0, 0, 0, 1, 1 << 31))
    sequence = chance.choice((0, 0, 1, 1 << 31))
    frames: list[bytes] = [
        pack_open(number, channel, chance.choice((None, 0, 1 << 30))),
        DATA_HEAD.pack(2, number, sequence, 0, 0),
        ELEMENT_HEAD.pack(chance.choice((3, 8, 9)), number, sequence, 0) + element(chance)[0],
        struct.pack("<BII", CREDIT, number, chance.choice((0, 1, 1 << 31))),
        PAIR.pack(5, number, chance.choice((0, 3, (1 << 32) - 1))),
        HEAD.pack(6, number) + mutated(chance, pickle.dumps(ValueError("why")), bytes),
        HEAD.pack(GONE, number),
        HEAD.pack(chance.randrange(256), number) + chance.randbytes(chance.randrange(8)),
    ]
    frame = chance.choice(frames)
    what = chance.randrange(4)
    if what == 0:
        return mutated(chance, frame[9:], bytes) if frame[0] == 1 else frame[: chance.randrange(len(frame) + 1)]
    if what == 1 and frame[0] == 1:
        return frame[:9] + mutated(chance, frame[9:], bytes)
    return frame


@often
def test_frames_about_channels(count: int) -> None:
    chance = Random(count)
    reached = Reached("frames about channels")
    for _ in range(count):
        reached.inputs += 1
        soon: list[Callable[[], None]] = []
        memory = memoryview(bytearray(1024))
        transport = NetworkTransport(
            Mock(),
            NetworkBufferPool([memory[at : at + 128] for at in range(0, 1024, 128)]),
            str,
            soon.append,
            pickle.dumps,
            shipping.load_error,
        )
        channel = ChannelId("0", 0, 0, producer_at="worker-1", consumer_at="worker-2")
        serializer = edge_serializer(str)
        link = FakeLink()
        if chance.random() < 0.5:
            sender = transport.sender(channel, lambda: None, serializer)
            transport.accepted(link)
            link.on_frame(pack_open(0, channel, 1), None)
            for word in ("a", "b", "c" * 500):
                sender.send(Batch([word]))
        else:
            transport._carrier.connect.return_value = link  # type: ignore[attr-defined]
            transport.receiver(channel, GateCredits().channel(), lambda: None, serializer)
        for _ in range(chance.randint(1, 4)):
            piece = Piece(element(chance)[0]) if chance.random() < 0.3 else None
            reached.decoded += 1
            link.on_frame(channel_frame(chance, channel), piece)
            while soon:
                soon.pop(0)()
            if link.closed:
                reached.refused += 1
                break
        transport.close()
    reached.tell(0.99)


# ---- the transports' own wires ------------------------------------------------------------------------------


def shm_stream(chance: Random) -> bytes:
    """A greeting, mostly with a proof, and frames behind it."""
    name = b"worker-2"
    proof = hmac.digest(SECRET, b"shm " + name, "sha256")
    size = chance.choice((1, 1, 1, 1, 0, 5, 1 << 31))
    count = chance.choice((0, 0, 0, 0, 1, 1 << 31))
    if chance.random() < 0.1:
        name = b"\xff\xfe"
        proof = hmac.digest(SECRET, b"shm " + name, "sha256")
    body = struct.pack("<IIH", count, size, chance.choice((len(name),) * 9 + (65535,))) + name + proof
    parts = [struct.pack("<IB", len(body), 4) + body]
    for _ in range(chance.randint(1, 4)):
        payload = channel_frame(chance, ChannelId("0", 0, 0))
        kind = chance.choice((1, 1, 2, 3, 3, 4, 5, 255))
        if kind == 2:
            payload = struct.pack("<II", chance.choice((0, 7, 1 << 31)), chance.choice((0, 1, 1 << 31))) + payload
        if kind == 3:
            payload = struct.pack("<I", chance.randrange(5)) * chance.randrange(3) + payload[: chance.randrange(2)]
        size = chance.choice((len(payload),) * 8 + (len(payload) + 1, 1 << 25, (1 << 32) - 1))
        parts.append(struct.pack("<IB", size, kind) + payload)
    return b"".join(parts)


@often
def test_the_wire_of_shared_memory(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count //= 4  # each of them has a pair of sockets
    chance = Random(count)
    reached = Reached("shared memory")
    take = ShmLink._take

    def counted(link: ShmLink, kind: int, body: bytes) -> None:
        reached.decoded += 1
        take(link, kind, body)

    monkeypatch.setattr(ShmLink, "_take", counted)
    for _ in range(count):
        reached.inputs += 1
        lost: list[LinkLostError] = []
        context = carrier_context(lambda link: None)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            link = ShmLink(ours, context, (b"x" * 50, -1), memoryview(bytearray(4096)), Mock(), accepted=True)
            link.on_lost = lost.append
            link.watch()
            said = shm_stream(chance)
            theirs.setblocking(False)
            while not lost:
                try:
                    said = said[theirs.send(said) :]
                    if not said:
                        theirs.shutdown(socket.SHUT_WR)
                except (BlockingIOError, BrokenPipeError):
                    pass  # it is full, or closed by now
                link._readable()
        assert len(lost) == 1
        assert ours.fileno() == -1
        reached.refused += "sent what is no frame" in str(lost[0])
    reached.tell(1.0)


@often
def test_the_wire_of_zeromq(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(count)
    reached = Reached("ZeroMQ")
    for _ in range(count):
        reached.inputs += 1
        lost: list[LinkLostError] = []
        forgotten: list[int] = []
        context = carrier_context(lambda link: None)
        link = AcceptedLink(Mock(), b"id", "worker-2", context, lambda: None, lambda: forgotten.append(1))  # noqa: B023
        link.on_lost = lost.append

        def frame(header: bytes, payload: Payload | None) -> None:
            reached.decoded += 1
            if chance.random() < 0.01:
                raise ValueError("whatever comes of it")
            if payload is not None:
                payload.release()

        link.on_frame = frame
        said = b"F"
        for _ in range(chance.randint(1, 4)):
            header = channel_frame(chance, ChannelId("0", 0, 0))
            size = chance.choice((len(header),) * 12 + (len(header) + 1, 1 << 31))
            said += struct.pack("<I", size) + header
        if chance.random() < 0.2:
            said = said[: chance.randrange(len(said))]
        if chance.random() < 0.1:
            said = chance.choice((b"", b"B", b"H", b"P", b"C", b"\xff")) + said[1:]
        payload = zmq.Frame(b"x" * 10) if chance.random() < 0.3 else None
        link.received(said, payload, chance.choice((1, 2, 3)) if payload is None else 2)
        link.received(b"F", None, 1)
        if lost:
            reached.refused += 1
            assert len(lost) == len(forgotten) == 1
    reached.tell(0.7)


@often
def test_the_greetings_of_zeromq(count: int) -> None:
    chance = Random(count)
    reached = Reached("ZeroMQ's greetings")
    for _ in range(count):
        said, drawn = hello(chance.choice(("worker-1", "é", "x" * 300)))
        reached.inputs += 1
        reached.decoded += 1
        read = read_hello(mutated(chance, said, bytes))
        if read is None:
            reached.refused += 1
            continue
        there = Greeting(SECRET, read[1], "worker-2", read[0])
        here = Greeting(b"another", "worker-1", "worker-2", drawn)
        answer = here.answer(mutated(chance, there.challenge(), bytes))
        assert answer is None
        assert not there.proves(mutated(chance, b"p" * 32, bytes))
    reached.tell(1.0)


def carrier_context(accepted: Callable[[Link], None]) -> CarrierContext:
    nothing: Callable[..., None] = lambda *arguments: None  # noqa: E731
    never = Scheduled(nothing)
    return CarrierContext(
        "worker-1", os.devnull, SECRET, nothing, nothing, nothing, accepted, lambda action, after_s: never, nothing
    )
