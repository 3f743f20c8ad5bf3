"""The operator of a sink by itself: batches wait while its writer is blocked."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.clock import VirtualClock
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.elements import Batch
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorContext
from sluiceway.operators.sink import SinkOperator
from sluiceway.plugins import default_manager
from sluiceway.steps import SinkStep
from sluiceway.streamgraph import StreamNode


class Writer(SinkWriter[int]):
    """Is blocked after each batch until the test frees it."""

    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.full = False
        self.finished = False
        self.flushed = 0

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        assert not self.full, "written to while blocked"
        self.got.append(list(values))
        self.full = True

    def blocked(self) -> Wait | None:
        return Wait() if self.full else None

    def flush(self) -> None:
        self.flushed += 1

    def finish(self) -> None:
        assert not self.full, "finished while blocked"
        self.finished = True


class Given(Sink[int]):
    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return self.writer


def opened(writer: Writer) -> SinkOperator:
    clock = VirtualClock(0)
    operator = SinkOperator(
        OperatorContext(
            node=StreamNode(0, "sink", True, "sink", SinkStep(Given(writer)), 1, 8),
            job_name="test",
            subtask=0,
            attempt=0,
            key_groups=KeyGroupRange(0, 8),
            clock=clock,
            state_backend=default_manager().services(clock).state_backend("memory"),
            wake=lambda: None,
        )
    )
    operator.initialize_state([])
    operator.open()
    return operator


def test_batches_that_come_while_the_writer_is_blocked_wait_in_order() -> None:
    operator = opened(writer := Writer())
    for number in range(3):
        operator.process(Batch([number]))
    assert (writer.got, operator.waiting) == ([[0]], 2)
    for written in ([[0], [1]], [[0], [1], [2]]):
        writer.full = False
        assert operator.blocked() is not None, "by the next batch"
        assert (writer.got, operator.waiting) == (written, 3 - len(written))
    writer.full = False
    assert operator.blocked() is None


def test_a_writer_is_finished_when_it_has_all_batches() -> None:
    operator = opened(writer := Writer())
    for number in range(2):
        operator.process(Batch([number]))
    operator.finish()
    assert not writer.finished
    writer.full = False
    assert operator.settling() is not None
    assert (writer.got, writer.finished) == ([[0], [1]], False)
    writer.full = False
    assert operator.settling() is None
    assert writer.finished


def test_nothing_that_was_written_is_in_a_snapshot_without_a_flush() -> None:
    operator = opened(writer := Writer())
    operator.process(Batch([1]))
    operator.before_barrier()
    assert not writer.flushed, "it is blocked"
    writer.full = False
    assert operator.pending_before_snapshot() is None
    assert writer.flushed == 1
