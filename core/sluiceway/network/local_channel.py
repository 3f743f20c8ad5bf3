"""Channels inside one worker: elements are passed by reference, under the same credit as everywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sluiceway.elements import Batch, CheckpointBarrier, Element
from sluiceway.network.backlog import Backlog
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport
from sluiceway.util.overriding import override

__all__ = ["LocalTransport"]


class _LocalChannel(Receiver):
    """Both ends of a channel; the sender is a view of it. There is no credit until the consumer attaches."""

    def __init__(self) -> None:
        self._ledger: CreditSource = _NoConsumer()
        self._credit: int | None = 0
        self._wake_consumer: Callable[[], None] = lambda: None
        self.wake_producer: Callable[[], None] = lambda: None
        self._queue: deque[Element] = deque()
        self._urgent: deque[Element] = deque()
        self._backlog = Backlog()
        self._failure: BaseException | None = None
        self._closed = False

    def attach(self, credit: CreditSource, wake: Callable[[], None]) -> None:
        """Connect the consumer: grant its initial credit and deliver what the backlog holds."""
        self._ledger = credit
        self._wake_consumer = wake
        initial = credit.initial()
        # No limit (feedback): the backlog is delivered at once and stays empty.
        if initial is None:
            self._credit = None
            self._grant(0)
        else:
            self._grant(initial)
            waiting = self._backlog.batches
            self._grant(credit.backlog_announced(waiting) if waiting else 0)
        if self.queued():
            wake()
        self.wake_producer()

    # ---- the producer's end ---------------------------------------------------------------------------------

    def send(self, element: Element) -> None:
        if self._closed:
            return
        if type(element) is not Batch:
            # Control elements cost no credit, but never pass batches that wait for it.
            if self._backlog:
                self._backlog.add(element)
            else:
                self._deliver(element)
        elif self._credit is None and not self._backlog:
            self._deliver(element)
        elif self._credit and not self._backlog:
            self._credit -= 1
            self._deliver(element)
        else:
            self._backlog.add(element)
            self._grant(self._ledger.backlog_announced(self._backlog.batches))

    def send_urgent(self, element: Element) -> None:
        if type(element) is Batch:
            raise TypeError("a batch cannot overtake: only control elements can")
        if self._closed:
            return
        self._urgent.append(element)
        if type(element) is CheckpointBarrier and element.aligned_ms == 0:
            # A barrier that overtakes is delivered twice: as an urgent element, and here to mark its place. What
            # is sent from now on is behind it and is not part of the checkpoint.
            self._queue.append(element)
            self._wake_consumer()
        if self.on_urgent is not None:
            self.on_urgent()

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        batches = self._backlog.overtaken_by(barrier)
        self.send_urgent(barrier)
        return batches

    # The barrier is not in the backlog any more if credit came in between; then it is at the consumer.
    def holds(self, checkpoint_id: int) -> bool:
        return self._backlog.holds(checkpoint_id)

    def available(self) -> bool:
        return self._closed or self._credit is None or (self._credit > 0 and not self._backlog)

    def backlog(self) -> int:
        return self._backlog.batches

    def fail(self, cause: BaseException) -> None:
        self._failure = cause
        if not self._closed:
            self._wake_consumer()

    # ---- the consumer's end ---------------------------------------------------------------------------------

    def receive(self) -> Element | None:
        if not self._queue:
            # A failure is raised after everything that was sent before it.
            if self._failure is not None:
                raise self._failure
            return None
        element = self._queue.popleft()
        if type(element) is Batch and self._credit is not None:
            granted = self._ledger.batch_taken(self._backlog.batches)
            if granted:
                self._grant(granted)
                self.wake_producer()
        return element

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        self._urgent.clear()
        self._backlog.drop()
        self._ledger.closed()
        self.wake_producer()

    @property
    def urgent(self) -> bool:
        return bool(self._urgent)

    def receive_urgent(self) -> Element | None:
        return self._urgent.popleft() if self._urgent else None

    def waiting(self) -> list[Element | bytes]:
        return list(self._queue)

    def queued(self) -> int:
        # A failure counts as one element, so that the gate reads the channel and raises it.
        return len(self._queue) + (self._failure is not None and not self._closed)

    # ---- between them ---------------------------------------------------------------------------------------

    def _deliver(self, element: Element) -> None:
        self._queue.append(element)
        self._wake_consumer()

    def _grant(self, granted: int) -> None:
        if self._credit is not None:
            self._credit += granted
        backlog = self._backlog
        # In order: a control element behind a batch without credit waits with it.
        while backlog:
            if type(backlog[0]) is Batch and self._credit is not None:
                if not self._credit:
                    return
                self._credit -= 1
            self._deliver(backlog.take())


class _NoConsumer(CreditSource):
    def initial(self) -> int | None:
        return 0

    def batch_taken(self, backlog: int) -> int:
        return 0

    def backlog_announced(self, backlog: int) -> int:
        return 0


class _LocalSender(Sender):
    by_reference = True

    def __init__(self, channel: _LocalChannel) -> None:
        self._channel = channel

    def send(self, element: Element) -> None:
        self._channel.send(element)

    def send_urgent(self, element: Element) -> None:
        self._channel.send_urgent(element)

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        return self._channel.overtake(barrier)

    # The barrier is not in the backlog any more if credit came in between; then it is at the consumer.
    def holds(self, checkpoint_id: int) -> bool:
        return self._channel.holds(checkpoint_id)

    def available(self) -> bool:
        return self._channel.available()

    def fail(self, cause: BaseException) -> None:
        self._channel.fail(cause)

    def backlog(self) -> int:
        return self._channel.backlog()

    def close(self) -> None:
        """Do nothing: elements that were sent stay with the consumer."""


class LocalTransport(Transport):
    """Transport between the tasks of one worker. From the worker's thread only."""

    def __init__(self) -> None:
        self._channels: dict[ChannelId, _LocalChannel] = {}
        self._latest: dict[tuple[str, int, int], ChannelId] = {}

    @override
    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        made = self._channel(channel)
        made.attach(credit, wake)
        return made

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """Open the producer's end; the consumer may open its end later."""
        made = self._channel(channel)
        made.wake_producer = wake
        return _LocalSender(made)

    @override
    def close(self) -> None:
        self._channels.clear()
        self._latest.clear()

    def _channel(self, channel: ChannelId) -> _LocalChannel:
        made = self._channels.get(channel)
        if made is None:
            made = self._channels[channel] = _LocalChannel()
            name = (channel.edge, channel.producer, channel.consumer)
            earlier = self._latest.get(name)
            if earlier is None or earlier.attempt < channel.attempt:
                # Remove the channel of the previous attempt: each restart used to leave one behind, with its
                # elements, for as long as the job ran.
                self._latest[name] = channel
                if earlier is not None:
                    self._channels.pop(earlier, None)
        return made
