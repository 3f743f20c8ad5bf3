"""Stacks of running jobs, and flame graphs made of them."""

from __future__ import annotations

import asyncio
import select
import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.monitoring.diagnosis import Diagnosis, Finding, with_function
from sluiceway.monitoring.flame_svg import flame_svg
from sluiceway.monitoring.stack_samples import (
    NO_TASK,
    StackCount,
    StackSamples,
    flame_graph,
    folded,
    hottest_function,
)

NAMES = ["sluiceway.task.step (task.py:1)", "app.outer (app.py:3)", "app.inner (app.py:9)", "json.loads (x.py:1)"]
SAMPLES = StackSamples(
    "worker-1",
    1000,
    2000,
    10,
    NAMES,
    [
        StackCount(0, 0, True, [0, 1, 2], 6),
        StackCount(0, 1, False, [0, 1], 2),
        StackCount(1, 0, True, [0, 3], 3),
        StackCount(NO_TASK, 0, True, [3], 1),
    ],
)


def burn(value: int) -> int:
    end = time.perf_counter() + 0.0005
    while time.perf_counter() < end:
        sum(range(100))
    return value


def nap(value: int) -> int:
    select.select([], [], [], 0.002)
    return value


def values(tree: Any) -> dict[str, int]:
    found = {tree.name: tree.value}
    for child in tree.children:
        found |= values(child)
    return found


def test_the_tree_counts_samples_by_function() -> None:
    tree = flame_graph([SAMPLES])
    assert (tree.name, tree.value) == ("root", 12)
    assert [(child.name, child.value) for child in tree.children] == [(NAMES[0], 11), (NAMES[3], 1)]
    assert values(flame_graph([SAMPLES], vertex=0)) == {"root": 8, NAMES[0]: 8, NAMES[1]: 8, NAMES[2]: 6}
    assert flame_graph([SAMPLES], "off_cpu").value == 2
    assert flame_graph([SAMPLES], "on_cpu").value == 10
    assert flame_graph([SAMPLES, SAMPLES], vertex=0, subtask=1).value == 4
    assert flame_graph([]).value == 0


def test_folded_lines() -> None:
    assert folded([SAMPLES, SAMPLES], vertex=0) == [
        f"{NAMES[0]};{NAMES[1]} 4",
        f"{NAMES[0]};{NAMES[1]};{NAMES[2]} 12",
    ]


def test_the_hottest_function_is_the_innermost_one_outside_of_the_engine() -> None:
    assert hottest_function([SAMPLES], 0) == (NAMES[2], 0.75)
    assert hottest_function([SAMPLES], 1) == (NAMES[3], 1.0)
    assert hottest_function([SAMPLES], 7) is None
    engine = StackSamples("", 0, 1, 1, NAMES, [StackCount(0, 0, True, [0], 5)])
    assert hottest_function([engine], 0) is None


def test_a_diagnosis_names_the_function_of_the_busiest_task() -> None:
    found = Diagnosis([Finding("busy-task", "Slow because 'x' is 98% busy.", vertex=0)])
    told = with_function(found, lambda vertex: hottest_function([SAMPLES], vertex)).findings[0]
    expected = "In the busiest task, 75% of the samples are in app.inner (app.py:9)."
    assert (told.text, told.function) == (f"Slow because 'x' is 98% busy. {expected}", "app.inner (app.py:9)")

    def refused(vertex: int) -> None:
        raise sw.SluicewayError("no")

    assert with_function(found, refused) == found
    assert with_function(found, lambda vertex: None) == found
    late = Diagnosis([Finding("idle", "Fine.", "ok")])
    assert with_function(late, refused) is late


def test_the_picture_is_xml_with_all_functions() -> None:
    hostile = StackSamples("", 0, 1, 1, ["<script>&'\" (x.py:1)"], [StackCount(0, 0, True, [0] * 300, 5)])
    for samples in ([SAMPLES], [hostile], []):
        picture = ElementTree.fromstring(flame_svg(flame_graph(samples), "a <job> & more"))
        titles = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}title")]
        assert "a <job> & more" in {e.text for e in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert bool(titles) == bool(samples)
    assert "app.inner (app.py:9): 6 samples, 50.0%" in flame_svg(flame_graph([SAMPLES]), "x")


def planted() -> sw.Pipeline:
    flow = sw.Pipeline("planted")
    numbers = flow.generate().uid("numbers")
    numbers.rebalance().map(burn).uid("burn").rebalance().map(nap).uid("nap").sink(DiscardSink())
    return flow


async def until_it_reads(handle: sw.JobHandle) -> None:
    while not handle.metrics().records_in:  # polls
        await asyncio.sleep(0.01)


def functions_by_task(samples: StackSamples) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for stack in samples.stacks:
        names = [samples.names[frame].partition(" (")[0].rpartition(".")[2] for frame in stack.frames]
        found.setdefault(stack.vertex, set()).update(names)
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_stacks_of_a_job_are_those_of_its_tasks(workers: int) -> None:
    usual = sys.getswitchinterval()

    async def go() -> list[StackSamples]:
        found: list[StackSamples] = []
        seen: set[str] = set()
        async with await planted().start(workers=workers) as handle:
            await until_it_reads(handle)
            while not {"burn", "nap"} <= seen:  # a slow machine may take few samples in a second
                [samples] = await handle.sample_stacks(seconds=1, rate=100)
                found.append(samples)
                seen |= {name for names in functions_by_task(samples).values() for name in names}
        return found

    processes = asyncio.run(go())
    assert sys.getswitchinterval() == usual
    assert {samples.worker for samples in processes} == {"worker-1" if workers else ""}
    assert all(samples.moments >= 1 and samples.ended_ms > samples.began_ms for samples in processes)
    tasks: dict[int, set[str]] = {}
    for samples in processes:
        for vertex, names in functions_by_task(samples).items():
            tasks.setdefault(vertex, set()).update(names)
    [napping] = [vertex for vertex, names in tasks.items() if "nap" in names]
    [burning] = [vertex for vertex, names in tasks.items() if "burn" in names]
    assert napping != burning
    off = flame_graph(processes, "off_cpu", vertex=napping)
    assert off.value > flame_graph(processes, "on_cpu", vertex=napping).value


def test_threads_that_a_function_has_started_are_there() -> None:
    async def work(value: int) -> int:
        return await asyncio.to_thread(nap, value)

    async def go() -> list[str]:
        flow = sw.Pipeline("threads")
        flow.generate().async_map(work, timeout="1h").sink(DiscardSink())
        async with await flow.start() as handle:
            await until_it_reads(handle)
            while True:  # a slow machine may take few samples in a second
                lines = folded(await handle.sample_stacks(seconds=1, rate=100), vertex=NO_TASK)
                if any("nap" in line for line in lines):
                    return lines

    assert all(line.startswith("thread ") for line in asyncio.run(go()) if "nap" in line)


@pytest.mark.parametrize(("seconds", "rate"), [(0, 50), (61, 50), (1, 0.5), (1, 251), (float("nan"), 50)])
def test_samples_out_of_range_are_refused(seconds: float, rate: float) -> None:
    async def go() -> None:
        async with await planted().start() as handle:
            await handle.sample_stacks(seconds, rate)

    with pytest.raises(sw.ConfigurationError, match="stacks are sampled"):
        asyncio.run(go())


def test_a_job_that_has_ended_has_no_stacks() -> None:
    async def go() -> None:
        flow = sw.Pipeline("ended")
        flow.from_collection([1]).sink(DiscardSink())
        handle = await flow.start()
        await handle.result()
        await handle.sample_stacks()

    with pytest.raises(sw.SluicewayError, match="the job does not run"):
        asyncio.run(go())


def test_a_job_that_ends_meanwhile_gives_what_was_sampled() -> None:
    async def go() -> list[StackSamples]:
        handle = await planted().start()
        await until_it_reads(handle)
        asked = asyncio.ensure_future(handle.sample_stacks(seconds=1))
        await asyncio.sleep(0)
        handle.cancel()
        await handle.result()
        return await asked

    assert len(asyncio.run(go())) == 1


def test_so_many_at_once_are_refused() -> None:
    async def go() -> list[Any]:
        async with await planted().start() as handle:
            await until_it_reads(handle)
            asked = [handle.sample_stacks(seconds=1) for _ in range(6)]
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(go())
    refused = [answer for answer in answers if isinstance(answer, sw.SluicewayError)]
    assert len(refused) == 2
    assert "try again when they are done" in str(refused[0])
