"""What a checkpoint keeps that begins ahead of records, against what was sent before its barrier."""

from __future__ import annotations

from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.elements import BarrierAnnouncement, Batch, CheckpointBarrier, Element, EndOfPartition, Watermark
from sluiceway.errors import SerializationError
from sluiceway.network.channel_state import SENT, EdgeName, InFlight, Overtaken, Recording, deal
from sluiceway.network.credit import GateCredits
from sluiceway.network.element_codec import edge_serializer, encode_batch
from sluiceway.network.input_gate import InputGate
from sluiceway.network.local_channel import LocalTransport
from sluiceway.serializers import PickleSerializer
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.transport import ChannelId, Receiver, Sender

NOW = CheckpointBarrier(1, 0, aligned_ms=0)
LATER = CheckpointBarrier(1, 0, aligned_ms=100)


class Consumer:
    """A gate with real channels, and what becomes of what is sent into them."""

    def __init__(self, overtakes: list[bool]) -> None:
        transport, credits_ = LocalTransport(), GateCredits(exclusive=2, floating=1)
        self.overtakes = overtakes
        self.gate = InputGate()
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        self.sent: list[list[int]] = [[] for _ in overtakes]
        self.before: list[list[int] | None] = [None] * len(overtakes)
        self.out: list[list[int]] = [[] for _ in overtakes]
        self.processed: list[list[int]] = [[] for _ in overtakes]
        self.taken: list[list[int]] | None = None
        self.recording: Recording | None = None
        self.given: list[Element] = []
        self.urgent: list[int] = []
        self.begins: list[CheckpointBarrier] = []
        for index, may in enumerate(overtakes):
            id_ = ChannelId("edge", index, 0)
            wake = lambda index=index: self.gate.wake(index)  # noqa: E731
            receiver = transport.receiver(id_, credits_.channel(), wake, PickleSerializer())
            receiver.on_urgent = lambda index=index: self.urgent.append(index)  # type: ignore[misc]
            self.gate.add_channel(receiver, overtakes=may)
            self.receivers.append(receiver)
            self.senders.append(transport.sender(id_, lambda: None, PickleSerializer()))
        self.gate.on_overtaking = self.begins.append
        self.gate.start()

    def send(self, channel: int, values: list[int]) -> None:
        self.senders[channel].send(Batch(values))
        self.sent[channel] += values

    def barrier(self, channel: int) -> None:
        """The producer takes the checkpoint."""
        if self.before[channel] is not None:
            return
        self.before[channel] = list(self.sent[channel])
        if self.overtakes[channel]:
            self.out[channel] = [v for batch in self.senders[channel].overtake(NOW) for v in batch.values]
        else:
            self.senders[channel].send(NOW)

    def look(self) -> None:
        """The task reads its mails."""
        while self.urgent:
            self.gate.take_urgent(self.urgent.pop(0))
        self.attend()

    def attend(self) -> None:
        """The task takes the checkpoint that begins ahead, between two elements."""
        if self.begins:
            self.begins.clear()
            self.take()

    def take(self) -> None:
        assert self.recording is None
        self.taken = [list(values) for values in self.processed]
        self.recording = self.gate.record(1)

    def poll(self) -> bool:
        element = self.gate.poll()
        if type(element) is Batch:
            self.processed[self.gate.last.index] += element.values
        elif type(element) is CheckpointBarrier:
            self.taken, self.recording = [list(values) for values in self.processed], Recording(1)
        elif element is not None:
            self.given.append(element)
        begins = bool(self.begins)
        self.attend()
        return begins or element is not None


@st.composite
def scripts(draw: st.DrawFn) -> tuple[list[bool], list[tuple[str, int]]]:
    channels = draw(st.integers(1, 3))
    overtakes = draw(st.lists(st.booleans(), min_size=channels, max_size=channels))
    step = st.tuples(
        st.sampled_from(["send", "send", "send", "poll", "look", "barrier"]), st.integers(0, channels - 1)
    )
    return overtakes, draw(st.lists(step, max_size=60))


@examples(80, 300)
@given(scripts())
def test_what_is_kept_and_what_was_processed_is_all_that_was_sent_before(
    script: tuple[list[bool], list[tuple[str, int]]],
) -> None:
    overtakes, steps = script
    consumer = Consumer(overtakes)
    number = iter(range(10_000))

    def act(what: str, channel: int) -> None:
        if what == "send":
            consumer.send(channel, [next(number), next(number)])
        elif what == "barrier":
            consumer.barrier(channel)
        elif what == "look":
            consumer.look()
        else:
            consumer.poll()

    for what, channel in steps:
        act(what, channel)
    for channel in range(len(overtakes)):
        act("barrier", channel)
        act("send", channel)
    consumer.look()
    while consumer.poll():
        consumer.look()
    assert consumer.recording is not None
    assert consumer.recording.complete
    assert consumer.taken is not None
    for channel, before in enumerate(consumer.before):
        kept = [v for batch in consumer.recording.batches.get(channel, ()) for v in values_of(batch)]
        assert consumer.taken[channel] + kept + consumer.out[channel] == before
        assert consumer.processed[channel] == consumer.sent[channel], "the task goes on as if nothing was"
        if not overtakes[channel]:
            assert kept == []


def values_of(batch: Any) -> list[int]:
    assert isinstance(batch, Batch)
    return batch.values


# ---- one by one ----------------------------------------------------------------------------------------------


def test_the_checkpoint_begins_with_the_first_barrier_and_waits_for_channels_that_may_not_be_overtaken() -> None:
    free = Consumer([True, True])
    free.send(1, [1])
    free.barrier(0)
    free.look()
    assert free.taken == [[], []]
    assert free.recording is not None
    assert not free.recording.complete
    free.send(1, [2])
    free.barrier(1)
    free.look()
    assert free.recording.complete
    assert [values_of(b) for b in free.recording.batches[1]] == [[1], [2]]

    bound = Consumer([True, False])
    bound.send(0, [1])
    bound.send(1, [2])
    bound.barrier(0)
    bound.look()
    bound.barrier(1)
    assert bound.taken is None
    while bound.poll():
        pass
    assert bound.taken == [[1], [2]], "it has processed what it could meanwhile"


def test_a_batch_that_is_processed_in_part_and_one_that_is_given_again_are_kept() -> None:
    consumer = Consumer([True])
    consumer.gate.add_recovered(77, 0, Batch([1]))
    consumer.gate.add_recovered(77, 0, Batch([2]))
    assert consumer.gate.poll() == Batch([1])
    rest = Batch([10])
    recording = consumer.gate.record(5, rest)
    assert recording.batches[77] == [rest, Batch([2])]


def test_a_producer_that_has_finished_sends_no_barrier() -> None:
    consumer = Consumer([True, True])
    consumer.send(0, [1])
    consumer.senders[0].send(EndOfPartition())
    consumer.barrier(1)
    consumer.look()
    assert consumer.recording is not None
    assert consumer.recording.complete
    assert [values_of(b) for b in consumer.recording.batches[0]] == [[1]]


def test_an_aborted_checkpoint_is_not_recorded_any_more_and_does_not_begin() -> None:
    consumer = Consumer([True, True])
    consumer.barrier(0)
    consumer.look()
    first = consumer.recording
    consumer.gate.abort_checkpoint(1)
    consumer.send(1, [1])
    consumer.barrier(1)
    consumer.look()
    while consumer.poll():
        pass
    assert first is not None
    assert first is consumer.recording
    assert first.batches == {0: [], 1: []}
    never = Consumer([True, False])
    never.barrier(0)
    never.look()
    never.gate.abort_checkpoint(1)
    never.barrier(1)
    while never.poll():
        pass
    assert never.taken is None


def test_announced_barriers_keep_their_place_until_they_are_told_to_overtake() -> None:
    consumer = Consumer([True])
    announced: list[BarrierAnnouncement] = []
    consumer.gate.on_announced = announced.append
    (sender,) = consumer.senders
    consumer.send(0, [1])
    sender.send(LATER)
    sender.send_urgent(BarrierAnnouncement(1, 0, 100))
    consumer.look()
    assert announced == [BarrierAnnouncement(1, 0, 100)]
    assert consumer.taken is None
    consumer.gate.overtake(NOW)
    consumer.attend()
    assert consumer.taken == [[]]
    assert consumer.recording is not None
    assert consumer.recording.complete, "the barrier has come, in its place"
    sender.send_urgent(BarrierAnnouncement(1, 0, 100))
    consumer.look()
    assert len(announced) == 1, "it is over"


def test_a_barrier_that_the_gate_holds_ready_needs_no_poll() -> None:
    consumer = Consumer([True])
    consumer.senders[0].send(Watermark(5))
    consumer.senders[0].send(LATER)
    assert consumer.gate.poll() == Watermark(5)
    consumer.gate._pending.extend([Watermark(6), LATER])
    consumer.gate.overtake(NOW)
    consumer.attend()
    assert consumer.taken == [[]]
    assert consumer.gate.poll() == Watermark(6)


# ---- kept and given again ------------------------------------------------------------------------------------


def place(**other: Any) -> InFlight:
    given: dict[str, Any] = {
        "edge": EdgeName("a", "b"),
        "partitioner": "hash",
        "producer": 0,
        "consumer": 0,
        "consumers": 1,
        "max_parallelism": 8,
        "stage": SENT,
        "frames": (),
        "size": 0,
        "serializer": "",
        "version": 0,
    }
    return InFlight(**{**given, **other})


def test_batches_are_kept_by_the_serializer_of_the_edge_and_read_again() -> None:
    serializer = edge_serializer(None)
    batches = [Batch([1, "two"], [10, 20]), Batch([(3, None)])]
    came = b"".join(encode_batch(batches[1], serializer))
    kept = Overtaken(place(), [batches[0], came], serializer).kept()
    assert (kept.serializer, kept.version) == (serializer.name, serializer.version)
    assert kept.size == sum(map(len, kept.frames)) > 0
    assert list(kept.batches(serializer)) == batches
    with pytest.raises(SerializationError, match=r"batch 1 of the records that were in flight from 'a' to 'b'"):
        list(place(frames=[b"\x01nonsense"], serializer="mine", version=3).batches(serializer))


def shares(batches: list[Batch[int]], spec: PartitionerSpec, parallelism: int) -> list[list[Batch[int]]]:
    return [list(deal(batches, spec, subtask, parallelism, 16)) for subtask in range(parallelism)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), max_size=8),
    st.integers(1, 4),
    st.sampled_from(["hash", "rebalance", "shuffle", "global", "rescale", "forward", "custom"]),
)
def test_everything_is_dealt_out_once_and_keys_stay_together_in_order(
    values: list[list[int]], parallelism: int, name: str
) -> None:
    spec = PartitionerSpec(name, key=lambda n: n % 5)
    batches = [Batch(some, [v * 10 for v in some]) for some in values]
    found = shares(batches, spec, parallelism)
    dealt = [[v for batch in share for v in batch.values] for share in found]
    everything = [v for some in values for v in some]
    assert sorted(v for share in dealt for v in share) == sorted(everything)
    assert all(batch.timestamps == [v * 10 for v in batch.values] for share in found for batch in share)
    if name == "hash":
        for key in range(5):
            of_key = [[v for v in share if v % 5 == key] for share in dealt]
            assert [v for v in everything if v % 5 == key] in of_key
    elif name == "global":
        assert dealt[0] == everything
    else:
        sizes = [len(share) for share in dealt]
        assert max(sizes) - min(sizes) <= 1


def test_what_has_no_key_goes_to_the_first_where_it_is_skipped() -> None:
    spec = PartitionerSpec("hash", key=lambda n: 10 // n, skips=True)
    found = shares([Batch([1, 0, 2]), Batch([0], [5])], spec, 3)
    assert [batch for batch in found[0] if 0 in batch.values] == [Batch([0]), Batch([0], [5])]
    assert sorted(v for share in found for batch in share for v in batch.values) == [0, 0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        shares([Batch([1, 0])], PartitionerSpec("hash", key=lambda n: 10 // n), 3)


def test_who_broadcasts_now_gives_all_to_everybody() -> None:
    assert (
        shares([Batch([1]), Batch([2, 3])], PartitionerSpec("broadcast"), 2) == [[Batch([1]), Batch([2, 3])]] * 2
    )


def test_what_has_no_timestamps_is_dealt_out_without() -> None:
    batches = [Batch([1, 2]), Batch([3], [30])]
    assert shares(batches, PartitionerSpec("rebalance"), 2) == [[Batch([1]), Batch([3], [30])], [Batch([2])]]


def test_an_urgent_barrier_whose_place_was_seen_before_records_nothing_again() -> None:
    recording = Recording(1)
    queued: list[Element | bytes] = [Batch([1]), NOW]
    recording.begin(0, [])
    recording.begin(1, queued)
    recording.announced(1, queued)
    assert recording.batches == {0: [], 1: [Batch([1])]}


def test_what_is_recorded_is_what_was_in_flight() -> None:
    """It is written later, while the consumer changes the records."""
    waiting, taken, coming, known = ([{"n": n}] for n in range(4))
    recording = Recording(1)
    recording.add(7, Batch(taken))
    recording.begin(0, [Batch(waiting)])
    recording.received(0, Batch(known))
    recording.received(0, Batch(coming))
    for batch in (waiting, taken, coming):
        batch[0]["n"] += 100
    kept = {channel: [batch.values for batch in batches] for channel, batches in recording.batches.items()}  # type: ignore[union-attr]
    assert kept == {7: [[{"n": 1}]], 0: [[{"n": 0}], [{"n": 2}]]}
