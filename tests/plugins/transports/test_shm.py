"""The shared-memory carrier."""

from __future__ import annotations

import os
import socket
import stat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.carrier import Carrier
from sluiceway.elements import Batch
from sluiceway.testing.conformance.carrier import CarrierConformance, Party
from sluiceway_shm._carrier import ShmCarrier


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
        before = set(os.listdir("/dev/shm"))
        self.worker("a")
        assert set(os.listdir("/dev/shm")) == before

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
