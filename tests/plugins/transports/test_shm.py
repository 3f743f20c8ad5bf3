"""The shared-memory carrier."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENT_S

from sluiceway.elements import Batch
from sluiceway.testing.conformance.carrier import CarrierConformance, Party
from sluiceway.testing.conformance.channels import Moves
from sluiceway.transport.carrier import Carrier, Payload
from sluiceway_shm._carrier import ShmCarrier
from sluiceway_shm._link import ShmLink


class TestShmCarrier(CarrierConformance):
    def make_carrier(self) -> Carrier:
        return ShmCarrier()

    breaks = True

    def break_links(self, one: Party, other: Party) -> None:
        for link in one.carrier._links:  # type: ignore[attr-defined]
            link._socket.shutdown(socket.SHUT_RDWR)

    def test_its_socket_is_for_its_user_alone_and_gone_afterwards(self) -> None:
        a = self.worker("a")
        assert stat.S_IMODE(os.stat(a.address).st_mode) == 0o600
        a.die()
        assert not os.path.exists(a.address)

    def test_its_memory_has_no_name(self) -> None:
        before = Path("/proc/self/maps").read_text().count("/dev/shm/")
        self.worker("a")
        assert Path("/proc/self/maps").read_text().count("/dev/shm/") == before

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.binary(max_size=200))
    def test_garbage_ends_its_own_connection_and_nothing_else(self, data: bytes) -> None:
        if len(self._parties) < 2:
            self.worker("a"), self.worker("b")
        a, b = self._parties[:2]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(a.address)
            stranger.sendall(data)
            self.rounds = 3
            self.settle()
        sender, receiver = self.channel(a, b, edge=repr(data))
        sender.send(Batch([data]))
        assert self.receive(receiver, 1) == [Batch([data])]
        sender.close()
        receiver.close()
        self.settle()

    def test_segments_are_free_when_the_side_that_reads_them_gives_them_back(self) -> None:
        """Both sides of a link have lent each other a segment when one of them parts."""
        a, b = self.worker("a"), self.worker("b")
        a.listens = False
        dialed = cast("ShmLink", b.carrier.connect("a", a.address))
        self.settle(lambda: bool(a.links))
        accepted = cast("ShmLink", a.links[0])
        came: dict[str, list[Payload]] = {"a": [], "b": []}
        pools = {}
        for party, link, other in ((a, accepted, "b"), (b, dialed, "a")):
            link.on_frame = lambda _, payload, name=party.name: came[name].append(payload)
            pools[party.name] = party.buffers.create_pool(1, on_available=Moves.note)
            buffer = pools[party.name].request()
            assert buffer is not None
            buffer.size = 10
            link.send(b"one for " + other.encode(), buffer)
        self.settle(lambda: bool(came["a"]) and bool(came["b"]))
        lost: list[Exception] = []
        dialed.on_lost = lost.append
        accepted.close()
        accepted.close()
        self.settle(lambda: bool(lost))
        for reader, lender in (("a", "b"), ("b", "a")):
            self.rounds = 3
            self.settle()
            assert pools[lender].in_use == 1
            assert accepted._socket.fileno() >= 0
            came[reader][0].release()
            self.settle(lambda lender=lender: pools[lender].in_use == 0)  # type: ignore[misc]
        self.settle(lambda: not a.carrier._links and not b.carrier._links)  # type: ignore[attr-defined]
        for pool in pools.values():
            pool.close()

    def test_a_worker_that_ends_closes_the_socket_behind_the_last_payload(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        self.settle(sender.available)
        sender.send(Batch([b"x" * 900]))
        self.settle(lambda: receiver.queued() > 0)
        b.carrier.close()
        sender.close()
        self.rounds = 3
        self.settle()
        assert a.buffers.available < a.buffers.total
        assert receiver.receive() == Batch([b"x" * 900])
        self.settle(lambda: a.buffers.available == a.buffers.total)
        receiver.close()

    def test_a_kernel_without_memory_is_asked_again(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        self.settle(sender.available)
        (link,) = a.links
        real = link._socket  # type: ignore[attr-defined]

        class Short:
            left = 5

            def send(self, data: bytes) -> int:
                if self.left:
                    self.left -= 1
                    raise OSError(errno.ENOBUFS, "No buffer space available")
                return int(real.send(data))

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        short = link._socket = Short()  # type: ignore[attr-defined]
        sender.send(Batch([1]))
        assert self.receive(receiver, 1) == [Batch([1])]
        assert short.left == 0
        sender.close()
        receiver.close()
        self.settle()

    def test_a_peer_that_does_not_know_the_secret_is_turned_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a = self.worker("a")
        accepted: list[Any] = []
        monkeypatch.setattr(a.transport, "accepted", accepted.append)
        from sluiceway.testing.conformance import carrier as suite

        monkeypatch.setattr(suite, "_SECRET", b"another" * 5)
        b = self.worker("b")
        _, receiver = self.channel(a, b)
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ConnectionError):
            receiver.receive()
        assert accepted == []

    def works(self, a: Party, b: Party) -> None:
        sender, receiver = self.channel(a, b, edge=f"edge {len(a.warnings)}")
        sender.send(Batch(["still"]))
        assert self.receive(receiver, 1) == [Batch(["still"])]
        sender.close()
        receiver.close()
        self.settle()

    def is_closed(self, stranger: socket.socket) -> Callable[[], bool]:
        stranger.setblocking(False)

        def is_closed() -> bool:
            try:
                return not stranger.recv(65536)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        return is_closed

    @pytest.mark.parametrize(
        ("data", "files", "says"),
        [
            (struct.pack("<IB", 2000, 4) + b"x" * 2000, 0, "a header of 2000 bytes, where 1024 is the limit"),
            (struct.pack("<IB", 1 << 20, 4), 0, "a header of 1048576 bytes, where 1024 is the limit"),
            (struct.pack("<IB", 3, 4) + b"abc", 0, "unpack_from requires a buffer of at least 10 bytes"),
            (struct.pack("<IB", 1, 1) + b"x", 0, "kind 1 before the greeting"),
            (struct.pack("<IB", 100, 4), 3, "3 files came with the greeting"),
        ],
    )
    def test_what_a_stranger_says_is_bounded(self, data: bytes, files: int, says: str) -> None:
        a, b = self.worker("a"), self.worker("b")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger, open(os.devnull) as file:
            stranger.connect(a.address)
            socket.send_fds(stranger, [data], [file.fileno()] * files)
            self.settle(self.is_closed(stranger))
        assert len(a.warnings) == 1
        assert a.warnings[0].startswith("the transport 'shm' closed a connection: ")
        assert says in a.warnings[0]
        self.works(a, b)

    def test_an_idle_stranger_is_turned_away(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        a.carrier._accepting._proof_s = 0.05  # type: ignore[attr-defined]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(a.address)
            closed = self.is_closed(stranger)
            self.settle(lambda: bool(a.carrier._accepting.strangers))  # type: ignore[attr-defined]
            until = time.monotonic() + PATIENT_S
            while not closed():
                a.turn(0.01)
                assert time.monotonic() < until
        a.carrier._accepting._proof_s = 30.0  # type: ignore[attr-defined]
        self.works(a, b)
        assert a.carrier._accepting.strangers == 0  # type: ignore[attr-defined]

    def test_a_worker_without_descriptors_waits_for_some(
        self, no_descriptors: AbstractContextManager[None]
    ) -> None:
        a, b = self.worker("a"), self.worker("b")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(a.address)
            with no_descriptors:
                turns, until = 0, time.monotonic() + 1
                while time.monotonic() < until:
                    a.turn(0.2)
                    turns += 1
                assert turns < 50, "it does not spin"
            (warning,) = a.warnings
            assert warning.startswith("the transport 'shm' cannot accept connections for now: ")
            self.settle(lambda: a.turn(0.05) or bool(a.carrier._accepting.strangers))  # type: ignore[attr-defined, func-returns-value]
            self.works(a, b)
