"""Checkpoint barriers at a gate, against what the channels' scripts say."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import (
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
)
from sluiceway.network.barrier_alignment import BarrierAlignment
from sluiceway.network.input_gate import InputGate
from sluiceway.transport import Receiver


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, 0)


def cancelled(checkpoint_id: int) -> CancelCheckpointMarker:
    return CancelCheckpointMarker(checkpoint_id)


class Channel(Receiver):
    def __init__(self, script: list[Element]) -> None:
        self.script = deque(script)
        self.queue: deque[Element] = deque()

    def receive(self) -> Element | None:
        return self.queue.popleft() if self.queue else None

    def receive_urgent(self) -> Element | None:
        return None

    def waiting(self) -> list[Element | bytes]:
        return list(self.queue)

    def close(self) -> None:
        self.queue.clear()

    def queued(self) -> int:
        return len(self.queue)


# ---- one by one ----------------------------------------------------------------------------------------------


def test_a_channel_waits_until_the_others_have_delivered() -> None:
    alignment = BarrierAlignment(3)
    assert alignment.barrier(1, barrier(1)) == []
    assert alignment.blocked == {1}
    assert alignment.barrier(0, barrier(1)) == []
    assert alignment.blocked == {0, 1}
    assert alignment.barrier(2, barrier(1)) == [barrier(1)]
    assert alignment.blocked == set()


def test_one_channel_takes_the_short_way() -> None:
    alignment = BarrierAlignment(1)
    assert alignment.barrier(0, barrier(1)) == [barrier(1)]
    assert alignment.barrier(0, barrier(1)) == [], "obsolete"
    assert alignment.barrier(0, barrier(2)) == [barrier(2)]


def test_a_newer_barrier_ends_an_older_one() -> None:
    alignment = BarrierAlignment(2)
    alignment.barrier(0, barrier(1))
    assert alignment.barrier(1, barrier(2)) == [cancelled(1)]
    assert alignment.blocked == {1}
    assert alignment.barrier(0, barrier(1)) == [], "obsolete"
    assert alignment.barrier(0, barrier(2)) == [barrier(2)]


def test_a_cancel_marker_ends_it_and_what_comes_later_of_it_is_ignored() -> None:
    alignment = BarrierAlignment(2)
    alignment.barrier(0, barrier(1))
    assert alignment.cancel(1, cancelled(1)) == [cancelled(1)]
    assert alignment.blocked == set()
    assert alignment.barrier(1, barrier(1)) == []
    assert alignment.cancel(1, cancelled(1)) == []


def test_what_was_aborted_leaves_others_alone() -> None:
    alignment = BarrierAlignment(2)
    alignment.barrier(0, barrier(1))
    assert alignment.abort(2) == [cancelled(2)]
    assert alignment.barrier(1, barrier(1)) == [barrier(1)]
    assert alignment.barrier(0, barrier(2)) == []
    assert alignment.blocked == set()


def test_a_finished_channel_counts_as_delivered() -> None:
    alignment = BarrierAlignment(3)
    alignment.barrier(0, barrier(1))
    assert alignment.finished(1) == []
    assert alignment.finished(2) == [barrier(1)]
    assert alignment.barrier(0, barrier(2)) == [barrier(2)]


def test_where_all_have_finished_a_checkpoint_begins_at_once() -> None:
    alignment = BarrierAlignment(2)
    alignment.finished(0)
    assert alignment.start(barrier(1)) == []
    assert alignment.finished(1) == [barrier(1)]
    assert alignment.start(barrier(2)) == [barrier(2)]


def test_one_that_begins_without_barriers_ends_older_ones_too() -> None:
    alignment = BarrierAlignment(2)
    alignment.barrier(0, barrier(1))
    assert alignment.start(barrier(2)) == [cancelled(1)]
    assert alignment.blocked == set()
    alignment = BarrierAlignment(2)
    assert alignment.start(barrier(2)) == []
    assert alignment.barrier(1, barrier(1)) == [], "obsolete"
    assert alignment.blocked == set()


def test_no_channel_waits_for_a_checkpoint_that_another_one_has_skipped() -> None:
    alignment = BarrierAlignment(2)
    alignment.barrier(0, barrier(2))
    alignment.abort(2)
    assert alignment.barrier(1, barrier(1)) == []
    assert alignment.blocked == set()


def test_at_least_once_counts_several_and_blocks_none() -> None:
    alignment = BarrierAlignment(2, exactly_once=False)
    assert alignment.barrier(0, barrier(1)) == []
    assert alignment.barrier(0, barrier(2)) == []
    assert alignment.blocked == set()
    assert alignment.barrier(1, barrier(1)) == [barrier(1)]
    assert alignment.barrier(1, barrier(2)) == [barrier(2)]


def test_a_savepoint_is_aligned_whatever_the_mode() -> None:
    alignment = BarrierAlignment(2, exactly_once=False)
    savepoint = CheckpointBarrier(2, 0, savepoint="place/savepoint")
    alignment.barrier(0, barrier(1))
    assert alignment.blocked == set()
    alignment.barrier(0, savepoint)
    assert alignment.blocked == {0}
    assert alignment.abort(1) == [cancelled(1)]
    assert alignment.blocked == {0}, "it still waits for the other channel"
    assert alignment.barrier(1, savepoint) == [savepoint]
    assert alignment.blocked == set()


def test_the_gate_tells_when_channels_begin_to_wait() -> None:
    told: list[bool] = []
    channels = [Channel([]), Channel([])]
    gate = InputGate()
    gate.on_alignment = lambda: told.append(True)
    for channel in channels:
        gate.add_channel(channel)
    gate.start()
    channels[0].queue.extend([barrier(1), Batch([1])])
    gate.wake(0)
    assert gate.poll() is None
    gate.wake(0)
    assert gate.poll() is None, "it waits, whatever comes"
    assert told == [True]
    channels[1].queue.append(barrier(1))
    gate.wake(1)
    assert gate.poll() == barrier(1)
    assert gate.poll() == Batch([1])


# ---- against a model -----------------------------------------------------------------------------------------

DELIVER, CANCEL, SKIP = "deliver", "cancel", "skip"


@st.composite
def scripts(draw: st.DrawFn) -> list[list[Element]]:
    """Per channel: records, of each checkpoint its barrier, a cancel marker or nothing, and perhaps the end."""
    checkpoints = draw(st.integers(1, 4))
    made = []
    for channel in range(draw(st.integers(1, 3))):
        script: list[Element] = []
        ends_before = draw(st.integers(1, 2 * checkpoints))
        for id_ in range(1, checkpoints + 1):
            script += [Batch([(channel, id_, n)]) for n in range(draw(st.integers(0, 2)))]
            if id_ == ends_before:
                break
            what = draw(st.sampled_from([DELIVER, DELIVER, DELIVER, CANCEL, SKIP]))
            if what == DELIVER:
                script.append(barrier(id_))
            elif what == CANCEL:
                script.append(cancelled(id_))
        script += [EndOfData(), EndOfPartition()]
        made.append(script)
    return made


@pytest.mark.parametrize("exactly_once", [True, False])
@given(given_scripts=scripts(), seed=st.randoms(use_true_random=False))
def test_a_barrier_divides_the_records_as_the_channels_do(
    exactly_once: bool, given_scripts: list[list[Element]], seed: object
) -> None:
    lots = seed
    channels = [Channel(script) for script in given_scripts]
    gate = InputGate(exactly_once=exactly_once)
    for channel in channels:
        gate.add_channel(channel)
    gate.start()
    came: list[Element] = []
    while any(c.script for c in channels):
        index = lots.choice([i for i, c in enumerate(channels) if c.script])  # type: ignore[attr-defined]
        channels[index].queue.append(channels[index].script.popleft())
        gate.wake(index)
        for _ in range(lots.randint(0, 3)):  # type: ignore[attr-defined]
            if (element := gate.poll()) is not None:
                came.append(element)
    while (element := gate.poll()) is not None:
        came.append(element)

    ids = {e.checkpoint_id for s in given_scripts for e in s if isinstance(e, CheckpointBarrier)}
    whole = [i for i in sorted(ids) if all(_delivers(script, i) for script in given_scripts)]
    assert [e.checkpoint_id for e in came if isinstance(e, CheckpointBarrier)] == whole
    markers = [e.checkpoint_id for e in came if isinstance(e, CancelCheckpointMarker)]
    assert len(markers) == len(set(markers))
    assert not set(markers) & set(whole)
    records = sorted(e.values[0] for s in given_scripts for e in s if isinstance(e, Batch))
    assert sorted(e.values[0] for e in came if isinstance(e, Batch)) == records
    for id_ in whole:
        before = {e.values[0] for e in came[: came.index(barrier(id_))] if isinstance(e, Batch)}
        owed = {record for script in given_scripts for record in _before(script, id_)}
        assert before == owed if exactly_once else before >= owed


def _delivers(script: list[Element], checkpoint_id: int) -> bool:
    ends = not any(
        isinstance(e, CheckpointBarrier | CancelCheckpointMarker) and e.checkpoint_id >= checkpoint_id
        for e in script
    )
    return barrier(checkpoint_id) in script or ends


def _before(script: list[Element], checkpoint_id: int) -> list[object]:
    found = []
    for element in script:
        if element == barrier(checkpoint_id):
            break
        if isinstance(element, Batch):
            found.append(element.values[0])
    return found
