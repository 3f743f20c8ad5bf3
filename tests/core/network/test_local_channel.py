"""Channels inside one worker keep the same promises as those between workers."""

from __future__ import annotations

import pytest

from sluiceway.elements import Batch
from sluiceway.network.credit import Unlimited
from sluiceway.network.local_channel import LocalTransport
from sluiceway.testing.conformance.channels import SERIALIZER, ChannelConformance, Moves, Worker
from sluiceway.transport import ChannelId


class _OneWorker:
    name = "w"

    def __init__(self) -> None:
        self.transport = LocalTransport()

    def turn(self, timeout_s: float) -> None:
        """Nothing is ever under way."""


class TestLocalTransport(ChannelConformance):
    @pytest.fixture(autouse=True)
    def _stage(self) -> None:
        self._worker = _OneWorker()

    def worker(self, name: str) -> Worker:
        return self._worker

    def workers(self) -> list[Worker]:
        return [self._worker]


def test_channels_of_earlier_attempts_are_forgotten() -> None:
    transport = LocalTransport()
    other = ChannelId("edge", 0, 1)
    transport.receiver(other, Unlimited(), Moves.note, SERIALIZER)
    for attempt in range(50):
        channel = ChannelId("edge", 0, 0, attempt=attempt)
        receiver = transport.receiver(channel, Unlimited(), Moves.note, SERIALIZER)
        sender = transport.sender(channel, Moves.note, SERIALIZER)
        for _ in range(10):
            sender.send(Batch([attempt]))
        assert receiver.receive() == Batch([attempt])
    assert set(transport._channels) == {other, channel}
    assert receiver.receive() == Batch([49]), "what the present one holds stays"
    transport.sender(ChannelId("edge", 0, 0, attempt=3), Moves.note, SERIALIZER)  # a late one takes no place
    sender.send(Batch([7]))
    assert receiver.queued() == 9
