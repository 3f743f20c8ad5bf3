"""Which way a channel goes: by reference inside a worker, over the network between two."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport

__all__ = ["RoutingTransport"]


class RoutingTransport(Transport):
    """The transport of a job's tasks on one worker.

    Args:
        worker: its name.
        local: for channels whose other end is here; the job's own.
        network: for all others; the worker's.
    """

    def __init__(self, worker: str, local: Transport, network: Transport) -> None:
        self._worker = worker
        self._local = local
        self._network = network

    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end."""
        way = self._local if channel.producer_at == self._worker else self._network
        return way.receiver(channel, credit, wake, serializer)

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end."""
        way = self._local if channel.consumer_at == self._worker else self._network
        return way.sender(channel, wake, serializer)

    def close(self) -> None:
        """Forget the channels inside the worker; the network serves other jobs, too."""
        self._local.close()
