"""Contract of transports: channels from a producer's subtask to a consumer's.

A channel joins one producer with one consumer. It is ordered and flow-controlled by credit: the receiver
grants, the sender spends one credit per batch; control elements cost none but keep their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sluiceway.elements import Batch, CheckpointBarrier, Element
from sluiceway.serializers import Serializer

__all__ = ["ChannelId", "CreditSource", "Receiver", "Sender", "Transport"]


@dataclass(frozen=True, slots=True)
class ChannelId:
    """Name of a channel within a job.

    Attributes:
        edge: id of the job edge.
        producer: index of the producing subtask.
        consumer: index of the consuming subtask.
        attempt: increased at every restart, so that an old producer cannot reach a new consumer.
        producer_at: the worker on which the producer runs; not part of the name.
        consumer_at: the worker on which the consumer runs; not part of the name.
    """

    edge: str
    producer: int
    consumer: int
    attempt: int = 0
    producer_at: str = field(default="", compare=False)
    consumer_at: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.edge}[{self.producer}->{self.consumer}]"


class CreditSource(ABC):
    """Ledger of the receiving side for one channel, made by the input gate and passed to the transport."""

    @abstractmethod
    def initial(self) -> int | None:
        """Initial credit of the sender; None for a channel without limit (feedback edges)."""

    @abstractmethod
    def batch_taken(self, backlog: int) -> int:
        """Note that a batch left the channel; the sender reports ``backlog`` more that wait for credit.

        Returns:
            credits to grant to the sender now, 0 or more.
        """

    @abstractmethod
    def backlog_announced(self, backlog: int) -> int:
        """Return the credits to grant to a sender that has none left and ``backlog`` batches waiting."""

    def closed(self) -> None:
        """Take back the channel's floating credits: it is closed."""


class Sender(ABC):
    """Producer's end of a channel. Used from the producer's thread only.

    Attributes:
        bytes_out: bytes of records written so far; 0 where they are passed by reference.
        by_reference: True if the consumer gets the very batches that are sent.
    """

    bytes_out: int = 0
    by_reference: bool = False

    @property
    def buffers(self) -> tuple[int, int]:
        """Return the number of network buffers that the channel has now, and may have. From any thread."""
        return 0, 0

    @abstractmethod
    def send(self, element: Element) -> None:
        """Take an element. Never blocks: without credit it waits in the backlog, in order."""

    @abstractmethod
    def send_urgent(self, element: Element) -> None:
        """Send a control element that overtakes everything on the channel that the consumer has not received.

        Urgent elements keep the order among themselves. They need no credit and no buffer.

        Raises:
            TypeError: it is a batch, and those do not overtake.
        """

    @abstractmethod
    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        """Send a barrier ahead of all that waits here: of what was sent and has not gone out whole.

        It goes ahead also where the consumer is not attached yet, and then is the first that it receives.

        If a barrier of the same checkpoint was sent before and waits, it is taken out, and what waits behind it
        was not overtaken.

        Returns:
            the batches that were overtaken, oldest first. They are still sent.
        """

    @abstractmethod
    def holds(self, checkpoint_id: int) -> bool:
        """Return whether the barrier of a checkpoint was sent and has not gone out."""

    @abstractmethod
    def available(self) -> bool:
        """True if a batch sent now would go out at once. A producer checks it before it makes more."""

    @abstractmethod
    def fail(self, cause: BaseException) -> None:
        """Notify the consumer that the producer failed; nothing follows.

        :meth:`Receiver.receive` raises ``cause`` after the elements that had arrived before.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the producer's end. What was sent may still be received."""

    def discard(self) -> None:
        """Close the producer's end before its end of data: its consumers end, too, and nothing more is sent."""
        self.close()

    @abstractmethod
    def backlog(self) -> int:
        """Number of batches that wait for credit."""


class Receiver(ABC):
    """Consumer's end of a channel. Used from the consumer's thread only.

    A barrier that overtakes (its ``aligned_ms`` is 0) arrives twice: as an urgent element, and in its place, which
    is behind what had arrived before it.

    Attributes:
        bytes_in: bytes of records received so far; 0 where they are passed by reference.
        on_urgent: called in the consumer's thread when an urgent element has arrived.
    """

    bytes_in: int = 0
    on_urgent: Callable[[], None] | None = None

    @abstractmethod
    def receive(self) -> Element | None:
        """Return the next element that is not urgent, or None if there is none now.

        Raises:
            CorruptStreamError: the received bytes are not those sent, with channel and sequence number.
            BaseException: the producer failed; its cause.
        """

    @property
    def urgent(self) -> bool:
        """True if an urgent element waits."""
        return False

    @abstractmethod
    def receive_urgent(self) -> Element | None:
        """Return the next urgent element, or None if there is none now."""

    @abstractmethod
    def waiting(self) -> list[Element | bytes]:
        """Return the elements that :meth:`receive` would return now.

        Batches from another process may be returned as bytes.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the consumer's end: drop what is queued, and ignore the producer's later elements.

        When the producer's end is notified, it drops what waits there, and is available for good.
        """

    @abstractmethod
    def queued(self) -> int:
        """Number of elements that :meth:`receive` would return now; a failure that it would raise is one."""


class Transport(ABC):
    """Transport of channels, which a plugin offers under a name.

    The two ends may be opened in either order; without its consumer a channel has no credit, though urgent
    elements are kept for it. No more batches are under way than credit was granted for; a channel without
    credit blocks no other. A record may be of any size.
    """

    @abstractmethod
    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end.

        Args:
            channel: the channel.
            credit: its ledger.
            wake: called in the consumer's thread when an element has arrived.
            serializer: for lists of the edge's records, where they leave the process.
        """

    @abstractmethod
    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end. ``wake`` is called in the producer's thread when credit has come in."""

    def close(self) -> None:
        """Free everything that the transport still holds."""
