"""A job manager that listens on TCP, and those who connect to it without the secret."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.worker_host import HostedPlatform, WorkerHost, connect
from sluiceway.runtime.cluster.worker_launcher import start_worker
from sluiceway.runtime.cluster.worker_settings import WorkerSettings
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import AskStatus, Done
from sluiceway.runtime.messages.protocol import Hello, encode
from sluiceway.transport.accept_loop import MOST_STRANGERS

SECRET = b"s" * 32


class Site:
    """A job manager whose time can be put forward, and clients of it in the same loop."""

    def __init__(self, directory: Path) -> None:
        self.clock = Ahead()
        self.sockets: list[socket.socket] = []
        self.asked: list[Message] = []
        host = Mock(spec=WorkerHost, listens_at="", start=start_worker)
        platform = HostedPlatform(host, "127.0.0.1")
        self.manager = JobManager(
            directory,
            SECRET,
            default_manager().services(self.clock),
            WorkerSettings("zmq", most=1, slots=1, heartbeat_timeout_s=50.0),
            platform=platform,
            on_client=self._asked,
        )
        self.address = platform.address(directory, self.manager._listener)

    def _asked(self, client: Connection, message: Message) -> None:
        self.asked.append(message)
        assert isinstance(message, AskStatus)
        client.send(Done(message.request))

    def stranger(self) -> socket.socket:
        sock = connect(self.address)
        self.sockets.append(sock)
        return sock

    def turn_until(self, done: Callable[[], Any]) -> None:
        until = time.monotonic() + PATIENT_S
        while not done():
            assert time.monotonic() < until
            self.manager.loop.at(self.clock.monotonic() + 0.01, lambda: None)
            self.manager.turn()

    def serves(self) -> None:
        """Somebody who knows the secret is answered."""
        answers: list[Message] = []
        client = Connection(
            connect(self.address),
            self.manager.loop,
            SECRET,
            "client",
            peer_role="manager",
            on_open=lambda connection: None,
            on_message=lambda connection, message: answers.append(message),
            on_closed=lambda connection, why: None,
        )
        client.send(AskStatus(7))
        self.turn_until(lambda: answers)
        assert answers == [Done(7)]
        client.close()
        self.turn_until(lambda: client._closed)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.manager.close()


class Ahead(SystemClock):
    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Site(directory)
    yield made
    made.close()


def closed(sock: socket.socket) -> Callable[[], bool]:
    sock.setblocking(False)

    def closed() -> bool:
        try:
            return not sock.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    return closed


HOSTILE = {
    "invalid UTF-8": b"\x83\xa4type\xa5Hello\xa4role\xa3\xff\xfe\xfd\xa5nonce\xc4\1a",
    "deep nesting": b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 1000,
    "a huge list": b"\x82\xa4type\xabDeployTasks\xa8attempts\xdd\xff\xff\xff\xff\xa1a",
    "a message of others": encode(AskStatus(1)),
    "a short nonce": encode(Hello("worker", b"")),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_frame_of_a_stranger_ends_its_connection_and_nothing_else(
    site: Site, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    sock = site.stranger()
    data = HOSTILE[kind]
    sock.sendall(len(data).to_bytes(4, "big") + data)
    site.turn_until(closed(sock))
    assert "the job manager closed a connection: " in caplog.text
    site.serves()


def test_idle_strangers_are_closed_and_keep_nobody_out(site: Site) -> None:
    idle = []
    for number in range(1, MOST_STRANGERS + 11):
        idle.append(site.stranger())
        site.turn_until(lambda n=number: site.manager._accepting.strangers == min(n, MOST_STRANGERS))  # type: ignore[misc]
    site.turn_until(closed(idle[9]))
    site.serves()
    site.clock.ahead_s = 40.0
    site.turn_until(lambda: not site.manager._accepting.strangers)
    site.turn_until(closed(idle[-1]))
    site.serves()


def test_a_process_without_descriptors_waits_for_some(
    site: Site, caplog: pytest.LogCaptureFixture, no_descriptors: AbstractContextManager[None]
) -> None:
    waiting = site.stranger()
    with no_descriptors:
        turns, until = 0, time.monotonic() + 1.2
        while time.monotonic() < until:
            site.manager.turn()
            turns += 1
        assert turns < 100, "it does not spin"
        assert caplog.text.count("the job manager cannot accept connections for now: ") == 1
        assert os.strerror(errno.EMFILE) in caplog.text
    waiting.sendall(b"\0\0\0\3abc")
    site.turn_until(closed(waiting))
    site.serves()


def test_a_worker_that_cannot_be_started_is_tried_again_and_ends_no_job_manager(
    site: Site, no_descriptors: AbstractContextManager[None], caplog: pytest.LogCaptureFixture
) -> None:
    flow = sw.Pipeline("job")
    flow.from_collection(range(10)).print()
    services = default_manager().services(site.clock)
    run = site.manager.submit(site.manager.prepare("job-1", job_graph_of(flow.graph(), services), Settings()))
    with no_descriptors:
        site.turn_until(lambda: "cannot be started" in caplog.text)
        assert not run.status.ended, "that may pass"
        site.turn_until(lambda: run.status.ended)
    assert "worker 'worker-12' cannot be started: [Errno 24] " in str(run.failure)
    site.serves()
