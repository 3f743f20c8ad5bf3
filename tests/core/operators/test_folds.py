"""Built-in aggregations written out in loops: the same as calling their functions."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from effort import diagonal, examples
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.api import reductions
from sluiceway.operators.folds import Fold, begin_of, fold_of
from sluiceway.operators.windows.slicing_loop import slicing_loop
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)


class Sale(NamedTuple):
    shop: str
    price: Any


@dataclass
class Order:
    price: Any


class Column(IntEnum):
    PRICE = 1


def price(record: Any) -> Any:
    if type(record) is dict:
        return record["price"]
    return record.price if isinstance(record, Order) else record[1]


class Called(sw.AggregateFunction[Any, Any, Any]):
    """Another aggregate function, which cannot be written out."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def create_accumulator(self) -> Any:
        return self.function.create_accumulator()

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.function.add(value, accumulator)

    def get_result(self, accumulator: Any) -> Any:
        return self.function.get_result(accumulator)

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        return self.function.merge(accumulator1, accumulator2)


AGGREGATES: dict[str, Callable[[], Any]] = {
    "count": reductions.Count,
    "sum of": lambda: reductions.SumOf(price),
    "min of": lambda: reductions.ExtremeOf("min", price),
    "max of": lambda: reductions.ExtremeOf("max", price),
}
REDUCTIONS: dict[str, Callable[[], Any]] = {
    "sum": reductions.SumValues,
    "min": lambda: reductions.Extreme("min"),
    "max": lambda: reductions.Extreme("max"),
    "sum item": lambda: reductions.SumField(1),
    "sum last item": lambda: reductions.SumField(-1),
    "sum column": lambda: reductions.SumField(Column.PRICE),
    "sum key": lambda: reductions.SumField("price"),
    "min item": lambda: reductions.ExtremeField("min", 1),
    "max item": lambda: reductions.ExtremeField("max", 1),
    "min key": lambda: reductions.ExtremeField("min", "price"),
    "max key": lambda: reductions.ExtremeField("max", "price"),
    "first max": lambda: reductions.BestBy("max", 1, first=True),
    "last min": lambda: reductions.BestBy("min", price, first=False),
}

prices = st.one_of(st.integers(-9, 9), st.sampled_from([0.5, -0.0, True, "text", None]))
records = st.one_of(
    st.tuples(st.just("a"), prices),
    st.tuples(st.just("a"), prices),
    st.builds(lambda p: ["a", p], prices),
    st.builds(lambda p: Sale("a", p), prices),
    st.builds(lambda p: {"shop": "a", "price": p}, prices),
    st.builds(Order, prices),
    prices,
    st.sampled_from([("a",), (), {}, {"shop": "a"}]),
)


def outcome(fold: Fold, values: list[Any]) -> Any:
    """What the loop makes of records of one key, or the error, with those before it."""
    loop = slicing_loop(10, 0, with_keys=True, text=fold.text, slices="one")
    entries: dict[str, Any] = {}
    keys, stamps = ["k"] * len(values), [0] * len(values)
    try:
        loop(None, values, stamps, keys, [entries], None, None, fold.first, fold.add)
    except Exception as error:
        return type(error), str(error), repr(error.__cause__), repr(entries)
    made = entries["k"]
    return type(made), repr(made), repr(made if fold.result is None else fold.result(made))


@examples(30, 80)
@given(st.lists(records, min_size=1, max_size=8))
def test_the_text_of_a_reduction_does_what_the_function_does(values: list[Any]) -> None:
    for make in REDUCTIONS.values():
        function = make()
        text = sw_text(aggregates=False)._replace(first="first(value)")
        called = Fold(text, function.reduce, begin_of(function))
        copies = [vars(v).copy() and Order(v.price) if isinstance(v, Order) else v for v in values]
        assert outcome(fold_of(make(), aggregates=False), values) == outcome(called, copies)


@examples(30, 80)
@given(st.lists(records, min_size=1, max_size=8))
def test_the_text_of_an_aggregate_does_what_the_function_does(values: list[Any]) -> None:
    for make in AGGREGATES.values():
        called = fold_of(Called(make()), aggregates=True)
        assert called.add.__func__ is Called.add
        assert outcome(fold_of(make(), aggregates=True), values) == outcome(called, values)


def sw_text(*, aggregates: bool) -> Any:
    return fold_of(operator.add, aggregates=aggregates).text


# ---- in steps ----

RUNNING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda s: s.sum(price), lambda s: s.aggregate(Called(reductions.SumOf(price)))),
    "min": (lambda s: s.min(price), lambda s: s.aggregate(Called(reductions.ExtremeOf("min", price)))),
    "max": (lambda s: s.max(price), lambda s: s.aggregate(Called(reductions.ExtremeOf("max", price)))),
}

keyed_records = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), prices), max_size=25)


def running(
    build: Callable[[Any], Any], values: list[Any], batch_size: int
) -> tuple[list[Any], list[tuple[Any, str]]]:
    flow = sw.Pipeline("running")
    results = build(flow.from_collection(values).key_by(operator.itemgetter(0))).on_error("skip")
    dead, got = results.dead_letters().collect(), results.collect()
    flow.run(batch_size=batch_size)
    return got, [(letter.value(), letter.error) for letter in dead]


@pytest.mark.parametrize("word", RUNNING)
@examples(5, 15)
@given(keyed_records, st.sampled_from([1, 3, 1024]))
def test_running_results_are_those_of_the_function_with_bad_records_skipped(
    word: str, values: list[Any], batch_size: int
) -> None:
    built_in, called = RUNNING[word]
    values = [(*value, index) for index, value in enumerate(values)]
    got, dead = running(built_in, values, batch_size)
    wanted, put_aside = running(called, values, batch_size)
    assert repr([value for _, value in got]) == repr(list(wanted))
    bad = [value[2] for value, _ in put_aside]
    assert [key for key, _ in got] == [value[0] for value in values if value[2] not in bad]
    assert repr(dead) == repr(put_aside)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("word", RUNNING)
@examples(4, 8)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-9, 9)), max_size=25), st.data())
def test_state_moves_between_the_loop_and_the_function(
    word: str, parallelism: int, values: list[Any], data: st.DataObject
) -> None:
    written_out, called = (
        lambda stream, build=build: build(stream.key_by(operator.itemgetter(0))).uid("running")
        for build in RUNNING[word]
    )
    cut = data.draw(st.integers(0, len(values)))
    forth = data.draw(st.booleans())
    first, second = (written_out, called) if forth else (called, written_out)
    with OperatorHarness(first) as before:
        out = before.process_batch(values[:cut])
        saved = before.snapshot()
    with OperatorHarness(second, parallelism=parallelism, restored=saved) as after:
        out += after.process_batch(values[cut:])
    with OperatorHarness(called) as whole:
        wanted = whole.process_batch(values)
    shown = [value[1] if isinstance(value, tuple) else value for value in out]
    assert sorted(shown) == sorted(wanted)
    if parallelism == 1:
        assert shown == wanted


def test_what_is_emitted_does_not_change_with_the_state() -> None:
    flow = sw.Pipeline("counters")
    stream = flow.from_collection([("a", Counter("x")), ("a", Counter("y"))]).key_by(operator.itemgetter(0))
    got = stream.sum(lambda pair: pair[1]).map(lambda pair: pair[1].update("z") or pair).collect()
    flow.run()
    assert got == [("a", Counter("xz")), ("a", Counter("xyz"))]


def test_a_failing_record_is_named() -> None:
    flow = sw.Pipeline("bad")
    flow.from_collection([("a", 1), ("a", "x")]).key_by(operator.itemgetter(0)).sum(price).collect()
    with pytest.raises(TypeError) as caught:
        flow.run()
    assert any("record: ('a', 'x')" in note for note in caught.value.__notes__)
    assert any("key: 'a'" in note for note in caught.value.__notes__)


WINDOWED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum of": (lambda w: w.sum(price), lambda w: w.aggregate(Called(reductions.SumOf(price)))),
    "max of": (lambda w: w.max(price), lambda w: w.aggregate(Called(reductions.ExtremeOf("max", price)))),
    "count": (lambda w: w.count(), lambda w: w.aggregate(Called(reductions.Count()))),
    "sum": (lambda w: w.sum(1), lambda w: w.reduce(reductions.SumField(1).reduce)),
    "min": (lambda w: w.min(1), lambda w: w.reduce(reductions.ExtremeField("min", 1).reduce)),
    "max": (lambda w: w.max(), lambda w: w.reduce(reductions.Extreme("max").reduce)),
}
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(10),
    "sliding": SlidingEventTimeWindows.of(10, 5),
    "sessions": EventTimeSessionWindows.with_gap(5),
}


@pytest.mark.parametrize(("word", "assigner"), diagonal(list(WINDOWED), list(ASSIGNERS)))
@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(-9, 9), st.integers(0, 60)), min_size=1, max_size=25
    ),
    st.sampled_from([1, 3, 1024]),
)
def test_windows_of_built_in_aggregates_are_those_of_functions(
    word: str, assigner: str, values: list[Any], batch_size: int
) -> None:
    def results(build: Callable[[Any], Any]) -> list[Any]:
        flow = sw.Pipeline("windows")
        watermarks = sw.WatermarkStrategy.for_bounded_out_of_orderness(10)
        stream = flow.from_collection(values, timestamp=operator.itemgetter(2))
        keyed = stream.assign_timestamps_and_watermarks(watermarks).key_by(operator.itemgetter(0))
        got: list[Any] = build(keyed.window(ASSIGNERS[assigner])).collect()
        flow.run(batch_size=batch_size)
        return got

    built_in, called = WINDOWED[word]
    got, wanted = results(built_in), results(called)
    if word in ("sum of", "max of", "count"):
        got = [value for _, value in got]
    assert got == wanted
