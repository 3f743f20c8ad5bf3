"""Channels inside one worker keep the same promises as those between workers."""

from __future__ import annotations

import pytest

from sluiceway.elements import Batch, CheckpointBarrier
from sluiceway.network.credit import GateCredits, Unlimited
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


def test_what_is_sent_to_a_consumer_that_is_gone_is_dropped() -> None:
    transport = LocalTransport()
    channel = ChannelId("edge", 0, 0)
    woken: list[bool] = []
    credit = GateCredits(exclusive=1).channel()
    receiver = transport.receiver(channel, credit, lambda: woken.append(True), SERIALIZER)
    sender = transport.sender(channel, Moves.note, SERIALIZER)
    sender.send(Batch([0]))
    receiver.close()
    for number in range(1, 9):
        sender.send(Batch([number]))
    sender.send_urgent(CheckpointBarrier(1, 0, aligned_ms=0))
    sender.fail(OSError("gone"))
    assert (receiver.queued(), receiver.waiting(), receiver.urgent) == (0, [], False)
    assert (sender.backlog(), sender.available(), woken) == (0, True, [True])


def test_a_producer_that_has_waited_for_its_consumer_is_woken() -> None:
    transport = LocalTransport()
    channel = ChannelId("edge", 0, 0)
    woken: list[bool] = []
    sender = transport.sender(channel, lambda: woken.append(True), SERIALIZER)
    assert not sender.available()
    transport.receiver(channel, GateCredits().channel(), Moves.note, SERIALIZER)
    assert (sender.available(), woken) == (True, [True])
