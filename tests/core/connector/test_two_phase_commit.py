"""The base classes of sinks that leave nothing behind twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

from sluiceway import IdempotentSink, TwoPhaseCommitSink
from sluiceway.clock import VirtualClock
from sluiceway.connector import CommittingSinkWriter, DeliveryGuarantee, SinkWriter, WriterContext
from sluiceway.metrics import MetricGroup

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def context(subtask: int = 0) -> WriterContext:
    return WriterContext(subtask, 2, VirtualClock(), lambda: None, MetricGroup())


class Transactions(TwoPhaseCommitSink[int, str]):
    begun = 0

    def open(self, context: WriterContext) -> None:
        CALLS.append("open")

    def begin_transaction(self) -> str:
        self.begun += 1
        return f"t{self.begun}"

    def write(self, transaction: str, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        CALLS.append(("write", transaction, list(values)))

    def pre_commit(self, transaction: str) -> None:
        CALLS.append(("pre-commit", transaction))

    def commit(self, transaction: str) -> None:
        CALLS.append(("commit", transaction))

    def abort(self, transaction: str) -> None:
        CALLS.append(("abort", transaction))

    def abort_unknown(self) -> None:
        CALLS.append("abort unknown")

    def close(self) -> None:
        CALLS.append("close")


def writer_of(sink: TwoPhaseCommitSink[Any, Any]) -> CommittingSinkWriter[Any]:
    writer = sink.create_writer(context())
    assert isinstance(writer, CommittingSinkWriter)
    return writer


def test_a_transaction_ends_at_the_barrier_and_is_committed_when_it_is_told() -> None:
    sink = Transactions()
    assert sink.guarantee is DeliveryGuarantee.EXACTLY_ONCE
    writer = writer_of(sink)
    writer.open()
    writer.recover([])
    writer.write([1], None)
    committables = writer.prepare_commit(1)
    writer.write([2], None)
    writer.commit(committables)
    writer.close()
    writer.close()
    assert CALLS == [
        "open",
        "abort unknown",
        ("write", "t1", [1]),
        ("pre-commit", "t1"),
        ("write", "t2", [2]),
        ("commit", "t1"),
        ("abort", "t2"),
        "close",
    ]
    assert sink.begun == 0, "each subtask has a copy"


def test_after_a_restart_what_was_ready_is_committed_and_what_was_open_is_undone() -> None:
    before = writer_of(Transactions())
    before.open()
    before.recover([])
    committables = before.prepare_commit(1)
    CALLS.clear()
    writer = writer_of(Transactions())
    writer.open()
    writer.recover(committables)
    assert CALLS == ["open", ("commit", "t1"), ("abort", "t2"), "abort unknown"]


def test_what_a_later_checkpoint_has_ended_is_committed_and_not_undone() -> None:
    """The one before was given up: what it had ready waits with that of the later one."""
    before = writer_of(Transactions())
    before.open()
    before.recover([])
    committables = [*before.prepare_commit(1), *before.prepare_commit(2)]
    CALLS.clear()
    writer = writer_of(Transactions())
    writer.open()
    writer.recover(committables)
    assert CALLS == ["open", ("commit", "t1"), ("commit", "t2"), ("abort", "t3"), "abort unknown"]


def test_what_was_never_opened_is_not_closed() -> None:
    writer_of(Transactions()).close()
    Upserts().create_writer(context()).close()
    assert CALLS == []


def test_a_sink_that_could_not_recover_is_closed() -> None:
    class Failing(Transactions):
        def recover_and_commit(self, transaction: str) -> None:
            raise OSError("gone")

    writer = writer_of(Failing())
    writer.open()
    with pytest.raises(OSError, match="gone"):
        writer.recover([(True, "t1")])
    writer.close()
    assert CALLS == ["open", "close"]


class Upserts(IdempotentSink[tuple[str, int]]):
    most = 2

    def open(self, context: WriterContext) -> None:
        CALLS.append("open")

    def key_of(self, value: tuple[str, int]) -> Hashable:
        return value[0]

    def upsert(self, entries: Mapping[Any, tuple[str, int]]) -> None:
        CALLS.append(dict(entries))

    def close(self) -> None:
        CALLS.append("close")


def test_of_several_records_with_a_key_the_last_is_written() -> None:
    sink = Upserts()
    assert sink.guarantee is DeliveryGuarantee.IDEMPOTENT
    writer: SinkWriter[Any] = sink.create_writer(context())
    writer.open()
    writer.write([("a", 1), ("a", 2), ("b", 1), ("c", 1)], None)
    assert CALLS == ["open", {"a": ("a", 2), "b": ("b", 1)}]
    writer.flush()
    writer.flush()
    assert CALLS[2:] == [{"c": ("c", 1)}]
    writer.close()
    writer.close()
    assert CALLS[3:] == ["close"]


def test_records_are_written_in_the_order_of_the_last_one_of_each_key() -> None:
    class More(Upserts):
        most = 9

    writer = More().create_writer(context())
    writer.open()
    writer.write([("a", 1), ("b", 1), ("a", 2)], None)
    writer.flush()
    assert list(CALLS[1]) == ["b", "a"]
