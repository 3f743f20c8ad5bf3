"""Streams that are split in two by a predicate."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError
from sluiceway.testing import OperatorHarness

Pair = tuple[str, int]
PAIRS = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]


def is_even(n: int) -> bool:
    return n % 2 == 0


@dataclass(frozen=True)
class Named:
    n: int


def is_named(record: Named | Pair) -> TypeGuard[Named]:
    return isinstance(record, Named)


class EachSecond(sw.FilterFunction[Pair]):
    """Filter that keeps each second record of a key."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", bool, default=False))

    def filter(self, value: Pair) -> bool:
        seen = self.seen.value()
        self.seen.update(not seen)
        return seen


class Opened(sw.FilterFunction[int]):
    """Filter that keeps numbers from a bound on, which ``open`` sets."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.bound = 3

    def filter(self, value: int) -> bool:
        return value >= self.bound


@pytest.mark.parametrize("chaining", [True, False])
@pytest.mark.parametrize("predicate", [is_even, lambda n: (n + 1) % 2])
def test_each_record_goes_to_one_of_both(predicate: Callable[[int], object], chaining: bool) -> None:
    flow = sw.Pipeline("split", chaining=chaining)
    even, odd = flow.from_sequence(0, 9).branch(predicate)
    evens, odds = even.collect(), odd.collect()
    flow.run(batch_size=3)
    assert (evens, odds) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


def test_both_keep_timestamps() -> None:
    with OperatorHarness(lambda numbers: numbers.branch(is_even)[0]) as steps:
        steps.process_batch([2, 3], [7, 8])
        assert (steps.records, steps.side_records("rest")) == ([(2, 7)], [(3, 8)])


def test_the_predicate_is_called_once_for_each_record() -> None:
    calls: list[int] = []
    flow = sw.Pipeline("once")
    even, odd = flow.from_sequence(0, 3).branch(lambda n: calls.append(n) or n % 2)  # type: ignore[func-returns-value]
    even.print()
    odd.print()
    flow.run()
    assert calls == [0, 1, 2, 3]


def test_one_of_both_is_enough() -> None:
    for index, expected in enumerate([[0, 2], [1, 3]]):
        flow = sw.Pipeline("one")
        found = flow.from_sequence(0, 3).branch(is_even)[index].collect()
        flow.run()
        assert found == expected


def test_neither_is_an_error() -> None:
    flow = sw.Pipeline("none")
    flow.from_sequence(0, 3).branch(is_even)
    flow.from_sequence(0, 3).print()
    assert "dangling" in {finding.code for finding in flow.check()}


def test_branches_of_branches() -> None:
    flow = sw.Pipeline("tree")
    even, odd = flow.from_sequence(0, 11).branch(is_even)
    found = [
        half.collect() for stream in (even, odd) for half in stream.branch(lambda n: n % 3 == 0)
    ]  # each in its own list
    flow.run(parallelism=1)
    assert found == [[0, 6], [2, 4, 8, 10], [3, 9], [1, 5, 7, 11]]


def test_a_function_object_is_opened() -> None:
    flow = sw.Pipeline("opened")
    large, small = flow.from_sequence(0, 4).branch(Opened())
    found = large.collect(), small.collect()
    flow.run()
    assert found == ([3, 4], [0, 1, 2])


def test_a_function_object_behind_key_by_has_state_per_key_which_is_in_snapshots() -> None:
    def split(pairs: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return pairs.key_by(lambda pair: pair[0]).branch(EachSecond())[0]

    with OperatorHarness(split) as steps:
        assert steps.process_batch(PAIRS) == [("a", 2), ("b", 2)]
        assert steps.side_output("rest") == [("a", 1), ("b", 1), ("a", 3)]
        snapshot = steps.snapshot()
    with OperatorHarness(split, restored=snapshot, parallelism=3) as steps:
        assert steps.process(("a", 4)) + steps.process(("b", 3)) == [("a", 4)]
        assert steps.side_output("rest") == [("b", 3)]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_record_on_which_the_predicate_raises_is_in_neither(keyed: bool) -> None:
    class Inverse(sw.FilterFunction[int]):
        def open(self, context: sw.RuntimeContext) -> None: ...

        def filter(self, value: int) -> bool:
            return 1 / value > 0

    flow = sw.Pipeline("skip")
    numbers = flow.from_collection([1, 0, -1])
    positive, negative = (numbers.key_by(lambda n: n % 2) if keyed else numbers).branch(Inverse())
    letters = positive.on_error("skip").dead_letters().collect()
    found = positive.collect(), negative.collect()
    flow.run()
    assert found == ([1], [-1])
    assert [letter.value() for letter in letters] == [0]


def test_a_record_that_the_predicate_keeps_is_not_changed_by_a_later_step() -> None:
    kept: list[list[int]] = []

    def keeping(record: list[int]) -> bool:
        kept.append(record)
        return record[0] > 1

    def extended(record: list[int]) -> list[int]:
        record.append(0)
        return record

    flow = sw.Pipeline("kept")
    large, small = flow.from_collection([[1], [2]]).branch(keeping)
    found = large.map(extended).collect(), small.map(extended).collect()
    flow.run()
    assert (kept, *found) == ([[1], [2]], [[2, 0]], [[1, 0]])


def types(predicate: Callable[[Any], object], stream: Callable[[sw.Pipeline], sw.DataStream[Any]]) -> list[Any]:
    flow = sw.Pipeline("types")
    chosen, rest = stream(flow).branch(predicate)
    chosen.inspect(print).name("chosen").print()
    rest.inspect(print).name("rest").print()
    known = {node.name: node.output_type for node in flow.graph().nodes}
    return [known["chosen"], known["rest"]]


def test_the_type_of_the_records_is_known_behind_both() -> None:
    def is_text(value: int | str) -> TypeGuard[str]:
        return isinstance(value, str)

    assert types(is_even, lambda flow: flow.from_sequence(0, 3)) == [int, int]
    assert types(is_text, lambda flow: flow.from_collection([1, "a"]).returns(int | str)) == [str, None]


def test_a_declared_type_is_that_of_the_first_stream() -> None:
    flow = sw.Pipeline("declared")
    texts, others = flow.from_collection([1, "a"]).branch(lambda value: isinstance(value, str))
    found = texts.returns(str).collect(), others.map(lambda value: value).collect()
    flow.run()
    assert found == (["a"], [1])


def test_either_can_be_put_into_columns() -> None:
    pytest.importorskip("narwhals")
    flow = sw.Pipeline("columns")
    found = [each.to_columns(Named).collect() for each in flow.from_collection([Named(1)]).branch(lambda r: r.n)]
    flow.run()
    assert [len(one) for one in found] == [1, 0]
    flow = sw.Pipeline("inferred")
    _, rest = flow.from_collection([Named(1)]).branch(lambda r: r.n > 1)
    assert rest.to_columns().schema.names == ["n"]
    named, rest = flow.from_collection([Named(1), ("a", 1)]).branch(is_named)
    assert named.to_columns().schema.names == ["n"]
    with pytest.raises(GraphError, match=r"to_columns\(\) at .*: the records have no type that is known"):
        rest.to_columns()


def test_the_second_has_no_settings_and_no_tag() -> None:
    even, odd = sw.Pipeline("settings").from_sequence(0, 3).branch(is_even)
    with pytest.raises(GraphError, match=r"name\(\) at .*: branch\(\) is no step of its own"):
        odd.name("odd")
    with pytest.raises(GraphError, match=r"'branch' .* has no side outputs"):
        even.get_side_output(sw.OutputTag("rest"))


def test_splitting_makes_no_tag_for_which_results_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sw.OutputTag, "_made", False)
    flow = sw.Pipeline("tag")
    for stream in flow.from_sequence(0, 3).branch(is_even):
        stream.print()
    flow.run()
    assert not sw.OutputTag._made
    tags = [edge.tag for edge in flow.graph().edges]
    assert pickle.loads(pickle.dumps(tags)) == tags
    assert not sw.OutputTag._made  # nor in a worker, which unpickles them


def test_other_functions_are_refused_at_the_call() -> None:
    def generator(n: int) -> Any:
        yield n

    numbers = sw.Pipeline("wrong").from_sequence(0, 3)
    with pytest.raises(TypeError, match=r"branch\(\) at .* generator function .* true for every record"):
        numbers.branch(generator)
    with pytest.raises(TypeError, match="takes a callable or a FilterFunction"):
        numbers.branch("even")  # type: ignore[arg-type]
