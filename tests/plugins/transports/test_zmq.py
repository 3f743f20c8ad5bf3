"""The ZeroMQ carrier."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.testing.conformance import carrier as suite
from sluiceway.testing.conformance.carrier import CarrierConformance
from sluiceway.transport.carrier import Carrier, CarrierContext, LinkLostError

zmq = pytest.importorskip("zmq", reason="needs pyzmq")

from sluiceway_zmq import _address, _carrier, _loop  # noqa: E402
from sluiceway_zmq._carrier import ZmqCarrier  # noqa: E402
from sluiceway_zmq._greeting import Greeting, hello, read_hello  # noqa: E402


@pytest.fixture
def stranger() -> Iterator[Any]:
    """A ZeroMQ socket that is not the cluster's."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 500
    yield dealer
    dealer.close()
    context.term()


class _Suite(CarrierConformance):
    breaks = True

    def break_links(self, one: suite.Party, other: suite.Party) -> None:
        """Below ZeroMQ, whose own reconnecting is turned off: it would lose what was under way, in silence."""
        for place in one.carrier._at:  # type: ignore[attr-defined]
            with socket.socket(fileno=os.dup(place.fileno)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def works(self, a: suite.Party, b: suite.Party, edge: str = "edge") -> None:
        """A batch gets through, on a new channel."""
        sender, receiver = self.channel(a, b, edge=edge)
        sender.send(Batch([edge]))
        assert self.receive(receiver, 1) == [Batch([edge])]
        sender.close()
        receiver.close()
        self.settle()

    def refused(self, a: suite.Party, b: suite.Party, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
        """``b`` cannot open a channel at ``a``."""
        accepted: list[Any] = []
        monkeypatch.setattr(a.transport, "accepted", accepted.append)
        _, receiver = self.channel(a, b)
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(LinkLostError, match=message):
            receiver.receive()
        assert accepted == []


class TestZmqCarrier(_Suite):
    def make_carrier(self) -> Carrier:
        return ZmqCarrier("")

    def test_its_socket_is_for_its_user_alone_and_gone_afterwards(self) -> None:
        a = self.worker("a")
        path = a.address.removeprefix("ipc://")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        a.die()
        assert not os.path.exists(path)

    def test_a_peer_that_does_not_know_the_secret_turns_away_from_one_that_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a = self.worker("a")
        monkeypatch.setattr(suite, "_SECRET", b"another" * 5)
        self.refused(a, self.worker("b"), monkeypatch, "worker 'a' does not know this cluster's secret")

    def test_a_peer_that_only_says_it_knows_the_secret_is_not_listened_to(
        self, stranger: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a = self.worker("a")
        accepted: list[Any] = []
        monkeypatch.setattr(a.transport, "accepted", accepted.append)
        stranger.connect(a.address)
        said, drawn = hello("b")
        stranger.send(b"H" + said)
        self.settle(lambda: bool(stranger.getsockopt(zmq.EVENTS) & zmq.POLLIN))
        wrong = Greeting(b"another" * 5, "b", "a", drawn)
        wrong._others = stranger.recv()[1:33]
        stranger.send(b"P" + wrong._proof(b"dialer"))
        stranger.send(b"F" + b"frame")
        self.settle(lambda: not a.carrier._strangers)  # type: ignore[attr-defined]
        self.settle()
        assert accepted == []

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.binary(max_size=200), greets=st.booleans())
    def test_garbage_ends_its_own_connection_and_nothing_else(self, data: bytes, greets: bool) -> None:
        if len(self._parties) < 2:
            self.worker("a"), self.worker("b")
        a, b = self._parties[:2]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(a.address.removeprefix("ipc://"))
            # The greeting of ZeroMQ's protocol, so that it listens to the rest.
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL".ljust(54, b"\0") if greets else b""
            peer.sendall(greeting + data)
            self.rounds = 3
            self.settle()
        self.works(a, b, repr(data))

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        messages=st.lists(
            st.tuples(st.sampled_from([b"", b"H", b"H\1", b"P", b"F", b"B"]), st.lists(st.binary(max_size=80)))
        )
    )
    def test_messages_that_mean_nothing_are_answered_by_nothing(
        self, messages: list[tuple[bytes, list[bytes]]]
    ) -> None:
        if len(self._parties) < 2:
            self.worker("a"), self.worker("b")
        a, b = self._parties[:2]
        context = zmq.Context()
        peer = context.socket(zmq.DEALER)
        peer.linger = 500
        peer.connect(a.address)
        for first, rest in messages:
            peer.send_multipart([first + b"".join(rest[:1]), *rest[1:]])
        self.rounds = 3
        self.settle()
        self.works(a, b, repr(messages))
        peer.close()
        context.term()
        self.settle(lambda: not a.carrier._strangers)  # type: ignore[attr-defined]

    def test_strangers_that_answer_no_challenge_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_carrier, "_MOST_STRANGERS", 3)
        a, b = self.worker("a"), self.worker("b")
        context = zmq.Context()
        peers = []
        for _ in range(8):
            peer = context.socket(zmq.DEALER)
            peer.linger = 0
            peer.connect(a.address)
            peer.send(b"H" + hello("b")[0])
            peers.append(peer)
            self.settle(lambda peer=peer: bool(peer.getsockopt(zmq.EVENTS) & zmq.POLLIN))  # type: ignore[misc]
        assert len(a.carrier._strangers) == 3  # type: ignore[attr-defined]
        self.works(a, b)
        for peer in peers:
            peer.close()
        context.term()
        self.settle(lambda: not a.carrier._strangers and len(a.carrier._at) <= 1)  # type: ignore[attr-defined]

    def test_a_peer_that_breaks_the_rules_later_loses_its_link_alone(self) -> None:
        a, b, c = self.worker("a"), self.worker("b"), self.worker("c")
        self.works(a, b)
        sender, receiver = self.channel(a, b, edge="broken")
        self.works(a, c)
        (link,) = [n for n in a.carrier._accepted.values() if n.peer == "b"]  # type: ignore[attr-defined]
        link._send(b"?", None)
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(LinkLostError, match=r"worker 'a' sent what is no frame: b'\?' in 1 parts"):
            receiver.receive()
        sender.close()
        self.works(a, c, "again")
        self.works(a, b, "anew")

    def test_a_peer_is_known_again_when_its_descriptor_is_anothers(self) -> None:
        """Connections come and go, and their numbers are used again and again."""
        a = self.worker("a")
        for n in range(8):
            peer = self.worker(f"b{n}")
            sender, _ = self.channel(a, peer, edge=f"edge{n}")
            self.settle(sender.available)
            for m in range(30):
                sender.send(Batch([m]))
            assert not sender.available()
            peer.die()
            self.settle(sender.available)
            sender.close()
            self._parties.remove(peer)
            peer.poller.close()
        assert max(a.carrier._turns.values()) > 1  # type: ignore[attr-defined]
        assert not a.carrier._at  # type: ignore[attr-defined]


class TestZmqCarrierOverTcp(_Suite):
    def make_carrier(self) -> Carrier:
        return ZmqCarrier("tcp://127.0.0.1:*")

    def test_a_peer_of_another_cluster_is_turned_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a = self.worker("a")
        monkeypatch.setattr(suite, "_SECRET", b"another" * 5)
        self.refused(a, self.worker("b"), monkeypatch, "worker 'a' has turned this worker away")

    def test_who_has_no_key_is_not_listened_to(self, stranger: Any) -> None:
        a, b = self.worker("a"), self.worker("b")
        stranger.linger = 0
        stranger.connect(a.address.split()[0])
        stranger.send(b"H" + hello("b")[0])
        self.settle()
        assert not a.carrier._strangers  # type: ignore[attr-defined]
        self.works(a, b)

    def test_who_has_the_servers_key_alone_is_not_listened_to(self, stranger: Any) -> None:
        a, b = self.worker("a"), self.worker("b")
        endpoint, key = a.address.split()
        stranger.linger = 0
        stranger.curve_serverkey = key.encode()
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.connect(endpoint)
        stranger.send(b"H" + hello("b")[0])
        self.settle()
        assert not a.carrier._strangers  # type: ignore[attr-defined]
        self.works(a, b)

    def test_what_goes_over_the_wire_is_encrypted(self) -> None:
        assert self.worker("a").carrier._router.mechanism == zmq.CURVE  # type: ignore[attr-defined]

    def test_workers_are_reached_by_ipv6(self, monkeypatch: pytest.MonkeyPatch) -> None:
        try:
            with socket.socket(socket.AF_INET6) as sock:
                sock.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        monkeypatch.setattr(self, "make_carrier", lambda: ZmqCarrier("tcp://[::1]:*"))
        a, b = self.worker("a"), self.worker("b")
        assert a.address.startswith("tcp://[::1]:")
        sender, receiver = self.channel(a, b)
        sender.send(Batch([1]))
        assert self.receive(receiver, 1) == [Batch([1])]
        sender.close()


NEVER = Scheduled(lambda: None)


def nothing(*arguments: object) -> None: ...


def alone(directory: Path) -> CarrierContext:
    """For a carrier that never gets so far that anything would be watched for it."""
    return CarrierContext(
        "w", str(directory), b"s" * 32, nothing, nothing, nothing, nothing, lambda action, after_s: NEVER, nothing
    )


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        bind = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            ConfigurationError, match=f"cannot listen on {bind}: .*each worker takes one that is free"
        ):
            ZmqCarrier(bind).start(alone(tmp_path))


def test_a_long_path_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"too long for the name of a socket.*TMPDIR"):
        ZmqCarrier("").start(alone(tmp_path / ("d" * 120)))


def test_buffers_that_could_not_be_sent_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no network buffers of 67108865 bytes: 67108864 at most"):
        ZmqCarrier("").segments(1, (1 << 26) + 1)


def test_a_bad_address_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for bind in (
        "127.0.0.1:5",
        "ipc:///tmp/x",
        "tcp://127.0.0.1",
        "tcp://:1",
        "tcp://127.0.0.1:x",
        "tcp://a:70000",
    ):
        monkeypatch.setenv("SLUICEWAY_ZMQ_BIND", bind)
        with pytest.raises(ConfigurationError, match=r"is no address .* write tcp://HOST:PORT"):
            ZmqCarrier()
    for bind in ("tcp://*:*", "tcp://0.0.0.0:5", "tcp://[::]:5"):
        with pytest.raises(ConfigurationError, match="names no host that other workers could connect to"):
            ZmqCarrier(bind)


def test_without_encryption_there_is_no_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_address.zmq, "has", lambda what: what != "curve")
    with pytest.raises(ConfigurationError, match="has no CURVE, so nothing on TCP could be encrypted"):
        ZmqCarrier("tcp://10.0.0.1:*")
    ZmqCarrier("")


def test_a_greeting_proves_the_secret_to_both() -> None:
    said, drawn = hello("b")
    assert read_hello(said) == (drawn, "b")
    there = Greeting(b"s" * 32, "b", "a", drawn)
    here = Greeting(b"s" * 32, "b", "a", drawn)
    challenge = there.challenge()
    answer = here.answer(challenge)
    assert answer is not None
    assert there.proves(answer)
    assert not there.proves(challenge[32:]), "sent back, it proves nothing"
    assert Greeting(b"t" * 32, "b", "a", drawn).answer(challenge) is None
    assert Greeting(b"s" * 32, "b", "x", drawn).answer(challenge) is None
    there.challenge()
    assert not there.proves(answer), "an old proof is worth nothing"


def test_a_peer_that_answers_nothing_any_more_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "_SILENCE_MS", 400)
    monkeypatch.setattr(_loop, "_HEARTBEAT_MS", 100)
    program = (
        "import sys\n"
        "from sluiceway.transport.carrier import CarrierContext\n"
        "from sluiceway.runtime.loop.poller import SelectorPoller\n"
        "from sluiceway_zmq._carrier import ZmqCarrier\n"
        "p, soon = SelectorPoller(), []\n"
        "took = lambda link: print('accepted', flush=True)\n"
        "context = CarrierContext('a', sys.argv[1], b's' * 32, p.keep, p.drop, soon.append, took, took, print)\n"
        "print(ZmqCarrier('').start(context), flush=True)\n"
        "while True:\n"
        "    while soon: soon.pop(0)()\n"
        "    p.poll(None)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        poller = SelectorPoller()
        carrier = ZmqCarrier("")
        try:
            address = process.stdout.readline().strip()
            soon: list[Any] = []
            context = CarrierContext(
                "b",
                str(tmp_path),
                b"s" * 32,
                poller.keep,
                poller.drop,
                soon.append,
                nothing,
                lambda action, after_s: NEVER,
                nothing,
            )
            carrier.start(context)
            link = carrier.connect("a", address)
            lost: list[str] = []
            link.on_lost = lambda error: lost.append(str(error))
            poller.keep(process.stdout.fileno(), False, lambda: None)
            while not link._standing:  # type: ignore[attr-defined]
                while soon:
                    soon.pop(0)()
                poller.poll(1)
            poller.drop(process.stdout.fileno(), False)
            process.send_signal(signal.SIGSTOP)
            while not lost:
                while soon:
                    soon.pop(0)()
                poller.poll(1)
            assert lost == ["worker 'a' has gone"]
        finally:
            process.kill()
            carrier.close()
            poller.close()
