"""Asynchronous steps in whole jobs, with a real event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.errors import FunctionContractError
from sluiceway.runtime.loop import asyncio_thread as asyncioloop
from sluiceway.testing import PAUSE, PipelineHarness, TestSource


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("options", [{}, {"parallelism": 3}, {"chaining": False, "batch_size": 7}])
def test_every_record_once(ordered: bool, options: dict[str, Any]) -> None:
    flow = sw.Pipeline("all")
    numbers = flow.from_sequence(1, 3000).map(lambda n: n)
    out = numbers.async_map(double, timeout="10s", capacity=50, ordered=ordered).map(lambda n: n + 1).collect()
    flow.run(**options)
    expected = [2 * n + 1 for n in range(1, 3001)]
    assert (list(out) if ordered and "parallelism" not in options else sorted(out)) == expected


class OneRow(sw.AsyncFunction[int, dict[str, int]]):
    """Gives its one row in one list each time."""

    def __init__(self, timeout: bool) -> None:
        self.waits = 9 if timeout else 0
        self.row: dict[str, int] = {}
        self.rows = [self.row]

    async def async_invoke(self, value: int) -> list[dict[str, int]]:
        await asyncio.sleep(self.waits)
        return await self.timeout(value)

    async def timeout(self, value: int) -> list[dict[str, int]]:
        self.row["n"] = value
        return self.rows


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("timeout", [True, False])
def test_one_row_for_all_calls_is_what_it_was_when_each_returned(ordered: bool, timeout: bool) -> None:
    flow = sw.Pipeline("reused")
    numbers = flow.from_sequence(1, 500)
    out = numbers.async_map(OneRow(timeout), timeout=20 if timeout else None, ordered=ordered).collect()
    flow.run()
    assert sorted(row["n"] for row in out) == list(range(1, 501))


@pytest.mark.parametrize("awaits", [True, False])
def test_one_row_of_a_coroutine_function(awaits: bool) -> None:
    row = {}

    async def look_up(value: int) -> dict[str, int]:
        if awaits:
            await asyncio.sleep(0)
        row["n"] = value
        return row

    flow = sw.Pipeline("reused")
    out = flow.from_sequence(1, 500).async_map(look_up, timeout="1m").collect()
    flow.run()
    assert [r["n"] for r in out] == list(range(1, 501))


def test_a_result_that_cannot_be_copied_is_no_failed_call() -> None:
    shared = [threading.Lock()]
    calls = 0

    async def look_up(value: int) -> list[Any]:
        nonlocal calls
        calls += 1
        return shared

    flow = sw.Pipeline("locks")
    retry = sw.AsyncRetryStrategy.fixed_delay(3, 1)
    flow.from_collection([7]).async_map(look_up, timeout="1m", retry=retry).collect()
    with pytest.raises(FunctionContractError, match="a record of type list cannot be copied") as caught:
        flow.run()
    assert calls == 1
    assert "record: 7" in "\n".join(caught.value.__notes__)


def test_the_names_that_flink_has() -> None:
    flow = sw.Pipeline("flink")
    numbers = flow.from_sequence(1, 5)
    retry = sw.AsyncRetryStrategy.fixed_delay(1, 1)
    ordered = sw.AsyncDataStream.ordered_wait(numbers, double, "1s").collect()
    unordered = sw.AsyncDataStream.unordered_wait(numbers, double, 1000, 2, retry).collect()
    flow.run()
    assert list(ordered) == sorted(unordered) == [2, 4, 6, 8, 10]


def test_one_loop_for_all_in_a_thread_of_its_own() -> None:
    loops: list[Any] = []
    threads: set[int] = set()

    class Where(sw.AsyncFunction[int, int]):
        async def open(self, context: sw.RuntimeContext) -> None:
            self.note()

        async def async_invoke(self, value: int) -> list[int]:
            self.note()
            return [value]

        async def close(self) -> None:
            self.note()

        def note(self) -> None:
            loops.append(asyncio.get_running_loop())
            threads.add(threading.get_ident())

    flow = sw.Pipeline("where", parallelism=2)
    numbers = flow.from_sequence(1, 9).rebalance()
    numbers.async_map(Where(), timeout=None).async_map(Where(), timeout=None).collect()
    flow.run()
    assert len(set(map(id, loops))) == 1
    assert len(loops) == 4 + 18 + 4
    assert threads.isdisjoint({threading.get_ident()})


def test_ten_thousand_look_ups_cost_little_more_than_in_asyncio_alone() -> None:
    async def look_up(value: int) -> int:
        await asyncio.sleep(0.01)
        return value

    async def alone() -> None:
        room = asyncio.Semaphore(1000)

        async def one(value: int) -> int:
            async with room:
                return await look_up(value)

        await asyncio.gather(*(one(n) for n in range(10_000)))

    def in_a_job(ordered: bool) -> float:
        flow = sw.Pipeline("look-ups")
        numbers = flow.from_sequence(1, 10_000)
        out = numbers.async_map(look_up, timeout="30s", capacity=1000, ordered=ordered).collect()
        seconds = flow.run().metrics.elapsed_s
        assert len(out) == 10_000
        return seconds

    in_a_job(True)  # what is imported first is not measured
    ratio = 9.0
    for _ in range(3):
        before = time.perf_counter()
        asyncio.run(alone())
        base = time.perf_counter() - before
        ratio = min(ratio, max(in_a_job(True), in_a_job(False)) / base)
        if ratio < 2.5:
            break
    assert ratio < 2.5


def test_results_come_while_the_input_is_quiet() -> None:
    source = TestSource([1, 2, PAUSE])
    flow = sw.Pipeline("quiet")
    with flow.source(source).async_map(double, timeout="10s").execute_and_collect() as records:
        assert [next(records), next(records)] == [2, 4]


def test_a_full_step_holds_up_the_source() -> None:
    made: list[int] = []
    gate = threading.Event()
    begun = threading.Semaphore(0)

    async def wait(value: int) -> int:
        begun.release()
        while not gate.is_set():
            await asyncio.sleep(0.001)
        return value

    flow = sw.Pipeline("full")
    numbers = flow.generate(lambda n: made.append(n) or n, count=5000)
    records = numbers.async_map(wait, timeout=None, capacity=10).execute_and_collect(batch_size=100)
    with records:
        for _ in range(10):
            assert begun.acquire(timeout=PATIENT_S)
        assert not begun.acquire(timeout=0.1)
        assert len(made) <= 300
        gate.set()
        assert list(records) == list(range(5000))


def test_a_timeout_in_real_time_also_at_capacity() -> None:
    class Never(sw.AsyncFunction[int, str]):
        async def async_invoke(self, value: int) -> list[str]:
            await asyncio.Event().wait()
            return []

        def timeout(self, value: int) -> Iterable[str]:
            return [f"gave up on {value}"]

    flow = sw.Pipeline("never")
    out = flow.from_sequence(1, 6).async_map(Never(), timeout="20ms", capacity=2).collect()
    result = flow.run()
    assert list(out) == [f"gave up on {n}" for n in range(1, 7)]
    assert result.metrics.elapsed_s >= 0.06


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_step_of_the_wall_clock_neither_ends_nor_extends_timeouts_and_backoffs(step_ms: int) -> None:
    calls: list[int] = []

    async def fails_once(value: int) -> str:
        calls.append(value)
        if value:
            await asyncio.sleep(2)
            return "in time"
        if len(calls) < 3:
            raise OSError
        await asyncio.Event().wait()
        return "never"

    flow = sw.Pipeline("steps")
    retry = sw.AsyncRetryStrategy.fixed_delay(3, "1s")
    results = flow.from_collection([1, 0]).async_map(fails_once, timeout="5s", retry=retry).collect()
    with PipelineHarness(flow, start_ms=10**12) as harness:
        harness.run()
        harness.clock.set_wall_clock(step_ms)
        harness.advance(999)
        assert calls == [1, 0]
        harness.advance(1)
        assert calls == [1, 0, 0]
        harness.advance(1_000)
        assert list(results) == ["in time"]
        harness.advance(2_999)
        with pytest.raises(TimeoutError, match="no result within 5000 ms"):
            harness.advance(1)


class Cleanup(sw.AsyncFunction[int, int]):
    """Counts what was begun and what was tidied up."""

    begun = tidied = closed = 0
    five_begun: threading.Event

    async def async_invoke(self, value: int) -> list[int]:
        type(self).begun += 1
        if self.begun == 5:
            self.five_begun.set()
        if value == 7:
            raise ConnectionError("lost")
        try:
            await asyncio.Event().wait()
        finally:
            type(self).tidied += 1
        return []

    async def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(autouse=True)
def _counted() -> None:
    Cleanup.begun = Cleanup.tidied = Cleanup.closed = 0
    Cleanup.five_begun = threading.Event()


def test_cancelling_ends_every_coroutine() -> None:
    flow = sw.Pipeline("cancel")
    flow.generate(rate=1000).filter(lambda n: n < 5).async_map(Cleanup(), timeout=None).print()
    job = flow.prepare(Settings())

    def cancel() -> None:
        Cleanup.five_begun.wait(PATIENT_S)
        job.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert job.run().status is sw.JobStatus.CANCELED
    thread.join()
    assert (Cleanup.begun, Cleanup.tidied, Cleanup.closed) == (5, 5, 1)


def test_a_failure_ends_every_other_coroutine_and_names_its_record() -> None:
    flow = sw.Pipeline("fail", parallelism=2)
    flow.from_sequence(1, 9).rebalance().async_map(Cleanup(), timeout=None).print()
    with pytest.raises(ConnectionError, match="lost") as caught:
        flow.run()
    assert "record: 7" in "\n".join(caught.value.__notes__)
    assert Cleanup.begun == Cleanup.tidied + 1
    assert Cleanup.closed == 2


def test_a_coroutine_that_would_exit_the_program_fails_the_job() -> None:
    async def leave(value: int) -> int:
        raise SystemExit(3)

    flow = sw.Pipeline("exit")
    flow.from_collection([1]).async_map(leave, timeout=None).print()
    with pytest.raises(FunctionContractError, match=r"SystemExit\(3\)") as caught:
        flow.run()
    assert "record: 1" in caught.value.__notes__


def test_what_swallows_its_cancellation_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncioloop, "GRACE_S", 0.05)

    async def deaf(value: int) -> int:
        if value == 2:
            raise ValueError("enough")
        for _ in range(4):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue
        return value

    flow = sw.Pipeline("deaf")
    flow.from_collection([1, 2]).async_map(deaf, timeout=None).print()
    with pytest.raises(ValueError, match="enough") as caught:
        flow.run()
    assert "must not swallow asyncio.CancelledError" in "\n".join(caught.value.__notes__)


def test_a_coroutine_that_blocks_the_loop_does_not_hang_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncioloop, "GRACE_S", 0.05)
    gate, blocked = threading.Event(), threading.Event()

    async def block(value: int) -> int:
        blocked.set()
        gate.wait(PATIENT_S)
        return value

    def fail(value: int) -> float:
        assert blocked.wait(PATIENT_S)
        return value / 0

    flow = sw.Pipeline("blocks")
    numbers = flow.from_collection([1])
    numbers.async_map(block, timeout=None).print()
    numbers.map(fail).print()
    threads = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        flow.run()
    assert not gate.is_set()
    gate.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENT_S)


def test_in_a_loop_the_end_waits_for_it() -> None:
    async def halve(n: int) -> int:
        await asyncio.sleep(0.001)
        return n // 2

    flow = sw.Pipeline("halve")
    loop = flow.from_collection([64, 3, 100]).iterate()
    halved = loop.async_map(halve, timeout="10s", ordered=False)
    loop.close_with(halved.filter(lambda n: n > 1))
    out = halved.filter(lambda n: n <= 1).collect()
    flow.run()
    assert list(out) == [1, 1, 1]


def test_what_users_leave_behind_in_the_loop_is_ended_with_it() -> None:
    left: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append("ended")

    kept: list[asyncio.Task[None]] = []

    async def begin(value: int) -> int:
        kept.append(asyncio.get_running_loop().create_task(background()))
        return await asyncio.to_thread(lambda: value + 1)

    flow = sw.Pipeline("left")
    out = flow.from_collection([1]).async_map(begin, timeout=None).collect()
    flow.run()
    assert list(out) == [2]
    assert left == ["ended"]


class Opened(sw.AsyncFunction[int, int]):
    async def open(self, context: sw.RuntimeContext) -> None:
        self.factor = 10

    async def async_invoke(self, value: int) -> list[int]:
        return [value * self.factor]


def test_a_step_that_is_restored_as_finished_ends(tmp_path: Path) -> None:
    def job() -> tuple[sw.Pipeline, list[int]]:
        flow = sw.Pipeline("finished")
        return flow, flow.from_collection([1, 2]).uid("in").async_map(Opened(), timeout="1min").uid(
            "out"
        ).collect()

    flow, results = job()
    flow.run(checkpoints=tmp_path, checkpoint_interval="10ms")
    assert results == [10, 20]
    flow, results = job()
    flow.run(from_checkpoint=tmp_path, checkpoint_interval="10ms")
    assert results == []


def test_retries_go_on_while_an_unaligned_checkpoint_waits_for_room() -> None:
    tried: set[int] = set()

    async def second_time(value: int) -> int:
        if value % 5 == 0 and value not in tried:
            tried.add(value)
            raise ConnectionError("not yet")
        return value

    again = sw.AsyncRetryStrategy.fixed_delay(2, "5ms")
    flow = sw.Pipeline("room")
    numbers = flow.generate(count=200).async_map(second_time, timeout="1min", capacity=1, retry=again)
    results = numbers.key_by(lambda n: n).map(lambda n: n).collect()
    # Of a batch that a source has read, the records that the step has no room for come before the snapshot.
    flow.run(batch_size=7, parallelism=2, checkpoint_interval="2ms", checkpoint_unaligned=True)
    assert sorted(results) == list(range(200))
