"""The transport between workers: opens both ends of channels over one carrier."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.network.receiver import ConsumerLink
from sluiceway.network.sender import NetworkSender, ProducerLink
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport
from sluiceway.transport.buffers import NetworkBufferPool, PartitionBuffers
from sluiceway.transport.carrier import Carrier, Link
from sluiceway.util.overriding import override

__all__ = ["NetworkTransport"]


class NetworkTransport(Transport):
    """Channels to and from other workers over one carrier. From the worker's thread only.

    Args:
        carrier: moves the frames; started.
        buffers: the worker's network buffers, in the carrier's own memory.
        address_of: returns a worker's address by its name.
        soon: calls an action after the current turn of the tasks and before the loop sleeps: everything that is
            collected until then goes in one frame.
        dump_error: encodes an exception as bytes.
        load_error: decodes it.
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
        # Latest attempt of each channel, by edge and both subtasks.
        self._latest: dict[tuple[str, int, int], ChannelId] = {}
        self._partitions: dict[tuple[str, int, int], PartitionBuffers] = {}
        # Channels that a consumer has opened before the producer: deployments of two workers run in any order.
        self._opened: dict[ChannelId, tuple[ProducerLink, int, int | None]] = {}

    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end, and notify the producer's worker as soon as it can be reached."""
        link = self._to_producers.get(channel.producer_at)
        if link is None:
            made = self._carrier.connect(channel.producer_at, self._address_of(channel.producer_at))
            link = self._to_producers[channel.producer_at] = ConsumerLink(
                made, self.soon, self._load_error, self._lost
            )
        return link.open(channel, credit, wake, serializer)

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end; the consumer may open its end later.

        Raises:
            NoResourceAvailableError: the worker has too few network buffers; gives the numbers.
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
        # A producer that had finished still waits for its consumer to open the channel. If that consumer was lost
        # before, nothing else ends the wait, and the records stay in memory until the job ends.
        name = (channel.edge, channel.producer, channel.consumer)
        earlier = self._senders.get(self._latest.get(name, channel))
        if earlier is not None:
            earlier.discard()
        self._latest[name] = channel

    def accepted(self, link: Link) -> None:
        """Serve the link that a consumer's worker has made."""
        ProducerLink(link, self)

    @override
    def close(self) -> None:
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
        """Give a sender its consumer, or store the request until the producer opens the channel."""
        sender = self._senders.get(channel)
        if sender is None:
            self._opened[channel] = (link, number, credit)
        else:
            sender.opened(link, number, credit)

    def sender_of(self, channel: ChannelId) -> NetworkSender | None:
        """Return the sender of a channel, or None."""
        return self._senders.get(channel)

    def forget_sender(self, channel: ChannelId) -> None:
        """Remove the sender of a closed channel, and its partition's buffers with the last one."""
        self._senders.pop(channel, None)
        name = (channel.edge, channel.producer, channel.consumer)
        if self._latest.get(name) == channel:
            del self._latest[name]  # names have the job in them: they would be kept for ever
        key = _partition(channel)
        partition = self._partitions.get(key)
        if partition is not None and not partition.channels:
            del self._partitions[key]

    def forget_opened(self, link: ProducerLink) -> None:
        """Remove requests of a lost link for channels that no producer has opened yet."""
        for channel, (opened_by, _, _) in list(self._opened.items()):
            if opened_by is link:
                del self._opened[channel]

    def forget_consumer(self, channel: ChannelId) -> None:
        """Remove a consumer that has closed its channel, whether its producer has opened it or not."""
        self._opened.pop(channel, None)
        sender = self._senders.get(channel)
        if sender is not None:
            sender.consumer_gone()

    def _lost(self, link: ConsumerLink) -> None:
        self._to_producers.pop(link.peer, None)


def _partition(channel: ChannelId) -> tuple[str, int, int]:
    return channel.edge, channel.producer, channel.attempt
