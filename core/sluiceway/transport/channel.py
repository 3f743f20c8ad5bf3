"""How elements get from a producer's subtask to a consumer's: what a transport implements.

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
    """Names a channel within a job.

    Attributes:
        edge: id of the job edge.
        producer: index of the producing subtask.
        consumer: index of the consuming subtask.
        attempt: raised at every restart, so that an old producer cannot reach a new consumer.
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
    """The receiving side's ledger for one channel, made by the input gate and handed to the transport."""

    @abstractmethod
    def initial(self) -> int | None:
        """Credits the sender starts with; None for a channel without limit (feedback edges)."""

    @abstractmethod
    def batch_taken(self, backlog: int) -> int:
        """A batch left the channel; the sender reports ``backlog`` more that wait for credit.

        Returns:
            credits to grant to the sender now, 0 or more.
        """

    @abstractmethod
    def backlog_announced(self, backlog: int) -> int:
        """The sender ran out of credit with ``backlog`` batches waiting; returns credits to grant now."""

    def closed(self) -> None:
        """The channel is gone: take back what it had beyond its own."""


class Sender(ABC):
    """The producer's end of a channel. Used from the producer's thread only.

    Attributes:
        bytes_out: bytes of records written so far; 0 where they go by reference.
        by_reference: whether the consumer gets the very batches that are sent.
    """

    bytes_out: int = 0
    by_reference: bool = False

    @property
    def buffers(self) -> tuple[int, int]:
        """Network buffers that the channel has now, and how many it may have. From any thread."""
        return 0, 0

    @abstractmethod
    def send(self, element: Element) -> None:
        """Take an element. Never blocks: without credit it waits in the backlog, in order."""

    @abstractmethod
    def send_urgent(self, element: Element) -> None:
        """Take a control element that overtakes everything on the channel that the consumer has not received.

        Urgent elements keep the order among themselves. They need no credit and no buffer.

        Raises:
            TypeError: it is a batch, and those do not overtake.
        """

    @abstractmethod
    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        """Send a barrier ahead of all that waits here: what was sent and has not gone out whole.

        It goes ahead also where the consumer is not there yet, and then is the first that it receives.

        If a barrier of the same checkpoint was sent before and waits, it is taken out, and what waits behind it
        was not overtaken.

        Returns:
            the batches that were overtaken, oldest first. They are still sent.
        """

    @abstractmethod
    def holds(self, checkpoint_id: int) -> bool:
        """Whether the barrier of a checkpoint was sent and has not gone out."""

    @abstractmethod
    def available(self) -> bool:
        """Whether a batch sent now would go out at once. A polite producer asks before it makes more."""

    @abstractmethod
    def fail(self, cause: BaseException) -> None:
        """Tell the consumer that the producer failed; nothing follows.

        :meth:`Receiver.receive` raises ``cause`` when what had come in before is received.
        """

    @abstractmethod
    def close(self) -> None:
        """The producer is gone. What was sent may still be received."""

    def discard(self) -> None:
        """The producer is gone before its end: its consumers are ended, too, and what waits need not be sent."""
        self.close()

    @abstractmethod
    def backlog(self) -> int:
        """Batches that wait for credit."""


class Receiver(ABC):
    """The consumer's end of a channel. Used from the consumer's thread only.

    A barrier that overtakes (its ``aligned_ms`` is 0) comes twice: as an urgent element, and in its place, which
    is behind what had come in before it.

    Attributes:
        bytes_in: bytes of records that have come in so far; 0 where they come by reference.
        on_urgent: called in the consumer's thread when an urgent element has come in.
    """

    bytes_in: int = 0
    on_urgent: Callable[[], None] | None = None

    @abstractmethod
    def receive(self) -> Element | None:
        """The next element that is not urgent, or None if there is none now.

        Raises:
            CorruptStreamError: what came in is not what was sent, with channel and sequence number.
            BaseException: the producer failed; its cause.
        """

    @property
    def urgent(self) -> bool:
        """Whether there is an urgent element."""
        return False

    @abstractmethod
    def receive_urgent(self) -> Element | None:
        """The next urgent element, or None if there is none now."""

    @abstractmethod
    def waiting(self) -> list[Element | bytes]:
        """What :meth:`receive` would return now, one after the other.

        Batches that came from another process may be given as they came: as bytes.
        """

    @abstractmethod
    def close(self) -> None:
        """The consumer is gone: drop what is queued, let the producer's later elements vanish.

        When the producer's end has heard of it, it drops what waits there, and is available for good.
        """

    @abstractmethod
    def queued(self) -> int:
        """Elements that :meth:`receive` would return now; a failure that it would raise counts as one."""


class Transport(ABC):
    """A way to carry channels: what a plugin offers under a name.

    The two ends may be opened in either order; without its consumer a channel has no credit, though urgent
    elements are kept for it. No more batches are under way than credit was granted for; a channel without
    credit holds up no other. A record may be of any size.
    """

    @abstractmethod
    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """Open the consumer's end.

        Args:
            channel: which one.
            credit: its ledger.
            wake: called in the consumer's thread when an element has come in.
            serializer: for lists of the edge's records, where they leave the process.
        """

    @abstractmethod
    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end. ``wake`` is called in the producer's thread when credit has come in."""

    def close(self) -> None:
        """Free everything that the transport still holds."""
