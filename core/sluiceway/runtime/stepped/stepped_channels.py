"""Channels of a stepped subtask: queues that its caller fills and empties."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from sluiceway.elements import Batch, CheckpointBarrier, Element, Watermark
from sluiceway.errors import NotBuiltYetError
from sluiceway.runtime.stepped.plan import Route, SteppedPlan, places_of
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport
from sluiceway.util.overriding import override

__all__ = ["Inbox", "Outbox", "QueueTransport"]

_LARGE: Final = 4 << 20
"""Bytes of columns that are taken at a time: what Spark passes to Python in one buffer is a multiple of that."""


class Inbox(Receiver):
    """End of a channel into the subtask."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._queue: deque[Element] = deque()
        self._wake = wake
        self.ended = False

    def put(self, elements: list[Element]) -> None:
        """Queue received elements."""
        self._queue.extend(elements)
        if self._queue:
            self._wake()

    @override
    def receive(self) -> Element | None:
        return self._queue.popleft() if self._queue else None

    def receive_urgent(self) -> Element | None:
        """Return None: no element overtakes."""
        return None

    @override
    def waiting(self) -> list[Element | bytes]:
        return list(self._queue)

    @override
    def queued(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        """Drop the queue."""
        self._queue.clear()


class Outbox(Sender):
    """End of a channel out of the subtask.

    Attributes:
        route: route of the channel.
        elements: queued elements.
        records: number of records in them.
        seq: place in the channel of the next element that is taken, as :func:`.places_of` counts.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self.elements: list[Element] = []
        self.records = 0
        self.seq = 0

    def take(self) -> Iterator[tuple[int, int, int, int, list[Element]]]:
        """Yield stage, target, sender, place in the channel, and queued elements; several times if large."""
        # Exchanged before the parts are yielded: what is sent meanwhile is for the next take.
        elements, self.elements, self.records = self.elements, [], 0
        for part in _parts(elements):
            seq, self.seq = self.seq, self.seq + sum(map(places_of, part))
            yield self.route.stage, self.route.target, self.route.sender, seq, part

    def send(self, element: Element) -> None:
        """Queue an element; of successive watermarks only the last is kept."""
        if type(element) is Batch:
            self.records += len(element.values)
        elif type(element) is Watermark and self.elements and type(self.elements[-1]) is Watermark:
            # Nothing is between the two, so the earlier one says nothing that the later one does not.
            self.elements[-1] = element
            return
        self.elements.append(element)

    def send_urgent(self, element: Element) -> None:
        """Raise: nothing overtakes on these channels."""
        raise NotBuiltYetError("nothing overtakes on channels that are driven by hand")

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[object]]:
        """Raise: nothing overtakes on these channels."""
        raise NotBuiltYetError("nothing overtakes on channels that are driven by hand")

    def holds(self, checkpoint_id: int) -> bool:
        """Return False: no barriers pass here."""
        return False

    @override
    def available(self) -> bool:
        return True

    def fail(self, cause: BaseException) -> None:
        """Do nothing: the caller of the subtask has the failure."""

    def backlog(self) -> int:
        """Return 0: nothing waits for credit."""
        return 0

    def close(self) -> None:
        """Do nothing: queued elements are still to be taken."""


class QueueTransport(Transport):
    """Transport of a stepped subtask.

    Args:
        plan: plan with the numbers.
        vertex: id of the subtask's vertex.
        subtask: its index.

    Attributes:
        inboxes: by sender.
        outboxes: in the order of the edges and of their consumers.
    """

    def __init__(self, plan: SteppedPlan, vertex: int, subtask: int) -> None:
        self.inboxes: dict[int, Inbox] = {}
        self.outboxes: list[Outbox] = []
        self._plan = plan
        self._routes = {(r.sender, r.target): r for r in plan.routes_from(vertex, subtask)}

    @override
    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        inbox = self.inboxes[self._plan.sender(channel.edge, channel.producer)] = Inbox(wake)
        return inbox

    @override
    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        edge = next(e for e in self._plan.graph.edges if e.id == channel.edge)
        number = (
            self._plan.sender(channel.edge, channel.producer),
            self._plan.target(edge.target, channel.consumer),
        )
        outbox = Outbox(self._routes[number])
        self.outboxes.append(outbox)
        return outbox


def _parts(elements: list[Element]) -> Iterator[list[Element]]:
    """Yield the elements in parts of limited size. Large batches of columns are divided by rows."""
    part: list[Element] = []
    size = 0
    for element in elements:
        if type(element) is not Batch or element.columns is None:
            part.append(element)
            continue
        rows, of_all = len(element), element.columns.nbytes
        step = rows if of_all <= _LARGE else max(1, rows * _LARGE // of_all)
        for start in range(0, rows, step):
            piece: Batch[Any] = element if step >= rows else element.part(start, start + step)
            part.append(piece)
            size += of_all * len(piece) // rows
            if size >= _LARGE:
                yield part
                part, size = [], 0
    if part:
        yield part
