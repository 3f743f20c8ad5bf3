"""Control connections: who does not know the secret gets nowhere, whatever it sends."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.clock import SystemClock
from sluiceway.errors import SerializationError
from sluiceway.runtime.cluster import connection as connections
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.protocol import Hello, LargeMessage, Proof, decode, encode
from sluiceway.runtime.messages.tasks import CancelTask
from sluiceway.runtime.messages.workers import Heartbeat, Register, Results

# Later versions of Python nest deeper than the frames that are read before authentication.
_TOO_DEEP = "RecursionError: " if sys.version_info < (3, 12) else "DecodeError: "

# A UnicodeDecodeError with some versions of msgspec, a DecodeError of its own with others.
_NOT_UTF_8 = "DecodeError: "


class End:
    """One side, and what happened to it."""

    def __init__(
        self, stage: Stage, sock: socket.socket, role: str, secret: bytes = b"s" * 32, **more: Any
    ) -> None:
        self.opened = 0
        self.got: list[Message] = []
        self.closed: list[ConnectionLostError | None] = []
        self.connection = Connection(
            sock,
            stage.loop,
            secret,
            role,
            on_open=self._open,
            on_message=lambda _, message: self.got.append(message),
            on_closed=lambda _, why: self.closed.append(why),
            **more,
        )

        stage.ends.append(self)

    def _open(self, connection: Connection) -> None:
        self.opened += 1


class Stage:
    """A loop with both ends in it."""

    def __init__(self) -> None:
        self.poller = SelectorPoller()
        self.ends: list[End] = []
        self.loop = TaskletLoop(SystemClock(), self.poller)

    def settle(self) -> None:
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.loop.run_ready() else quiet + 1
            self.poller.poll(0.001)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    for end in made.ends:
        end.connection.abandon()
    made.poller.close()


def test_messages_come_in_order_once_both_have_proved_themselves(stage: Stage) -> None:
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker", peer_role="manager"), End(stage, right, "manager")
    sent = [Register("w", 1, 2, "there"), *(Heartbeat(n) for n in range(100)), CancelTask("j", 0, "x" * 1_000_000)]
    for message in sent:
        worker.connection.send(message)
    stage.settle()
    assert (worker.opened, manager.opened) == (1, 1)
    assert manager.connection.peer == "worker"
    assert manager.got == sent
    worker.connection.close()
    stage.settle()
    assert worker.closed == [None]
    assert "the worker has closed the connection" in str(manager.closed[0])


def test_another_secret_is_found_out_on_both_sides(stage: Stage) -> None:
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker", b"a" * 32), End(stage, right, "manager")
    worker.connection.send(Heartbeat(1))
    stage.settle()
    assert (worker.opened, manager.opened, manager.got) == (0, 0, [])
    told = [str(end.closed[0]) for end in (worker, manager)]
    assert any("does not know this cluster's secret" in text for text in told)


def test_a_role_that_is_not_expected_is_turned_away(stage: Stage) -> None:
    left, right = socket.socketpair()
    client, manager = End(stage, left, "client"), End(stage, right, "manager", peer_role="worker")
    stage.settle()
    assert "a 'client' may not connect to this manager" in str(manager.closed[0])
    assert client.opened == 0


def test_a_mirror_is_no_peer(stage: Stage) -> None:
    """Who sends back what it gets cannot pass for somebody who knows the secret."""
    left, right = socket.socketpair()
    manager = End(stage, left, "manager")
    right.setblocking(False)
    for _ in range(20):
        stage.settle()
        try:
            right.sendall(right.recv(65536))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            break
    right.close()
    stage.settle()
    assert manager.opened == 0
    assert len(manager.closed) == 1


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def frame(message: Message) -> bytes:
    return framed(encode(message))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (frame(Register("w", 1, 1, "")), "that is no message of the handshake of protocol 4: "),
        (frame(Proof(b"x" * 32)), "sent a message before authentication"),
        (
            (1 << 20).to_bytes(4, "big"),
            "of 1048576 bytes, which exceeds the limit before authentication, 1024",
        ),
        (b"\0\0\0\3abc", "sent a frame of 3 bytes that is no message of the handshake of protocol 4: "),
        (
            frame(Hello("worker", b"n" * 32, version=99)),
            "a worker speaks protocol 99, this manager 4: run",
        ),
        (frame(Hello("worker", b"short")), "sent an invalid nonce"),
        (framed(b"\x83\xa4type\xa5Hello\xa4role\xa3\xff\xfe\xfd\xa5nonce\xc4\1a"), _NOT_UTF_8),
        (framed(b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 1000), _TOO_DEEP),
    ],
)
def test_strangers_are_told_from_peers(stage: Stage, data: bytes, says: str) -> None:
    left, right = socket.socketpair()
    with right:
        manager = End(stage, left, "manager")
        right.sendall(data)
        stage.settle()
        assert says in str(manager.closed[0])
        assert manager.opened == 0
        assert manager.got == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (framed(b"\x82\xa4type\xa9CancelJob\xa3job\xa3\xff\xfe\xfd"), _NOT_UTF_8),
        (framed(b"\x82\xa4type\xa9Heartbeat\xa1x" + b"\x91" * 30_000), "RecursionError: "),
        (framed(b"\x82\xa4type\xabDeployTasks\xa8attempts\xdd\xff\xff\xff\xff\xa1a"), "DecodeError: "),
        (frame(Hello("worker", b"n" * 32)), "repeated its greeting"),
        ((1 << 31).to_bytes(4, "big"), "which exceeds the limit, 16777216"),
    ],
)
def test_what_a_peer_sends_that_is_no_message_ends_its_connection_alone(
    stage: Stage, data: bytes, says: str
) -> None:
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker", peer_role="manager"), End(stage, right, "manager")
    others = [
        End(stage, sock, role) for sock, role in zip(socket.socketpair(), ("worker", "manager"), strict=True)
    ]
    stage.settle()
    worker.connection._out += data
    stage.loop.wake(worker.connection)
    stage.settle()
    assert says in str(manager.closed[0])
    assert str(manager.closed[0]).startswith("the worker sent") or "repeated its greeting" in says
    assert len(worker.closed) == 1
    others[0].connection.send(Heartbeat(1))
    stage.settle()
    assert others[1].got == [Heartbeat(1)]


def test_a_message_that_cannot_be_processed_ends_its_connection_alone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker", peer_role="manager"), End(stage, right, "manager")
    stage.settle()

    def fail(connection: Connection, message: Message) -> None:
        raise ValueError("'nonsense' is not a valid ExecutionState")

    manager.connection._on_message = fail
    worker.connection.send(Heartbeat(1))
    stage.settle()
    said = "the worker sent Heartbeat, which failed with ValueError: 'nonsense' is not a valid ExecutionState"
    assert [str(why) for why in manager.closed] == [said]
    assert "ValueError Heartbeat of the worker failed; the connection is closed" in caplog.text
    assert "Traceback" in caplog.text
    assert len(worker.closed) == 1


def test_who_is_turned_away_is_closed_unless_its_proof_has_come(stage: Stage) -> None:
    left, right = socket.socketpair()
    with right:
        idle = End(stage, left, "manager")
        stage.settle()
        idle.connection.turn_away("it is late")
        stage.settle()
        assert [str(why) for why in idle.closed] == ["the peer was turned away: it is late"]
        assert not stage.loop.alive()
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker", peer_role="manager"), End(stage, right, "manager")
    while not worker.connection.proved:
        stage.loop.run_ready(1)
        stage.poller.poll(0)
    manager.connection.turn_away("it is late")
    stage.settle()
    assert (worker.opened, manager.opened, manager.closed) == (1, 1, [])
    manager.connection.turn_away("it is known by now")
    assert manager.connection.open


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300), pieces=st.integers(1, 5))
def test_garbage_neither_opens_nor_hangs_a_connection(stage: Stage, data: bytes, pieces: int) -> None:
    left, right = socket.socketpair()
    with right:
        manager = End(stage, left, "manager")
        size = len(data) // pieces + 1
        for at in range(0, len(data), size):
            try:
                right.sendall(data[at : at + size])
            except (BrokenPipeError, ConnectionResetError):
                break
            stage.settle()
    stage.settle()
    assert manager.opened == 0
    assert len(manager.closed) == 1


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.binary())
def test_messages_survive_the_wire(text: str, number: int, data: bytes) -> None:
    for message in (Register(text, number, number, text), Hello(text, data), CancelTask(text, number, text)):
        assert decode(encode(message)) == message


# ---- messages that are longer than a frame -------------------------------------------------------------------


def test_a_message_with_objects_of_users_comes_in_several_frames(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LONGEST", 1000)
    monkeypatch.setattr(connections, "_PART", 300)
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker"), End(stage, right, "manager")
    stage.settle()
    sent = [Results("job", 1, 7, b"r" * 10_000), Heartbeat(1), Results("job", 1, 7, b""), Heartbeat(2)]
    for message in sent:
        worker.connection.send(message)
    stage.settle()
    assert manager.got == sent


def test_a_control_message_is_not_sent_if_it_is_longer_than_a_frame(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LONGEST", 1000)
    monkeypatch.setattr(connections, "_LARGEST", 5000)
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker"), End(stage, right, "manager")
    stage.settle()
    with pytest.raises(SerializationError, match=r"CancelTask of 1,0.. bytes exceeds the limit, 1,000 bytes"):
        worker.connection.send(CancelTask("job", 1, "a" * 1000))
    with pytest.raises(SerializationError, match=r"Results of 5,... bytes exceeds the limit, 5,000 bytes"):
        worker.connection.send(Results("job", 1, 7, b"r" * 5000))
    worker.connection.send(Heartbeat(1))
    stage.settle()
    assert manager.got == [Heartbeat(1)], "nothing of them has gone out"


RESULTS = encode(Results("job", 1, 7, b"r" * 100))


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([encode(LargeMessage("CancelTask", 100))], "'CancelTask' of 100 bytes, which may not be sent in several"),
        ([encode(LargeMessage("Results", (1 << 30) + 1))], "of 1073741825 bytes, which may not be"),
        ([encode(LargeMessage("Results", 0))], "of 0 bytes, which may not be"),
        ([encode(LargeMessage("Results", 10)), b"r" * 11], "parts of a message that are not as it announced"),
        ([encode(LargeMessage("Results", 10)), b""], "parts of a message that are not as it announced"),
        ([encode(LargeMessage("Results", 10)), b"r" * 10], "a message of 10 bytes that is no message of protocol"),
        ([encode(LargeMessage("Status", len(RESULTS))), RESULTS], "another message than Status"),
    ],
)
def test_parts_that_are_not_as_announced_end_the_connection(frames: list[bytes], told: str, stage: Stage) -> None:
    left, right = socket.socketpair()
    worker, manager = End(stage, left, "worker"), End(stage, right, "manager")
    stage.settle()
    for data in frames:
        worker.connection._write_frame(data)
    worker.connection.send(Heartbeat(1))
    stage.settle()
    assert manager.got == []
    assert told in str(manager.closed[0])
