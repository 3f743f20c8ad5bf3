"""every_way: what passes, and what each of the ways finds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.testing import every_way


def words(stream: sw.DataStream[str]) -> sw.DataStream[tuple[str, int]]:
    return stream.flat_map(str.split).key_by(lambda word: word).count()


def test_a_word_count_is_the_same_in_every_way() -> None:
    assert every_way(words, ["to be or", "not", "", "to be"]) == [
        ("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), max_size=6))
@settings(max_examples=10, deadline=None)
def test_every_aggregation_is_the_same_in_every_way(pairs: list[tuple[str, int]]) -> None:
    def program(stream: sw.DataStream[tuple[str, int]]) -> list[sw.DataStream[Any]]:
        keyed = stream.key_by(lambda p: p[0])
        return [keyed.sum(1), keyed.max_by(1), keyed.min(lambda p: p[1]), keyed.reduce(lambda a, b: b)]

    results = every_way(program, pairs)
    assert results[3] == pairs


def test_records_may_be_changed_by_who_gets_them() -> None:
    def bump(record: dict[str, int]) -> dict[str, int]:
        record["n"] += 1
        return record

    records = [{"n": 1}, {"n": 5}]
    assert every_way(lambda stream: stream.map(bump), records) == [{"n": 2}, {"n": 6}]
    assert records == [{"n": 1}, {"n": 5}]


class State(sw.KeyedProcessFunction[str, tuple[str, int], Any]):
    """Uses all five kinds of state."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.value = context.get_state(sw.ValueStateDescriptor("value", int, default=0))
        self.list = context.get_list_state(sw.ListStateDescriptor("list", int))
        self.map = context.get_map_state(sw.MapStateDescriptor("map", int, key_type=int))
        self.sum = context.get_reducing_state(sw.ReducingStateDescriptor("sum", int, reduce=lambda a, b: a + b))
        self.mean = context.get_aggregating_state(sw.AggregatingStateDescriptor("mean", aggregate=Mean()))

    def process_element(self, value: tuple[str, int], ctx: sw.KeyedProcessFunction.Context) -> Iterator[Any]:
        n = value[1]
        self.value.update(self.value.value() + 1)
        self.list.add(n)
        self.map.put(n, (self.map.get(n) or 0) + 1)
        self.sum.add(n)
        self.mean.add(n)
        if n < 0:
            ctx.output(NEGATIVE, (ctx.get_current_key(), ctx.timestamp()))
        yield (
            value[0],
            self.value.value(),
            self.list.get(),
            list(self.map.items()),
            self.sum.get(),
            self.mean.get(),
        )


class Mean(sw.AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


NEGATIVE = sw.OutputTag[tuple[str, int]]("negative")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), max_size=6))
@settings(max_examples=10, deadline=None)
def test_every_kind_of_state_is_the_same_in_every_way(pairs: list[tuple[str, int]]) -> None:
    def program(stream: sw.DataStream[tuple[str, int]]) -> tuple[sw.DataStream[Any], ...]:
        main = stream.key_by(lambda p: p[0]).process(State())
        return main, main.get_side_output(NEGATIVE)

    main, negative = every_way(program, pairs, timestamps=range(len(pairs)))
    assert len(main) == len(pairs)
    assert negative == [(k, i) for i, (k, n) in enumerate(pairs) if n < 0]


def test_loops_and_unions_without_an_order() -> None:
    def program(stream: sw.DataStream[int]) -> sw.DataStream[int]:
        loop = stream.union(stream.map(lambda n: n + 1)).iterate()
        halved = loop.map(lambda n: n // 2)
        loop.close_with(halved.filter(lambda n: n > 0))
        return halved

    assert sorted(every_way(program, [5, 8], ordered=False)) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 4]


# ---- each way finds something ------------------------------------------------------------------------------


class Cheat(sw.MapFunction[Any, Any]):
    """Keeps its state in itself, where no snapshot finds it."""

    def __init__(self) -> None:
        self.count = 0

    def map(self, value: Any) -> Any:
        self.count += 1
        return value, self.count


class PerSubtask(sw.MapFunction[Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.index = context.index_of_this_subtask

    def map(self, value: Any) -> Any:
        return value, self.index


def shared() -> Callable[[sw.DataStream[Any]], sw.DataStream[Any]]:
    counts: list[int] = []

    def count(value: Any) -> int:
        counts.append(1)
        return len(counts)

    return lambda stream: stream.map(count)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            lambda s: s.map(Cheat()),
            r"(?s)restored after every record: result 1 is \('b', 1\); all at once it is \('b', 2\)",
        ),
        (
            lambda s: s.rebalance().map(PerSubtask()),
            r"parallelism 2: other results than all at once: missing \[\(.*0\)\], in excess \[\(.*1\)\]",
        ),
        (
            shared(),
            r"a record at a time: result 0 is 4; all at once it is 1\nall at once: \[1, 2, 3\]\nthis way: +\[4, 5",
        ),
    ],
)
def test_what_depends_on_the_way_is_found(program: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        every_way(program, ["a", "b", "c"])


def test_the_stream_that_differs_is_named() -> None:
    with pytest.raises(AssertionError, match="result 1 of stream 1 is"):
        every_way(lambda s: [s.map(str), s.map(Cheat())], ["a", "b"])


def test_what_the_program_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        every_way(lambda s: s.map(lambda n: 1 // n), [0])
    assert not any("every_way" in note for note in caught.value.__notes__)


def test_the_way_in_which_it_was_raised_is_named() -> None:
    class Once(sw.MapFunction[int, int]):
        opened = 0

        def open(self, context: sw.RuntimeContext) -> None:
            Once.opened += 1
            if Once.opened == 2:
                raise OSError("only once")

        def map(self, value: int) -> int:
            return value

    with pytest.raises(OSError, match="only once") as caught:
        every_way(lambda s: s.map(Once()), [1])
    assert any(note.startswith("every_way: a record at a time;") for note in caught.value.__notes__)


def test_no_input_and_wrong_input() -> None:
    assert every_way(words, []) == []
    with pytest.raises(ValueError, match="there are 1 values, but 2 timestamps"):
        every_way(words, ["a"], timestamps=[1, 2])


def test_a_program_that_returns_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match=r"every_way\(\) takes a program, .* was given \[1\] \(list\)"):
        every_way([1], lambda stream: stream)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"returned None \(NoneType\): it must return the stream of results"):
        every_way(lambda s: None, [1])  # type: ignore[arg-type,return-value]


@dataclass(frozen=True)
class Rates:
    of: list[float]


def test_nan_is_the_same_as_nan() -> None:
    def rates(stream: Any) -> Any:
        return stream.map(lambda v: (v, Rates([float("nan"), v]), {"rate": float("nan")}))

    assert [(value, made.of[1]) for value, made, _ in every_way(rates, [1, 2])] == [(1, 1), (2, 2)]
    runs: list[int] = []

    def numbered(stream: Any) -> Any:
        runs.append(0)
        number = len(runs)
        return stream.map(lambda v: Rates([float("nan"), number]))

    with pytest.raises(AssertionError, match=r"0 is Rates\(of=\[nan, 2\]\); all at once it is Rates\(of=\[nan, 1"):
        every_way(numbered, [1, 2])
