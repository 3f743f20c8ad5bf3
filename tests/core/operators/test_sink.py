"""The operator of a sink by itself: batches wait while its writer is blocked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector import CommittingSinkWriter, Sink, SinkWriter, Wait, WriterContext
from sluiceway.elements import Batch
from sluiceway.errors import IncompatibleStateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorContext, OperatorSnapshot
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


class CommittingWriter(Writer, CommittingSinkWriter[int]):
    def __init__(self) -> None:
        super().__init__()
        self.committed: list[str] = []

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        return []

    def commit(self, committables: Sequence[Any]) -> None:
        self.committed += [each.lower() for each in committables]


class Given(Sink[int]):
    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return self.writer


def opened(writer: Writer, *ready: object, attempt: int = 0, allow_dropped_state: bool = False) -> SinkOperator:
    clock = VirtualClock(0)
    operator = SinkOperator(
        OperatorContext(
            node=StreamNode(0, "sink", True, "sink", SinkStep(Given(writer)), 1, 8),
            job_name="test",
            subtask=0,
            attempt=attempt,
            key_groups=KeyGroupRange(0, 8),
            clock=clock,
            state_backend=default_manager().services(clock).state_backend("memory"),
            wake=lambda: None,
            settings=Settings(resume=bool(ready), allow_dropped_state=allow_dropped_state),
        )
    )
    operator.initialize_state([OperatorSnapshot("sink", committables=ready)])
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


def test_a_sink_without_two_phases_does_not_drop_what_is_ready_to_be_committed() -> None:
    with pytest.raises(IncompatibleStateError, match=r"'Given', uid 'sink', .*would be lost.*allow-dropped-state"):
        opened(Writer(), "A")
    opened(Writer(), "A", allow_dropped_state=True)
    opened(Writer())
    opened(writer := CommittingWriter(), "A")
    assert writer.committed == ["a"]


def test_what_another_sink_has_made_ready_is_refused_by_name() -> None:
    with pytest.raises(IncompatibleStateError, match=r"'Given', uid 'sink', cannot commit .*'lower'.*\.uid\("):
        opened(CommittingWriter(), 7)
    with pytest.raises(AttributeError):  # of its own making: a restart may help
        opened(CommittingWriter(), 7, attempt=1)
