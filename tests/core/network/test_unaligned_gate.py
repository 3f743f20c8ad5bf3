"""Unaligned checkpoints that follow each other at a gate, are aborted, time out and come with ends of channels."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import (
    BarrierAnnouncement,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
)
from sluiceway.network.channel_state import Recording
from sluiceway.network.credit import GateCredits
from sluiceway.network.input_gate import InputGate
from sluiceway.network.local_channel import LocalTransport
from sluiceway.testing.conformance.channels import SERIALIZER
from sluiceway.transport import ChannelId, Sender

# ---- one by one ----------------------------------------------------------------------------------------------


class Opened:
    """A gate and the senders of its channels."""

    def __init__(self, *overtakes: bool) -> None:
        transport, credits_ = LocalTransport(), GateCredits(exclusive=9)
        self.gate = InputGate()
        self.begun: list[int] = []
        self.recorded: list[bool] = []
        self.gate.on_overtaking = lambda barrier: self.begun.append(barrier.checkpoint_id)
        self.gate.on_recorded = lambda: self.recorded.append(True)
        self.senders: list[Sender] = []
        for index, can in enumerate(overtakes):
            channel = ChannelId("edge", index, 0)
            receiver = transport.receiver(channel, credits_.channel(), partial(self.gate.wake, index), SERIALIZER)
            receiver.on_urgent = partial(self.gate.take_urgent, index)
            self.senders.append(transport.sender(channel, lambda: None, SERIALIZER))
            self.gate.add_channel(receiver, overtakes=can)
        self.gate.start()

    def drain(self) -> list[Element]:
        return list(iter(self.gate.poll, None))


def unaligned(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, 0, aligned_ms=0)


@pytest.mark.parametrize("aborted", [1, 2])
def test_one_that_waits_for_channels_begins_unless_it_is_aborted_itself(aborted: int) -> None:
    opened = Opened(True, False)
    one, other = opened.senders
    one.send(Batch([1]))
    one.send(Batch([2]))
    one.overtake(unaligned(2))
    opened.gate.abort_checkpoint(aborted)
    opened.gate.overtake(unaligned(aborted))  # too late
    other.send(unaligned(2))
    opened.drain()
    assert opened.begun == ([] if aborted == 2 else [2])


def test_the_timeout_of_an_older_one_does_not_take_the_place_of_one_that_waits() -> None:
    opened = Opened(True, False)
    one, other = opened.senders
    one.send(Batch([1]))
    one.send(Batch([2]))
    one.overtake(unaligned(2))
    opened.gate.overtake(unaligned(1))
    other.send(unaligned(2))
    opened.drain()
    assert opened.begun == [2]


@pytest.mark.parametrize("aborted", [1, 2])
def test_one_that_is_recorded_goes_on_unless_it_is_aborted_itself(aborted: int) -> None:
    opened = Opened(True, True)
    one, other = opened.senders
    one.overtake(unaligned(2))
    recording = opened.gate.record(2)
    opened.gate.abort_checkpoint(aborted)
    other.send(Batch([1]))
    other.overtake(unaligned(2))
    assert (recording.batches[1], opened.recorded) == (([], []) if aborted == 2 else ([Batch([1])], [True]))
    assert opened.begun == [2]


def test_a_newer_one_takes_the_place_of_one_whose_snapshot_was_not_taken() -> None:
    opened = Opened(True, True)
    one, other = opened.senders
    one.overtake(unaligned(1))
    other.overtake(unaligned(2))
    assert opened.begun == [1, 2]
    other.send(Batch([1]))
    opened.gate.record(2)
    assert opened.drain() == [Batch([1])]


# ---- against a model -----------------------------------------------------------------------------------------

RECOVERED = -2  # a source of recovered records that is no channel


class Producer:
    """One channel's producer, as a task has it: it sends records, the barrier of each checkpoint, and the end."""

    def __init__(self, stage: Stage, index: int, overtakes: bool, records: int) -> None:
        self.stage, self.index, self.overtakes = stage, index, overtakes
        self.left = deque((index, n) for n in range(records))
        self.sent: list[Any] = []
        self.before: list[Any] = []
        self.overtaken: list[Any] = []
        self.past = 0
        self.ended = False
        channel = ChannelId("edge", index, 0)
        credit, wake = stage.credits.channel(), stage.wake
        self.receiver = stage.transport.receiver(channel, credit, lambda: wake(index), SERIALIZER)
        self.receiver.on_urgent = lambda: stage.gate.take_urgent(index)
        self.sender = stage.transport.sender(channel, lambda: None, SERIALIZER)
        stage.gate.add_channel(self.receiver, overtakes=overtakes)

    def send(self) -> None:
        if self.left:
            self.sent.append(self.left.popleft())
            self.sender.send(Batch([self.sent[-1]]))
        elif not self.ended:
            self.ended = True
            if self.past < self.stage.current:
                self.begin(self.stage.current)
            self.sender.send(EndOfData())
            self.sender.send(EndOfPartition())

    def begin(self, checkpoint: int) -> None:
        self.past, self.before, self.overtaken = checkpoint, list(self.sent), []

    def barrier(self, barrier: CheckpointBarrier) -> None:
        self.begin(barrier.checkpoint_id)
        self.stage.started = barrier.checkpoint_id
        if self.overtakes and barrier.aligned_ms == 0:
            self.overtake(barrier)
            return
        self.sender.send(barrier)
        if self.overtakes:
            self.sender.send_urgent(BarrierAnnouncement(barrier.checkpoint_id, 0, barrier.aligned_ms))

    def overtake(self, barrier: CheckpointBarrier) -> None:
        self.overtaken += [value for batch in self.sender.overtake(barrier) for value in batch.values]


class Stage:
    """Producers, a gate and its task, moved in an order that chance chooses."""

    def __init__(self, lots: Random, overtakes: list[bool], aligned_ms: int, aborts: bool) -> None:
        self.lots, self.aligned_ms, self.aborts = lots, aligned_ms, aborts
        self.transport, self.credits = LocalTransport(), GateCredits(exclusive=1, floating=1)
        self.gate = InputGate()
        self.gate.on_overtaking = self.begins
        self.gate.on_announced = lambda announcement: setattr(self, "timed", announcement.checkpoint_id)
        self.current = self.started = self.timed = self.timed_out = self.settled = 0
        self.begun: CheckpointBarrier | None = None
        self.recording: Recording | None = None
        self.state: list[Any] | None = None
        self.came: list[Any] = []
        self.completed = 0
        self.recovered = [(RECOVERED, n) for n in range(lots.randint(0, 3))]
        for record in self.recovered:
            self.gate.add_recovered(RECOVERED, 0, Batch([record]))
        self.producers = [Producer(self, i, can, lots.randint(0, 12)) for i, can in enumerate(overtakes)]
        self.gate.start()

    @property
    def over(self) -> bool:
        return self.current == self.settled and not self.gate.ready and all(p.ended for p in self.producers)

    def wake(self, index: int) -> None:
        self.gate.wake(index)

    def begins(self, barrier: CheckpointBarrier) -> None:
        assert self.begun is self.state is None
        assert barrier.checkpoint_id == self.current
        assert self.aligned_ms == 0 or self.timed_out == self.current
        self.begun = barrier

    def turn(self) -> None:
        self.lots.choice([self.produce, self.produce, self.poll, self.poll, self.checkpoint])()

    def produce(self) -> None:
        self.lots.choice(self.producers).send()

    def poll(self) -> None:
        element = self.gate.poll()
        if self.begun is not None:
            assert element is None, "nothing is read before the snapshot is taken"
        elif isinstance(element, Batch):
            self.came += element.values
        elif isinstance(element, CheckpointBarrier):
            assert element.checkpoint_id == self.current
            assert self.state is None, "it was taken"
            self.state = list(self.came)

    def checkpoint(self) -> None:
        """Move the checkpoint on by a step, or begin one."""
        owing = [p for p in self.producers if p.past < self.current]
        barrier = CheckpointBarrier(self.current, 0, aligned_ms=self.aligned_ms)
        if self.aborts and owing and self.lots.random() < 0.2:
            self.begun = None
            self.gate.abort_checkpoint(self.current)
            for producer in owing:
                producer.begin(self.current)
                producer.sender.send(CancelCheckpointMarker(self.current))
            self.settle()
        elif self.begun is not None:
            self.state, self.begun = list(self.came), None
            self.recording = self.gate.record(self.current)
        elif owing:
            self.lots.choice(owing).barrier(barrier)
            self.assert_begun()
        elif self.started < self.current:
            # All have ended instead of sending its barrier: the coordinator triggers the task itself.
            self.started = self.current
            self.gate.start_checkpoint(barrier)
            self.assert_begun()
        elif self.timed == self.current and self.lots.random() < 0.5:
            self.time_out()
        elif self.is_complete():
            self.check()
            self.completed += 1
            self.settle()

    def assert_begun(self) -> None:
        if self.aligned_ms == 0 and all(p.overtakes for p in self.producers):
            assert self.begun is not None or self.state is not None, "it waits for nothing"

    def settle(self) -> None:
        self.state = self.recording = None
        self.settled = self.current
        if not all(p.ended for p in self.producers):
            self.current += 1
            for producer in self.producers:
                if producer.ended:
                    producer.begin(self.current)

    def time_out(self) -> None:
        """Do what tasks do at the alignment timeout, at the producers' end or at the consumer's."""
        self.timed_out = self.current
        barrier = CheckpointBarrier(self.current, 0, aligned_ms=0)
        producer = self.lots.choice(self.producers)
        if producer.overtakes and producer.sender.holds(self.current):
            producer.overtake(barrier)
        elif self.state is None and self.begun is None:
            self.gate.overtake(barrier)

    def is_complete(self) -> bool:
        if self.state is None or (self.recording is not None and not self.recording.complete):
            return False
        return not any(p.sender.holds(self.current) for p in self.producers)

    def check(self) -> None:
        assert self.state is not None
        recorded = {} if self.recording is None else self.recording.batches
        for producer in self.producers:
            channel = [record for record in self.state if record[0] == producer.index]
            channel += [value for batch in recorded.get(producer.index, []) for value in batch.values]  # type: ignore[union-attr]
            assert channel + producer.overtaken == producer.before
        of_restore = [record for record in self.state if record[0] == RECOVERED]
        of_restore += [value for batch in recorded.get(RECOVERED, []) for value in batch.values]  # type: ignore[union-attr]
        assert of_restore == self.recovered


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("aligned_ms", [0, 5])
@given(overtakes=st.lists(st.booleans(), min_size=1, max_size=3), seed=st.integers(0, 1 << 32))
@examples(50, 5000)
def test_each_checkpoint_has_what_was_sent_before_its_barrier_once(
    aligned_ms: int, aborts: bool, overtakes: list[bool], seed: int
) -> None:
    stage = Stage(Random(seed), overtakes, aligned_ms, aborts)
    stage.settle()
    for _ in range(2000):
        if stage.over:
            break
        stage.turn()
    everything = [*stage.recovered, *(record for p in stage.producers for record in p.sent)]
    assert sorted(stage.came) == sorted(everything)
    assert stage.over
    assert stage.completed == stage.current or aborts
