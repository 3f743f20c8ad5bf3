from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sluiceway.config.settings import Settings
from sluiceway.functions import AggregateFunction, KeySelector, MapFunction, OutputTag, ReduceFunction
from sluiceway.graph import Finding, InputRef, Level, check
from sluiceway.graph.check.pickling import find_obstacle

LOCK = threading.Lock()


@dataclass
class Order:
    user: str


@dataclass(frozen=True)
class UserId:
    name: str


class Plain:
    pass


class Animal:
    pass


class Cat(Animal):
    pass


def stroke(cat: Cat) -> None: ...


def to_int(value: str) -> int:
    return int(value)


def to_str(value: int) -> str:
    return str(value)


def words(line: str) -> Iterator[str]:
    yield from line.split()


def first_word(line: str) -> str:
    return line


def one_number(line: str) -> int:
    return 1


def nothing(line: str) -> None: ...


def maybe(line: str) -> list[str] | None: ...


async def later(value: int) -> int:
    return value


def add(left: int, right: int) -> int:
    return left + right


def widen(left: int, right: int) -> str:
    return ""


def order_key(value: int) -> Order:
    return Order("")


def list_key(value: int) -> list[int]:
    return [value]


def plain_key(value: int) -> Plain:
    return Plain()


def tuple_key(value: int) -> tuple[str, list[int]]:
    return "", []


def good_key(value: int) -> tuple[UserId, str | None, int]:
    raise NotImplementedError


def text_key(value: str) -> str:
    return value


def uses_lock(value: int) -> int:
    with LOCK:
        return value


def codes(findings: list[Finding], level: Level | None = None) -> list[str]:
    return [f.code for f in findings if level is None or f.level is level]


def errors(program: Any, **options: Any) -> list[Finding]:
    return [f for f in check(program.steps, **options) if f.level is Level.ERROR]


def only(program: Any) -> Finding:
    (finding,) = errors(program)
    return finding


class TestAltogether:
    def test_a_sound_program_has_no_findings(self, program: Any, numbers: Any, drain: Any) -> None:
        source = program.source(numbers(None, int), uid="in")
        counts = program.reduce(program.map(source, fn=to_str), fn=max, key=text_key, uid="best")
        program.sink(counts, sink=drain(None, str))
        assert check(program.steps) == []

    def test_subtasks_that_exchange_records_in_one_process_are_warned_of_once(
        self, program: Any, numbers: Any, drain: Any
    ) -> None:
        source = program.source(numbers(None, int), uid="in")
        counts = program.reduce(program.map(source, fn=to_str), fn=max, key=text_key, uid="best")
        program.sink(program.reduce(counts, fn=max, key=text_key, uid="again"), sink=drain(None, str))
        (finding,) = check(program.steps, Settings(parallelism=3))
        assert (finding.level, finding.code) == (Level.WARNING, "one-process")
        assert "3 subtasks, which take turns in one process" in finding.message
        assert "--workers 3" in finding.message
        (finding,) = check(program.steps, Settings(parallelism=3), cpus=2)
        assert "(--workers 2), or with parallelism 1" in finding.message
        (finding,) = check(program.steps, Settings(parallelism=3), cpus=1)
        assert finding.message.endswith("longer than one subtask: run it with parallelism 1")
        assert check(program.steps, Settings(parallelism=3, workers=3)) == []
        assert check(program.steps, Settings(parallelism=3, engine="other")) == []

    def test_everything_is_found_at_once(self, program: Any, numbers: Any) -> None:
        source = program.source(numbers(1, int), parallelism=2, location="job.py:1")
        program.map(source, fn=to_int, location="job.py:2")
        program.map(source, fn=uses_lock, uid="x")
        findings = check(program.steps, Settings(parallelism=3), job_name="mine")
        assert codes(findings, Level.ERROR) == ["parallelism", "no-sink", "type-clash"]
        assert codes(findings, Level.WARNING) == ["unstable-uid"]
        clash = findings[-1]
        assert (clash.node, clash.location) == ("map(to_int)", "job.py:2")
        assert "pipeline 'mine' has no sink" in findings[1].message
        assert str(findings[1]).startswith("error: pipeline 'mine'")
        assert str(findings[1]).endswith("[no-sink]")

    def test_settings_matter(self, program: Any) -> None:
        program.sink(program.source(max_parallelism=2, uid="in"))
        assert check(program.steps) == []
        assert codes(check(program.steps, Settings(parallelism=3))) == ["parallelism"]

    def test_a_stream_graph_can_be_checked_too(self, program: Any, numbers: Any) -> None:
        program.sink(program.map(program.source(numbers(None, int)), fn=to_int))
        assert codes(check(program.graph())) == ["unstable-uid", "type-clash"]

    def test_a_program_in_a_circle_ends_with_that(self, program: Any) -> None:
        step = program.map(program.source())
        step.inputs.append(InputRef(step))
        program.sink(step)
        assert codes(check(program.steps)) == ["circle"]


class TestUids:
    def test_stateful_steps_without_one(self, program: Any) -> None:
        source = program.source(uid="in")
        program.sink(program.reduce(source, fn=max, location="job.py:3"))
        (finding,) = check(program.steps)
        assert (finding.level, finding.code) == (Level.WARNING, "unstable-uid")
        assert "'reduce(max)' (job.py:3) keeps state but has no uid" in finding.message
        assert "uid('reduce-max')" in finding.message


class TestPickling:
    def test_a_captured_variable(self, program: Any) -> None:
        lock = threading.Lock()

        def locked(value: int) -> int:
            with lock:
                return value

        program.sink(program.map(program.source(uid="in"), fn=locked, location="job.py:2"))
        finding = only(program)
        assert finding.code == "unserialisable"
        assert "the function of 'map(locked)' (job.py:2) cannot be sent to a worker" in finding.message
        assert "variable 'lock' (lock) cannot be pickled: cannot pickle '_thread.lock' object" in finding.message
        assert "open()" in finding.message

    def test_what_forbids_it_itself(self, program: Any) -> None:
        class Context:
            def __init__(self) -> None:
                self.lock = threading.Lock()

            def __getnewargs__(self) -> Any:
                raise RuntimeError("only in the driver.")

        context = Context()
        program.sink(program.map(program.source(uid="in"), fn=lambda value: [value, context]))
        said = only(program).message
        assert "variable 'context' (Context) cannot be pickled: only in the driver. Make such" in said

    def test_deep_inside_a_function_object(self, program: Any) -> None:
        class Client:
            def __init__(self) -> None:
                self.pool = {"spare": [threading.Lock()]}

        class Ask(MapFunction[int, int]):
            def __init__(self) -> None:
                self.client = Client()

            def map(self, value: int) -> int:
                return value

        program.sink(program.map(program.source(uid="in"), fn=Ask()))
        assert (
            "item 0 of entry 'spare' of attribute 'pool' of attribute 'client' (lock) cannot be pickled"
            in only(program).message
        )

    def test_sources_sinks_keys_and_partitioners(self, program: Any, numbers: Any, drain: Any) -> None:
        lock = threading.Lock()
        source, sink = numbers(), drain()
        source.lock = sink.lock = lock

        def key(value: int) -> int:
            return value if lock else 0

        reduced = program.reduce(program.source(source, uid="a"), fn=max, key=key, uid="b")
        program.sink(program.by("custom", reduced, key=to_str, select=lambda k, n: bool(lock)), sink=sink)
        messages = [f.message.split(" of ")[0] for f in errors(program)]
        assert messages == [
            "the source Numbers",
            "the key selector",
            "the sink Drain",
            "the partitioner",
        ]

    def test_what_can_be_imported_is_no_obstacle(self, program: Any) -> None:
        program.sink(program.map(program.source(uid="in"), fn=str.lower))
        assert errors(program) == []
        assert find_obstacle(lambda value: value) is None

    def test_an_object_that_will_not(self) -> None:
        class Never:
            def __reduce__(self) -> Any:
                raise RuntimeError("not me\nat all")

        obstacle = find_obstacle(Never())
        assert str(obstacle) == "its Never cannot be pickled: not me"

    def test_things_that_hold_each_other(self) -> None:
        holder: dict[str, Any] = {}
        holder["self"] = holder
        holder["lock"] = threading.Lock()
        obstacle = find_obstacle(holder)
        assert obstacle is not None
        assert obstacle.path == ("entry 'lock'",)

    def test_bound_methods_and_partials(self) -> None:
        import functools

        class Holder:
            def __init__(self) -> None:
                self.lock = threading.Lock()

            def method(self, value: int) -> int:
                return value

        obstacle = find_obstacle(functools.partial(Holder().method, 1))
        assert obstacle is not None
        assert obstacle.path == ("partial's func", "object", "attribute 'lock'")


class TestTypes:
    def test_a_clash_between_two_functions(self, program: Any) -> None:
        numbers = program.map(program.source(uid="in"), fn=to_int, location="job.py:4")
        program.sink(program.filter(numbers, fn=text_key, location="job.py:5"))
        finding = only(program)
        assert finding.code == "type-clash"
        assert finding.message == (
            "'map(to_int)' (job.py:4) produces int, but 'filter(text_key)' (job.py:5) takes str: convert in"
            " between, or correct the type hints"
        )

    def test_a_clash_with_a_sink(self, program: Any, numbers: Any, drain: Any) -> None:
        program.sink(program.source(numbers(None, int), uid="in"), sink=drain(None, bytes))
        assert "produces int, but 'sink(Drain)' takes bytes" in only(program).message

    def test_a_clash_with_a_key_selector(self, program: Any, numbers: Any) -> None:
        source = program.source(numbers(None, int), uid="in")
        program.sink(program.reduce(source, fn=add, key=text_key, uid="x"))
        assert "the key selector text_key before 'reduce(add)' takes str" in only(program).message

    def test_a_clash_of_one_of_two_united_streams(self, program: Any, numbers: Any) -> None:
        good, bad = (
            program.source(numbers(None, str), uid="a"),
            program.source(numbers(None, int), uid="b", name="bad"),
        )
        program.sink(program.map(good, bad, fn=to_int))
        assert only(program).message.startswith("'bad' produces int")

    def test_a_clash_of_a_side_output(self, program: Any, numbers: Any) -> None:
        made = program.process(program.source(uid="in"))
        program.sink(program.map(program.tagged(made, OutputTag("late", int)), fn=to_int))
        assert only(program).message.startswith("side output 'late' of 'process(same)' produces int")

    def test_a_clash_of_what_comes_back(self, program: Any, numbers: Any) -> None:
        head = program.iterate(program.source(numbers(None, int), uid="in"))
        body = program.map(head, fn=to_str)
        head.feedback.append(InputRef(body))
        program.sink(body)
        assert "'map(to_str)' produces str, but iteration 'iterate' takes int" in only(program).message

    def test_a_declared_type_that_the_hints_deny(self, program: Any) -> None:
        program.sink(program.map(program.source(uid="in"), fn=to_int, output_type=str))
        assert "'map(to_int)' is said to produce str, but its hints say int" in only(program).message

    def test_a_reduction_to_another_type(self, program: Any) -> None:
        program.sink(program.reduce(program.source(uid="in"), fn=widen, uid="x"))
        finding = only(program)
        assert "reduces to str, which its function does not take again as int" in finding.message
        assert "aggregate()" in finding.message

    def test_aggregates(self, program: Any, numbers: Any) -> None:
        class Mean(AggregateFunction[str, tuple[int, int], float]):
            def create_accumulator(self) -> tuple[int, int]:
                return 0, 0

            def add(self, value: str, accumulator: tuple[int, int]) -> tuple[int, int]:
                return accumulator

            def get_result(self, accumulator: tuple[int, int]) -> float:
                return 0.0

        source = program.source(numbers(None, int), uid="in")
        means = program.aggregate(source, fn=Mean(), key=to_str, with_key=True, uid="x")
        program.sink(program.map(means, fn=to_str))
        first, second = errors(program)
        assert "produces int, but 'aggregate(Mean)' takes str" in first.message
        assert "'aggregate(Mean)' produces tuple[str, float], but 'map(to_str)' takes int" in second.message

    def test_equal_names_are_told_apart(self, program: Any, numbers: Any) -> None:
        class Order:
            pass

        Order.__module__ = "elsewhere"

        def take(order: Any) -> None: ...

        take.__annotations__["order"] = Order
        program.sink(program.map(program.source(numbers(None, globals()["Order"]), uid="in"), fn=take))
        message = only(program).message
        assert "elsewhere.Order" in message
        assert "test_pipeline.Order" in message

    def test_what_a_filter_may_have_narrowed_is_left_alone(self, program: Any, numbers: Any) -> None:
        for given_type in (Cat | None, Animal):
            kept = program.filter(program.source(numbers(None, given_type), uid=str(given_type)), fn=bool)
            program.sink(program.map(kept, fn=stroke))
        assert errors(program) == []
        program.sink(program.map(program.source(numbers(None, Animal), uid="all"), fn=stroke))
        assert codes(errors(program)) == ["type-clash"]

    def test_what_a_filter_cannot_have_narrowed_is_checked(self, program: Any, numbers: Any) -> None:
        kept = program.filter(program.source(numbers(None, int), uid="in"), fn=bool)
        program.sink(program.map(kept, fn=to_int))
        assert "produces int, but 'map(to_int)' takes str" in only(program).message

    def test_lambdas_clash_with_nothing(self, program: Any, numbers: Any) -> None:
        program.sink(program.map(program.source(numbers(None, int), uid="in"), fn=lambda value: value))
        assert check(program.steps) == []


class TestFunctions:
    def test_flat_map_without_iterable(self, program: Any) -> None:
        program.sink(program.flat_map(program.source(uid="in"), fn=one_number))
        finding = only(program)
        assert finding.code == "not-iterable"
        assert "returns int, but flat_map() needs an iterable" in finding.message

    def test_flat_map_that_returns_nothing_ever(self, program: Any) -> None:
        program.sink(program.flat_map(program.source(uid="in"), fn=nothing))
        assert "returns None, but flat_map() needs an iterable" in only(program).message

    @pytest.mark.parametrize("fn", [words, maybe, lambda line: 1])
    def test_flat_map_that_may_be_right(self, program: Any, fn: Any) -> None:
        program.sink(program.flat_map(program.source(uid="in"), fn=fn))
        assert check(program.steps) == []

    def test_flat_map_over_characters(self, program: Any) -> None:
        program.sink(program.flat_map(program.source(uid="in"), fn=first_word))
        (finding,) = check(program.steps)
        assert (finding.level, finding.code) == (Level.WARNING, "flat-map-str")
        assert "a record of each character" in finding.message

    def test_async_functions(self, program: Any) -> None:
        program.sink(program.map(program.source(uid="in"), fn=later))
        finding = only(program)
        assert finding.code == "async-function"
        assert "'map(later)' has an async function" in finding.message

    def test_function_objects_are_asked_for_their_method(self, program: Any, numbers: Any) -> None:
        class Join(ReduceFunction[str]):
            def reduce(self, value1: str, value2: str) -> str:
                return value1

        program.sink(program.reduce(program.source(numbers(None, int), uid="in"), fn=Join(), uid="x"))
        assert "produces int, but 'reduce(Join)' takes str" in only(program).message


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "why"),
        [
            (list_key, "returns list[int], which cannot be a key: list is not hashable. Use tuple(key)."),
            (order_key, "returns Order, which cannot be a key: Order is not hashable. Make it @dataclass(froz"),
            (tuple_key, "returns tuple[str, list[int]], which cannot be a key: list is not hashable."),
            (plain_key, "returns Plain, which cannot be a key: Plain is hashed by its address"),
        ],
    )
    def test_that_cannot_be(self, program: Any, key: Any, why: str) -> None:
        program.sink(program.reduce(program.source(uid="in"), key=key, uid="x"))
        finding = only(program)
        assert finding.code == "unstable-key"
        assert f"the key selector {key.__name__} before 'reduce(same)' {why}" in finding.message

    @pytest.mark.parametrize("key", [good_key, to_str, lambda value: [], len, Iterable])
    def test_that_can_be_or_are_not_known(self, program: Any, key: Any) -> None:
        program.sink(program.reduce(program.source(uid="in"), key=key, uid="x"))
        assert check(program.steps) == []

    def test_selector_objects_are_asked_for_their_method(self, program: Any, numbers: Any) -> None:
        class Parts(KeySelector[str, list[str]]):
            def get_key(self, value: str) -> list[str]:
                return value.split()

        source = program.source(numbers(None, int), uid="in")
        program.sink(program.reduce(source, key=Parts(), uid="x"))
        clash, unstable = errors(program)
        assert "produces int, but the key selector Parts before 'reduce(same)' takes str" in clash.message
        assert "the key selector Parts before 'reduce(same)' returns list[str]" in unstable.message
