"""Hottest keys of jobs that run, and what nobody pays for them otherwise."""

from __future__ import annotations

import asyncio

import pytest

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.errors import ConfigurationError, SluicewayError, UnknownNameError
from sluiceway.monitoring.diagnosis import Diagnosis, Finding, with_key
from sluiceway.monitoring.key_samples import HotKey, KeySample, StepKeys, step_keys
from sluiceway.windows import TumblingEventTimeWindows


async def until_it_reads(handle: sw.JobHandle) -> None:
    while not handle.metrics().records_in:  # polls
        assert not handle.failures
        await asyncio.sleep(0.01)


def key_of(n: int) -> str:
    return "hot" if n % 4 else f"user-{n % 512}"


def planted() -> sw.Pipeline:
    flow = sw.Pipeline("planted", parallelism=2)
    flow.generate().uid("numbers").key_by(key_of).count().uid("count").sink(DiscardSink())
    return flow


@pytest.mark.parametrize("workers", [0, 1])
def test_the_hottest_key_of_a_job(workers: int) -> None:
    async def go() -> list[StepKeys]:
        async with await planted().start(workers=workers) as handle:
            await until_it_reads(handle)
            while True:  # a busy machine may read nothing for a while
                found = await handle.hottest_keys(seconds=0.2)
                if found[0].records > 1000:
                    return found

    [found] = asyncio.run(go())
    assert found.vertex == 1
    assert found.keys[0].key == "'hot'"
    assert 0.7 < found.keys[0].share < 0.8
    assert found.skew > 40
    assert [load.subtask for load in found.subtasks] == [0, 1]
    assert sum(load.records for load in found.subtasks) == found.records


def test_windows_whose_records_are_combined_before() -> None:
    """Of what a producer has combined, a partial result counts as one record."""

    async def go() -> list[StepKeys]:
        flow = sw.Pipeline("windows", parallelism=2)
        numbers = flow.generate(timestamp=lambda n: n)
        windows = numbers.key_by(lambda n: n % 3).window(TumblingEventTimeWindows.of("1s"))
        windows.count().uid("sums").sink(DiscardSink())
        async with await flow.start(workers=1) as handle:
            await until_it_reads(handle)
            while True:
                found = await handle.hottest_keys(seconds=0.2, step="sums")
                if found[0].records > 100:
                    return found

    [found] = asyncio.run(go())
    assert {k.key for k in found.keys} == {"0", "1", "2"}


def test_what_cannot_be_counted_is_refused() -> None:
    async def go() -> None:
        async with await planted().start() as handle:
            with pytest.raises(ConfigurationError, match="keys are counted for up to 60 s, not for 61 s"):
                await handle.hottest_keys(seconds=61)
            with pytest.raises(UnknownNameError, match="count"):
                await handle.hottest_keys(step="cuont")
        with pytest.raises(SluicewayError, match="the job does not run"):
            await handle.hottest_keys()
        flow = sw.Pipeline("plain")
        flow.generate().map(abs).sink(DiscardSink())
        async with await flow.start() as handle:
            await until_it_reads(handle)
            with pytest.raises(SluicewayError, match="no task that runs has keys"):
                await handle.hottest_keys(seconds=0.1)

    asyncio.run(go())


def test_keys_are_shown_shortened_whatever_their_repr_does() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError("no text")

    async def go() -> list[StepKeys]:
        odd = [Odd(), "x" * 100_000]
        flow = sw.Pipeline("odd")
        flow.generate().key_by(lambda n: odd[1] if n % 2 else n).count().sink(DiscardSink())
        async with await flow.start() as handle:
            await until_it_reads(handle)
            while not (found := await handle.hottest_keys(seconds=0.1))[0].records:
                pass
            return found

    [found] = asyncio.run(go())
    assert max(len(k.key) for k in found.keys) < 300


def test_samples_of_subtasks_are_combined_by_step() -> None:
    samples = [
        KeySample("w", 1, 0, "a", 1.0, 100, 2, [HotKey("'x'", 90), HotKey("'y'", 5)]),
        KeySample("w", 1, 1, "a", 1.0, 300, 1, [HotKey("'z'", 200)]),
    ]
    [found] = step_keys(samples, 2)
    assert [(k.key, k.subtask, k.share) for k in found.keys] == [("'z'", 1, 0.5), ("'x'", 0, 0.225)]
    assert (found.records, found.error, found.skew) == (400, 2, 50.0)
    skew = Diagnosis([Finding("skew", "Skewed.", vertex=1)])
    named = with_key(skew, lambda vertex: samples)
    assert named.summary == "Skewed. The hottest key, 'z', has 50% of all records of the step."
    assert named.findings[0].key == "'z'"
    assert with_key(Diagnosis([Finding("ok", "Fine.", "ok")]), lambda vertex: samples).summary == "Fine."
