"""Pipelines run by embedded subtasks give what they give in tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import (
    AsyncDataStream,
    BroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Pipeline,
    ProcessFunction,
    WatermarkStrategy,
)
from sluiceway.config.settings import Settings
from sluiceway.elements import Batch
from sluiceway.errors import GraphError
from sluiceway.runtime.stepped import plan as stepped_plan
from sluiceway.runtime.stepped import stepped_channels
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows

WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question", "whether", "tis", "nobler"]
BY_SECOND = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda e: e[1])


def both(build: Any, stages: Any, parallelism: int = 2, **how: Any) -> tuple[list[Any], list[Any]]:
    """The results of a pipeline by tasks, and by embedded subtasks."""
    flow = Pipeline("tasks", parallelism=parallelism)
    expected = build(flow).collect()
    flow.run()
    flow = Pipeline("embedded", parallelism=parallelism)
    got = build(flow).collect()
    stages(flow, **how).run()
    return sorted(expected, key=repr), sorted(got, key=repr)


def test_counts_words(stages: Any) -> None:
    def build(flow: Pipeline) -> Any:
        return flow.from_collection(WORDS * 50).map(lambda w: (w, 1)).key_by(lambda p: p[0]).sum(1)

    expected, got = both(build, stages)
    assert got == expected
    assert len(got) == 50 * len(WORDS)


def test_has_a_subtask_for_each_key_group(stages: Any) -> None:
    flow = Pipeline("groups", max_parallelism=8)
    flow.from_collection(WORDS).key_by(lambda w: w).count().collect()
    plan = stages(flow).plan
    keyed = next(v for v in plan.graph.vertices if v.head.step.keyed)
    assert keyed.parallelism == keyed.max_parallelism == 8
    assert [plan.who(t) for t in plan.targets_of(1)] == [(keyed.id, subtask) for subtask in range(8)]


def test_has_as_many_subtasks_as_are_wanted(stages: Any) -> None:
    flow = Pipeline("few", parallelism=2)
    counts = flow.from_collection(WORDS).key_by(lambda w: w).count().collect()
    run = stages(flow, keyed_subtasks=3)
    assert [v.parallelism for v in run.plan.vertices_of(1)] == [3]
    run.run()
    assert len(counts) == len(WORDS)


def test_windows_close_by_the_slowest_of_several_senders(stages: Any) -> None:
    def build(flow: Pipeline) -> Any:
        events = [(f"k{i % 5}", i * 10) for i in range(500)]
        return (
            flow.from_collection(events, watermark_strategy=BY_SECOND)
            .key_by(lambda e: e[0])
            .window(TumblingEventTimeWindows.of(1000))
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
        )

    expected, got = both(build, stages)
    assert got == expected
    assert len(got) == 25


def test_joins_two_inputs(stages: Any) -> None:
    def build(flow: Pipeline) -> Any:
        left = flow.from_collection([(i % 7, i * 100, "l") for i in range(70)], watermark_strategy=BY_SECOND)
        right = flow.from_collection([(i % 7, i * 100, "r") for i in range(70)], watermark_strategy=BY_SECOND)
        joined = left.key_by(lambda e: e[0]).interval_join(right.key_by(lambda e: e[0])).between(-700, 700)
        return joined.process(lambda a, b, ctx: [(a, b)])

    expected, got = both(build, stages)
    assert got == expected
    assert got


def test_a_diamond_and_side_outputs(stages: Any) -> None:
    odd = OutputTag("odd", int)

    class Split(ProcessFunction):
        def process_element(self, value: int, ctx: Any) -> Any:
            if value % 2:
                ctx.output(odd, value)
            else:
                yield value

    def build(flow: Pipeline) -> Any:
        split = flow.from_collection(range(100)).process(Split())
        even = split.key_by(lambda n: n % 3).map(lambda n: ("even", n))
        return even.union(split.get_side_output(odd).map(lambda n: ("odd", n))).key_by(lambda p: p[0]).count()

    expected, got = both(build, stages)
    assert got == expected
    assert len(got) == 100


def test_broadcast_state_is_everywhere(stages: Any) -> None:
    rules = MapStateDescriptor("rules")

    class Apply(BroadcastProcessFunction):
        def process_element(self, value: int, ctx: Any) -> Any:
            yield value, ctx.get_broadcast_state(rules).get("factor")

        def process_broadcast_element(self, value: int, ctx: Any) -> Any:
            ctx.get_broadcast_state(rules).put("factor", value)

    flow = Pipeline("broadcast", parallelism=3)
    numbers = flow.from_collection(range(30))
    got = numbers.connect(flow.from_collection([7]).broadcast(rules)).process(Apply()).collect()
    run = stages(flow)
    plan = run.plan
    (vertex,) = plan.vertices_of(1)
    by_port = {
        port: {r.sender for r in plan.senders_into(plan.target(vertex.id, 1)) if r.port == port} for port in (0, 1)
    }
    assert len(by_port[0]) == 1
    assert len(by_port[1] - by_port[0]) == 3
    run.run()
    assert sorted(value for value, _ in got) == list(range(30))


def test_awaits_coroutines(stages: Any) -> None:
    async def double(value: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * value

    flow = Pipeline("async", parallelism=2)
    got = AsyncDataStream.ordered_wait(
        flow.from_collection(range(50)), double, timeout=10_000, capacity=7
    ).collect()
    stages(flow).run()
    assert sorted(got) == [2 * n for n in range(50)]


def test_timers_that_wait_fire_at_the_end(stages: Any) -> None:
    class Later(KeyedProcessFunction):
        def process_element(self, value: int, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(10**9)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield ctx.get_current_key(), timestamp

    def build(flow: Pipeline) -> Any:
        return flow.from_collection(range(20)).key_by(lambda n: n % 4).process(Later())

    expected, got = both(build, stages)
    assert got == expected == [(k, 10**9) for k in range(4)]


def test_writes_files_once_they_are_committed(stages: Any, tmp_path: Path) -> None:
    from sluiceway_files import FilesSink

    flow = Pipeline("files", parallelism=2)
    flow.from_collection(range(100)).map(str).sink(FilesSink.text(tmp_path / "out"))
    run = stages(flow)
    run.run()
    assert sorted(int(n) for f in (tmp_path / "out").glob("part-*") for n in f.read_text().split()) == list(
        range(100)
    )
    assert all(chain.ended for chain in run.chains)


def test_refuses_a_loop(stages: Any) -> None:
    flow = Pipeline("loop")
    loop = flow.from_collection([1]).iterate()
    loop.close_with(loop.map(lambda n: n + 1).filter(lambda n: n < 5))
    loop.collect()
    with pytest.raises(GraphError, match="feedback loops cannot run here"):
        stages(flow, Settings())


def test_columns_travel_in_parts_of_limited_size(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepped_channels, "_LARGE", 3000)
    rows = pa.table({"user": [f"u{i % 23}" for i in range(5000)], "n": list(range(5000))})

    def build(flow: Pipeline) -> Any:
        return flow.table(rows).rebalance().key_by("user").aggregate(n=agg.sum("n"), count=agg.count())

    expected, got = both(build, stages)
    assert got == expected
    assert len(got) == 23

    flow = Pipeline("parts", parallelism=2)
    flow.table(rows).rebalance().map_batches(lambda batch: batch, schema=rows.schema).to_records(dict).collect()
    run = stages(flow).run()
    parts = [[e for e in run.plan.unpack(row[2], row[4]) if type(e) is Batch] for row in run.rows if row[0] == 1]
    assert sum(len(batch) for part in parts for batch in part) == 5000
    assert max(sum(batch.columns.nbytes for batch in part) for part in parts) < 3 * 3000


def test_large_records_travel_in_parts_of_limited_size(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepped_plan, "_LARGE", 3000)
    texts = [f"{n:05}" + "x" * (n % 900) for n in range(2000)]
    flow = Pipeline("parts")
    flow.from_collection(texts).rebalance().map(str).collect()
    run = stages(flow).run()
    parts = [row for row in run.rows if row[0] == 1]
    assert max(len(payload) for *_, payload in parts) <= 2 * 3000 + 100
    assert len({seq for *_, seq, _ in parts}) == len(parts)
    given = [run.plan.unpack(row[2], row[4]) for row in sorted(parts, key=lambda row: row[3])]
    assert [text for part in given for e in part if type(e) is Batch for text in e.values] == texts


def test_a_record_larger_than_a_part_is_one(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepped_plan, "_LARGE", 3000)
    flow = Pipeline("parts")
    flow.from_collection(["x" * 10_000] * 3).rebalance().map(str).collect()
    run = stages(flow).run()
    sizes = [len(payload) for stage, *_, payload in run.rows if stage == 1]
    assert len(sizes) == 4  # and the ends
    assert max(sizes) < 11_000
