"""What every carrier must do, as tests: the core's channels over it keep their promises.

In a plugin's tests::

    from sluiceway.testing.conformance.carrier import CarrierConformance

    class TestMyCarrier(CarrierConformance):
        def make_carrier(self):
            return MyCarrier()

Several workers run in one thread, each with a carrier and a poller of its own.
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

import pickle
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from sluiceway.buffers import NetworkBufferPool
from sluiceway.carrier import Carrier, CarrierContext
from sluiceway.credit import GateCredits, Unlimited
from sluiceway.elements import Batch, CheckpointBarrier, Element, EndOfData, EndOfPartition, Watermark
from sluiceway.network import NetworkTransport
from sluiceway.runtime.poller import SelectorPoller
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender

__all__ = ["CarrierConformance", "Party"]

_SERIALIZER = PickleSerializer()
_SECRET = b"conformance" * 3


class Party:
    """A worker, as far as its network goes."""

    def __init__(
        self, name: str, carrier: Carrier, addresses: dict[str, str], directory: str, segments: int, size: int
    ) -> None:
        self.name = name
        self.poller = SelectorPoller()
        self._soon: deque[Callable[[], None]] = deque()
        self.carrier = carrier
        self.address = carrier.start(
            CarrierContext(
                worker=name,
                directory=directory,
                secret=_SECRET,
                watch=self.poller.keep,
                unwatch=self.poller.drop,
                soon=self._soon.append,
                accepted=lambda link: self.transport.accepted(link),
            )
        )
        addresses[name] = self.address
        self.buffers = NetworkBufferPool(carrier.segments(segments, size))
        self.transport = NetworkTransport(
            carrier, self.buffers, addresses.__getitem__, self._soon.append, pickle.dumps, pickle.loads
        )

    def turn(self, timeout_s: float) -> None:
        """One turn of its loop."""
        soon = self._soon
        while soon:
            soon.popleft()()
        self.poller.poll(timeout_s)
        while soon:
            soon.popleft()()

    def die(self) -> None:
        """Go without a word."""
        self.transport.close()


class CarrierConformance(ABC):
    """Subclass it, give it a name that pytest collects, and implement :meth:`make_carrier`.

    Attributes:
        segments: network buffers of each worker.
        segment_bytes: size of each.
        rounds: how often the workers may find nothing to do, 1 ms apart, before they count as at rest.
        patience: likewise, before something that is waited for counts as never coming.
    """

    segments = 32
    segment_bytes = 1024
    rounds = 20
    patience = 2000

    @abstractmethod
    def make_carrier(self) -> Carrier:
        """A new carrier."""

    # ---- the stage ------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _stage(self) -> Iterator[None]:
        self._directory = tempfile.mkdtemp(prefix="sw-")
        self._addresses: dict[str, str] = {}
        self._parties: list[Party] = []
        yield
        for party in self._parties:
            party.transport.close()
            assert party.buffers.available == party.buffers.total, "buffers that nobody gave back"
            party.poller.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def party(self, name: str) -> Party:
        """One more worker."""
        made = Party(
            name, self.make_carrier(), self._addresses, self._directory, self.segments, self.segment_bytes
        )
        self._parties.append(made)
        return made

    def settle(self, until: Callable[[], bool] | None = None) -> None:
        """Run all workers until ``until`` says that it is enough, or else until nothing comes any more."""
        quiet = 0
        patience = self.rounds if until is None else self.patience
        while quiet < patience:
            if until is not None and until():
                return
            moved = False
            for party in self._parties:
                before = _Moves.count
                party.turn(0.001)
                moved |= before != _Moves.count
            quiet = 0 if moved else quiet + 1
        assert until is None or until(), "it never happened"

    def channel(
        self,
        producer: Party,
        consumer: Party,
        number: int = 0,
        *,
        credit: CreditSource | None = None,
        edge: str = "edge",
    ) -> tuple[Sender, Receiver]:
        """A channel, its consumer's end first."""
        id_ = ChannelId(edge, number, 0, producer_at=producer.name, consumer_at=consumer.name)
        receiver = consumer.transport.receiver(
            id_, GateCredits().channel() if credit is None else credit, _Moves.note, _SERIALIZER
        )
        return producer.transport.sender(id_, _Moves.note, _SERIALIZER), receiver

    def receive(self, receiver: Receiver, count: int) -> list[Element]:
        """The next elements, however long they take."""
        got: list[Element] = []
        while len(got) < count:
            self.settle(lambda: receiver.queued() > 0)
            element = receiver.receive()
            assert element is not None
            got.append(element)
        return got

    # ---- order and credit -----------------------------------------------------------------------------------

    def test_elements_arrive_as_they_were_sent_and_in_order(self) -> None:
        sender, receiver = self.channel(self.party("a"), self.party("b"))
        sent: list[Element] = []
        for n in range(50):
            sent += [Batch([n, str(n)], [n, n + 1]), Batch([None]), Watermark(n), CheckpointBarrier(n, 0)]
        sent += [EndOfData(), EndOfPartition()]
        for element in sent:
            sender.send(element)
        assert self.receive(receiver, len(sent)) == sent
        sender.close()

    def test_either_end_may_come_first(self) -> None:
        a, b = self.party("a"), self.party("b")
        for number, first in enumerate(("producer", "consumer")):
            id_ = ChannelId(first, number, 0, producer_at="a", consumer_at="b")
            if first == "producer":
                sender = a.transport.sender(id_, _Moves.note, _SERIALIZER)
                sender.send(Batch([1]))
                sender.send(Watermark(1))
                assert not sender.available()
                self.settle()
                receiver = b.transport.receiver(id_, GateCredits().channel(), _Moves.note, _SERIALIZER)
            else:
                receiver = b.transport.receiver(id_, GateCredits().channel(), _Moves.note, _SERIALIZER)
                self.settle()
                sender = a.transport.sender(id_, _Moves.note, _SERIALIZER)
                sender.send(Batch([1]))
                sender.send(Watermark(1))
            assert self.receive(receiver, 2) == [Batch([1]), Watermark(1)]
            receiver.close()
            sender.close()

    def test_without_credit_batches_wait_and_control_keeps_its_place(self) -> None:
        credit = GateCredits(exclusive=1, floating=0)
        sender, receiver = self.channel(self.party("a"), self.party("b"), credit=credit.channel())
        sent: list[Element] = [Batch([1]), Watermark(1), Batch([2]), Watermark(2), Batch([3])]
        for element in sent:
            sender.send(element)
        self.settle()
        assert receiver.queued() == 2, "one batch, and what came right behind it"
        assert sender.backlog() == 2
        assert not sender.available()
        assert self.receive(receiver, 5) == sent
        self.settle(sender.available)
        sender.close()

    def test_what_is_under_way_never_exceeds_the_credit(self) -> None:
        gate = GateCredits(exclusive=2, floating=3)
        sender, receiver = self.channel(self.party("a"), self.party("b"), credit=gate.channel())
        for n in range(40):
            sender.send(Batch([n]))
        got: list[Element | None] = []
        while len(got) < 40:
            self.settle(lambda: receiver.queued() > 0)
            assert receiver.queued() <= 5
            got.append(receiver.receive())
        assert got == [Batch([n]) for n in range(40)]
        # When the last batch comes, the producer may still have credit that it did not need.
        receiver.close()
        assert gate.free == 3, "no credit is lost, and none is made"
        sender.close()

    def test_a_channel_without_limit_takes_everything(self) -> None:
        sender, receiver = self.channel(self.party("a"), self.party("b"), credit=Unlimited())
        self.settle(sender.available)
        for n in range(20):
            sender.send(Batch([n]))
        self.settle(lambda: receiver.queued() == 20)
        receiver.close()
        self.settle()
        sender.close()

    def test_a_slow_consumer_holds_up_nobody_else_on_the_link(self) -> None:
        a, b = self.party("a"), self.party("b")
        slow, slow_end = self.channel(a, b, 0)
        quick, quick_end = self.channel(a, b, 1)
        for n in range(100):
            slow.send(Batch([n]))
        for n in range(100):
            quick.send(Batch([n]))
            assert self.receive(quick_end, 1) == [Batch([n])]
        assert slow.backlog() > 0
        assert self.receive(slow_end, 100) == [Batch([n]) for n in range(100)]
        slow.close()
        quick.close()

    def test_many_channels_over_one_link_both_ways(self) -> None:
        self.segments = 256
        a, b = self.party("a"), self.party("b")
        there = [self.channel(a, b, n, edge="there") for n in range(100)]
        back = [self.channel(b, a, n, edge="back") for n in range(100)]
        for number, (sender, _) in enumerate([*there, *back]):
            sender.send(Batch([number]))
        for number, (_, receiver) in enumerate([*there, *back]):
            assert self.receive(receiver, 1) == [Batch([number])]
        for sender, _ in [*there, *back]:
            sender.close()

    # ---- size -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 5000, 100_000])
    def test_a_record_of_any_size_goes_through(self, size: int) -> None:
        """Also one that needs more segments than there are."""
        sender, receiver = self.channel(self.party("a"), self.party("b"))
        record = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sender.send(Batch([record], [1]))
        sender.send(Watermark(2))
        assert self.receive(receiver, 2) == [Batch([record], [1]), Watermark(2)]
        sender.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def test_what_was_sent_before_the_end_still_arrives(self) -> None:
        sender, receiver = self.channel(self.party("a"), self.party("b"))
        for n in range(30):
            sender.send(Batch([n]))
        sender.send(EndOfPartition())
        sender.close()
        assert self.receive(receiver, 31) == [*(Batch([n]) for n in range(30)), EndOfPartition()]

    def test_a_consumer_that_goes_frees_the_producer(self) -> None:
        sender, receiver = self.channel(self.party("a"), self.party("b"))
        for n in range(30):
            sender.send(Batch([n]))
        self.settle()
        assert not sender.available()
        receiver.close()
        self.settle(sender.available)
        sender.send(Batch([1]))
        assert sender.backlog() == 0
        sender.close()

    def test_a_producers_failure_comes_after_what_it_had_sent(self) -> None:
        sender, receiver = self.channel(self.party("a"), self.party("b"))
        sender.send(Batch([1]))
        self.settle(lambda: receiver.queued() > 0)
        sender.fail(ZeroDivisionError("by hand"))
        sender.close()
        assert self.receive(receiver, 1) == [Batch([1])]
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ZeroDivisionError, match="by hand"):
            receiver.receive()

    def test_a_worker_that_dies_is_noticed_by_its_consumers(self) -> None:
        a, b = self.party("a"), self.party("b")
        sender, receiver = self.channel(a, b)
        sender.send(Batch([1]))
        self.settle(lambda: receiver.queued() > 0)
        a.die()
        assert self.receive(receiver, 1) == [Batch([1])], "what had come stays good"
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ConnectionError, match="'a'"):
            receiver.receive()

    def test_a_worker_that_dies_is_noticed_by_its_producers(self) -> None:
        a, b = self.party("a"), self.party("b")
        sender, _ = self.channel(a, b)
        for n in range(30):
            sender.send(Batch([n]))
        self.settle()
        assert not sender.available()
        b.die()
        self.settle(sender.available)
        sender.close()

    def test_a_worker_that_nobody_can_reach_is_named(self) -> None:
        b = self.party("b")
        gone = self.party("gone")
        gone.die()
        id_ = ChannelId("edge", 0, 0, producer_at="gone", consumer_at="b")
        receiver = b.transport.receiver(id_, GateCredits().channel(), _Moves.note, _SERIALIZER)
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ConnectionError, match="'gone'"):
            receiver.receive()

    def test_a_worker_serves_others_after_one_has_died(self) -> None:
        a, b, c = self.party("a"), self.party("b"), self.party("c")
        dead, _ = self.channel(a, b)
        alive, receiver = self.channel(a, c, 1)
        dead.send(Batch([1]))
        self.settle()
        b.die()
        self.settle()
        for n in range(20):
            alive.send(Batch([n]))
        assert self.receive(receiver, 20) == [Batch([n]) for n in range(20)]
        alive.close()
        dead.close()


class _Moves:
    """Counts that something has come, so that :meth:`CarrierConformance.settle` knows rest from work."""

    count = 0

    @classmethod
    def note(cls) -> None:
        cls.count += 1
