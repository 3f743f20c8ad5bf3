"""Result partitions put small pieces together, and hold and send as the buffer timeout says."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import Batch, CheckpointBarrier, Element, EndOfData, Watermark
from sluiceway.network.partitioners import make_partitioner
from sluiceway.network.result_partition import ResultPartition
from sluiceway.partitioner import Partitioner
from sluiceway.serializers import PickleSerializer
from sluiceway.serializers.edges import OnceSerializer
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.transport import Sender


class Sent(Sender):
    def __init__(self) -> None:
        self.elements: list[Element] = []

    def send(self, element: Element) -> None:
        self.elements.append(element)

    def send_urgent(self, element: Element) -> None:
        raise AssertionError

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch[Any]]:
        raise AssertionError

    def holds(self, checkpoint_id: int) -> bool:
        return False

    def available(self) -> bool:
        return True

    def fail(self, cause: BaseException) -> None:
        raise AssertionError

    def close(self) -> None:
        pass

    def backlog(self) -> int:
        return 0


class SentByReference(Sent):
    by_reference = True


class Probe:
    """Can be pickled, and watched."""


def partition(
    timeout_ms: int, consumers: int = 1, full: int = 4, name: str = "rebalance"
) -> tuple[ResultPartition, list[Sent]]:
    spec = PartitionerSpec(name, (lambda v: v) if name == "hash" else None)
    partitioner: Partitioner = make_partitioner(spec, 128, lambda name: None)  # type: ignore[arg-type,return-value]
    partitioner.setup(0, consumers, 0)
    senders = [Sent() for _ in range(consumers)]
    return ResultPartition(partitioner, senders, timeout_ms, full), senders


def values(sent: Sent) -> list[list[Any]]:
    return [e.values for e in sent.elements if isinstance(e, Batch)]


# ---- a timeout of 0 -----------------------------------------------------------------------------------------


def test_with_timeout_zero_small_pieces_wait_while_the_task_has_more_to_do() -> None:
    out, (sent,) = partition(0, full=10)
    out.emit(Batch([1]), now=5.0)
    out.emit(Batch([2]), now=5.001)
    assert values(sent) == []
    assert out.waiting() == 1
    out.idle()
    assert values(sent) == [[1, 2]]
    assert out.waiting() == 0
    assert out.due is None


def test_with_timeout_zero_they_wait_for_5_ms_at_most() -> None:
    out, _ = partition(0, full=10)
    out.emit(Batch([1]), now=5.0)
    out.emit(Batch([2]), now=5.004)
    assert out.due == pytest.approx(5.005)


def test_with_timeout_zero_a_large_piece_goes_as_it_is() -> None:
    out, (sent,) = partition(0, full=10)
    large = Batch(list(range(10)))
    out.emit(large, now=5.0)
    assert sent.elements[0] is large
    assert out.due is None


def test_a_large_piece_does_not_overtake_small_ones() -> None:
    out, (sent,) = partition(0, full=10)
    out.emit(Batch([1]), now=5.0)
    out.emit(Batch([2, 3, 4, 5, 6, 7]), now=5.0)
    out.idle()
    assert values(sent) == [[1, 2, 3, 4, 5, 6, 7]]


def test_by_reference_half_a_batch_goes_as_it_is_and_in_order() -> None:
    spec: Partitioner = make_partitioner(PartitionerSpec("forward", None), 128, lambda name: None)  # type: ignore[arg-type,return-value]
    spec.setup(0, 1, 0)
    sent = SentByReference()
    out = ResultPartition(spec, [sent], 0, 10)
    half, small = Batch([1, 2, 3, 4, 5]), Batch([6])
    for piece in (half, small, Batch([7, 8, 9, 10, 11]), Batch([12, 13])):
        out.emit(piece, now=5.0)
    assert sent.elements[:2] == [half, small]
    assert values(sent) == [[1, 2, 3, 4, 5], [6], [7, 8, 9, 10, 11]]
    out.idle()
    assert values(sent)[3:] == [[12, 13]]


def test_a_piece_without_company_goes_as_it_is() -> None:
    out, (sent,) = partition(0, full=10)
    small = Batch([1])
    out.emit(small, now=5.0)
    out.idle()
    assert sent.elements[0] is small


# ---- other timeouts -----------------------------------------------------------------------------------------


def test_a_timeout_lets_records_wait_for_company_but_not_longer() -> None:
    out, (sent,) = partition(100)
    out.emit(Batch([1]), now=5.0)
    out.emit(Batch([2]), now=5.05)
    assert values(sent) == []
    assert out.due == pytest.approx(5.1)
    out.idle()
    assert values(sent) == [], "they were told to wait, whatever the task has to do"
    out.flush()
    assert values(sent) == [[1, 2]]
    assert out.due is None


def test_a_full_batch_goes_without_waiting() -> None:
    out, (sent,) = partition(-1, full=3)
    for n in range(4):
        out.emit(Batch([n]), now=0.0)
    out.idle()
    assert values(sent) == [[0, 1, 2]]
    assert out.due is None


def test_what_has_gone_full_leaves_nothing_due() -> None:
    out, (sent,) = partition(100, full=2)
    out.emit(Batch([1, 2]), now=5.0)
    assert values(sent) == [[1, 2]]
    assert out.due is None


@pytest.mark.parametrize("timeout_ms", [0, 100, -1])
def test_an_event_flushes_what_precedes_it(timeout_ms: int) -> None:
    out, sents = partition(timeout_ms, consumers=2, full=100)
    out.emit(Batch([1, 2, 3]), now=0.0)
    out.control(Watermark(7))
    for sent in sents:
        assert isinstance(sent.elements[0], Batch)
        assert sent.elements[1] == Watermark(7)
    assert out.due is None


def test_waiting_records_keep_their_timestamps_and_keys_and_never_share_lists() -> None:
    out, (sent,) = partition(-1, full=100)
    first = Batch(["a"], [1], ["A"])
    out.emit(first, now=0.0)
    out.emit(Batch(["b"], [2], ["B"]), now=0.0)
    out.emit(Batch(["c"], None, ["C"]), now=0.0)
    out.emit(Batch(["d"]), now=0.0)
    out.flush()
    assert (first.values, first.timestamps, first.keys) == (["a"], [1], ["A"])
    assert sent.elements == [Batch(["a", "b"], [1, 2]), Batch(["c"]), Batch(["d"])]
    assert [e.keys for e in sent.elements if isinstance(e, Batch)] == [["A", "B"], ["C"], None]


# ---- whatever happens in whichever order --------------------------------------------------------------------

ACTIONS = st.one_of(
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.sampled_from(["idle", "flush", "event"]),
)


@given(
    st.lists(ACTIONS, max_size=30),
    st.sampled_from([0, 5, -1]),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["rebalance", "hash", "broadcast"]),
)
def test_nothing_is_lost_doubled_or_overtaken(
    actions: list[Any], timeout_ms: int, consumers: int, stamped: bool, name: str
) -> None:
    """Compared with the same partitioner without anything that waits."""
    out, sents = partition(timeout_ms, consumers, full=8, name=name)
    plain, expected = partition(0, consumers, full=1, name=name)
    for number, action in enumerate(actions):
        if action == "event":
            out.control(Watermark(number))
            plain.control(Watermark(number))
        elif action == "idle":
            out.idle()
        elif action == "flush":
            out.flush()
        else:
            stamps = [number] * len(action) if stamped else None
            out.emit(Batch(action, stamps), now=float(number))
            plain.emit(Batch(action, stamps), now=float(number))
            assert timeout_ms < 0 or not out.waiting() or out.due is not None, "nothing waits for ever"
    out.control(EndOfData())
    plain.control(EndOfData())
    for sent, wanted in zip(sents, expected, strict=True):
        assert flat(sent) == flat(wanted)
        assert all(len(e.values) < 8 + 6 for e in sent.elements if isinstance(e, Batch))


def flat(sent: Sent) -> list[Any]:
    found: list[Any] = []
    for e in sent.elements:
        found += zip(e.values, e.timestamps or [None] * len(e), strict=True) if isinstance(e, Batch) else [e]
    return found


# ---- to everybody -------------------------------------------------------------------------------------------


def test_what_goes_to_everybody_is_put_together_once_and_encoded_once() -> None:
    encoded: list[Any] = []

    class Noting(PickleSerializer):
        def dumps(self, value: Any) -> bytes:
            encoded.append(value)
            return super().dumps(value)

    once = OnceSerializer(Noting())
    told: list[int] = []

    def all_sent() -> None:
        told.append(len(encoded))
        once.forget()

    class Encoding(Sent):
        def send(self, element: Element) -> None:
            super().send(element)
            if isinstance(element, Batch):
                assert once.loads(once.dumps(element.values)) == element.values

    partitioner: Partitioner = make_partitioner(PartitionerSpec("broadcast"), 128, lambda name: None)  # type: ignore[arg-type,return-value]
    partitioner.setup(0, 3, 0)
    sents = [Encoding() for _ in range(3)]
    out = ResultPartition(partitioner, sents, -1, 4, sent_to_all=all_sent)
    out.emit(Batch([1, 2]), now=0.0)
    assert out.waiting() == 3
    out.emit(Batch([3], [30]), now=0.0)
    out.emit(Batch([4], [40]), now=0.0)
    out.control(Watermark(7))
    out.emit(Batch([5, 6, 7, 8, 9]), now=0.0)
    for sent in sents:
        assert sent.elements == sents[0].elements
        assert values(sent) == [[1, 2], [3, 4], [5, 6, 7, 8, 9]]
        assert sent.elements[1].timestamps == [30, 40]  # type: ignore[union-attr]
        assert sent.elements[2] == Watermark(7)
    assert encoded == [[1, 2], [3, 4], [5, 6, 7, 8, 9]]
    assert told == [1, 2, 3]
    assert out.waiting() == 0


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True), (True, False, True)])
def test_a_consumer_in_this_process_changes_nothing_that_another_one_gets(order: tuple[bool, ...]) -> None:
    """A sender to another worker may have a batch in its queue, and encode it later."""
    partitioner: Partitioner = make_partitioner(PartitionerSpec("broadcast"), 128, lambda name: None)  # type: ignore[arg-type,return-value]
    partitioner.setup(0, len(order), 0)
    sents = [SentByReference() if here else Sent() for here in order]
    out = ResultPartition(partitioner, sents, -1, 1)
    out.emit(Batch([{"n": 1}]), now=0.0)
    for here, sent in zip(order, sents, strict=True):
        if here:
            assert values(sent) == [[{"n": 1}]]
            sent.elements[0].values[0]["n"] = 99  # type: ignore[union-attr]
    for here, sent in zip(order, sents, strict=True):
        if not here:
            assert values(sent) == [[{"n": 1}]]


def test_of_what_was_encoded_nothing_is_kept() -> None:
    once = OnceSerializer(PickleSerializer())
    made = [Probe()]
    gone = weakref.ref(made[0])
    assert once.dumps(made) is once.dumps(made)
    once.forget()
    del made
    gc.collect()
    assert gone() is None
