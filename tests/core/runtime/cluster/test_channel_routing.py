"""What is left of a job's channels to other workers when their producers end before any consumer has come."""

from __future__ import annotations

import pickle

import pytest

from sluiceway.elements import Batch
from sluiceway.network.local_channel import LocalTransport
from sluiceway.network.transport import NetworkTransport
from sluiceway.runtime.cluster.channel_routing import RoutingTransport
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId, Sender
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import Carrier, CarrierContext, Link

CHANNEL = ChannelId("job/edge", 0, 1, producer_at="worker-1", consumer_at="worker-2")


class NoCarrier(Carrier):
    """To nowhere."""

    def start(self, context: CarrierContext) -> str:
        return ""

    def segments(self, count: int, size: int) -> list[memoryview]:
        return [memoryview(bytearray(size)) for _ in range(count)]

    def connect(self, peer: str, address: str) -> Link:
        raise AssertionError("nobody consumes here")

    def close(self) -> None: ...


@pytest.fixture
def network() -> NetworkTransport:
    carrier = NoCarrier()
    buffers = NetworkBufferPool(carrier.segments(1, 1024))
    return NetworkTransport(carrier, buffers, str, lambda action: action(), pickle.dumps, pickle.loads)


@pytest.fixture
def routing(network: NetworkTransport) -> RoutingTransport:
    return RoutingTransport("worker-1", LocalTransport(), network)


def sender(routing: RoutingTransport) -> Sender:
    """There is one buffer, and so one sender at a time."""
    made = routing.sender(CHANNEL, lambda: None, PickleSerializer())
    made.send(Batch([1, 2, 3]))
    return made


def test_a_producer_that_is_cancelled_or_fails_gives_everything_back(routing: RoutingTransport) -> None:
    sender(routing).discard()
    failed = sender(routing)
    failed.fail(ValueError("no"))
    failed.discard()
    sender(routing)


def test_what_a_producer_has_left_goes_with_its_job(network: NetworkTransport, routing: RoutingTransport) -> None:
    finished = sender(routing)
    finished.close()
    assert network.sender_of(CHANNEL) is finished, "a consumer may still come"
    routing.close()
    assert network.sender_of(CHANNEL) is None
    sender(routing)
