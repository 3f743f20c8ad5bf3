"""Routing of channels: by reference inside a worker, over the network between two."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport
from sluiceway.util.overriding import override

__all__ = ["RoutingTransport"]


class RoutingTransport(Transport):
    """Transport of a job's tasks on one worker.

    Args:
        worker: name of the worker.
        local: for channels whose other end is here; the job's own.
        network: for all others; the worker's.
    """

    def __init__(self, worker: str, local: Transport, network: Transport) -> None:
        self._worker = worker
        self._local = local
        self._network = network
        # Weak: senders of earlier attempts are not kept.
        self._senders: WeakSet[Sender] = WeakSet()

    @override
    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        way = self._local if channel.producer_at == self._worker else self._network
        return way.receiver(channel, credit, wake, serializer)

    @override
    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        if channel.consumer_at == self._worker:
            return self._local.sender(channel, wake, serializer)
        sender = self._network.sender(channel, wake, serializer)
        self._senders.add(sender)
        return sender

    def close(self) -> None:
        """Remove the job's channels; the network serves other jobs, too.

        A producer may have finished before a consumer that was lost: its records are dropped, as nobody will fetch
        them.
        """
        self._local.close()
        for sender in self._senders:
            sender.discard()
