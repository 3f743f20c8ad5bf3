"""Control connections: who does not know the secret gets nowhere, whatever it sends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.clock import SystemClock
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.messages import (
    CancelTask,
    Heartbeat,
    Hello,
    Message,
    Proof,
    Register,
    decode,
    encode,
)
from sluiceway.runtime.poller import SelectorPoller
from sluiceway.runtime.worker import Worker


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

    def _open(self, connection: Connection) -> None:
        self.opened += 1


class Stage:
    """A loop with both ends in it."""

    def __init__(self) -> None:
        self.poller = SelectorPoller()
        self.loop = Worker(SystemClock(), self.poller)

    def settle(self) -> None:
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.loop.run_ready() else quiet + 1
            self.poller.poll(0.001)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
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
    assert "a 'client' has no business with this manager" in str(manager.closed[0])
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


def frame(message: Message) -> bytes:
    data = encode(message)
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (frame(Register("w", 1, 1, "")), "sent a message before it had proved who it is"),
        (frame(Proof(b"x" * 32)), "sent a message before it had proved who it is"),
        ((1 << 20).to_bytes(4, "big"), "sent a frame of 1048576 bytes: not one of ours"),
        (b"\0\0\0\3abc", "sent what is no message of protocol 2"),
        (
            frame(Hello("worker", b"n" * 32, version=99)),
            "a worker speaks protocol 99, this manager 2: run",
        ),
        (frame(Hello("worker", b"short")), "sent a nonce that is none"),
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
