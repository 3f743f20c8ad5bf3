"""Conformance suite for carriers: guarantees of the core's channels over them.

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
import struct
import tempfile
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.clock import SystemClock
from sluiceway.elements import Batch, CancelCheckpointMarker, CheckpointBarrier, Element
from sluiceway.errors import CorruptStreamError, NoResourceAvailableError
from sluiceway.network.credit import GateCredits
from sluiceway.network.frames import OPEN, pack_open
from sluiceway.network.transport import NetworkTransport
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop as Loop
from sluiceway.testing.conformance.channels import SERIALIZER, ChannelConformance, Moves, Worker
from sluiceway.transport import ChannelId
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import Carrier, CarrierContext, Link
from sluiceway.util.overriding import override

__all__ = ["CarrierConformance", "Party"]

_SECRET = b"conformance" * 3

_CHANNEL = b"nnnn"
_NUMBERS = st.lists(st.sampled_from([0, 1, 2, 3, 255, 2**31, 2**32 - 1]), max_size=4)
_BODIES = st.sampled_from([b"", b"\0", b"\1", b"\1\x80", b"\3\x91\1", b"\x94\xa1e\0\0\0", b"\xff" * 9])
_LIKE_FRAMES = st.builds(
    lambda kind, numbers, body, cut: (
        bytes([kind]) + _CHANNEL + struct.pack(f"<{len(numbers)}I", *numbers) + body
    )[:cut],
    st.sampled_from(range(11)),
    _NUMBERS,
    _BODIES,
    st.sampled_from((1, 4, 5, 8, 9, 12, 13, 14, 17, 40, 41, 42)),
)
_FRAMES = st.binary(max_size=40) | _LIKE_FRAMES
"""Bytes that are no frame, or nearly one: about the channel whose number is put in the place of _CHANNEL."""


class Party:
    """A worker, as far as its network goes.

    Attributes:
        listens: whether its transport is told of the links that peers make; if not, this is:
        links: links that peers have made.
        opened: links by which a peer has opened a channel, and its number.
        timers: the calls that its carrier has asked for.
        warnings: what its carrier has warned of.
    """

    def __init__(
        self, name: str, carrier: Carrier, addresses: dict[str, str], directory: str, segments: int, size: int
    ) -> None:
        self.name = name
        self.poller = SelectorPoller()
        self.clock = SystemClock()
        self.timers = Loop(self.clock, self.poller)
        self.warnings: list[str] = []
        self.links: list[Link] = []
        self.opened: list[tuple[Link, bytes]] = []
        self.listens = True
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
                accepted=lambda link: self.accepted(link),
                later=lambda action, after_s: self.timers.at(self.clock.monotonic() + after_s, action),
                warn=self.warnings.append,
            )
        )
        addresses[name] = self.address
        self.buffers = NetworkBufferPool(carrier.segments(segments, size))
        self.transport = NetworkTransport(
            carrier, self.buffers, addresses.__getitem__, self._soon.append, pickle.dumps, pickle.loads
        )

    def accepted(self, link: Link) -> None:
        """Take a link that a peer has made."""
        self.links.append(link)
        if self.listens:
            self.transport.accepted(link)
        else:
            link.on_frame = lambda header, payload: self._heard(link, header)

    def _heard(self, link: Link, header: bytes) -> None:
        if header[0] == OPEN:
            self.opened.append((link, header[1:5]))

    def turn(self, timeout_s: float) -> None:
        """Run one turn of the loop."""
        soon = self._soon
        while soon:
            soon.popleft()()
        self.timers.run_ready()
        self.poller.poll(timeout_s)
        while soon:
            soon.popleft()()

    def die(self) -> None:
        """Go without a word."""
        self.transport.close()


class CarrierConformance(ChannelConformance):
    """Suite of carriers.

    Subclass it, give it a name that pytest collects, and implement :meth:`make_carrier`.

    Attributes:
        segments: network buffers of each worker.
        segment_bytes: size of each.
        breaks: whether :meth:`break_links` is implemented.
    """

    segments = 256
    segment_bytes = 1024
    breaks = False

    @abstractmethod
    def make_carrier(self) -> Carrier:
        """Return a new carrier."""

    def break_links(self, one: Party, other: Party) -> None:
        """Break what connects two workers, as a fault would, with neither of them doing it."""
        raise NotImplementedError

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

    @override
    def worker(self, name: str) -> Party:
        made = Party(
            name, self.make_carrier(), self._addresses, self._directory, self.segments, self.segment_bytes
        )
        self._parties.append(made)
        return made

    def workers(self) -> list[Worker]:
        return list(self._parties)

    # ---- buffers --------------------------------------------------------------------------------------------

    def test_a_record_may_need_more_buffers_than_there_are(self) -> None:
        self.segments = 4
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        record = bytes(range(256)) * 400
        sender.send(Batch([record]))
        sender.send_urgent(CancelCheckpointMarker(1))
        assert self.receive(receiver, 1) == [Batch([record])]
        assert receiver.receive_urgent() == CancelCheckpointMarker(1)
        sender.close()

    def test_a_barrier_overtakes_a_record_that_has_gone_in_part(self) -> None:
        self.segments = 4
        sender, receiver = self.channel(self.worker("a"), self.worker("b"))
        self.settle(sender.available)
        batch = Batch([bytes(range(256)) * 400])
        sender.send(batch)
        barrier = CheckpointBarrier(7, 0, aligned_ms=0)
        overtaken = sender.overtake(barrier)
        assert overtaken in ([batch], []), "a carrier may free segments at once"
        assert self.receive(receiver, 2) == ([barrier, batch] if overtaken else [batch, barrier])
        sender.send(Batch([1]))
        assert sender.overtake(CheckpointBarrier(8, 0, aligned_ms=0)) == []
        sender.close()

    def test_more_channels_than_buffers_are_refused_with_what_to_do(self) -> None:
        self.segments = 3
        a = self.worker("a")
        ids = [ChannelId("edge", 0, n, producer_at="a", consumer_at="b") for n in range(4)]
        senders = [a.transport.sender(id_, Moves.note, SERIALIZER) for id_ in ids[:3]]
        with pytest.raises(
            NoResourceAvailableError,
            match=r"edge\[0\] needs 4 network buffers, .* the worker's 3 .*: raise the option 'network-buffers'",
        ):
            a.transport.sender(ids[3], Moves.note, SERIALIZER)
        for sender in senders:
            sender.close()

    def test_a_slow_consumer_takes_no_buffer_from_others_of_its_partition(self) -> None:
        self.segments = 4
        a, b = self.worker("a"), self.worker("b")
        ends = []
        for n in range(2):
            id_ = ChannelId("edge", 0, n, producer_at="a", consumer_at="b")
            credit = GateCredits(exclusive=10).channel()
            receiver = b.transport.receiver(id_, credit, Moves.note, SERIALIZER)
            ends.append((a.transport.sender(id_, Moves.note, SERIALIZER), receiver))
        (slow, slow_end), (quick, quick_end) = ends
        batch = Batch([b"x" * 900])
        for _ in range(10):
            slow.send(batch)
        for _ in range(10):
            quick.send(batch)
            assert self.receive(quick_end, 1) == [batch]
        assert self.receive(slow_end, 10) == [batch] * 10
        for sender, receiver in ends:
            receiver.close()
            sender.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def test_what_was_sent_in_the_last_turn_of_a_worker_still_arrives(self) -> None:
        """Such as the end of its partitions, when its tasks have finished."""
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        self.settle(sender.available)
        sent: list[Element] = [Batch([1]), Batch(["x" * 5000]), CheckpointBarrier(7, 0)]
        for element in sent:
            sender.send(element)
        a.die()
        assert self.receive(receiver, 3) == sent

    def test_a_worker_that_dies_is_noticed_by_its_consumers(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        sender.send(Batch([1]))
        self.settle(lambda: receiver.queued() > 0)
        a.die()
        assert self.receive(receiver, 1) == [Batch([1])], "what had come stays good"
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ConnectionError, match="'a'"):
            receiver.receive()

    def test_a_worker_that_dies_is_noticed_by_its_producers(self) -> None:
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        for n in range(30):
            sender.send(Batch([n]))
        self.settle(lambda: receiver.queued() > 0)  # only a worker that has a link can notice its end
        assert not sender.available()
        b.die()
        self.settle(sender.available)
        sender.close()

    def test_a_worker_that_nobody_can_reach_is_named(self) -> None:
        b = self.worker("b")
        gone = self.worker("gone")
        gone.die()
        id_ = ChannelId("edge", 0, 0, producer_at="gone", consumer_at="b")
        receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
        self.settle(lambda: receiver.queued() > 0)
        with pytest.raises(ConnectionError, match="'gone'"):
            receiver.receive()

    def test_a_worker_serves_others_after_one_has_died(self) -> None:
        a, b, c = self.worker("a"), self.worker("b"), self.worker("c")
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

    def test_a_link_that_breaks_is_told_and_another_can_be_made(self) -> None:
        if not self.breaks:
            pytest.skip("this suite does not break links")
        a, b = self.worker("a"), self.worker("b")
        sender, receiver = self.channel(a, b)
        sent = [Batch([n, "x" * (n % 3 * 600)]) for n in range(200)]
        for batch in sent:
            sender.send(batch)
        got = self.receive(receiver, 20)
        self.break_links(a, b)
        loss = None
        while loss is None:
            self.settle(lambda: receiver.queued() > 0)
            try:
                got.append(cast("Element", receiver.receive()))
            except ConnectionError as error:
                loss = error
        assert "'a'" in str(loss)
        assert len(got) < len(sent)
        assert got == sent[: len(got)], "none is missing, none came twice"
        self.settle(sender.available)
        sender.send(Batch(["in vain"]))
        assert sender.backlog() == 0
        sender.close()
        receiver.close()
        again, again_end = self.channel(a, b, edge="again")
        again.send(Batch([1]))
        assert self.receive(again_end, 1) == [Batch([1])]
        again.close()

    @pytest.mark.parametrize("parts", ["a", "b"])
    def test_what_has_come_stays_good_when_a_worker_parts_from_one_that_lives(self, parts: str) -> None:
        self.segments = 4
        a, b, c = self.worker("a"), self.worker("b"), self.worker("c")
        sender, receiver = self.channel(a, b, credit=GateCredits(exclusive=3).channel())
        sent = [Batch([bytes([n]) * 900]) for n in range(3)]
        for batch in sent:
            sender.send(batch)
        self.settle(lambda: receiver.queued() == len(sent))
        (link,) = a.links if parts == "a" else [b.transport._to_producers["a"]._link]
        link.close()
        self.settle(sender.available if parts == "b" else lambda: receiver.queued() > len(sent))
        sender.close()
        others = [Batch([bytes([n]) * 900]) for n in range(100, 120)]
        other, other_end = self.channel(a, c, edge="other")
        for batch in others:
            other.send(batch)
        assert self.receive(other_end, len(others)) == others, "one buffer is free"
        assert [receiver.receive() for _ in sent] == sent
        receiver.close()
        other.close()
        other_end.close()
        self.settle(lambda: a.buffers.available == a.buffers.total)

    # ---- what is no frame -----------------------------------------------------------------------------------

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(frames=st.lists(_FRAMES, max_size=5))
    def test_a_consumer_that_sends_anything_harms_nobody_else(self, frames: list[bytes]) -> None:
        a, b, stranger = self._three()
        edge = f"edge{next(self._edges)}"
        id_ = ChannelId(edge, 0, 0, producer_at="a", consumer_at="stranger")
        sender = a.transport.sender(id_, Moves.note, SERIALIZER)
        link = stranger.carrier.connect("a", self._addresses["a"])
        link.send(pack_open(7, id_, 2))
        self.settle(sender.available)
        sender.send(Batch([1]))
        for frame in frames:
            link.send(frame.replace(_CHANNEL, struct.pack("<I", 7)))
        self.rounds = 2
        self.settle()
        link.close()
        self.settle(sender.available)
        sender.close()
        self._still_works(a, b)

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(frames=st.lists(st.tuples(_FRAMES, st.none() | st.binary(max_size=40)), max_size=5))
    def test_a_producer_that_sends_anything_is_found_out(self, frames: list[tuple[bytes, bytes | None]]) -> None:
        a, b, stranger = self._three()
        edge = f"edge{next(self._edges)}"
        id_ = ChannelId(edge, 0, 0, producer_at="stranger", consumer_at="b")
        receiver = b.transport.receiver(id_, GateCredits().channel(), Moves.note, SERIALIZER)
        self.settle(lambda: bool(stranger.opened))
        link, number = stranger.opened.pop()
        pool = stranger.buffers.create_pool(1, on_available=lambda: None)
        for frame, data in frames:
            payload = None if data is None else pool.request()
            if payload is not None and data is not None:
                payload.memory[: len(data)] = data
                payload.size = len(data)
            link.send(frame.replace(_CHANNEL, number), payload)
        self.rounds = 2
        self.settle()
        while receiver.queued():
            try:
                receiver.receive()
            except (CorruptStreamError, ConnectionError):
                break
        receiver.close()
        self.settle()
        pool.close()
        self._still_works(a, b)

    def _three(self) -> tuple[Party, Party, Party]:
        """Two workers, and one that sends what it likes. For all examples of a test."""
        if not self._parties:
            self.worker("a")
            self.worker("b")
            self.worker("stranger").listens = False
            self._edges = count()
        a, b, stranger = self._parties
        return a, b, stranger

    def _still_works(self, a: Party, b: Party) -> None:
        sender, receiver = self.channel(a, b, edge=f"edge{next(self._edges)}")
        batch = Batch([bytes(3000)])
        sender.send(batch)
        assert self.receive(receiver, 1) == [batch]
        sender.close()
        receiver.close()
        self.settle()
