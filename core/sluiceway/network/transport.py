"""The transport between workers: opens both ends of channels over one carrier."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.buffers import NetworkBufferPool, PartitionBuffers
from sluiceway.carrier import Carrier, Link
from sluiceway.network.receiver import ConsumerLink
from sluiceway.network.sender import NetworkSender, ProducerLink
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport

__all__ = ["NetworkTransport"]


class NetworkTransport(Transport):
    """Channels to and from other workers over one carrier.

    Args:
        carrier: moves the frames; started.
        buffers: the worker's network buffers, in the carrier's own memory.
        address_of: where a worker can be reached, by its name.
        soon: has something called when the tasks had their turn, before the loop sleeps: what gathers until then
            goes in one frame.
        dump_error: an exception as bytes.
        load_error: and back.
    """

    def __init__(
        self,
        carrier: Carrier,
        buffers: NetworkBufferPool,
        address_of: Callable[[str], str],
        soon: Callable[[Callable[[], None]], None],
        dump_error: Callable[[BaseException], bytes],
        load_error: Callable[[bytes], BaseException],
    ) -> None:
        self._carrier = carrier
        self._buffers = buffers
        self._address_of = address_of
        self.soon = soon
        self.dump_error = dump_error
        self._load_error = load_error
        self._to_producers: dict[str, ConsumerLink] = {}
        self._senders: dict[ChannelId, NetworkSender] = {}
        self._latest: dict[tuple[str, int, int], ChannelId] = {}
        self._partitions: dict[tuple[str, int, int], PartitionBuffers] = {}
        self._opened: dict[ChannelId, tuple[ProducerLink, int, int | None]] = {}

    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end: tells the producer's worker, at once or as soon as it can be reached."""
        link = self._to_producers.get(channel.producer_at)
        if link is None:
            made = self._carrier.connect(channel.producer_at, self._address_of(channel.producer_at))
            link = self._to_producers[channel.producer_at] = ConsumerLink(
                made, self.soon, self._load_error, self._lost
            )
        return link.open(channel, credit, wake, serializer)

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end; the consumer may come later.

        Raises:
            NoResourceAvailableError: the worker has too few network buffers; with the figures.
        """
        self._drop_earlier(channel)
        key = _partition(channel)
        partition = self._partitions.get(key)
        if partition is None:
            partition = PartitionBuffers(self._buffers, f"the result partition {channel.edge}[{channel.producer}]")
        sender = self._senders[channel] = NetworkSender(self, channel, wake, serializer, partition)
        self._partitions[key] = partition
        opened = self._opened.pop(channel, None)
        if opened is not None:
            sender.opened(*opened)
        return sender

    def _drop_earlier(self, channel: ChannelId) -> None:
        # A producer that had finished waits for its consumer; the one it was for was lost before it came.
        name = (channel.edge, channel.producer, channel.consumer)
        earlier = self._senders.get(self._latest.get(name, channel))
        if earlier is not None:
            earlier.discard()
        self._latest[name] = channel

    def accepted(self, link: Link) -> None:
        """A consumer's worker has made a link."""
        ProducerLink(link, self)

    def close(self) -> None:
        """Drop all channels and the carrier's links."""
        for link in list(self._to_producers.values()):
            link.drop()
        for sender in list(self._senders.values()):
            sender.discard()
        self._senders.clear()
        self._latest.clear()
        self._partitions.clear()
        self._opened.clear()
        self._carrier.close()

    # ---- for the links --------------------------------------------------------------------------------------

    def consumer_opened(self, link: ProducerLink, channel: ChannelId, number: int, credit: int | None) -> None:
        """A consumer has opened a channel."""
        sender = self._senders.get(channel)
        if sender is None:
            self._opened[channel] = (link, number, credit)
        else:
            sender.opened(link, number, credit)

    def sender_of(self, channel: ChannelId) -> NetworkSender | None:
        """The sender of a channel, if it is there."""
        return self._senders.get(channel)

    def forget_sender(self, channel: ChannelId) -> None:
        """The producer is gone."""
        self._senders.pop(channel, None)
        name = (channel.edge, channel.producer, channel.consumer)
        if self._latest.get(name) == channel:
            del self._latest[name]  # names have the job in them: they would be kept for ever
        key = _partition(channel)
        partition = self._partitions.get(key)
        if partition is not None and not partition.channels:
            del self._partitions[key]

    def forget_opened(self, link: ProducerLink) -> None:
        """A consumer's worker is gone before its producers came."""
        for channel, (opened_by, _, _) in list(self._opened.items()):
            if opened_by is link:
                del self._opened[channel]

    def forget_consumer(self, channel: ChannelId) -> None:
        """A consumer is gone, perhaps before its producer came."""
        self._opened.pop(channel, None)
        sender = self._senders.get(channel)
        if sender is not None:
            sender.consumer_gone()

    def _lost(self, link: ConsumerLink) -> None:
        self._to_producers.pop(link.peer, None)


def _partition(channel: ChannelId) -> tuple[str, int, int]:
    return channel.edge, channel.producer, channel.attempt
