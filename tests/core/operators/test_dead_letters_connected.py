"""Connected streams that skip records on which a function raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.api.replay import replaying
from sluiceway.config.settings import Settings

Connected = Callable[[Any], sw.DataStream[Any]]


def inverse(value: int) -> float:
    return 100 / value


def inverses(value: int) -> Iterator[float]:
    yield 100 / (value + 1000)
    yield 100 / value


class Count(sw.KeyedCoProcessFunction[int, int, int, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self._sum = context.get_state(sw.ValueStateDescriptor("sum", float))

    def process_element1(self, value: int, ctx: Any) -> Iterator[Any]:
        yield "begun"
        self._sum.update((self._sum.value() or 0.0) + 100 / value)
        ctx.output(SEEN, value)

    process_element2 = process_element1


SEEN = sw.OutputTag("seen", int)
STEPS: dict[str, tuple[Connected, Callable[[int], list[Any]]]] = {
    "map": (lambda both: both.map(inverse, inverse), lambda v: [100 / v]),
    "flat_map": (lambda both: both.flat_map(inverses, inverses), lambda v: [100 / (v + 1000), 100 / v]),
    "process": (
        lambda both: both.process(lambda v, ctx: inverses(v), lambda v, ctx: inverses(v)),
        lambda v: [100 / (v + 1000), 100 / v],
    ),
}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_the_others_go_on_and_letters_say_by_which_input_they_came(name: str, keyed: bool) -> None:
    step, model = STEPS[name]
    flow = sw.Pipeline("both")
    left, right = flow.from_collection([1, 0, 2]), flow.from_collection([0, 4, 5, 0], timestamp=lambda v: v + 7)
    both = left.key_by(lambda v: v % 2).connect(right.key_by(lambda v: v + 1)) if keyed else left.connect(right)
    made = step(both).on_error("skip").name("step")
    letters, out = made.dead_letters().collect(), made.collect()
    flow.run(batch_size=2)
    assert sorted(out) == sorted(result for value in (1, 2, 4, 5) for result in model(value))
    told = sorted((letter.input, letter.record, letter.key, letter.timestamp) for letter in letters)
    keys = ("0", "1") if keyed else (None, None)
    assert told == [(0, "0", keys[0], None), (1, "0", keys[1], 7), (1, "0", keys[1], 7)]
    assert all("ZeroDivisionError" in letter.traceback for letter in letters)


@pytest.mark.parametrize("name", STEPS)
def test_else_they_fail(name: str) -> None:
    flow = sw.Pipeline("both")
    STEPS[name][0](flow.from_collection([1]).connect(flow.from_collection([0]))).collect()
    with pytest.raises(ZeroDivisionError):
        flow.run()


def test_what_was_emitted_for_the_record_is_taken_back_and_a_maximum_is_one_of_both_inputs() -> None:
    def flow_of(most: int) -> tuple[sw.Pipeline, Any, Any]:
        flow = sw.Pipeline("both")
        left, right = (flow.from_collection(some).key_by(lambda v: v % 2) for some in ([0, 1], [2, 0]))
        made = left.connect(right).process(Count()).on_error("skip", max=most)
        return flow, made.collect(), made.get_side_output(SEEN).collect()

    flow, out, seen = flow_of(2)
    flow.run()
    assert (list(out), sorted(seen)) == (["begun", "begun"], [1, 2])
    flow, _, _ = flow_of(1)
    with pytest.raises(ZeroDivisionError) as raised:
        flow.run()
    assert any("skips at most 1 records in a subtask" in note for note in raised.value.__notes__)


RULES = sw.MapStateDescriptor("rules", int, key_type=str)


class Rule(sw.BroadcastProcessFunction[int, int, float]):
    def process_element(self, value: int, ctx: Any) -> Iterator[float]:
        yield 100 / value

    def process_broadcast_element(self, value: int, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("rule", 100 // value)


def ruled(values: list[int], rules: list[int]) -> tuple[sw.Pipeline, Any, Any]:
    flow = sw.Pipeline("rules", parallelism=2)
    both = flow.from_collection(values).connect(flow.from_collection(rules).broadcast(RULES))
    made = both.process(Rule()).on_error("skip")
    return flow, made.collect(), made.dead_letters().collect()


def test_a_broadcast_record_is_not_skipped() -> None:
    flow, out, letters = ruled([1, 0, 4], [3])
    flow.run()
    assert (sorted(out), [letter.record for letter in letters]) == ([25.0, 100.0], ["0"])
    flow, _, _ = ruled([1], [0])
    with pytest.raises(ZeroDivisionError):
        flow.run()


def test_a_replay_gives_records_back_by_their_input() -> None:
    def flow_of(call: Callable[[int], Any]) -> tuple[sw.Pipeline, Any, Any]:
        flow = sw.Pipeline("both")
        left, right = flow.from_collection([1, 0]), flow.from_collection([0, 4])
        both = left.key_by(lambda v: v).connect(right.key_by(lambda v: v))
        made = both.map(call, lambda v: ("right", call(v))).uid("step").on_error("skip")
        return flow, made.collect(), made.dead_letters().collect()

    flow, _, letters = flow_of(inverse)
    flow.run()
    assert len(letters) == 2
    better, out, _ = flow_of(lambda v: v)
    replaying(better, list(letters), Settings()).run()
    assert sorted(out, key=str) == [("right", 0), 0]
    again, out, _ = flow_of(lambda v: v)
    replaying(again, [letter for letter in letters if letter.input == 1], Settings()).run()
    assert list(out) == [("right", 0)]
