from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.config.settings import Settings
from sluiceway.errors import GraphError
from sluiceway.functions import KeyedProcessFunction, MapFunction, OutputTag, ProcessFunction
from sluiceway.graph import InputRef, Transformation, assemble, build_stream_graph, default_max_parallelism
from sluiceway.steps import MapStep, SinkStep
from sluiceway.streamgraph import StreamGraph

LATE = OutputTag("late", str)


def parse(line: str) -> int:
    return int(line)


def split(line: str) -> Iterator[str]:
    yield from line.split()


def positive(value: int) -> bool:
    return value > 0


class Times(MapFunction[int, int]):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def map(self, value: int) -> int:
        return value * self.factor

    def by_two(self, value: int) -> int:
        return value * 2


def by_name(graph: StreamGraph, name: str) -> Any:
    return next(n for n in graph.nodes if n.name == name)


def partitioners(graph: StreamGraph) -> list[str]:
    return [e.partitioner.name for e in graph.edges]


def error(program: Any, parallelism: int = 1, **options: Any) -> str:
    with pytest.raises(GraphError) as caught:
        program.graph(parallelism, **options)
    return str(caught.value)


class TestWalking:
    def test_a_diamond_is_visited_once(self, program: Any) -> None:
        source = program.source()
        left, right = program.map(source, fn=parse), program.map(source)
        program.sink(program.map(left, right))
        graph = program.graph()
        assert len(graph.nodes) == 5
        assert len(graph.edges) == 5

    def test_steps_that_only_others_refer_to_are_found(self, program: Any) -> None:
        sink = program.sink(program.map(program.source()))
        program.steps = [sink]
        assert [n.step.kind for n in program.graph().nodes] == ["source", "map", "sink"]

    def test_a_very_long_program_needs_no_recursion(self, program: Any) -> None:
        last = program.source()
        for _ in range(5000):
            last = program.map(last)
        program.steps = [program.sink(last)]
        assert len(program.graph().nodes) == 5002

    def test_feedback_ends_and_comes_last_among_the_inputs(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head)
        head.feedback.append(InputRef(body))
        program.sink(body)
        graph = program.graph()
        edges = list(graph.in_edges(by_name(graph, "iterate").id))
        assert [e.feedback for e in edges] == [False, True]
        assert edges[1].source == by_name(graph, "map(same)").id

    def test_what_is_only_reached_through_feedback_is_part_of_the_program(self, program: Any) -> None:
        head = program.iterate(program.source())
        sink = program.sink(head)
        head.feedback.append(InputRef(program.map(head)))
        program.steps = [sink]
        assert [n.step.kind for n in program.graph().nodes] == ["source", "iterate", "sink", "map"]

    def test_loops_inside_loops(self, program: Any) -> None:
        outer = program.iterate(program.source())
        inner = program.iterate(outer)
        inner.feedback.append(InputRef(program.map(inner)))
        outer.feedback.append(InputRef(program.map(inner, fn=parse)))
        program.sink(inner)
        assert sum(e.feedback for e in program.graph().edges) == 2

    def test_a_circle_without_iteration_is_an_error(self, program: Any) -> None:
        first = program.map(program.source(), name="first", location="job.py:2")
        second = program.map(first)
        first.inputs.append(InputRef(second))
        program.sink(second)
        message = error(program)
        assert "'map(same)' reads from 'first' (job.py:2), which is made from its output" in message
        assert "iterate()" in message

    def test_inputs_keep_their_order(self, program: Any) -> None:
        sources = [program.source(name=f"s{i}") for i in range(4)]
        union = program.map(*reversed(sources))
        program.sink(union)
        graph = program.graph()
        edges = graph.in_edges(by_name(graph, "map(same)").id)
        assert [graph.node(e.source).name for e in edges] == ["s3", "s2", "s1", "s0"]

    def test_one_stream_twice_in_a_union_is_two_edges(self, program: Any) -> None:
        source = program.source()
        program.sink(source, source)
        graph = program.graph()
        assert len({e.id for e in graph.edges}) == 2


class TestNames:
    @pytest.mark.parametrize(
        ("fn", "name"),
        [
            (parse, "map(parse)"),
            (lambda x: x, "map"),
            (str.lower, "map(str.lower)"),
            (len, "map(len)"),
            (int, "map(int)"),
            (Times(2), "map(Times)"),
            (Times(2).by_two, "map(Times.by_two)"),
            (functools.partial(parse), "map(parse)"),
            (functools.partial(lambda x: x), "map"),
        ],
    )
    def test_are_kind_and_function(self, program: Any, fn: Any, name: str) -> None:
        program.sink(program.map(program.source(), fn=fn))
        assert program.graph().nodes[1].name == name

    def test_of_sources_and_sinks(self, program: Any) -> None:
        program.sink(program.source())
        assert [n.name for n in program.graph().nodes] == ["source(Numbers)", "sink(Drain)"]

    def test_the_users_own_goes_first(self, program: Any) -> None:
        program.sink(program.source(name="clicks"), name="shown")
        assert [n.name for n in program.graph().nodes] == ["clicks", "shown"]


class TestParallelism:
    def test_default_is_that_of_the_settings(self, program: Any) -> None:
        program.sink(program.map(program.source(), parallelism=2))
        assert [n.parallelism for n in program.graph(3).nodes] == [3, 2, 3]

    def test_sources_and_sinks_take_no_more_than_they_can(self, program: Any, numbers: Any, drain: Any) -> None:
        program.sink(program.map(program.source(numbers(2))), sink=drain(1))
        assert [n.parallelism for n in program.graph(4).nodes] == [2, 4, 1]
        assert [n.parallelism for n in program.graph(1).nodes] == [1, 1, 1]

    def test_more_readers_than_a_source_has_room_for(self, program: Any, numbers: Any) -> None:
        program.sink(program.source(numbers(1), parallelism=3, location="job.py:7"))
        message = error(program)
        assert "'source(Numbers)' (job.py:7) has parallelism 3" in message
        assert "can be read by 1 subtask at the most" in message
        assert "set_parallelism(1)" in message

    def test_more_writers_than_a_sink_has_room_for(self, program: Any, drain: Any) -> None:
        program.sink(program.source(), sink=drain(2), parallelism=3)
        assert "sink Drain can be written by 2 subtasks at the most" in error(program)

    @pytest.mark.parametrize("parallelism", [0, -1])
    def test_below_one(self, program: Any, parallelism: int) -> None:
        program.sink(program.map(program.source(), parallelism=parallelism))
        assert f"has parallelism {parallelism}: it must be at least 1" in error(program)

    def test_above_the_own_max_parallelism(self, program: Any) -> None:
        program.sink(program.map(program.source(), name="m", parallelism=5, max_parallelism=4))
        message = error(program)
        assert "'m' has parallelism 5, more than its max parallelism 4" in message
        assert "set_parallelism(4)" in message

    def test_above_the_jobs_max_parallelism(self, program: Any) -> None:
        program.sink(program.source())
        assert "more than its max parallelism 4" in error(program, 5, max_parallelism=4)

    @pytest.mark.parametrize("chosen", [0, 32769])
    def test_max_parallelism_out_of_range(self, program: Any, chosen: int) -> None:
        program.sink(program.source(), max_parallelism=chosen)
        assert f"max parallelism {chosen}: it must be between 1 and 32768" in error(program)

    def test_max_parallelism_own_before_programs_before_settings(self, program: Any) -> None:
        program.sink(program.map(program.source(), max_parallelism=7))
        graph = build_stream_graph("j", program.steps, Settings(max_parallelism=50), max_parallelism=60)
        assert [n.max_parallelism for n in graph.nodes] == [60, 7, 60]
        assert program.graph(max_parallelism=50).nodes[0].max_parallelism == 50

    @pytest.mark.parametrize(
        ("parallelism", "expected"),
        [(1, 128), (85, 128), (86, 256), (100, 256), (171, 256), (172, 512), (20000, 32768), (32768, 32768)],
    )
    def test_default_max_parallelism(self, parallelism: int, expected: int) -> None:
        assert default_max_parallelism(parallelism) == expected

    @given(st.integers(1, 32768))
    def test_default_max_parallelism_has_room_and_is_a_power_of_two(self, parallelism: int) -> None:
        chosen = default_max_parallelism(parallelism)
        assert chosen & (chosen - 1) == 0
        assert chosen >= parallelism
        assert 128 <= chosen <= 32768
        assert chosen >= min(1.5 * parallelism - 1, 32768)
        assert chosen == 128 or chosen < 2 * 1.5 * parallelism


class TestPartitioners:
    def test_forward_between_equals_else_rebalance(self, program: Any) -> None:
        program.sink(program.map(program.source(), parallelism=2), parallelism=2)
        assert partitioners(program.graph(1)) == ["rebalance", "forward"]

    def test_the_users_choice_stays(self, program: Any) -> None:
        program.sink(program.by("shuffle", program.source()))
        assert partitioners(program.graph(2)) == ["shuffle"]

    def test_names_of_plugins_are_taken(self, program: Any) -> None:
        program.sink(program.by("by-weather", program.source()))
        assert partitioners(program.graph()) == ["by-weather"]

    def test_forward_between_different_parallelism(self, program: Any) -> None:
        source = program.source(parallelism=2, location="job.py:1")
        program.sink(program.by("forward", source), parallelism=3, location="job.py:2")
        message = error(program)
        assert "forward from 'source(Numbers)' (job.py:1) (parallelism 2)" in message
        assert "to 'sink(Drain)' (job.py:2) (parallelism 3)" in message
        assert "rebalance()" in message
        assert "rescale()" in message

    def test_a_keyed_step_needs_a_keyed_input(self, program: Any) -> None:
        program.steps.append(Transformation(program.reduce(program.source()).step, [InputRef(program.steps[0])]))
        program.sink(program.steps[-1])
        assert "keeps state per key, but its input from 'source(Numbers)' has no partitioner" in error(program)

    def test_a_keyed_step_behind_another_partitioner(self, program: Any) -> None:
        keyed = program.reduce(program.source())
        keyed.inputs[0] = program.by("shuffle", program.steps[0])
        program.sink(keyed)
        assert "has 'shuffle': put key_by() right before it" in error(program)

    def test_hash_needs_a_key(self, program: Any) -> None:
        program.sink(program.by("hash", program.source()))
        assert "the hash partitioner between 'source(Numbers)' and 'sink(Drain)' needs a key" in error(program)

    def test_custom_needs_a_key_and_a_choice(self, program: Any) -> None:
        program.sink(program.by("custom", program.source(), key=parse))
        assert "needs select=" in error(program)
        program.steps[-1].inputs[0] = program.by("custom", program.steps[0], key=parse, select=max)
        assert partitioners(program.graph()) == ["custom"]


class TestShape:
    def test_no_sink(self, program: Any) -> None:
        program.map(program.source())
        message = error(program)
        assert message.startswith("pipeline 'test' has no sink")
        assert "print()" in message

    def test_an_empty_program_has_no_sink(self, program: Any) -> None:
        assert "has no sink" in error(program)

    def test_a_dangling_stream(self, program: Any) -> None:
        source = program.source()
        program.sink(source)
        program.filter(program.map(source, fn=parse, location="job.py:9"), fn=positive)
        message = error(program)
        assert "1. 'map(parse)' (job.py:9) leads to no sink" in message
        assert "2. 'filter(positive)' leads to no sink" in message

    def test_a_loop_that_leads_nowhere_is_dangling(self, program: Any) -> None:
        source = program.source()
        program.sink(source)
        head = program.iterate(source)
        head.feedback.append(InputRef(program.map(head)))
        assert "'iterate' leads to no sink" in error(program)

    def test_a_loop_body_that_leads_only_back_is_not_dangling(self, program: Any) -> None:
        head = program.iterate(program.source())
        head.feedback.append(InputRef(program.map(head)))
        program.sink(program.filter(head))
        assert len(program.graph().nodes) == 5

    def test_partial_programs_can_be_shown(self, program: Any) -> None:
        program.map(program.source())
        graph = build_stream_graph("j", program.steps, Settings(), partial=True)
        assert [n.name for n in graph.nodes] == ["source(Numbers)", "map(same)"]

    def test_a_step_without_input(self, program: Any) -> None:
        program.sink(program.map(location="job.py:4"))
        assert "'map(same)' (job.py:4) has no input, so no record can reach it" in error(program)

    def test_a_source_with_an_input(self, program: Any) -> None:
        source = program.source()
        source.inputs.append(InputRef(program.source(name="other")))
        program.sink(source)
        assert "source 'source(Numbers)' cannot have an input" in error(program)

    def test_reading_from_a_sink(self, program: Any) -> None:
        program.sink(program.map(program.sink(program.source())))
        assert "'map(same)' cannot read from sink 'sink(Drain)'" in error(program)

    def test_a_side_output_that_is_never_produced(self, program: Any) -> None:
        program.sink(program.tagged(program.map(program.source()), LATE))
        message = error(program)
        assert "'sink(Drain)' reads side output 'late' of 'map(same)', but map never produces" in message
        assert "ProcessFunction" in message

    def test_side_outputs_of_process_steps(self, program: Any) -> None:
        class Plain(ProcessFunction[Any, Any]):
            def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None: ...

        class Keyed(KeyedProcessFunction[Any, Any, Any]):
            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None: ...

        source = program.source()
        for made in (program.process(source, fn=Plain()), program.keyed_process(source, fn=Keyed())):
            program.sink(program.tagged(made, LATE))
        assert [e.tag for e in program.graph().edges].count(LATE) == 2

    def test_a_side_output_that_was_taken_and_leads_nowhere(self, program: Any) -> None:
        made = program.process(program.source(), side_output_tags=[LATE], location="job.py:5")
        program.sink(made)
        findings = assemble("j", program.steps, Settings()).findings
        assert [f.code for f in findings] == ["dangling-side-output"]
        assert "side output 'late' of 'process(same)' (job.py:5) has no consumer" in findings[0].message
        assert len(program.graph().nodes) == 3  # a warning only

    def test_a_buffer_timeout_that_means_nothing(self, program: Any) -> None:
        program.sink(program.source(buffer_timeout_ms=-2))
        assert "has buffer timeout -2 ms" in error(program)

    def test_buffer_timeout_own_before_settings(self, program: Any) -> None:
        program.sink(program.source(buffer_timeout_ms=-1))
        assert [n.buffer_timeout_ms for n in program.graph(buffer_timeout_ms=30).nodes] == [-1, 30]

    def test_all_problems_are_told_at_once(self, program: Any) -> None:
        program.map(program.source(parallelism=0), max_parallelism=0)
        message = error(program)
        assert message.startswith("pipeline 'test' has 3 problems:\n  1. ")
        for part in ("at least 1", "between 1 and 32768", "no sink"):
            assert part in message


class TestIterations:
    def test_without_feedback(self, program: Any) -> None:
        program.sink(program.iterate(program.source(), location="job.py:3"))
        message = error(program)
        assert "iteration 'iterate' (job.py:3) gets nothing back" in message
        assert "close_with" in message

    def test_feedback_that_is_not_made_from_the_loop(self, program: Any) -> None:
        source = program.source()
        head = program.iterate(source)
        head.feedback.append(InputRef(source))
        program.sink(head)
        message = error(program)
        assert "must be made from its own output; 'source(Numbers)' is not" in message

    def test_feedback_to_anything_else(self, program: Any) -> None:
        body = program.map(program.source())
        body.feedback.append(InputRef(body))
        program.sink(body)
        assert "'map(same)' cannot take feedback" in error(program)

    def test_feedback_of_another_parallelism(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head, parallelism=2)
        head.feedback.append(InputRef(body))
        program.sink(body)
        message = error(program)
        assert "'iterate' (parallelism 1) from 'map(same)' (parallelism 2)" in message
        assert "set_parallelism(1)" in message

    def test_feedback_of_another_parallelism_with_a_partitioner(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head, parallelism=2)
        head.feedback.append(program.by("rebalance", body))
        program.sink(body)
        assert partitioners(program.graph()) == ["forward", "rebalance", "rebalance", "rebalance"]

    def test_forward_feedback_of_another_parallelism(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head, parallelism=2)
        head.feedback.append(program.by("forward", body))
        program.sink(body)
        assert "forward from 'map(same)' (parallelism 2)" in error(program)


class TestSlotSharingGroups:
    def groups(self, program: Any) -> list[str]:
        return [n.slot_sharing_group for n in program.graph().nodes]

    def test_are_inherited_from_inputs_that_share_one(self, program: Any) -> None:
        program.sink(program.map(program.source(slot_sharing_group="io")))
        assert self.groups(program) == ["io", "io", "io"]

    def test_are_the_default_where_inputs_differ(self, program: Any) -> None:
        program.sink(program.source(slot_sharing_group="a"), program.source(slot_sharing_group="b"))
        assert self.groups(program) == ["a", "b", "default"]

    def test_own_goes_first(self, program: Any) -> None:
        program.sink(program.map(program.source(slot_sharing_group="io"), slot_sharing_group="default"))
        assert self.groups(program) == ["io", "default", "default"]


class TestTypes:
    def test_flow_along_the_program(self, program: Any, numbers: Any) -> None:
        lines = program.source(numbers(None, str))
        words = program.flat_map(lines, fn=split)
        counts = program.map(words, fn=parse)
        program.sink(program.filter(counts, fn=positive), program.map(words, fn=lambda w: w))
        assert [n.output_type for n in program.graph().nodes] == [str, str, int, int, None, None]

    def test_the_users_goes_first(self, program: Any) -> None:
        program.sink(program.map(program.source(), fn=parse, output_type=bool))
        assert program.graph().nodes[1].output_type is bool

    def test_of_side_outputs_and_unions(self, program: Any, numbers: Any) -> None:
        made = program.process(program.source(numbers(None, int)))
        head = program.iterate(program.tagged(made, LATE), program.steps[0])
        head.feedback.append(InputRef(program.map(head)))
        program.sink(head)
        assert by_name(program.graph(), "iterate").output_type == int | str


class TestUids:
    def test_given_ones_stay(self, program: Any) -> None:
        program.sink(program.source(uid="in"), uid="out")
        nodes = program.graph().nodes
        assert [(n.uid, n.uid_given) for n in nodes] == [("in", True), ("out", True)]

    def test_duplicates_name_both_places(self, program: Any) -> None:
        program.sink(program.source(uid="x", location="job.py:1"), uid="x", location="job.py:2")
        message = error(program)
        assert "'source(Numbers)' (job.py:1) and 'sink(Drain)' (job.py:2) both have uid 'x'" in message

    def test_no_uids_make_two_edges_look_alike(self, program: Any) -> None:
        program.sink(program.source(uid="a>b"), uid="c")
        program.sink(program.source(uid="a"), uid="b>c")
        assert len({e.id for e in program.graph().edges}) == 2

    def test_an_empty_one(self, program: Any) -> None:
        program.sink(program.source(uid=""))
        assert "has an empty uid" in error(program)

    def test_are_the_same_in_every_process(self, program: Any) -> None:
        # What is written here is what checkpoints refer to: it must not change.
        program.sink(program.map(program.source(), fn=parse))
        assert [n.uid for n in program.graph().nodes] == [
            "aa4ca3426d2b1123",
            "b89f25eeee705e6f",
            "1452d2e136378175",
        ]

    def test_do_not_depend_on_parallelism_names_places_and_partitioners(self, new_program: Any) -> None:
        def uids(**settings: Any) -> list[str]:
            program = new_program()
            ref = program.by(settings.pop("partitioner", "rebalance"), program.source())
            program.sink(program.map(ref, fn=parse, **settings))
            return [n.uid for n in program.graph(4).nodes]

        plain = uids()
        assert uids(parallelism=2) == plain
        assert uids(name="other") == plain
        assert uids(location="elsewhere.py:1") == plain
        assert uids(partitioner="shuffle") == plain
        assert uids(slot_sharing_group="io", max_parallelism=9, buffer_timeout_ms=5) == plain

    def test_depend_on_function_key_and_input(self, new_program: Any) -> None:
        def last(build: Callable[[Any], Any]) -> str:
            program = new_program()
            program.sink(build(program))
            return program.graph().nodes[-2].uid

        seen = [
            last(lambda p: p.map(p.source())),
            last(lambda p: p.map(p.source(), fn=parse)),
            last(lambda p: p.filter(p.source(), fn=parse)),
            last(lambda p: p.map(p.source(uid="x"), fn=parse)),
            last(lambda p: p.map(p.tagged(p.process(p.source()), LATE), fn=parse)),
            last(lambda p: p.map(p.process(p.source()), fn=parse)),
            last(lambda p: p.reduce(p.source(), fn=max, key=parse)),
            last(lambda p: p.reduce(p.source(), fn=max, key=positive)),
        ]
        assert len(set(seen)) == len(seen)

    def test_twins_are_told_apart(self, program: Any) -> None:
        source = program.source()
        for _ in range(3):
            program.sink(program.map(source, fn=parse))
        graph = program.graph()
        assert len({n.uid for n in graph.nodes}) == 7

    def test_a_later_twin_leaves_the_earlier_one_alone(self, program: Any) -> None:
        program.sink(program.map(program.source(), fn=parse))
        before = [n.uid for n in program.graph().nodes]
        program.sink(program.map(program.source(), fn=parse))
        assert [n.uid for n in program.graph().nodes][:3] == before

    def test_a_lambda_is_a_lambda_wherever_it_stands(self, new_program: Any) -> None:
        def elsewhere() -> Any:
            return lambda value: value

        uids = []
        for fn in (lambda value: value, elsewhere()):
            program = new_program()
            program.sink(program.map(program.source(), fn=fn))
            uids.append([n.uid for n in program.graph().nodes])
        assert uids[0] == uids[1]


# ---- random programs -------------------------------------------------------------------------------------

FUNCTIONS = (parse, split, positive, len, str)


@st.composite
def recipes(draw: st.DrawFn) -> list[tuple[str, int, list[int], int]]:
    """Random programs as (kind, function, inputs, parallelism): inputs are earlier steps."""
    size = draw(st.integers(1, 10))
    made = [("source", 0, [], draw(st.integers(1, 4)))]
    for index in range(1, size):
        kind = draw(st.sampled_from(["source", "map", "map", "filter", "reduce", "union"]))
        width = {"source": 0, "union": 2}.get(kind, 1)
        inputs = [draw(st.integers(0, index - 1)) for _ in range(width)]
        made.append((kind, draw(st.integers(0, len(FUNCTIONS) - 1)), inputs, draw(st.integers(1, 4))))
    return made


def cook(program: Any, recipe: list[tuple[str, int, list[int], int]]) -> list[Transformation]:
    steps: list[Transformation] = []
    for kind, function, inputs, parallelism in recipe:
        ups = [steps[i] for i in inputs]
        if kind == "source":
            steps.append(program.source(parallelism=parallelism))
        elif kind == "union":
            steps.append(program.map(*ups, parallelism=parallelism))
        else:
            steps.append(getattr(program, kind)(*ups, fn=FUNCTIONS[function], parallelism=parallelism))
    read = {i for _, _, inputs, _ in recipe for i in inputs}
    for index, step in enumerate(list(steps)):
        if index not in read:
            program.sink(step)
    return steps


@given(recipes())
@settings(max_examples=60, deadline=None)
def test_random_programs_become_sound_graphs(new_program: Any, recipe: Any) -> None:
    program = new_program()
    steps = cook(program, recipe)
    graph = program.graph(2)
    assert len(graph.nodes) == len(program.steps)
    assert sorted(n.id for n in graph.nodes) == list(range(len(graph.nodes)))
    assert len({n.uid for n in graph.nodes}) == len(graph.nodes)
    assert len({e.id for e in graph.edges}) == len(graph.edges)
    place = {n.id: i for i, n in enumerate(graph.nodes)}
    for edge in graph.edges:
        assert place[edge.source] < place[edge.target]
        up, down = graph.node(edge.source), graph.node(edge.target)
        if edge.partitioner.name == "forward":
            assert up.parallelism == down.parallelism
        else:
            assert edge.partitioner.name == "hash" or up.parallelism != down.parallelism
    assert len(graph.edges) == sum(len(t.inputs) for t in program.steps)
    assert steps


@given(recipes(), st.data())
@settings(max_examples=60, deadline=None)
def test_an_unrelated_step_leaves_other_uids_alone(new_program: Any, recipe: Any, data: st.DataObject) -> None:
    def uids(extra_at: int | None) -> dict[int, str]:
        program = new_program()
        steps = cook(program, recipe)
        if extra_at is not None:
            tap = Transformation(MapStep(unrelated), [InputRef(steps[extra_at])])
            sink = Transformation(SinkStep(program.steps[-1].step.sink), [InputRef(tap)])
            where = data.draw(st.integers(extra_at + 1, len(program.steps)))
            program.steps[where:where] = [tap, sink]
        graph = program.graph()
        mine = dict(zip(program.steps, graph.nodes, strict=True))
        return {i: mine[t].uid for i, t in enumerate(steps)}

    assert uids(data.draw(st.integers(0, len(recipe) - 1))) == uids(None)


def unrelated(value: int) -> int:
    return value
