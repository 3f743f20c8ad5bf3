from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import GraphError
from sluiceway.functions import OutputTag
from sluiceway.graph import InputRef, JobGraph, JobVertex, build_job_graph, distribution_of
from sluiceway.partitioner import Distribution
from sluiceway.streamgraph import ChainingStrategy

HEAD, NEVER, ALWAYS = ChainingStrategy.HEAD, ChainingStrategy.NEVER, ChainingStrategy.ALWAYS


def names(job: JobGraph) -> list[str]:
    return [v.name for v in job.vertices]


class TestChaining:
    def test_a_straight_program_is_one_chain(self, program: Any) -> None:
        program.sink(program.filter(program.map(program.source(uid="in"))))
        job = program.job(3)
        (vertex,) = job.vertices
        assert vertex.name == "source(Numbers) -> map(same) -> filter(same) -> sink(Drain)"
        assert vertex.uid == "in"
        assert vertex.parallelism == 3
        assert [n.id for n in vertex.nodes] == [0, 1, 2, 3]
        assert [(e.source, e.target) for e in vertex.inner_edges] == [(0, 1), (1, 2), (2, 3)]
        assert job.edges == ()

    def test_a_chain_may_be_a_tree(self, program: Any) -> None:
        source = program.source()
        left, right = program.map(source), program.filter(source)
        program.sink(left, name="a")
        program.sink(right, name="b")
        assert names(program.job()) == ["source(Numbers) -> (map(same) -> a, filter(same) -> b)"]

    def test_side_outputs_are_chained_like_others(self, program: Any) -> None:
        made = program.process(program.source())
        program.sink(program.tagged(made, OutputTag("late")), name="late")
        program.sink(made, name="main")
        job = program.job()
        assert names(job) == ["source(Numbers) -> process(same) -> (late, main)"]
        assert [e.tag.name if e.tag else None for e in job.vertices[0].inner_edges] == [None, "late", None]

    def test_rescale_with_equal_parallelism_is_chained(self, program: Any) -> None:
        program.sink(program.by("rescale", program.source()))
        assert len(program.job(2).vertices) == 1

    def test_rescale_with_another_parallelism_is_not(self, program: Any) -> None:
        program.sink(program.by("rescale", program.source(parallelism=2)))
        (edge,) = program.job(4).edges
        assert edge.distribution is Distribution.POINTWISE

    @pytest.mark.parametrize("partitioner", ["rebalance", "shuffle", "broadcast", "global", "plugin"])
    def test_other_partitioners_are_not(self, program: Any, partitioner: str) -> None:
        program.sink(program.by(partitioner, program.source()))
        (edge,) = program.job(1).edges
        assert edge.distribution is Distribution.ALL_TO_ALL

    def test_hash_is_not_even_with_parallelism_one(self, program: Any) -> None:
        program.sink(program.reduce(program.source()))
        assert names(program.job()) == ["source(Numbers)", "reduce(same) -> sink(Drain)"]

    def test_two_inputs_are_not(self, program: Any) -> None:
        program.sink(program.map(program.source(name="a"), program.source(name="b")))
        job = program.job()
        assert names(job) == ["a", "b", "map(same) -> sink(Drain)"]
        assert [(e.source, e.input_index) for e in job.in_edges(job.vertices[2].id)] == [(0, 0), (1, 1)]

    def test_one_stream_twice_is_two_inputs(self, program: Any) -> None:
        source = program.source()
        program.sink(source, source)
        job = program.job()
        assert names(job) == ["source(Numbers)", "sink(Drain)"]
        assert [e.input_index for e in job.edges] == [0, 1]

    def test_different_groups_are_not(self, program: Any) -> None:
        program.sink(program.source(), slot_sharing_group="out")
        job = program.job()
        assert [v.slot_sharing_group for v in job.vertices] == ["default", "out"]
        assert job.edges[0].distribution is Distribution.POINTWISE

    def test_different_parallelism_is_not(self, program: Any) -> None:
        program.sink(program.source(parallelism=2))
        assert len(program.job(1).vertices) == 2

    def test_chaining_can_be_off_for_the_job(self, program: Any) -> None:
        program.sink(program.map(program.source()))
        job = program.job(chaining=False)
        assert len(job.vertices) == 3
        assert {e.distribution for e in job.edges} == {Distribution.POINTWISE}

    @pytest.mark.parametrize(
        ("up", "down", "chained"),
        [
            (ALWAYS, ALWAYS, True),
            (HEAD, ALWAYS, True),
            (NEVER, ALWAYS, False),
            (ALWAYS, HEAD, False),
            (ALWAYS, NEVER, False),
            (HEAD, HEAD, False),
            (NEVER, NEVER, False),
        ],
    )
    def test_strategies(self, program: Any, up: Any, down: Any, chained: bool) -> None:
        program.sink(program.source(chaining=up), chaining=down)
        assert (len(program.job().vertices) == 1) is chained

    def test_the_head_of_a_loop_is_not_chained_to_what_is_before_it(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head)
        head.feedback.append(InputRef(body))
        program.sink(body)
        job = program.job()
        assert names(job) == ["source(Numbers)", "iterate -> map(same) -> sink(Drain)"]
        into, back = job.in_edges(job.vertices[1].id)
        assert (into.feedback, into.input_index) == (False, 0)
        assert (back.feedback, back.input_index) == (True, 1)
        assert back.source == back.target
        assert (back.source_node, back.target_node) == (2, 1)
        assert back.distribution is Distribution.POINTWISE

    def test_feedback_alone_does_not_chain_either(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(program.by("rebalance", head))
        head.feedback.append(InputRef(body))
        program.sink(body)
        graph = program.graph()
        cut = replace(graph, edges=tuple(e for e in graph.edges if e.source != 0))
        assert build_job_graph(cut).vertex_of(1).inner_edges == ()

    def test_max_parallelism_is_that_of_the_head(self, program: Any) -> None:
        program.sink(program.source(max_parallelism=7), max_parallelism=9)
        assert program.job().vertices[0].max_parallelism == 7

    def test_a_very_long_chain_needs_no_recursion(self, program: Any) -> None:
        last = program.source()
        for _ in range(3000):
            last = program.map(last)
        program.sink(last)
        (vertex,) = program.job().vertices
        assert vertex.name.count("->") == 3001


class TestDistribution:
    @pytest.mark.parametrize("name", ["forward", "rescale"])
    def test_pointwise(self, name: str) -> None:
        assert distribution_of(name) is Distribution.POINTWISE

    @pytest.mark.parametrize("name", ["rebalance", "shuffle", "hash", "broadcast", "global", "custom", "theirs"])
    def test_all_to_all(self, name: str) -> None:
        assert distribution_of(name) is Distribution.ALL_TO_ALL

    def test_plugins_say_for_themselves(self, program: Any) -> None:
        program.sink(program.by("nearby", program.source()))
        job = build_job_graph(program.graph(), {"nearby": Distribution.POINTWISE})
        assert job.edges[0].distribution is Distribution.POINTWISE


class TestLookups:
    def test_them(self, program: Any) -> None:
        program.sink(program.reduce(program.source()))
        job = program.job()
        source, reduce = job.vertices
        assert job.vertex(source.id) is source
        assert job.vertex_of(reduce.nodes[1].id) is reduce
        assert job.out_edges(source.id) == job.in_edges(reduce.id) == list(job.edges)
        assert reduce.head.name == "reduce(same)"
        with pytest.raises(KeyError):
            job.vertex(99)

    def test_two_vertices_with_one_id(self, program: Any) -> None:
        node = program.source() and program.sink(program.steps[0]) and program.graph().nodes[0]
        vertex = JobVertex(3, "u", "one", (node,), (), 1, 1)
        other = JobVertex(3, "v", "other", (node,), (), 1, 1)
        with pytest.raises(GraphError, match="'other' and 'one' have the same vertex id 3"):
            JobGraph("j", (vertex, other), ())


@st.composite
def recipes(draw: st.DrawFn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"inputs": [], "parallelism": draw(st.integers(1, 2))}]
    for index in range(1, draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2))
        made.append(
            {
                "inputs": [
                    (i, draw(st.sampled_from([None, None, None, "rescale", "rebalance", "broadcast"])))
                    for i in inputs
                ],
                "parallelism": draw(st.sampled_from([1, 1, 2])),
                "chaining": draw(st.sampled_from([ALWAYS, ALWAYS, ALWAYS, HEAD, NEVER])),
                "slot_sharing_group": draw(st.sampled_from([None, None, None, "a"])),
                "loop": draw(st.booleans()) and draw(st.booleans()),
            }
        )
    return made


def cook(program: Any, recipe: list[dict[str, Any]]) -> None:
    steps: list[Any] = []
    for entry in recipe:
        settings = {k: v for k, v in entry.items() if k not in ("inputs", "loop")}
        refs = [program.by(p, steps[i]) if p else InputRef(steps[i]) for i, p in entry["inputs"]]
        if not refs:
            steps.append(program.source(**settings))
        elif entry["loop"]:
            head = program.iterate(*refs, **settings)
            body = program.map(head, parallelism=settings["parallelism"])
            head.feedback.append(InputRef(body))
            steps.append(body)
        else:
            steps.append(program.map(*refs, **settings))
    for step in steps:
        program.sink(step)


@given(recipes(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_random_programs_are_chained_by_the_rules(new_program: Any, recipe: Any, chaining: bool) -> None:
    program = new_program()
    cook(program, recipe)
    graph = program.graph(chaining=chaining)
    job = build_job_graph(graph)

    # Every node in one chain, every edge either inside one or between two tasks.
    assert Counter(n.id for v in job.vertices for n in v.nodes) == Counter(n.id for n in graph.nodes)
    inner = {e.id: v for v in job.vertices for e in v.inner_edges}
    between = {e.id for e in job.edges}
    assert inner.keys() | between == {e.id for e in graph.edges}
    assert not inner.keys() & between

    # The rules, once more and straight from the specification.
    fan_in = Counter(e.target for e in graph.edges)
    for edge in graph.edges:
        up, down = graph.node(edge.source), graph.node(edge.target)
        may = (
            chaining
            and edge.partitioner.name in ("forward", "rescale")
            and not edge.feedback
            and fan_in[down.id] == 1
            and up.slot_sharing_group == down.slot_sharing_group
            and up.chaining in (ALWAYS, HEAD)
            and down.chaining == ALWAYS
            and up.parallelism == down.parallelism
        )
        assert (edge.id in inner) is may
        assert (job.vertex_of(up.id) is job.vertex_of(down.id) and not edge.feedback) is may

    # Edges end at heads, with the index that the input has at the node; tasks are in topological order.
    place = {v.id: i for i, v in enumerate(job.vertices)}
    for job_edge in job.edges:
        assert job.vertex(job_edge.target).head.id == job_edge.target_node
        assert list(graph.in_edges(job_edge.target_node))[job_edge.input_index].id == job_edge.id
        assert job_edge.feedback or place[job_edge.source] < place[job_edge.target]
    for vertex in job.vertices:
        position = {n.id: i for i, n in enumerate(vertex.nodes)}
        assert all(position[e.source] < position[e.target] for e in vertex.inner_edges)
        assert len(vertex.inner_edges) == len(vertex.nodes) - 1
