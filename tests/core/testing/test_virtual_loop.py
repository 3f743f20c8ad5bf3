"""Coroutines in the harnesses: virtual time for what waits for time, real patience for what waits outside."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.testing import EOF, PAUSE, OperatorHarness, PipelineHarness, TestSource, run_pipeline


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


async def an_hour(value: int) -> int:
    await asyncio.sleep(3600)
    return value


def test_an_hour_takes_no_time() -> None:
    flow = sw.Pipeline("hours")
    out = flow.from_collection([1, 2]).async_map(an_hour, timeout="2h", capacity=1).collect()
    before = time.monotonic()
    with PipelineHarness(flow) as harness:
        harness.advance(3_599_999)
        assert list(out) == []
        harness.advance(1)
        assert list(out) == [1]
        harness.run_to_end()
        assert harness.clock.now_ms() == 7_200_000
    assert list(out) == [1, 2]
    assert time.monotonic() - before < PATIENT_S


def test_the_test_may_be_a_coroutine() -> None:
    async def test() -> None:
        flow = sw.Pipeline("hours")
        out = flow.from_collection([1, 2]).async_map(an_hour, timeout="2h").collect()
        run_pipeline(flow)
        assert list(out) == [1, 2]
        with OperatorHarness(lambda numbers: numbers.async_map(an_hour, timeout="2h")) as harness:
            harness.process(3)
            await asyncio.sleep(0)  # the loop around it goes on
            assert harness.advance(3_600_000) == [3]
        assert asyncio.current_task() is not None

    asyncio.run(test())


def test_a_coroutine_that_would_exit_the_program_fails_the_job_and_not_the_test() -> None:
    class Leaving(sw.AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> list[int]:
            await asyncio.sleep(3)
            if value == 2:
                raise SystemExit(3)
            return [value]

    flow = sw.Pipeline("exit")
    flow.from_collection([1, 2, 3]).async_map(Leaving(), timeout=None).collect()
    with pytest.raises(FunctionContractError, match=r"SystemExit\(3\)") as caught:
        run_pipeline(flow)
    assert "record: 2" in caught.value.__notes__


def test_a_socket_is_waited_for(port: int) -> None:
    async def ask(value: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{value}\n".encode())
        answer = (await reader.readline()).decode().strip()
        writer.close()
        await writer.wait_closed()
        return answer

    flow = sw.Pipeline("ask")
    out = flow.from_collection(["a", "b"]).async_map(ask, timeout=None).collect()
    run_pipeline(flow)
    assert list(out) == ["A", "B"]
    with OperatorHarness(lambda s: s.async_map(ask, timeout=None)) as op:
        op.process("c")
        op.finish()
        assert op.values == ["C"]


def test_a_thread_is_waited_for() -> None:
    async def slowly(value: int) -> int:
        return await asyncio.to_thread(lambda: value + 1)

    flow = sw.Pipeline("thread")
    out = flow.from_collection([1]).async_map(slowly, timeout=None).collect()
    run_pipeline(flow)
    assert list(out) == [2]


async def for_ever(value: Any) -> None:
    await asyncio.Event().wait()


def test_what_never_comes_is_said() -> None:
    flow = sw.Pipeline("never")
    flow.from_collection([1]).async_map(for_ever, timeout=None).print()
    with (
        PipelineHarness(flow, patience_s=0.05) as harness,
        pytest.raises(AssertionError, match="nothing will wake"),
    ):
        harness.run_to_end()


def test_a_full_step_holds_up_the_steps_before_it_in_its_chain() -> None:
    asked: list[int] = []

    async def at_once(value: int) -> int:
        asked.append(value)
        return value

    flow = sw.Pipeline("chain")
    numbers = flow.from_collection(range(100))
    numbers.async_map(at_once, timeout=None, capacity=2).async_map(for_ever, timeout=None, capacity=1).print()
    with PipelineHarness(flow) as harness:
        harness.run()
        assert len(asked) <= 4


def test_records_under_way_need_their_step_after_a_restore() -> None:
    flow = sw.Pipeline("before")
    source = TestSource([1, PAUSE, EOF])
    flow.source(source).uid("in").async_map(an_hour, timeout=None).uid("hour").print()
    with PipelineHarness(flow) as harness:
        harness.run()
        snapshot = harness.snapshot()
    other = sw.Pipeline("after")
    other.source(TestSource([1, PAUSE, EOF])).uid("in").print()
    with pytest.raises(StateError, match="state of 'hour', which no step"):
        PipelineHarness(other, restored=snapshot)


def test_cancelling_ends_what_is_under_way() -> None:
    ended: list[int] = []

    async def wait(value: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(value)

    flow = sw.Pipeline("cancel")
    flow.generate(count=3).async_map(wait, timeout=None).print()
    with PipelineHarness(flow) as harness:
        harness.run()
        assert harness.cancel().status is sw.JobStatus.CANCELED
    assert ended == [0, 1, 2]


def test_run_until_waits_for_what_is_asked() -> None:
    flow = sw.Pipeline("until")
    out = flow.generate(rate=1).collect()
    with PipelineHarness(flow) as harness:
        harness.run_until(lambda: len(out) == 5)
        assert 4000 <= harness.clock.now_ms() <= 5000
    flow = sw.Pipeline("ends")
    flow.from_collection([1]).print()
    with PipelineHarness(flow) as harness, pytest.raises(AssertionError, match="what was waited for has not come"):
        harness.run_until(lambda: False)
