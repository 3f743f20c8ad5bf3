"""Two streams in one step: co-map, co-flat-map, co-process, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, run_pipeline


class Shout(sw.CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str:
        return f"number {value}"

    def map2(self, value: str) -> str:
        return value.upper()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_co_map_calls_the_method_of_the_stream(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(Shout()).collect()
    run_pipeline(flow)
    assert sorted(result) == ["A", "B", "number 1", "number 2", "number 3"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_two_callables_may_stand_in_for_the_object(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(str, str.upper).collect()
    run_pipeline(flow)
    assert sorted(result) == ["1", "2", "3", "A", "B"]


RULES = sw.MapStateDescriptor("rules", int, key_type=str)


class Price(sw.BroadcastProcessFunction[str, tuple[str, int], tuple[str, int | None]]):
    def process_element(self, value: str, ctx: sw.BroadcastProcessFunction.ReadOnlyContext) -> Any:
        yield value, ctx.get_broadcast_state(RULES).get(value)

    def process_broadcast_element(self, value: tuple[str, int], ctx: sw.BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_records_are_looked_up_in_what_was_broadcast(parallelism: int) -> None:
    flow = sw.Pipeline("rules", parallelism=parallelism)
    rules, items = TestSource([("a", 1), ("b", 2), PAUSE, EOF]), TestSource([PAUSE, "a", "b", "c", EOF])
    sink = CollectingSink()
    stream = flow.source(items).rebalance()
    stream.connect(flow.source(rules).broadcast(RULES)).process(Price()).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        items.resume()
        harness.run()
        rules.resume()
        harness.run_to_end()
    assert sorted(sink.values) == [("a", 1), ("b", 2), ("c", None)]
