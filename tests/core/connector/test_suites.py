"""The conformance suites and their drivers notice what they are there to notice."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Sink,
    SinkWriter,
    Source,
    Wait,
    WriterContext,
)
from sluiceway.connector.lib import CollectionSource, CollectSink
from sluiceway.connector.lib.collection import _CollectionReader
from sluiceway.elements import Batch
from sluiceway.testing import _waits
from sluiceway.testing.conformance._held import nothing_left_behind
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SinkDriver, SourceDriver, drive_source

VALUES = list(range(20))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_waits, "PATIENCE_S", 0.05)
    monkeypatch.setattr("sluiceway.testing.conformance._held._PATIENCE_S", 0.05)
    yield
    for descriptor in leaked:
        os.close(descriptor)
    leaked.clear()


leaked: list[int] = []


def failures(suite: object) -> set[str]:
    """The tests of a suite that fail."""
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except Exception:
                failed.add(name)
    return failed


# ---- sources ---------------------------------------------------------------------------------------------------


class Faulty(CollectionSource[int]):
    """A collection whose reader does what ``fault`` says."""

    def __init__(self, fault: str) -> None:
        super().__init__(VALUES)
        self.fault = fault

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        if self.fault == "gives splits twice" and restored is not None:
            restored = None
        enumerator = super().create_enumerator(context, restored)
        if self.fault == "forgets what comes back":
            enumerator.add_splits_back = lambda splits, reader: None  # type: ignore[method-assign]
        return enumerator

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return FaultyReader(context, self.fault)


class FaultyReader(_CollectionReader[int]):
    def __init__(self, context: ReaderContext, fault: str) -> None:
        super().__init__(context, VALUES, None)
        self.fault = fault
        self.records: list[int] = []
        if fault == "opens when made":
            leaked.append(os.open(os.devnull, os.O_RDONLY))

    def read(self, limit: int) -> Poll[int]:
        if self.fault == "ignores the limit":
            limit = 50
        result = super().read(limit)
        if self.fault == "returns nothing" and result is END_OF_INPUT:
            return []
        if self.fault == "uses one list" and isinstance(result, list):
            self.records[:] = result
            return self.records
        if self.fault == "has times in floats" and isinstance(result, list):
            return Batch(result, [1.0 for _ in result])  # type: ignore[misc]
        if self.fault == "returns a tuple" and isinstance(result, list):
            return tuple(result)  # type: ignore[return-value]
        if self.fault == "waits for nothing" and result is END_OF_INPUT:
            return Wait()
        if self.fault == "loses the last" and isinstance(result, list) and VALUES[-1] in result:
            return result[:-1] or END_OF_INPUT
        return result

    def position(self) -> Any:
        position = super().position()
        if self.fault == "remembers the wrong place" and position is not None and position.start:
            return type(position)(position.index, position.start - 1, position.stop)
        return position

    def close_split(self) -> None:
        if self.fault == "leaves a file open":
            leaked.append(os.open(os.devnull, os.O_RDONLY))


def source_suite(fault: str) -> SourceConformance:
    class Suite(SourceConformance):
        def make_source(self) -> Source[Any]:
            return Faulty(fault)

        def expected(self) -> list[Any]:
            return VALUES

    return Suite()


def test_a_source_without_faults_passes() -> None:
    assert failures(source_suite("none")) == set()


@pytest.mark.parametrize(
    ("fault", "noticed_by"),
    [
        ("returns nothing", "test_every_record_comes_once"),
        ("returns a tuple", "test_every_record_comes_once"),
        ("uses one list", "test_a_poll_keeps_to_its_limit"),
        ("has times in floats", "test_every_record_comes_once"),
        ("waits for nothing", "test_every_record_comes_once"),
        ("loses the last", "test_every_record_comes_once"),
        ("ignores the limit", "test_a_poll_keeps_to_its_limit"),
        ("remembers the wrong place", "test_restored_at_any_position_nothing_is_lost_or_repeated"),
        ("remembers the wrong place", "test_restored_at_another_parallelism_nothing_is_lost_or_repeated"),
        ("gives splits twice", "test_restored_at_any_position_nothing_is_lost_or_repeated"),
        ("gives splits twice", "test_a_snapshot_after_the_end_holds_nothing"),
        ("forgets what comes back", "test_what_a_failed_reader_had_goes_to_another_one"),
        ("leaves a file open", "test_a_job_that_fails_leaves_nothing_behind"),
        ("opens when made", "test_a_reader_can_be_closed_without_being_started"),
    ],
)
def test_a_faulty_source_is_noticed(fault: str, noticed_by: str) -> None:
    with pytest.raises((AssertionError, TypeError)):
        getattr(source_suite(fault), noticed_by)()


def test_wrong_declarations_are_noticed() -> None:
    suite = source_suite("none")
    suite.boundedness = Boundedness.UNBOUNDED
    assert failures(suite) == {"test_it_says_whether_it_ends"}
    suite = source_suite("none")
    suite.expected = lambda: VALUES[::-1]  # type: ignore[method-assign]
    assert failures(suite) == {"test_every_record_comes_once"}
    suite.ordered = False
    assert failures(suite) == set()


def test_a_source_that_cannot_be_sent_is_noticed() -> None:
    class Stuck(CollectionSource[int]):
        def __init__(self) -> None:
            super().__init__(VALUES)
            self.generator = (i for i in VALUES)

    suite = source_suite("none")
    suite.make_source = Stuck  # type: ignore[method-assign]
    assert failures(suite) == {"test_the_description_can_be_pickled_and_opens_nothing"}


def test_two_splits_of_one_name_are_noticed() -> None:
    class Doubled(CollectionSource[int]):
        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            splits = super().create_enumerator(context, restored).snapshot()
            return SimpleEnumerator(context, [*splits[:1], *splits[:1]])

    with SourceDriver(Doubled(VALUES), 2, limit=1) as driver:
        driver.poll()
        with pytest.raises(AssertionError, match="two splits of one source have the same split_id"):
            driver.snapshot()


def test_errors_in_closing_do_not_keep_others_from_being_closed() -> None:
    closed = []

    class Stubborn(_CollectionReader[int]):
        def close(self) -> None:
            closed.append(self.context.subtask)
            raise RuntimeError(f"reader {self.context.subtask}")

    class StubbornSource(CollectionSource[int]):
        def create_reader(self, context: ReaderContext) -> Reader[int]:
            return Stubborn(context, VALUES, None)

    with pytest.raises(RuntimeError, match="reader 0"):
        drive_source(StubbornSource(VALUES), 3)
    assert closed == [0, 1, 2]


# ---- sinks -----------------------------------------------------------------------------------------------------


class FaultySink(CollectSink[Any]):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return FaultyWriter(self.fault, self.collected._extend)


class FaultyWriter(SinkWriter[Any]):
    def __init__(self, fault: str, give: Callable[[Sequence[Any]], None]) -> None:
        self.fault = fault
        self.give = give
        self.kept: list[Sequence[Any]] = []
        self.finished = False

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if self.fault == "wants no timestamps" and timestamps is not None:
            raise ValueError("timestamps")
        self.kept.append(values if self.fault == "keeps the caller's list" else list(values))
        if self.fault == "leaves a file open":
            leaked.append(os.open(os.devnull, os.O_RDONLY))

    def blocked(self) -> Wait | None:
        return Wait() if self.fault == "blocks for ever" and self.kept else None

    def flush(self) -> None:
        if self.fault == "flushes nothing before the end" and not self.finished:
            return
        for values in self.kept:
            self.give(values if self.fault != "turns batches round" else values[::-1])
        if self.fault != "writes again at every flush":
            self.kept.clear()

    def finish(self) -> None:
        self.finished = True
        if self.fault != "drops what it holds at the end":
            self.flush()

    def close(self) -> None:
        if self.fault == "fails to close what it never opened":
            raise RuntimeError("not open")
        if self.fault == "writes when it is closed" and self.kept:
            self.flush()


def sink_suite(fault: str) -> SinkConformance:
    class Suite(SinkConformance):
        visible_after_failure = fault != "writes when it is closed"

        def make_sink(self) -> Sink[Any]:
            self.sink = FaultySink(fault)
            return self.sink

        def written(self) -> list[Any]:
            return list(self.sink.collected)

    return Suite()


def test_a_sink_without_faults_passes() -> None:
    assert failures(sink_suite("none")) == set()


@pytest.mark.parametrize(
    ("fault", "noticed_by"),
    [
        ("keeps the caller's list", "test_every_record_arrives_once"),
        ("drops what it holds at the end", "test_every_record_arrives_once"),
        ("blocks for ever", "test_every_record_arrives_once"),
        ("turns batches round", "test_batches_of_any_size_are_taken"),
        ("wants no timestamps", "test_timestamps_are_taken"),
        ("writes again at every flush", "test_a_flush_may_come_at_any_time"),
        ("flushes nothing before the end", "test_what_was_flushed_is_there_after_a_failure"),
        ("leaves a file open", "test_a_job_that_fails_leaves_nothing_behind"),
        ("writes when it is closed", "test_a_job_that_fails_leaves_nothing_behind"),
        ("fails to close what it never opened", "test_a_writer_can_be_closed_without_being_opened"),
    ],
)
def test_a_faulty_sink_is_noticed(fault: str, noticed_by: str) -> None:
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        getattr(sink_suite(fault), noticed_by)()


def test_a_closed_driver_has_no_writers() -> None:
    driver = SinkDriver(CollectSink())
    driver.close()
    driver.close()
    with pytest.raises(AssertionError, match="the writers are closed"):
        driver.write([1])


def test_a_driver_refuses_what_it_cannot_use() -> None:
    with (
        SinkDriver(CollectSink()) as driver,
        pytest.raises(ValueError, match="2 records were given with 1 timestamps: each needs one"),
    ):
        driver.write([1, 2], [5])
    with pytest.raises(TypeError, match=r"a SourceDriver is restored from what snapshot\(\) .* 'x' \(str\)"):
        SourceDriver(CollectionSource(VALUES), restored="x")  # type: ignore[arg-type]
    source = SourceDriver(CollectionSource(VALUES))
    source.close()
    with pytest.raises(AssertionError, match="the readers are closed"):
        source.run()


def test_a_socket_that_is_left_behind_is_told_with_both_ends() -> None:
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        with pytest.raises(AssertionError) as told, nothing_left_behind():
            client = sockets.enter_context(socket.create_connection(server.getsockname()))
        assert f"AF_INET at {client.getsockname()!r}, peer {server.getsockname()!r}" in str(told.value)


def test_a_socket_that_listens_is_told_with_its_own_end() -> None:
    with ExitStack() as sockets:
        with pytest.raises(AssertionError) as told, nothing_left_behind():
            server = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        assert f"AF_INET at {server.getsockname()!r}, peer None" in str(told.value)
