"""Gates read fairly and merge control elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from sluiceway.elements import (
    Batch,
    Element,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    TerminationProbe,
    Watermark,
    WatermarkStatus,
)
from sluiceway.network.credit import GateCredits, Unlimited
from sluiceway.network.input_gate import InputGate
from sluiceway.network.local_channel import LocalTransport
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId, Sender

PICKLE = PickleSerializer()


def gate_of(channels: int, feedback: Sequence[int] = ()) -> tuple[InputGate, list[Sender]]:
    transport, gate, credits_ = LocalTransport(), InputGate(), GateCredits()
    senders = []
    for i in range(channels):
        id_ = ChannelId("e", i, 0)
        ledger = Unlimited() if i in feedback else credits_.channel()
        gate.add_channel(transport.receiver(id_, ledger, partial(gate.wake, i), PICKLE), feedback=i in feedback)
        senders.append(transport.sender(id_, lambda: None, PICKLE))
    gate.start()
    return gate, senders


def drain(gate: InputGate) -> list[Element]:
    out = []
    while (element := gate.poll()) is not None:
        out.append(element)
    return out


def test_reading_is_fair_among_channels_with_data() -> None:
    gate, senders = gate_of(2)
    for n in range(3):
        senders[0].send(Batch([("a", n)]))
    senders[1].send(Batch([("b", 0)]))
    values = [e.values[0] for e in drain(gate) if isinstance(e, Batch)]
    assert values.index(("b", 0)) <= 1
    assert [v for v in values if v[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]


def test_watermarks_are_merged_and_markers_are_not() -> None:
    gate, senders = gate_of(2)
    marker = LatencyMarker(0.5, "s", 0)
    senders[0].send(Watermark(10))
    senders[0].send(marker)
    assert drain(gate) == [marker]
    senders[1].send(Watermark(4))
    senders[1].send(WatermarkStatus(False))
    assert drain(gate) == [Watermark(4), Watermark(10)]
    assert gate.watermark == 10


def test_the_end_is_told_once_when_every_channel_has_told_it() -> None:
    gate, senders = gate_of(2)
    for element in (EndOfData(), EndOfPartition()):
        senders[0].send(element)
    assert drain(gate) == []
    senders[1].send(Batch([1]))
    senders[1].send(EndOfData())
    senders[1].send(EndOfPartition())
    assert drain(gate) == [Batch([1]), EndOfData(), EndOfPartition()]


def test_feedback_takes_no_part_in_watermarks_and_ends() -> None:
    gate, senders = gate_of(2, feedback=[1])
    senders[1].send(Watermark(99))
    senders[1].send(WatermarkStatus(False))
    senders[0].send(Watermark(5))
    senders[0].send(EndOfData())
    assert drain(gate) == [Watermark(5), EndOfData()]


def test_a_probe_is_told_when_all_have_sent_it_with_the_lowest_count() -> None:
    gate, senders = gate_of(3)
    senders[0].send(TerminationProbe("loop", 3))
    senders[1].send(TerminationProbe("loop", 1))
    assert drain(gate) == []
    senders[2].send(EndOfData())
    senders[2].send(EndOfPartition())
    assert TerminationProbe("loop", 1) in drain(gate)


def test_a_long_feedback_queue_is_drained_first() -> None:
    gate, senders = gate_of(2, feedback=[1])
    for n in range(20):
        senders[1].send(Batch([n]))
    senders[0].send(Batch(["new"]))
    first = gate.poll()
    assert isinstance(first, Batch)
    assert first.values == [0]


def test_a_failed_producer_reports_its_cause_to_the_consumer() -> None:
    gate, senders = gate_of(1)
    senders[0].send(Batch([1]))
    senders[0].fail(RuntimeError("disk on fire"))
    assert gate.poll() == Batch([1])
    with pytest.raises(RuntimeError, match="disk on fire"):
        gate.poll()


def test_a_producer_that_is_lost_after_its_end_does_not_fail_the_consumer() -> None:
    gate, senders = gate_of(2)
    for element in (EndOfData(), EndOfPartition()):
        senders[0].send(element)
    assert drain(gate) == []
    senders[0].fail(RuntimeError("the link was lost"))
    senders[1].send(Batch([1]))
    assert drain(gate) == [Batch([1])]
    senders[1].fail(RuntimeError("disk on fire"))
    with pytest.raises(RuntimeError, match="disk on fire"):
        gate.poll()


def test_a_consumer_that_goes_away_sets_its_producers_free() -> None:
    gate, senders = gate_of(1)
    for n in range(50):
        senders[0].send(Batch([n]))
    assert not senders[0].available()
    assert senders[0].backlog() > 0
    gate.close()
    assert senders[0].available()
    assert senders[0].backlog() == 0
    senders[0].send(Batch([51]))
    assert gate.queued() == 0


def test_a_channel_may_be_opened_from_its_producers_end() -> None:
    transport, gate = LocalTransport(), InputGate()
    id_ = ChannelId("e", 0, 0)
    woken: list[str] = []
    sender = transport.sender(id_, lambda: woken.append("producer"), PICKLE)
    assert not sender.available()
    sender.send(Batch([1]))
    sender.send(Watermark(3))
    sender.send(Batch([2]))
    gate.add_channel(transport.receiver(id_, GateCredits().channel(), partial(gate.wake, 0), PICKLE))
    gate.start()
    assert drain(gate) == [Batch([1]), Watermark(3), Batch([2])]
    assert sender.available()
    assert "producer" in woken
