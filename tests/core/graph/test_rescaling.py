"""Which steps of a job graph get another parallelism, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import RescaleError
from sluiceway.graph import JobGraph, build_job_graph
from sluiceway.graph.rescaling import parallelism_of, rescaled
from sluiceway.windows import TumblingEventTimeWindows


def job(make: Any, parallelism: int = 2) -> JobGraph:
    flow = sw.Pipeline("job", parallelism=parallelism, max_parallelism=8)
    make(flow)
    return build_job_graph(flow.graph())


def mixed(flow: sw.Pipeline) -> None:
    source = flow.source(GeneratorSource(timestamp=lambda n: n)).uid("source")
    keyed = source.key_by(lambda n: n % 3).count().uid("count").name("count")
    fixed = keyed.rebalance().map(lambda v: v).uid("fixed").set_parallelism(3)
    fixed.window_all(TumblingEventTimeWindows.of(1000)).count().uid("all").print().uid("out")


def test_steps_follow_the_job_as_they_do_when_it_begins() -> None:
    graph = job(mixed)
    before = parallelism_of(graph)
    after = rescaled(graph, 4, {})
    assert parallelism_of(after) == {**before, "source": 4, "count": 4, "out": 4}, (
        "one is fixed, one can only have one"
    )
    assert after.edges == graph.edges
    assert [v.max_parallelism for v in after.vertices] == [v.max_parallelism for v in graph.vertices]
    assert all(node.parallelism == v.parallelism for v in after.vertices for node in v.nodes)
    assert parallelism_of(rescaled(after, 2, {})) == before


def test_limits_themselves_are_allowed() -> None:
    counts = parallelism_of(rescaled(job(mixed), 8, {"all": 1}))
    assert (counts["source"], counts["all"]) == (8, 1)


@pytest.mark.parametrize("name", ["fixed", "0"])
def test_single_steps_by_uid_and_number(name: str) -> None:
    graph = job(mixed)
    changed = {uid for uid, n in parallelism_of(rescaled(graph, None, {name: 5})).items() if n == 5}
    assert changed == {"fixed" if name == "fixed" else "source"}


@pytest.mark.parametrize(
    ("parallelism", "steps", "text"),
    [
        (9, {}, "divided into 8 key groups"),
        (0, {}, "at least 1"),
        (None, {"count": 9}, "'count' cannot have parallelism 9"),
        (None, {"all": 2}, "1 subtask at the most"),
        (None, {"counts": 2}, "Did you mean 'count'"),
    ],
)
def test_refusals(parallelism: int | None, steps: dict[str, int], text: str) -> None:
    with pytest.raises(RescaleError, match=text):
        rescaled(job(mixed), parallelism, steps)


def test_what_forward_edges_connect_has_one_parallelism() -> None:
    def make(flow: sw.Pipeline) -> None:
        first = flow.source(GeneratorSource()).uid("first").slot_sharing_group("a")
        second = first.map(lambda v: v).uid("second").slot_sharing_group("b")
        second.key_by(lambda v: v).count().uid("third").print()

    graph = job(make)
    assert [e.edge.partitioner.name for e in graph.edges] == ["forward", "hash"]
    assert parallelism_of(rescaled(graph, None, {"second": 3})) == {"first": 3, "second": 3, "third": 2}
    with pytest.raises(RescaleError, match=r"'.*GeneratorSource.*' 1, 'map.*' 3"):
        rescaled(graph, None, {"first": 1, "second": 3})


def test_two_steps_of_one_name() -> None:
    def make(flow: sw.Pipeline) -> None:
        keyed = flow.source(GeneratorSource()).key_by(lambda v: v)
        keyed.count().name("count").uid("one").print()
        keyed.count().name("count").uid("other").print()

    with pytest.raises(
        RescaleError, match="2 steps are called 'count': name one of them by its uid, 'one', 'other'"
    ):
        rescaled(job(make), None, {"count": 3})
