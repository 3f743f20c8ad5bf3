"""Steps with two inputs: ports, keys, exchanges, types, chains, and how plans show them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway.errors import GraphError
from sluiceway.functions import CoFlatMapFunction, CoMapFunction, CoProcessFunction
from sluiceway.graph import Finding, InputRef, Level, check, explain
from sluiceway.state import MapStateDescriptor
from sluiceway.steps import (
    BroadcastProcessStep,
    CoFlatMapStep,
    CoMapStep,
    CoProcessStep,
    PerInput,
    Step,
)
from sluiceway.streamgraph import PartitionerSpec

LOCK = threading.Lock()


def name(value: str) -> str:
    return value


def half(value: int) -> float:
    return value / 2


def number(value: int) -> int:
    return value


class Both(CoMapFunction[int, str, bytes]):
    def map1(self, value: int) -> bytes: ...

    def map2(self, value: str) -> bytes: ...


class Words(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: int) -> str: ...

    def flat_map2(self, value: str) -> int: ...


class Silent(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: int, ctx: Any) -> Iterator[str]: ...

    def process_element2(self, value: str, ctx: Any) -> None: ...


def second(upstream: Any, partitioner: PartitionerSpec | None = None) -> InputRef:
    return InputRef(upstream, None, partitioner, port=1)


def keyed(upstream: Any, key: Any, port: int) -> InputRef:
    return InputRef(upstream, None, PartitionerSpec("hash", key), port=port)


def connected(program: Any, numbers: Any, step: Step | None = None, **settings: Any) -> Any:
    """``int`` and ``str`` sources, connected by ``step``, and a sink."""
    left, right = program.source(numbers(None, int)), program.source(numbers(None, str))
    made = program.add(step or CoMapStep(PerInput(number, name)), left, second(right), **settings)
    program.sink(made)
    return made


def errors(program: Any) -> list[Finding]:
    return [f for f in check(program.steps) if f.level is Level.ERROR]


class TestShape:
    def test_it_is_never_chained_to_its_inputs(self, program: Any, numbers: Any) -> None:
        connected(program, numbers)
        job = program.job(2)
        assert [[n.step.kind for n in v.nodes] for v in job.vertices] == [
            ["source"],
            ["source"],
            ["co_map", "sink"],
        ]
        assert [(e.edge.port, e.edge.partitioner.name) for e in job.edges] == [(0, "forward"), (1, "forward")]

    def test_one_stream_may_be_both_inputs(self, program: Any, numbers: Any) -> None:
        source = program.source(numbers())
        program.sink(program.add(CoMapStep(PerInput(str, str)), source, second(source)))
        job = program.job()
        assert [e.edge.port for e in job.edges] == [0, 1]
        assert len({e.id for e in job.edges}) == 2

    @pytest.mark.parametrize(("given", "missing"), [(0, 2), (1, 1)])
    def test_both_inputs_are_needed(self, program: Any, given: int, missing: int) -> None:
        program.sink(program.add(CoMapStep(PerInput(number, name)), InputRef(program.source(), port=given)))
        with pytest.raises(
            GraphError, match=rf"nothing feeds input {missing} of 'co_map\(number, name\)', which needs"
        ):
            program.graph()

    def test_there_is_no_third_input(self, program: Any) -> None:
        source = program.source()
        step = CoMapStep(PerInput(number, name))
        program.sink(program.add(step, source, second(source), InputRef(source, port=2)))
        with pytest.raises(
            GraphError, match=r"feeds input 3 of 'co_map.*', but a co_map step has 2 inputs: use union"
        ):
            program.graph()

    def test_a_step_with_one_input_has_no_second(self, program: Any) -> None:
        source = program.source()
        program.sink(program.map(source, second(source)))
        with pytest.raises(
            GraphError, match=r"feeds input 2 of 'map\(same\)', but a map step has 1 input: use union"
        ):
            program.graph()

    def test_feedback_goes_to_iterations_only(self, program: Any, numbers: Any) -> None:
        step = connected(program, numbers)
        step.feedback.append(InputRef(step))
        with pytest.raises(GraphError, match=r"'co_map.*' cannot take feedback: only iterate\(\) begins a loop"):
            program.graph()

    def test_several_streams_may_feed_either_input(self, program: Any, numbers: Any) -> None:
        a, b, c, d = (program.source(numbers(), name=n) for n in "abcd")
        program.sink(program.add(CoMapStep(PerInput(str, str)), a, b, second(c), second(d)))
        job = program.job()
        ports = [(job.vertex(e.source).name, e.edge.port) for e in job.in_edges(job.vertices[-1].id)]
        assert ports == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]

    def test_each_edge_is_forward_where_the_parallelisms_agree(self, program: Any, numbers: Any) -> None:
        left, right = program.source(numbers(), parallelism=2), program.source(numbers(), parallelism=3)
        program.sink(program.add(CoMapStep(PerInput(str, str)), left, second(right), parallelism=3), parallelism=1)
        graph = program.graph()
        assert [e.partitioner.name for e in graph.in_edges(2)] == ["rebalance", "forward"]

    def test_the_slot_sharing_group_is_inherited_from_both(self, program: Any, numbers: Any) -> None:
        left = program.source(numbers(), slot_sharing_group="x")
        right = program.source(numbers(), slot_sharing_group="x")
        other = program.source(numbers())
        alike = program.add(CoMapStep(PerInput(str, str)), left, second(right))
        mixed = program.add(CoMapStep(PerInput(str, str)), left, second(other))
        program.sink(alike, mixed)
        graph = program.graph()
        assert [n.slot_sharing_group for n in graph.nodes if n.step.kind == "co_map"] == ["x", "default"]


class TestKeys:
    def test_both_inputs_come_by_their_own_key(self, program: Any, numbers: Any) -> None:
        left, right = program.source(numbers(), parallelism=2), program.source(numbers(), parallelism=3)
        step = CoProcessStep(Silent(), number, name)
        made = program.add(step, keyed(left, number, 0), keyed(right, name, 1), max_parallelism=77)
        program.sink(made)
        graph = program.graph(4)
        assert [(e.port, e.partitioner.name, e.partitioner.key) for e in graph.in_edges(2)] == [
            (0, "hash", number),
            (1, "hash", name),
        ]
        assert graph.node(2).max_parallelism == 77
        assert step.keys == (number, name)
        assert step.keyed
        assert step.stateful

    @pytest.mark.parametrize("port", [0, 1])
    def test_an_input_without_its_key_is_an_error(self, program: Any, port: int) -> None:
        left, right = program.source(name="left"), program.source(name="right")
        refs = [keyed(left, number, 0), keyed(right, number, 1)]
        refs[port] = InputRef(refs[port].upstream, port=port)
        program.sink(program.add(CoMapStep(Both(), number, number), *refs))
        bad = ("left", "right")[port]
        message = rf"keeps state per key, but its input from '{bad}' has no partitioner: put key_by\(\)"
        with pytest.raises(GraphError, match=message):
            program.graph()

    def test_with_one_key_alone_it_is_not_keyed(self, program: Any, numbers: Any) -> None:
        step = CoMapStep(Both(), number, None)
        assert (step.keyed, step.stateful, step.keys) == (False, False, (None, None))

    def test_keys_that_can_never_be_equal_are_found(self, program: Any, numbers: Any) -> None:
        left, right = program.source(), program.source()
        program.sink(program.add(CoMapStep(Both(), number, name), keyed(left, number, 0), keyed(right, name, 1)))
        assert [(f.code, f.message) for f in errors(program)] == [
            (
                "key-type-clash",
                "'co_map(Both)' keys its first input by number, which returns int, and its second by name, which"
                " returns str: records meet only under equal keys, so have both return the same type",
            )
        ]

    @pytest.mark.parametrize("other", [number, half, lambda value: value])
    def test_keys_that_can_be_equal_are_not(self, program: Any, other: Any) -> None:
        left, right = program.source(), program.source()
        step = CoMapStep(PerInput(str, str), number, other)
        program.sink(program.add(step, keyed(left, number, 0), keyed(right, other, 1)))
        assert errors(program) == []

    def test_broadcast_records_must_come_to_everybody(self, program: Any) -> None:
        step = BroadcastProcessStep(Both(), number, descriptors=(MapStateDescriptor("x"),))
        left, right = program.source(name="left"), program.source(name="right")
        program.sink(program.add(step, keyed(left, number, 0), second(right, PartitionerSpec("rebalance"))))
        with pytest.raises(
            GraphError,
            match=r"needs the partitioner 'broadcast', but its input from 'right' has 'rebalance': use br",
        ):
            program.graph()


class TestTypes:
    def test_each_input_is_checked_against_its_own_method(self, program: Any, numbers: Any) -> None:
        left, right = program.source(numbers(None, int)), program.source(numbers(None, str))
        program.sink(program.add(CoMapStep(Both()), left, second(right)))
        assert errors(program) == []
        program.sink(program.add(CoMapStep(Both()), right, second(left), name="swapped"))
        assert [f.message.partition(":")[0] for f in errors(program)] == [
            "'source(Numbers)' produces str, but 'swapped' takes int on input 1",
            "'source(Numbers)' produces int, but 'swapped' takes str on input 2",
        ]

    def test_the_output_is_what_either_method_returns(self, program: Any, numbers: Any) -> None:
        steps = [
            CoMapStep(Both()),
            CoMapStep(PerInput(number, name)),
            CoMapStep(PerInput(number, lambda value: value)),
            CoProcessStep(Silent()),
        ]
        made = [connected(program, numbers, step) for step in steps]
        graph = program.graph()
        types = [n.output_type for n in graph.nodes if n.step.ports == 2]
        assert len(made) == len(types)
        assert types == [bytes, int | str, None, str]

    def test_a_flat_map_that_returns_no_iterable_or_a_str(self, program: Any, numbers: Any) -> None:
        connected(program, numbers, CoFlatMapStep(Words()))
        found = [(f.level, f.code) for f in check(program.steps) if f.node == "co_flat_map(Words)"]
        assert found == [(Level.WARNING, "flat-map-str"), (Level.ERROR, "not-iterable")]

    def test_an_async_callable_is_found(self, program: Any, numbers: Any) -> None:
        async def later(value: str) -> str: ...

        connected(program, numbers, CoMapStep(PerInput(number, later)))
        assert "async-function" in [f.code for f in errors(program)]

    def test_what_cannot_be_pickled_is_found_in_either_callable(self, program: Any, numbers: Any) -> None:
        def locked(value: str) -> str:
            with LOCK:
                return value

        lock = threading.Lock()

        def holding(value: str) -> str:
            with lock:
                return value

        connected(program, numbers, CoMapStep(PerInput(number, holding)))
        (found,) = errors(program)
        assert found.code == "unserialisable"
        assert "variable 'lock' (lock) cannot be pickled" in found.message


class TestOwnership:
    def test_steps_that_are_given_one_object_get_one_each(self, program: Any, numbers: Any) -> None:
        function = Both()
        connected(program, numbers, CoMapStep(function))
        connected(program, numbers, CoMapStep(function))
        functions = [n.step.function for n in program.graph().nodes if n.step.ports == 2]
        assert functions[0] is function
        assert isinstance(functions[1], Both)
        assert functions[1] is not function


class TestUids:
    def test_they_tell_the_inputs_apart(self, new_program: Any, numbers: Any) -> None:
        def uid(step: Step, swapped: bool = False, both: bool = True) -> str:
            program = new_program()
            a, b = program.source(numbers(), uid="a"), program.source(numbers(), uid="b")
            first, other = (b, a) if swapped else (a, b)
            inputs = [first, second(other)] if both else [first, other]
            made = program.add(step, *inputs, name="x") if both else program.map(*inputs)
            program.sink(made)
            return program.graph().nodes[2].uid

        step = CoMapStep(PerInput(number, name))
        uids = [
            uid(step),
            uid(step, swapped=True),
            uid(CoMapStep(PerInput(name, number))),
            uid(CoFlatMapStep(PerInput(number, name))),
        ]
        assert len(set(uids)) == 4
        assert uid(step) == uids[0]

    def test_they_tell_which_key_is_whose(self, new_program: Any) -> None:
        def uid(first: Any, other: Any) -> str:
            program = new_program()
            a, b = program.source(uid="a"), program.source(uid="b")
            step = CoMapStep(PerInput(str, str), first, other)
            program.sink(program.add(step, keyed(a, first, 0), keyed(b, other, 1)))
            return program.graph().nodes[2].uid

        assert len({uid(number, name), uid(number, number), uid(name, number)}) == 3

    def test_they_tell_which_input_a_stream_feeds(self, new_program: Any) -> None:
        def uid(port_of_b: int) -> str:
            program = new_program()
            a, b, c = (program.source(uid=letter) for letter in "abc")
            refs = [a, InputRef(b, port=port_of_b), second(c)]
            program.sink(program.add(CoMapStep(PerInput(str, str)), *refs))
            return program.graph().nodes[3].uid

        assert uid(0) != uid(1)


class TestPlans:
    @pytest.fixture
    def graph(self, program: Any, numbers: Any) -> Any:
        left, right = program.source(numbers(None, int), uid="l"), program.source(numbers(None, str), uid="r")
        refs = (keyed(left, number, 0), keyed(right, name, 1))
        program.sink(program.add(CoProcessStep(Silent(), number, name), *refs, uid="both"), uid="out")
        return program.graph()

    def test_text(self, graph: Any) -> None:
        assert explain(graph).splitlines()[2:] == [
            "Task 1: parallelism 1 (max 128)",
            "  source(Numbers)     bounded, gives int, uid l",
            "    => task 3: hash by number, input 1, as plain values",
            "",
            "Task 2: parallelism 1 (max 128)",
            "  source(Numbers)     bounded, gives str, uid r",
            "    => task 3: hash by name, input 2, as plain values",
            "",
            "Task 3: parallelism 1 (max 128)",
            "  co_process(Silent)  state, gives str, uid both",
            "    sink(Drain)       uid out",
        ]

    def test_mermaid(self, graph: Any) -> None:
        lines = explain(graph, "mermaid").splitlines()
        assert '  n0 -- "hash by number, input 1<br/>as plain values" --> n2' in lines
        assert '  n1 -- "hash by name, input 2<br/>as plain values" --> n2' in lines

    def test_json(self, graph: Any) -> None:
        edges = json.loads(explain(graph, "json"))["edges"]
        assert [(e["source"], e["target"], e["port"], e["key"]) for e in edges] == [
            (0, 2, 0, "number"),
            (1, 2, 1, "name"),
            (2, 3, 0, None),
        ]

    def test_html(self, graph: Any) -> None:
        shown = explain(graph, "html")
        assert "hash by number, input 1" in shown
        assert "hash by name, input 2" in shown

    def test_names_of_steps_with_two_callables(self, program: Any, numbers: Any) -> None:
        made = [PerInput(number, name), PerInput(number, lambda v: v), PerInput(lambda v: v, lambda v: v)]
        for fn in made:
            connected(program, numbers, CoMapStep(fn))
        names = [n.name for n in program.graph().nodes if n.step.ports == 2]
        assert names == ["co_map(number, name)", "co_map(number, <lambda>)", "co_map"]
