"""sum, min, max, min_by, max_by, count, reduce and aggregate: a result per record."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.api import reductions
from sluiceway.windows import EventTimeSessionWindows, Evictor, TumblingEventTimeWindows


@dataclass
class Sale:
    shop: str
    price: int
    made: bool = field(default=True, init=False)


@dataclass(frozen=True)
class FrozenSale:
    shop: str
    price: int


class TupleSale(NamedTuple):
    shop: str
    price: int


class StructSale(msgspec.Struct, frozen=True):
    shop: str
    price: int


class PlainSale:
    def __init__(self, shop: str, price: int) -> None:
        self.shop = shop
        self.price = price

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainSale) and vars(self) == vars(other)


def run(values: list[Any], make: Callable[[sw.KeyedStream[Any, Any]], sw.DataStream[Any]], key: Any = None) -> Any:
    flow = sw.Pipeline("test")
    collected = make(flow.from_collection(values).key_by(key or (lambda record: 0))).collect()
    flow.run()
    return list(collected)


def test_sums_of_numbers() -> None:
    assert run([1, 2, 3.5, -1], lambda k: k.sum()) == [1, 3, 6.5, 5.5]


def test_each_key_has_its_own_sum() -> None:
    assert run([1, 2, 3, 4], lambda k: k.sum(), lambda n: n % 2) == [1, 2, 4, 6]


@pytest.mark.parametrize("make", [Sale, FrozenSale, TupleSale, StructSale, PlainSale])
def test_a_named_field_is_summed_in_a_copy(make: Callable[[str, int], Any]) -> None:
    sales = [make("a", 1), make("b", 2), make("c", 3)]
    assert run(sales, lambda k: k.sum("price")) == [make("a", 1), make("a", 3), make("a", 6)]
    assert sales == [make("a", 1), make("b", 2), make("c", 3)]


@pytest.mark.parametrize(
    ("records", "by", "expected"),
    [
        ([("a", 1), ("b", 2)], 1, ("a", 3)),
        ([("a", 1), ("b", 2)], -1, ("a", 3)),
        ([(1, "a"), (2, "b")], 0, (3, "a")),
        ([["a", 1], ["b", 2]], 1, ["a", 3]),
        ([{"shop": "a", "n": 1}, {"shop": "b", "n": 2}], "n", {"shop": "a", "n": 3}),
        ([TupleSale("a", 1), TupleSale("b", 2)], 1, TupleSale("a", 3)),
    ],
)
def test_fields_by_index_and_by_key(records: list[Any], by: int | str, expected: Any) -> None:
    got = run(records, lambda k: k.sum(by))
    assert got == [records[0], expected]
    assert type(got[1]) is type(expected)


def test_with_a_callable_key_and_value_come_out() -> None:
    words = ["a", "bb", "c", "dd"]
    assert run(words, lambda k: k.sum(len), len) == [(1, 1), (2, 2), (1, 2), (2, 4)]
    assert run([3, 1, 2], lambda k: k.min(lambda n: -n)) == [(0, -3), (0, -3), (0, -3)]
    assert run([3, 1, 4], lambda k: k.max(str)) == [(0, "3"), (0, "3"), (0, "4")]


def test_extremes() -> None:
    assert run([2, 3, 1], lambda k: k.min()) == [2, 2, 1]
    assert run([2, 3, 1], lambda k: k.max()) == [2, 3, 3]
    pairs = [("a", 2), ("b", 3), ("c", 1)]
    # Other fields stay those of the first record; min_by and max_by keep records whole.
    assert run(pairs, lambda k: k.min(1)) == [("a", 2), ("a", 2), ("a", 1)]
    assert run(pairs, lambda k: k.max(1)) == [("a", 2), ("a", 3), ("a", 3)]
    assert run(pairs, lambda k: k.min_by(1)) == [("a", 2), ("a", 2), ("c", 1)]
    assert run(pairs, lambda k: k.max_by(lambda p: p[1])) == [("a", 2), ("b", 3), ("b", 3)]


def test_of_equal_records_the_first_or_the_last_is_kept() -> None:
    pairs = [("a", 1), ("b", 1), ("c", 2)]
    assert run(pairs, lambda k: k.min_by(1)) == [("a", 1), ("a", 1), ("a", 1)]
    assert run(pairs, lambda k: k.min_by(1, first=False)) == [("a", 1), ("b", 1), ("b", 1)]
    assert run(pairs, lambda k: k.max_by(1, first=False)) == [("a", 1), ("b", 1), ("c", 2)]


def test_counts_come_with_their_key() -> None:
    assert run(list("abab"), lambda k: k.count(), str) == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_reduce_and_aggregate() -> None:
    class Mean(sw.AggregateFunction[int, tuple[int, int], float]):
        def create_accumulator(self) -> tuple[int, int]:
            return 0, 0

        def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
            return accumulator[0] + value, accumulator[1] + 1

        def get_result(self, accumulator: tuple[int, int]) -> float:
            return accumulator[0] / accumulator[1]

    class Product(sw.ReduceFunction[int]):
        def reduce(self, value1: int, value2: int) -> int:
            return value1 * value2

    assert run([1, 2, 6], lambda k: k.aggregate(Mean())) == [1.0, 1.5, 3.0]
    assert run([2, 3, 4], lambda k: k.reduce(Product())) == [2, 6, 24]
    assert run([2, 3, 4], lambda k: k.reduce(lambda a, b: a * 10 + b)) == [2, 23, 234]


@pytest.mark.parametrize("records", [["a", "b"], [("a", 1), ("b", 2)], [[1], [2]]])
def test_sum_without_a_field_adds_numbers_only(records: list[Any]) -> None:
    kind = type(records[0]).__name__
    with pytest.raises(
        sw.FunctionContractError, match=rf"sum\(\) adds numbers, but a record is a {kind}: say which"
    ):
        run(records, lambda k: k.sum())


@pytest.mark.parametrize("by", [1, "n", (lambda record: record[1])])
@pytest.mark.parametrize(
    "window", [None, TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(10), (2,), (2, 1)]
)
def test_sums_of_texts_are_refused_with_the_first_record(by: Any, window: Any) -> None:
    record = {"n": "5"} if by == "n" else ("a", "5")
    flow = sw.Pipeline("texts")
    keyed: Any = flow.from_collection([record], timestamp=lambda record: 0).key_by(lambda record: 0)
    if window is not None:
        keyed = keyed.count_window(*window) if isinstance(window, tuple) else keyed.window(window)
    keyed.sum(by).print()
    called = "sum.. adds numbers, but its function returned" if callable(by) else f"sum.{by!r}. adds numbers, but"
    with pytest.raises(sw.FunctionContractError, match=rf"{called}.* a str.*: convert it before"):
        flow.run()


@pytest.mark.parametrize("by", [1, "n"])
def test_sums_of_texts_are_refused_where_records_are_combined_before_they_are_sent(by: Any) -> None:
    record: Any = {"n": "5"} if by == "n" else ("a", "5")
    flow = sw.Pipeline("texts")
    keyed = flow.from_collection([record], timestamp=lambda record: 0).key_by(lambda record: 0)
    keyed.window(TumblingEventTimeWindows.of(10)).sum(by).collect()
    with pytest.raises(sw.FunctionContractError, match=rf"sum.{by!r}. adds numbers, but .* a str: convert it"):
        flow.run(parallelism=2, local_aggregation="all")


class Everything(Evictor):
    def evict_before(self, elements: Any, window: Any, context: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("word", ["sum", "min", "max"])
def test_a_window_of_which_an_evictor_leaves_nothing_has_no_result(word: str) -> None:
    flow = sw.Pipeline("evicted")
    keyed = flow.from_collection([1, 2], timestamp=lambda n: n).key_by(lambda n: 0)
    windowed = keyed.window(TumblingEventTimeWindows.of(10)).evictor(Everything())
    seen = getattr(windowed, word)(lambda n: n).collect()
    flow.run()
    assert list(seen) == []


@pytest.mark.parametrize(
    ("records", "by", "kind"),
    [
        ([("a", 1), ("b", 2)], 2, "tuple"),
        ([{"n": 1}, {"m": 2}], "n", "dict"),
        ([Sale("a", 1)] * 2, "prize", "Sale"),
    ],
)
def test_a_field_that_is_not_there(records: list[Any], by: int | str, kind: str) -> None:
    message = rf"max\({by!r}\): a record of type {kind} has no field {by!r}"
    with pytest.raises(sw.FunctionContractError, match=message) as caught:
        run(records, lambda k: k.max(by))
    assert any("max(" in note for note in caught.value.__notes__)


FUNCTIONS: list[Any] = [
    reductions.SumValues(),
    reductions.SumField(1),
    reductions.Extreme("min"),
    reductions.ExtremeField("max", "price"),
    reductions.BestBy("min", 1, first=True),
    reductions.BestBy("max", len, first=False),
    reductions.Count(),
    reductions.SumOf(len),
    reductions.ExtremeOf("max", len),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: type(f).__name__)
def test_the_functions_can_be_pickled_also_after_use(function: Any) -> None:
    if isinstance(function, reductions.SumField):
        function.reduce(("a", 1), ("b", 2))
    assert type(pickle.loads(pickle.dumps(function))) is type(function)


def test_a_pickled_function_does_the_same() -> None:
    again = pickle.loads(pickle.dumps(reductions.BestBy("min", 1, first=True)))
    assert again.reduce(("a", 2), ("b", 1)) == ("b", 1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-5, 5)), min_size=1))
def test_like_a_plain_loop(pairs: list[tuple[str, int]]) -> None:
    def running(of: Callable[[list[tuple[str, int]]], Any]) -> list[Any]:
        return [of([p for p in pairs[: i + 1] if p[0] == pairs[i][0]]) for i in range(len(pairs))]

    flow = sw.Pipeline("test")
    keyed = flow.from_collection(pairs).key_by(lambda p: p[0])
    sums, least, best, last, counts = (
        keyed.sum(1).collect(),
        keyed.min(1).collect(),
        keyed.max_by(1).collect(),
        keyed.max_by(1, first=False).collect(),
        keyed.count().collect(),
    )
    flow.run()
    assert sums == running(lambda seen: (seen[0][0], sum(n for _, n in seen)))
    assert least == running(lambda seen: (seen[0][0], min(n for _, n in seen)))
    assert best == running(lambda seen: max(seen, key=lambda p: p[1]))
    assert last == running(lambda seen: max(reversed(seen), key=lambda p: p[1]))
    assert counts == running(lambda seen: (seen[0][0], len(seen)))
