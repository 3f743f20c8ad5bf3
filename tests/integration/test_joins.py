"""Joins in whole jobs: at any parallelism, with any batch size, across a restore."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.elements import Batch
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource, run_pipeline

Event = tuple[str, int, int]


def key_of(event: Event) -> str:
    return event[0]


def time_of(event: Event) -> int:
    return event[1]


def pair(left: Event, right: Event | None) -> tuple[Event, Event | None]:
    return left, right


events = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 99)), min_size=10, max_size=25
)


@settings(max_examples=40, deadline=None)
@given(
    lefts=events,
    rights=events,
    bounds=st.tuples(st.integers(-10, 10), st.integers(-10, 10)).map(sorted),
    parallelism=st.integers(1, 3),
    batch_size=st.sampled_from([1, 2, 7, 1000]),
)
def test_an_interval_join_gives_what_nested_loops_give(
    lefts: list[Event], rights: list[Event], bounds: list[int], parallelism: int, batch_size: int
) -> None:
    lower, upper = bounds
    flow = sw.Pipeline("interval", parallelism=parallelism)
    left, right = (flow.from_collection(es, timestamp=time_of).key_by(key_of) for es in (lefts, rights))
    joined = left.interval_join(right).between(lower, upper).apply(pair).collect()
    run_pipeline(flow, batch_size=batch_size)
    assert sorted(joined) == sorted(
        (one, two) for one in lefts for two in rights if one[0] == two[0] and lower <= two[1] - one[1] <= upper
    )


@settings(max_examples=40, deadline=None)
@given(
    lefts=events,
    rights=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=5, max_size=20, unique=True),
    tolerance=st.none() | st.integers(0, 15),
    how=st.sampled_from(["left", "inner"]),
    parallelism=st.integers(1, 3),
    batch_size=st.sampled_from([1, 2, 7, 1000]),
)
def test_an_as_of_join_gives_what_nested_loops_give(
    lefts: list[Event],
    rights: list[tuple[str, int]],
    tolerance: int | None,
    how: Any,
    parallelism: int,
    batch_size: int,
) -> None:
    flow = sw.Pipeline("as of", parallelism=parallelism)
    versions = [(key, time, number) for number, (key, time) in enumerate(rights)]
    left, right = (flow.from_collection(es, timestamp=time_of).key_by(key_of) for es in (lefts, versions))
    joined = left.asof_join(right, tolerance=tolerance, how=how).apply(pair).collect()
    run_pipeline(flow, batch_size=batch_size)
    expected: list[Any] = []
    for key, time, number in lefts:
        oldest = -1 if tolerance is None else time - tolerance
        fitting = [v for v in versions if v[0] == key and oldest <= v[1] <= time]
        if fitting or how == "left":
            expected.append(((key, time, number), max(fitting, key=time_of, default=None)))
    assert sorted(joined, key=str) == sorted(expected, key=str)


def stamped(*parts: list[Event] | Any) -> list[Any]:
    return [Batch(p, [time_of(e) for e in p]) if isinstance(p, list) else p for p in parts]


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_state_comes_back_at_any_parallelism(before: int, after: int) -> None:
    early = [(f"k{n}", n, 0) for n in range(10)]
    later = [(f"k{n}", n + 3, 1) for n in range(10)]

    def program() -> tuple[sw.Pipeline, list[TestSource], list[Any]]:
        flow = sw.Pipeline("restore", max_parallelism=16)
        sources = [TestSource(stamped(early, PAUSE, EOF)), TestSource(stamped(PAUSE, later, EOF))]
        left, right = (flow.source(s).uid(f"in{i}").key_by(key_of) for i, s in enumerate(sources))
        near = left.interval_join(right).between(0, 5).apply(pair).uid("near").collect()
        asof = right.asof_join(left).apply(pair).uid("as of").collect()
        return flow, sources, [near, asof]

    flow, sources, _ = program()
    with PipelineHarness(flow, parallelism=before) as harness:
        harness.run()
        snapshot = harness.snapshot()
    flow, sources, (near, asof) = program()
    with PipelineHarness(flow, parallelism=after, restored=snapshot) as harness:
        harness.run()
        for source in sources:
            source.resume()
        harness.run_to_end()
    pairs = list(zip(early, later, strict=True))
    assert sorted(near) == pairs
    assert sorted(asof) == [(right, left) for left, right in pairs]


def counted(kept: dict[str, int], other: Event) -> int:
    kept["n"] += 1
    return kept["n"]


@pytest.mark.parametrize("backend", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["interval", "as of, left", "as of, right"])
def test_functions_change_copies_of_restored_records(kind: str, backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")

    def program() -> tuple[sw.Pipeline, list[TestSource], list[int]]:
        flow = sw.Pipeline("restore")
        # Only the first input's records, all of which come before the snapshot, can be changed.
        sources = [
            TestSource([Batch([{"n": 0}] * 2, [5, 6]), PAUSE, EOF]),
            TestSource(stamped(PAUSE, [("k", 5, 0)], [("k", 6, 0)], EOF)),
        ]
        kept, other = (flow.source(s).uid(f"in{i}").key_by(lambda r: 0) for i, s in enumerate(sources))
        if kind == "interval":
            results = kept.interval_join(other).between(-5, 5).apply(counted)
        elif kind == "as of, left":
            results = kept.asof_join(other).apply(counted)
        else:
            results = other.asof_join(kept).apply(lambda left, right: counted(right, left))
        return flow, sources, results.uid("join").collect()

    flow, sources, _ = program()
    with PipelineHarness(flow) as harness:
        harness.run()
        snapshot = harness.snapshot()
    flow, sources, results = program()
    with PipelineHarness(flow, restored=snapshot, state_backend=backend) as harness:
        for source in sources:
            harness.run()
            source.resume()
        harness.run_to_end()
    assert set(results) == {1}


def test_the_outputs_of_a_join_can_be_used_like_any_other() -> None:
    flow = sw.Pipeline("sides", parallelism=2)
    lefts = [("k", 5, 0)]
    left, right = (flow.from_collection(lefts, timestamp=time_of).key_by(key_of) for _ in range(2))
    apart = sw.OutputTag[str]("apart")

    def process(left: Event, right: Event, ctx: sw.ProcessJoinFunction.Context) -> list[int]:
        ctx.output(apart, "seen")
        return [ctx.get_timestamp()] * 2

    joined = left.interval_join(right).between(0, 0).process(process).name("near").uid("near")
    results = joined.map(lambda n: n + 1).collect(), joined.get_side_output(apart).collect()
    run_pipeline(flow)
    assert results == ([6, 6], ["seen"])


def test_records_without_timestamps_end_the_job_with_the_reason() -> None:
    flow = sw.Pipeline("no time")
    left, right = (flow.from_collection([("k", 1, 1)]).key_by(key_of) for _ in range(2))
    left.interval_join(right).between(0, 0).apply(pair).print()
    with pytest.raises(sw.StateError, match=r"the records of its left input have no timestamps") as caught:
        flow.run()
    assert caught.value.__notes__[0].startswith("in step 'interval_join(pair)'")
