"""Functions that block, and async generators, as sources: in a thread of their own."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector import Source
from sluiceway.engine import JobStatus
from sluiceway.errors import ConnectorError, FunctionContractError
from sluiceway.runtime.source import threaded_function as threadedfunction
from sluiceway.runtime.source.threaded_function import ThreadedFunctionSource
from sluiceway.testing import NumberFiles
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver, drive_source

COUNT = 30_000


def numbers(count: int = COUNT) -> Iterator[int]:
    yield from range(count)


async def awaited(count: int = COUNT) -> AsyncIterator[int]:
    for number in range(count):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        yield number


both = pytest.mark.parametrize("function", [numbers, awaited])


class TestBlocking(SourceConformance):
    def make_source(self) -> Source[Any]:
        return ThreadedFunctionSource(functools.partial(numbers, 40))

    def expected(self) -> list[Any]:
        return list(range(40))


class TestAsync(SourceConformance):
    def make_source(self) -> Source[Any]:
        return ThreadedFunctionSource(functools.partial(awaited, 40))

    def expected(self) -> list[Any]:
        return list(range(40))


@both
def test_all_records_come_in_order(function: Any) -> None:
    assert drive_source(ThreadedFunctionSource(function)) == list(range(COUNT))


@both
def test_the_function_waits_for_a_task_that_does_not_keep_up(function: Any) -> None:
    taken = most_ahead = 0

    def watch(number: int) -> int:
        nonlocal most_ahead
        most_ahead = max(most_ahead, number - taken)
        return number

    def plain() -> Iterator[int]:
        return map(watch, numbers())

    async def asynchronous() -> AsyncIterator[int]:
        async for number in awaited():
            yield watch(number)

    chosen: Any = plain if function is numbers else asynchronous
    with SourceDriver(ThreadedFunctionSource(chosen), limit=50) as driver:
        while driver.poll():
            taken = len(driver.records[0])
        assert driver.all_records() == list(range(COUNT))
    assert most_ahead <= 2048 + 50


@pytest.mark.parametrize("workers", [0, 1])
def test_other_tasks_go_on_while_it_waits(workers: int, tmp_path: Path) -> None:
    """The records of the one source set free the function of the other, in the same process."""
    gate = tmp_path / "gate"

    def open_gate(number: int) -> int:
        if number == 999:
            gate.touch()
        return number

    def waits(stop: threading.Event) -> Iterator[str]:
        while not gate.exists() and not stop.wait(0.01):
            pass
        yield "freed"

    async def awaits() -> AsyncIterator[str]:
        while not gate.exists():
            await asyncio.sleep(0.01)
        yield "freed, too"

    flow = sw.Pipeline("two sources")
    first = flow.from_function(waits, blocking=True).union(flow.from_function(awaits))
    freed = first.collect()
    others = flow.from_sequence(0, 999).map(open_gate).collect()
    flow.run(workers=workers)
    assert sorted(freed) == ["freed", "freed, too"]
    assert len(others) == 1000


def test_an_error_comes_behind_the_records_before_it_and_with_the_users_traceback() -> None:
    def broken() -> Iterator[int]:
        yield from range(10)
        raise RuntimeError("the sensor is off")

    async def broken_too() -> AsyncIterator[int]:
        for number in range(10):
            yield number
        raise RuntimeError("the sensor is off")

    functions: list[Any] = [broken, broken_too]
    for function in functions:
        with SourceDriver(ThreadedFunctionSource(function)) as driver:
            with pytest.raises(RuntimeError, match="the sensor is off") as caught:
                driver.run()
            assert driver.all_records() == list(range(10))
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[-1] == function.__name__

    flow = sw.Pipeline("broken")
    flow.from_function(broken, blocking=True).for_each(lambda value: None)
    with pytest.raises(RuntimeError, match="the sensor is off") as caught:
        flow.run()
    assert "in step 'source(ThreadedFunctionSource)'" in " ".join(caught.value.__notes__)


def test_a_function_that_gives_nothing_to_go_through_is_told() -> None:
    with pytest.raises(FunctionContractError, match=r"must return an iterable of records; it returned 7 \(int\)"):
        drive_source(ThreadedFunctionSource(lambda: 7))  # type: ignore[arg-type, return-value]


@both
def test_it_goes_on_from_its_position_and_tells_where_it_cannot(function: Any) -> None:
    source: Source[int] = ThreadedFunctionSource(function)
    with SourceDriver(source, limit=100) as driver:
        before = driver.run(most=10_000)
        snapshot = driver.snapshot()
    with SourceDriver(source, restored=snapshot) as driver:
        assert before + driver.run() == list(range(COUNT))
    shorter: Source[int] = ThreadedFunctionSource(functools.partial(function, 7))
    with (
        SourceDriver(shorter, restored=snapshot) as driver,
        pytest.raises(ConnectorError, match=r"ended after 7 records; the position to restore is after record 10"),
    ):
        driver.run()


@pytest.mark.parametrize("workers", [0, 2])
@both
def test_with_checkpoints_each_record_counts_once(function: Any, workers: int, tmp_path: Path) -> None:
    class Fails(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.armed = context.attempt_number == 0

        def map(self, value: int) -> int:
            if self.armed and value == 20_000:
                raise RuntimeError("as told")
            return value

    flow = sw.Pipeline("counted")
    sink = NumberFiles(tmp_path / "out")
    read = flow.from_function(function, blocking=True) if function is numbers else flow.from_function(function)
    read.map(Fails()).sink(sink)
    options: dict[str, Any] = {
        "checkpoint_interval": "10ms",
        "restart": "fixed-delay:1:0ms",
        "log_level": "critical",
    }
    result = flow.run(workers=workers, **options)
    assert result.metrics.restarts == 1
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


# -- ending early -------------------------------------------------------------------------------------------


def ended_early(function: Callable[..., Any], begun: threading.Event, **options: Any) -> JobStatus:
    flow = sw.Pipeline("ended early")
    flow.from_function(function, bounded=False, **options).for_each(lambda value: None)

    async def run() -> JobStatus:
        async with await flow.start() as handle:
            assert await asyncio.to_thread(begun.wait, PATIENT_S)
            await handle.stop()
            return (await handle.result()).status

    return asyncio.run(run())


def test_an_async_generator_is_cancelled_where_it_awaits() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert ended_early(endless, begun) is JobStatus.FINISHED
    assert ended.is_set()


def test_a_function_is_told_by_its_event_and_a_generator_closed_at_its_next_record() -> None:
    begun, ended = threading.Event(), threading.Event()

    def listens(stop: threading.Event) -> Iterator[int]:
        yield 1
        begun.set()
        stop.wait()
        ended.set()

    assert ended_early(listens, begun, blocking=True) is JobStatus.FINISHED
    assert ended.is_set()
    begun.clear()
    ended.clear()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
                begun.set()
        finally:
            ended.set()

    assert ended_early(endless, begun, blocking=True) is JobStatus.FINISHED
    assert ended.is_set()


def test_a_function_that_does_not_end_is_left_to_itself_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threadedfunction, "_GRACE_S", 0.05)
    begun, gate = threading.Event(), threading.Event()

    def deaf() -> Iterator[int]:
        yield 1
        begun.set()
        gate.wait()
        yield 2

    with caplog.at_level(logging.WARNING):
        assert ended_early(deaf, begun, blocking=True) is JobStatus.FINISHED
    assert "deaf() has not ended within 0.05 s of the end of its task" in caplog.text
    (left,) = [thread for thread in threading.enumerate() if thread.name.startswith("sluiceway-source-")]
    gate.set()
    left.join(PATIENT_S)
    assert not left.is_alive()


def test_what_cannot_be_called_so_is_refused() -> None:
    flow = sw.Pipeline("refused")

    async def coroutine() -> list[int]:
        return [1]

    async def wants(more: int) -> AsyncIterator[int]:
        yield more

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (
            awaited,
            {"blocking": True},
            "blocking= is for a plain function; an async generator",
        ),
        (coroutine, {}, "was given the async function .*coroutine"),
        (coroutine, {"blocking": True}, "was given the async function .*coroutine"),
        (wants, {}, "calls its function with 0 arguments"),
        (lambda stop: [1], {}, "calls its function with 0 arguments"),
        (lambda stop, more: [1], {"blocking": True}, "calls its function with 1 argument, but"),
        ([1], {"blocking": True}, "takes a callable, not"),
    ]
    for function, options, message in wrong:
        with pytest.raises(TypeError, match=message):
            flow.from_function(function, **options)
