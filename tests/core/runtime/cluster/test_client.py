"""Clients of a cluster: which answer is taken for that to a request."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway.clock import SystemClock
from sluiceway.errors import ConnectorError
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.cluster_directory import make_directory
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.home import Known
from sluiceway.runtime.cluster.os_platform import Platform
from sluiceway.runtime.messages.base import Message, Request
from sluiceway.runtime.messages.clients import CancelJob, Done

SECRET = b"s" * 32


@pytest.fixture
def directory() -> Iterator[Path]:
    place = make_directory()
    yield place
    shutil.rmtree(place)


def serve_late(listener: socket.socket) -> None:
    """Answer the first request when the second one has come, and then that."""
    loop, poller = Platform().loop(SystemClock())
    held: list[Request] = []

    def take(client: Connection, message: Message) -> None:
        assert isinstance(message, CancelJob)
        held.append(message)
        if len(held) == 2:
            for request in held:
                client.send(Done(request.request, message.job if request is message else "too late"))

    sock, _ = listener.accept()
    Connection(
        sock,
        loop,
        SECRET,
        "manager",
        peer_role="client",
        on_open=lambda connection: None,
        on_message=take,
        on_closed=lambda connection, why: None,
    )
    loop.run()
    poller.close()


def test_an_answer_that_comes_too_late_is_not_that_to_the_next_request(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / "manager"))
        listener.listen()
        server = threading.Thread(target=serve_late, args=(listener,))
        server.start()
        with ClusterClient(Known(str(directory), SECRET.hex(), os.getpid(), "")) as client:
            with pytest.raises(ConnectorError, match="has not answered within 0 s"):
                client.request(lambda number: CancelJob(number, "first"), 0.0)
            answer = client.request(lambda number: CancelJob(number, "second"))
        server.join()
    assert isinstance(answer, Done)
    assert answer.job == "second"


def serve_nothing(listener: socket.socket, kept: list[socket.socket]) -> None:
    """Authenticate a client, and read nothing more of it."""
    loop, poller = Platform().loop(SystemClock())
    sock, _ = listener.accept()
    kept.append(sock)
    opened: list[Connection] = []
    Connection(
        sock,
        loop,
        SECRET,
        "manager",
        peer_role="client",
        on_open=opened.append,
        on_message=lambda connection, message: None,
        on_closed=lambda connection, why: None,
    )
    while not opened:
        if not loop.run_ready(1):
            poller.poll(None)
    poller.close()


def test_a_client_that_could_not_send_all_is_closed_nevertheless(directory: Path) -> None:
    kept: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / "manager"))
        listener.listen()
        server = threading.Thread(target=serve_nothing, args=(listener, kept))
        server.start()
        with ClusterClient(Known(str(directory), SECRET.hex(), os.getpid(), "")) as client:
            while not client._opened:
                if not client._loop.run_ready(1):
                    client._poller.poll(None)
            server.join()
            with pytest.raises(ConnectorError, match="has not answered within 0 s"):
                client.request(lambda number: CancelJob(number, "x" * 8_000_000), 0.0)
        assert client._connection.backlog
        assert client._connection._socket.fileno() == -1
        kept[0].close()
