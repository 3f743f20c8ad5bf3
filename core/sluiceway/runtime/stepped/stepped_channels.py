"""The channels of a subtask that is driven by hand: what came lies in queues, and so does what goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sluiceway.elements import Batch, CheckpointBarrier, Element, Watermark
from sluiceway.errors import NotBuiltYetError
from sluiceway.runtime.stepped.plan import Route, SteppedPlan
from sluiceway.serializers import Serializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport

__all__ = ["Inbox", "Outbox", "QueueTransport"]


class Inbox(Receiver):
    """The end of a channel into the subtask."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._queue: deque[Element] = deque()
        self._wake = wake
        self.ended = False

    def put(self, elements: list[Element]) -> None:
        """They have come."""
        self._queue.extend(elements)
        if self._queue:
            self._wake()

    def receive(self) -> Element | None:
        """The next one."""
        return self._queue.popleft() if self._queue else None

    def receive_urgent(self) -> Element | None:
        """There are none."""
        return None

    def waiting(self) -> list[Element | bytes]:
        """What lies in the queue."""
        return list(self._queue)

    def queued(self) -> int:
        """How many do."""
        return len(self._queue)

    def close(self) -> None:
        """Drop them."""
        self._queue.clear()


class Outbox(Sender):
    """The end of a channel out of the subtask.

    Attributes:
        route: where it leads.
        elements: what waits to be taken.
        records: how many records that is.
        seq: how often something was taken.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self.elements: list[Element] = []
        self.records = 0
        self.seq = 0

    def take(self) -> tuple[int, int, int, int, list[Element]]:
        """Stage, target, sender, number within the channel, and the elements, of which there are some."""
        elements, self.elements, self.records = self.elements, [], 0
        seq, self.seq = self.seq, self.seq + 1
        return self.route.stage, self.route.target, self.route.sender, seq, elements

    def send(self, element: Element) -> None:
        """Keep it; of watermarks that follow one another the last one says all."""
        if type(element) is Batch:
            self.records += len(element.values)
        elif type(element) is Watermark and self.elements and type(self.elements[-1]) is Watermark:
            self.elements[-1] = element
            return
        self.elements.append(element)

    def send_urgent(self, element: Element) -> None:
        """Nothing overtakes here."""
        raise NotBuiltYetError("nothing overtakes on channels that are driven by hand")

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[object]]:
        """Nothing overtakes here."""
        raise NotBuiltYetError("nothing overtakes on channels that are driven by hand")

    def holds(self, checkpoint_id: int) -> bool:
        """No barriers come by here."""
        return False

    def available(self) -> bool:
        """Always."""
        return True

    def fail(self, cause: BaseException) -> None:
        """Whoever drives the subtask has the failure already."""

    def backlog(self) -> int:
        """Nothing waits for credit."""
        return 0

    def close(self) -> None:
        """Keep what was sent: it is still to be taken."""


class QueueTransport(Transport):
    """Opens both.

    Args:
        plan: knows the numbers.
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

    def receiver(
        self, channel: ChannelId, credit: CreditSource, wake: Callable[[], None], serializer: Serializer
    ) -> Receiver:
        """An inbox."""
        inbox = self.inboxes[self._plan.sender(channel.edge, channel.producer)] = Inbox(wake)
        return inbox

    def sender(self, channel: ChannelId, wake: Callable[[], None], serializer: Serializer) -> Sender:
        """An outbox."""
        edge = next(e for e in self._plan.graph.edges if e.id == channel.edge)
        number = (
            self._plan.sender(channel.edge, channel.producer),
            self._plan.target(edge.target, channel.consumer),
        )
        outbox = Outbox(self._routes[number])
        self.outboxes.append(outbox)
        return outbox
