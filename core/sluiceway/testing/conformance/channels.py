"""Conformance suite for transports: order, credit, and the guarantees at the end of a channel.

For a carrier between workers there is more: :mod:`sluiceway.testing.conformance.carrier`.
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import pytest

from sluiceway.elements import (
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from sluiceway.network.credit import GateCredits, Unlimited
from sluiceway.network.element_codec import decode_element
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId, CreditSource, Receiver, Sender, Transport

__all__ = ["SERIALIZER", "ChannelConformance", "Moves", "Worker"]

SERIALIZER = PickleSerializer()


class Worker(Protocol):
    """A worker, as far as its channels go."""

    @property
    def name(self) -> str:
        """Unique."""

    @property
    def transport(self) -> Transport:
        """Opens its channels."""

    def turn(self, timeout_s: float) -> None:
        """Run one turn of the loop, which sleeps for ``timeout_s`` at most."""


class Moves:
    """Counter of arrivals, by which :meth:`ChannelConformance.settle` knows rest from work."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Something has come."""
        cls.count += 1


class ChannelConformance(ABC):
    """Suite of channels between workers.

    Subclass it, give it a name that pytest collects, and implement :meth:`worker` and :meth:`workers`.

    Several workers run in one thread.

    Attributes:
        rounds: how often the workers may find nothing to do, 1 ms apart, before they count as at rest.
        patience: likewise, before something that is waited for counts as never coming.
    """

    rounds = 20
    patience = 2000

    @abstractmethod
    def worker(self, name: str) -> Worker:
        """Return one more worker; where channels stay in one, always the same."""

    @abstractmethod
    def workers(self) -> list[Worker]:
        """Those that there are."""

    # ---- the stage ------------------------------------------------------------------------------------------

    def settle(self, until: Callable[[], bool] | None = None) -> None:
        """Run all workers until ``until`` says that it is enough, or else until nothing comes any more."""
        quiet = 0
        patience = self.rounds if until is None else self.patience
        while quiet < patience:
            if until is not None and until():
                return
            before = Moves.count
            for worker in self.workers():
                worker.turn(0.001)
            quiet = 0 if before != Moves.count else quiet + 1
        assert until is None or until(), "it never happened"

    def channel(
        self,
        producer: Worker,
        consumer: Worker,
        number: int = 0,
        *,
        credit: CreditSource | None = None,
        edge: str = "edge",
    ) -> tuple[Sender, Receiver]:
        """Return a channel, its consumer's end first."""
        id_ = ChannelId(edge, number, 0, producer_at=producer.name, consumer_at=consumer.name)
        receiver = consumer.transport.receiver(
            id_, GateCredits().channel() if credit is None else credit, Moves.note, SERIALIZER
        )
        return producer.transport.sender(id_, Moves.note, SERIALIZER), receiver

    def receive(self, receiver: Receiver, count: int) -> list[Element]:
        """Wait for the next elements, however long they take, and return them."""
        got: list[Element] = []
        while len(got) < count:
            self.settle(lambda: receiver.queued() > 0)
            element = receiver.receive()
            assert element is not None
            got.append(element)
        return got

    # ---- order and credit -----------------------------------------------------------------------------------

    def test_elements_arrive_as_they_were_sent_and_in_order(self) -> None:
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        sent: list[Element] = []
        for n in range(50):
            sent += [Batch([n, str(n)], [n, n + 1]), Batch([None]), Watermark(n), CheckpointBarrier(n, 0)]
        sent += [EndOfData(), EndOfPartition()]
        for element in sent:
            sender.send(element)
        assert self.receive(receiver, len(sent)) == sent
        sender.close()

    def test_either_end_may_come_first(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        for number, first in enumerate(("producer", "consumer")):
            id_ = ChannelId(first, number, 0, producer_at="a", consumer_at="b")
            if first == "producer":
                sender = a.transport.sender(id_, Moves.note, SERIALIZER)
                sender.send(Batch([1]))
                sender.send(Watermark(1))
                assert not sender.available()
                self.settle()
                receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
            else:
                receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
                self.settle()
                sender = a.transport.sender(id_, Moves.note, SERIALIZER)
                sender.send(Batch([1]))
                sender.send(Watermark(1))
            assert self.receive(receiver, 2) == [Batch([1]), Watermark(1)]
            receiver.close()
            sender.close()

    def test_without_credit_batches_wait_and_control_keeps_its_place(self) -> None:
        credit = GateCredits(exclusive=1, floating=0)
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=credit.channel())
        sent: list[Element] = [Batch([1]), Watermark(1), Batch([2]), Watermark(2), Batch([3])]
        for element in sent:
            sender.send(element)
        self.settle(lambda: receiver.queued() == 2)
        self.settle()
        assert receiver.queued() == 2, "one batch, and what came right behind it"
        assert sender.backlog() == 2
        assert not sender.available()
        assert self.receive(receiver, 5) == sent
        self.settle(sender.available)
        sender.close()

    def test_what_is_under_way_never_exceeds_the_credit(self) -> None:
        gate = GateCredits(exclusive=2, floating=3)
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=gate.channel())
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

    def test_floating_credit_goes_back_from_channels_that_are_idle(self) -> None:
        """Also what would be on its way while the backlog goes down."""
        gate = GateCredits(exclusive=2, floating=8)
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b, credit=gate.channel())
        self.settle(sender.available)
        sent = [Batch([n]) for n in range(5)]
        for batch in sent:
            sender.send(batch)
        while receiver.queued() < 2:
            for worker in self.workers():
                worker.turn(0.001)
        # The producer has not yet had a turn in which it could have used what was granted for its backlog.
        assert [receiver.receive(), receiver.receive()] == sent[:2]
        assert self.receive(receiver, 3) == sent[2:]
        self.settle(lambda: gate.free == 8)
        sender.close()

    def test_a_gate_shares_its_floating_credit_among_those_that_have_a_backlog(self) -> None:
        gate = GateCredits(exclusive=1, floating=4)
        a, b = self.worker("a"), self.worker("b")
        (busy, busy_end), (idle, idle_end) = (self.channel(a, b, n, credit=gate.channel()) for n in range(2))
        for n in range(20):
            busy.send(Batch([n]))
        self.settle(lambda: busy_end.queued() == 5)
        idle.send(Batch([0]))
        self.settle(lambda: idle_end.queued() == 1)
        assert gate.free == 0
        for end in (busy_end, idle_end):
            end.close()
        assert gate.free == 4
        self.settle()
        for sender in (busy, idle):
            sender.close()

    def test_two_hundred_channels_that_send_a_little_every_time(self) -> None:
        """As with a buffer timeout of 1 ms: what a turn has goes out in that turn."""
        a, b = self.worker("a"), self.worker("b")
        ends = [self.channel(a, b, n) for n in range(200)]
        self.settle(lambda: all(sender.available() for sender, _ in ends))
        for turn in range(5):
            for number, (sender, _) in enumerate(ends):
                sender.send(Batch([turn, number]))
            self.settle(lambda: all(receiver.queued() == 1 for _, receiver in ends))
            for number, (_, receiver) in enumerate(ends):
                assert receiver.receive() == Batch([turn, number])
        for sender, receiver in ends:
            sender.close()
            receiver.close()
        self.settle()

    # ---- what overtakes -------------------------------------------------------------------------------------

    def test_an_urgent_element_overtakes_what_waits_on_both_sides(self) -> None:
        credit = GateCredits(exclusive=1, floating=0).channel()
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=credit)
        sent: list[Element] = [Batch([1]), Watermark(1), Batch(["x" * 5000]), Watermark(2)]
        for element in sent:
            sender.send(element)
        self.settle(lambda: receiver.queued() == 2)
        urgent = [receiver.urgent]
        sender.send_urgent(CheckpointBarrier(7, 0))
        sender.send_urgent(CancelCheckpointMarker(7))
        self.settle(lambda: receiver.urgent)
        self.settle()
        urgent.append(receiver.urgent)
        found = [receiver.receive_urgent()]
        self.settle(lambda: receiver.urgent)
        found += [receiver.receive_urgent(), receiver.receive_urgent()]
        assert found == [CheckpointBarrier(7, 0), CancelCheckpointMarker(7), None]
        urgent.append(receiver.urgent)
        assert urgent == [False, True, False]
        assert self.receive(receiver, 4) == sent
        sender.close()

    def test_a_barrier_overtakes_what_waits_and_says_what_that_was(self) -> None:
        credit = GateCredits(exclusive=1, floating=0).channel()
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=credit)
        sent: list[Element] = [Batch([1]), Batch(["x" * 5000]), Batch([3])]
        for element in sent:
            sender.send(element)
        self.settle(lambda: receiver.queued() == 1)
        self.settle()
        told: list[bool] = []
        receiver.on_urgent = lambda: told.append(receiver.urgent)
        barrier = CheckpointBarrier(7, 0, aligned_ms=0)
        assert sender.overtake(barrier) == sent[1:]
        self.settle(lambda: receiver.urgent)
        assert told == [True]
        assert receiver.receive_urgent() == barrier
        first, place = receiver.waiting()
        if isinstance(first, bytes):
            first = decode_element(memoryview(first), SERIALIZER, "what waits")
        assert [first, place] == [sent[0], barrier]
        assert self.receive(receiver, 4) == [sent[0], barrier, *sent[1:]]
        sender.close()

    def test_a_barrier_that_was_sent_overtakes_what_waits_before_it(self) -> None:
        credit = GateCredits(exclusive=1, floating=0).channel()
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=credit)
        self.settle(sender.available)
        later = CheckpointBarrier(7, 0, aligned_ms=9)
        sent: list[Element] = [Batch([1]), Batch([2]), Watermark(2), later, Batch([3])]
        for element in sent:
            sender.send(element)
        assert (sender.holds(7), sender.holds(8)) == (True, False)
        barrier = CheckpointBarrier(7, 0, aligned_ms=0)
        assert sender.overtake(barrier) == [Batch([2])]
        assert not sender.holds(7)
        self.settle(lambda: receiver.urgent)
        assert self.receive(receiver, 5) == [Batch([1]), barrier, Batch([2]), Watermark(2), Batch([3])]
        sender.close()

    def test_a_barrier_overtakes_on_a_channel_without_consumer(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        id_ = ChannelId("early", 0, 1, producer_at=a.name, consumer_at=b.name)
        sender = a.transport.sender(id_, Moves.note, SERIALIZER)
        sender.send(Batch([1]))
        barrier = CheckpointBarrier(7, 0, aligned_ms=0)
        assert sender.overtake(barrier) == [Batch([1])]
        self.settle()
        receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
        assert self.receive(receiver, 2) == [barrier, Batch([1])]
        assert receiver.receive_urgent() == barrier
        sender.close()

    def test_an_urgent_element_may_come_before_the_consumer(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        id_ = ChannelId("early", 0, 0, producer_at=a.name, consumer_at=b.name)
        sender = a.transport.sender(id_, Moves.note, SERIALIZER)
        sender.send(Batch([1]))
        sender.send_urgent(CancelCheckpointMarker(1))
        self.settle()
        receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
        assert self.receive(receiver, 1) == [Batch([1])]
        self.settle(lambda: receiver.urgent)
        assert receiver.receive_urgent() == CancelCheckpointMarker(1)
        sender.close()

    def test_a_batch_cannot_overtake(self) -> None:
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        with pytest.raises(TypeError, match="a batch cannot overtake"):
            sender.send_urgent(Batch([1]))
        receiver.close()
        self.settle(sender.available)
        sender.send_urgent(CancelCheckpointMarker(1))
        self.settle()
        assert receiver.queued() == 0
        sender.close()

    def test_a_channel_without_limit_takes_everything(self) -> None:
        sender, receiver = self.channel(self.worker("a"), self.worker("b"), credit=Unlimited())
        self.settle(sender.available)
        for n in range(20):
            sender.send(Batch([n]))
        self.settle(lambda: receiver.queued() == 20)
        receiver.close()
        self.settle()
        sender.close()

    def test_a_slow_consumer_holds_up_nobody_else_on_the_link(self) -> None:
        a, b = self.worker("a"), self.worker("b")
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
        a, b = self.worker("a"), self.worker("b")
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
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        record = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sender.send(Batch([record], [1]))
        sender.send(Watermark(2))
        assert self.receive(receiver, 2) == [Batch([record], [1]), Watermark(2)]
        sender.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def test_what_was_sent_before_the_end_still_arrives(self) -> None:
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        for n in range(30):
            sender.send(Batch([n]))
        sender.send(EndOfPartition())
        sender.close()
        assert self.receive(receiver, 31) == [*(Batch([n]) for n in range(30)), EndOfPartition()]

    def test_a_consumer_that_goes_frees_the_producer(self) -> None:
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
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
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        sender.send(Batch([1]))
        self.settle(lambda: receiver.queued() > 0)
        sender.fail(ZeroDivisionError("by hand"))
        sender.close()
        assert self.receive(receiver, 1) == [Batch([1])]
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ZeroDivisionError, match="by hand"):
            receiver.receive()
