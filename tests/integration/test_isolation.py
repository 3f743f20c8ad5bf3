"""An emitted record is the value at the moment it was emitted, whatever the batch size, chaining and backend."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Any, ClassVar

import pytest

import sluiceway as sw
from sluiceway.testing import every_way, run_pipeline
from sluiceway.windows import (
    AssignerContext,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)

Program = Callable[[sw.DataStream[Any]], sw.DataStream[Any]]

TAG = sw.OutputTag("aside")


@dataclass
class Total:
    total: int = 0
    seen: list[int] = field(default_factory=list)


def seen(record: Any) -> str:
    """What a record is at the end, in words."""
    return json.dumps(record, default=vars, sort_keys=True)


class Keyed(sw.KeyedProcessFunction[int, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.state = context.get_state(sw.ValueStateDescriptor("acc"))


class YieldsItsState(Keyed):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        acc = self.state.value() or {"total": 0}
        acc["total"] += value
        self.state.update(acc)
        yield acc


class YieldsItsStateInATuple(Keyed):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        acc = self.state.value() or Total()
        acc.total += value
        acc.seen.append(value)
        self.state.update(acc)
        yield "total", acc


class ReturnsAListOfItsState(Keyed):
    def process_element(self, value: int, ctx: Any) -> list[Any]:
        acc = self.state.value() or []
        acc.append(value)
        self.state.update(acc)
        return [acc]


class EmitsItsStateAside(Keyed):
    def process_element(self, value: int, ctx: Any) -> None:
        acc = self.state.value() or {"total": 0}
        acc["total"] += value
        self.state.update(acc)
        ctx.output(TAG, acc)


class EmitsTwice(Keyed):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        row: dict[str, int] = {"n": value}
        yield row
        row["n"] += 100
        yield row


class YieldsOnTimers(Keyed):
    def process_element(self, value: int, ctx: Any) -> None:
        acc = self.state.value() or {"total": 0}
        acc["total"] += value
        self.state.update(acc)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        acc = self.state.value()
        acc["fired"] = acc.get("fired", 0) + 1
        self.state.update(acc)
        yield acc


class Attribute(sw.MapFunction[int, Any]):
    def __init__(self) -> None:
        self.acc = {"total": 0}

    def map(self, value: int) -> Any:
        self.acc["total"] += value
        return self.acc


class Remembers(sw.FilterFunction[Any]):
    """Passes on what differs from the record before it, which it keeps."""

    def __init__(self) -> None:
        self.before: Any = None

    def filter(self, value: Any) -> bool:
        before, self.before = self.before, value
        return before is None or before["n"] != value["n"]


class Sum(sw.AggregateFunction[int, Any, Any]):
    def create_accumulator(self) -> dict[str, int]:
        return {"total": 0}

    def add(self, value: int, accumulator: Any) -> Any:
        accumulator["total"] += value
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        accumulator1["total"] += accumulator2["total"]
        return accumulator1


def add(one: Any, other: Any) -> Any:
    one["n"] += other["n"]
    return one


def change(record: Any) -> Any:
    record["n"] += 1
    return record


def boxed(n: int) -> dict[str, int]:
    return {"n": n}


def same(_: Any) -> int:
    return 0


def keyed(stream: sw.DataStream[Any]) -> Any:
    return stream.key_by(same)


PROGRAMS: dict[str, Program] = {
    "a process function yields its state": lambda s: keyed(s).process(YieldsItsState()),
    "in a tuple": lambda s: keyed(s).process(YieldsItsStateInATuple()),
    "in a list": lambda s: keyed(s).process(ReturnsAListOfItsState()),
    "to a side output": lambda s: keyed(s).process(EmitsItsStateAside()).get_side_output(TAG),
    "on timers": lambda s: keyed(s).process(YieldsOnTimers()),
    "a generator changes what it has yielded": lambda s: keyed(s).process(EmitsTwice()),
    "reduce changes its first argument": lambda s: keyed(s.map(boxed)).reduce(add),
    "aggregate returns its accumulator": lambda s: keyed(s).aggregate(Sum()),
    "map returns an attribute": lambda s: s.map(Attribute()),
    "flat_map returns an attribute": lambda s: s.map(Attribute()).flat_map(lambda acc: [acc, acc]),
    "results of one call share": lambda s: s.map(boxed).flat_map(lambda d: [d, d]).map(change),
    "in tuples": lambda s: (
        s.map(boxed).flat_map(lambda d: [(1, d), (2, d)]).map(lambda pair: (pair[0], change(pair[1])))
    ),
    "a filter remembers": lambda s: s.map(lambda n: {"n": n // 2}).filter(Remembers()).map(change),
    "two consumers change a record": lambda s: _both(s.map(boxed)),
    "windows of reduce, with late firings": lambda s: (
        keyed(s.map(boxed)).window(TumblingEventTimeWindows("10ms")).allowed_lateness("20ms").reduce(add)
    ),
    "tumbling windows of aggregate": lambda s: keyed(s).window(TumblingEventTimeWindows("3ms")).aggregate(Sum()),
    "sliding windows of reduce": lambda s: (
        keyed(s.map(boxed)).window(SlidingEventTimeWindows("4ms", "1ms")).reduce(add)
    ),
    "sliding windows of aggregate": lambda s: (
        keyed(s).window(SlidingEventTimeWindows("4ms", "1ms")).aggregate(Sum())
    ),
    "sliding windows that share nothing but records": lambda s: (
        keyed(s.map(boxed)).window(SlidingEventTimeWindows("4ms", "2ms")).apply(_change_all)
    ),
    "session windows of reduce": lambda s: (
        keyed(s.map(boxed)).window(EventTimeSessionWindows.with_gap("2ms")).reduce(add)
    ),
    "windows that fire for each record": lambda s: (
        keyed(s).window(GlobalWindows()).trigger(CountTrigger(1)).aggregate(Sum())
    ),
    "the same, elements": lambda s: (
        keyed(s.map(boxed)).window(GlobalWindows()).trigger(CountTrigger(1)).apply(_change_all)
    ),
}


class ReusesItsRow(sw.AggregateFunction[int, int, Any]):
    def __init__(self) -> None:
        self.row: dict[str, int] = {}

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> Any:
        self.row["total"] = accumulator
        return self.row

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows(10), SlidingEventTimeWindows(10, 5), EventTimeSessionWindows.with_gap(10)],
    ids=repr,
)
def test_a_window_result_is_what_it_was_when_it_was_made(assigner: Any) -> None:
    flow = sw.Pipeline("windows")
    numbers = flow.from_collection([1, 2, 3, 4], timestamp=lambda n: n).key_by(lambda n: n % 2)
    totals = numbers.window(assigner).aggregate(ReusesItsRow()).map(lambda row: row["total"]).collect()
    flow.run()
    assert set(totals) == {4, 6}


class Basket:
    def __init__(self) -> None:
        self.n = 0


def fill(pair: tuple[str, Basket | None]) -> tuple[str, int]:
    key, basket = pair
    if basket is None:
        return key, 0
    basket.n += 1
    return key, basket.n


def test_an_object_that_reduce_passes_on_is_its_receivers_own() -> None:
    flow = sw.Pipeline("baskets")
    pairs = flow.from_collection([("a", None), ("b", Basket()), ("b", None), ("c", None)])
    latest = pairs.key_by(lambda pair: pair[0]).reduce(lambda x, y: (x[0], x[1] or y[1]))
    filled = latest.map(fill).collect()
    flow.run()
    assert sorted(filled) == [("a", 0), ("b", 1), ("b", 1), ("c", 0)]


class YieldsItsRow(sw.FlatMapFunction[int, Any]):
    def __init__(self) -> None:
        self.row = {"n": 0}

    def flat_map(self, value: int) -> Iterator[Any]:
        for _ in range(value):
            self.row["n"] += 1
            yield self.row


class ReturnsItsRows(sw.FlatMapFunction[int, Any]):
    def __init__(self) -> None:
        self.rows = [{"n": 0}]

    def flat_map(self, value: int) -> list[Any]:
        self.rows[0]["n"] += value
        return self.rows


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("key", [None, same])
@pytest.mark.parametrize(
    "behind",
    [lambda s: s, lambda s: s.filter(bool), lambda s: s.flat_map(lambda row: [row]).flat_map(lambda row: [row])],
    ids=["nothing", "a filter", "flat_maps"],
)
def test_a_flat_map_may_reuse_its_row(on_error: str, key: Any, behind: Program) -> None:
    for function, expected in ((YieldsItsRow(), [1, 2, 3, 4, 5, 6]), (ReturnsItsRows(), [1, 3, 6])):
        flow = sw.Pipeline("rows")
        numbers = flow.from_collection([1, 2, 3])
        stream = numbers if key is None else numbers.key_by(key)
        rows = behind(stream.flat_map(function).on_error(on_error)).collect()
        flow.run()
        assert [row["n"] for row in rows] == expected


def _words_in_one_row(line: str) -> Iterator[Any]:
    row = {"line": line}
    for word in line.split():
        row["word"] = word
        yield row


def _put(row: Any, word: str) -> Any:
    row["word"] = word
    return row


def _words_through_another(line: str) -> Any:
    row: dict[str, str] = {}
    return (_put(row, word) for word in line.split())


def _words_by_update(line: str) -> Any:
    row: dict[str, str] = {}
    return map(lambda word: row.update(word=word) or row, line.split())  # type: ignore  # noqa: C417


@pytest.mark.parametrize("options", [{}, {"chaining": False}, {"batch_size": 1}], ids=repr)
@pytest.mark.parametrize(
    "words",
    [_words_in_one_row, _words_through_another, _words_by_update, lambda line: _words_in_one_row(line)],
)
def test_a_plain_generator_may_reuse_its_row(words: Any, options: Any) -> None:
    flow = sw.Pipeline("words")
    rows = flow.from_collection(["to be or", "not to be"]).flat_map(words)
    counts = rows.key_by(lambda row: row["word"]).count().collect()
    flow.run(**options)
    assert dict(counts) == {"to": 2, "be": 2, "or": 1, "not": 1}


def _rows() -> Iterator[dict[str, int]]:
    row: dict[str, int] = {}
    for n in range(4):
        row["n"] = n
        yield row


async def _rows_in_a_loop() -> AsyncIterator[dict[str, int]]:
    for row in _rows():
        yield row


class _Row:
    def __init__(self) -> None:
        self.row: dict[str, int] = {}

    def __call__(self, number: int) -> Any:
        self.row["n"] = number
        return self.row if number % 2 else {"n": number}


@pytest.mark.parametrize("options", [{}, {"parallelism": 2}, {"batch_size": 1}, {"batch_size": 3}], ids=repr)
@pytest.mark.parametrize(
    "source",
    [
        lambda flow: flow.from_function(_rows),
        lambda flow: flow.from_function(_rows, blocking=True),
        lambda flow: flow.from_function(_rows_in_a_loop),
        lambda flow: flow.generate(_Row(), count=4),
    ],
    ids=["function", "blocking function", "async generator", "generate"],
)
def test_the_function_of_a_source_may_reuse_its_row(source: Any, options: Any) -> None:
    flow = sw.Pipeline("rows")
    rows = source(flow)
    read, changed = rows.collect(), rows.map(lambda row: row.update(n=row["n"] + 10) or row).collect()
    flow.run(**options)
    assert sorted(row["n"] for row in read) == [0, 1, 2, 3]
    assert sorted(row["n"] for row in changed) == [10, 11, 12, 13]


class _RowAfterNumbers:
    def __init__(self, wrap: Any) -> None:
        self.row: dict[str, int] = {}
        self.wrap = wrap

    def __call__(self, number: int) -> Any:
        if number < 4:
            return number
        self.row["n"] = number
        return self.wrap(self.row)


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 3}, {"batch_size": 1}, {}], ids=repr)
@pytest.mark.parametrize(
    ("wrap", "number"),
    [(lambda row: row, lambda row: row["n"]), (lambda row: (1, [row]), lambda pair: pair[1][0]["n"])],
    ids=["row", "row in a list in a tuple"],
)
def test_the_function_of_a_generator_may_begin_to_reuse_a_row(wrap: Any, number: Any, options: Any) -> None:
    flow = sw.Pipeline("rows")
    rows = flow.generate(_RowAfterNumbers(wrap), count=12).collect()
    flow.run(**options)
    assert [row if isinstance(row, int) else number(row) for row in rows] == list(range(12))


def test_a_function_that_gives_new_rows_after_numbers_is_called_once_for_each() -> None:
    rows = iter([1, 2, {"n": 3}, {"n": 4}, 5, 6, {"n": 7}, {"n": 8}])
    flow = sw.Pipeline("rows")
    got = flow.generate(lambda number: next(rows), count=8).collect()
    flow.run(batch_size=2)
    assert got == [1, 2, {"n": 3}, {"n": 4}, 5, 6, {"n": 7}, {"n": 8}]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    "locked",
    [lambda: ({"lock": Lock()} for _ in range(3)), lambda: [{"lock": Lock()} for _ in range(3)]],
    ids=["generator", "list"],
)
def test_a_source_hands_on_what_cannot_be_copied_and_is_nobody_elses(locked: Any, blocking: bool) -> None:
    flow = sw.Pipeline("locks")
    locks = flow.from_function(locked, blocking=blocking)
    kinds = locks.map(lambda record: type(record["lock"]).__name__).collect()
    flow.run()
    assert kinds == ["lock"] * 3


def test_a_list_that_a_source_function_keeps_is_not_changed() -> None:
    kept = [{"n": 1}, {"n": 2}]
    flow = sw.Pipeline("kept")
    changed = flow.from_function(lambda: kept).map(lambda row: row.update(n=row["n"] + 10) or row).collect()
    flow.run()
    assert (changed, kept) == ([{"n": 11}, {"n": 12}], [{"n": 1}, {"n": 2}])


class Shelf:
    row: ClassVar[dict[str, int]] = {}

    def __init__(self, number: int) -> None:
        self.number = number

    def to_row(self) -> dict[str, int]:
        self.row["n"] = self.number
        return self.row


@pytest.mark.parametrize("options", [{}, {"chaining": False}, {"batch_size": 1}], ids=repr)
def test_a_method_of_a_record_may_reuse_its_row(options: Any) -> None:
    flow = sw.Pipeline("shelves")
    shelves = flow.from_collection([1, 2, 3]).map(Shelf)
    rows = shelves.map(lambda shelf: shelf.to_row()).collect()
    listed = shelves.flat_map(lambda shelf: [shelf.to_row()]).collect()
    flow.run(**options)
    assert rows == listed == [{"n": 1}, {"n": 2}, {"n": 3}]


class Price(Enum):
    LOW = {"n": 1}  # noqa: RUF012
    HIGH = {"n": 2}  # noqa: RUF012

    def __init__(self, row: dict[str, int]) -> None:
        self.row = row


PRICES = tuple(Price)


class Framed:
    frame: ClassVar[dict[str, int]] = {"n": 0}

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def row(self) -> dict[str, int]:
        self.frame["n"] = self.number
        return self.frame


def _frame(number: int) -> Framed:
    return Framed(number)


@pytest.mark.parametrize("options", [{}, {"chaining": False}, {"batch_size": 1}], ids=repr)
def test_an_attribute_of_a_class_is_not_its_records_own(options: Any) -> None:
    flow = sw.Pipeline("attributes")
    prices = flow.from_collection([Price.LOW, Price.HIGH, Price.LOW])
    changed = prices.map(lambda price: price.value).map(change).collect()
    by_name = prices.map(lambda price: price.row).map(change).collect()
    filtered = prices.filter(lambda price: price.name != "NONE")
    numbered = flow.from_collection([0, 1, 0]).map(lambda number: PRICES[number])
    behind_a_map = numbered.map(lambda price: price.value).map(change).collect()
    in_pairs = prices.map(lambda price: (1, price)).map(lambda pair: pair[1].row).map(change).collect()
    behind_a_filter = filtered.map(lambda price: price.value).map(change).collect()
    framed = flow.from_collection([1, 2, 3]).map(_frame)
    rows = framed.map(lambda one: one.row).collect()
    listed = framed.flat_map(lambda one: [one.row]).collect()
    flow.run(**options)
    assert changed == by_name == behind_a_filter == behind_a_map == in_pairs == [{"n": 2}, {"n": 3}, {"n": 2}]
    assert Price.LOW.value == {"n": 1}
    assert rows == listed == [{"n": 1}, {"n": 2}, {"n": 3}]


def _events(flow: sw.Pipeline, values: list[Any]) -> Any:
    return flow.from_collection(values, timestamp=lambda _: 5).key_by(same)


class Counted:
    row: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self.n = 0


class CountsInARowOfItsClass(sw.AggregateFunction[int, Any, Any]):
    def create_accumulator(self) -> Counted:
        return Counted()

    def add(self, value: int, accumulator: Counted) -> Counted:
        accumulator.n += value
        return accumulator

    def get_result(self, accumulator: Counted) -> Any:
        row = accumulator.row
        row["n"] = accumulator.n
        return row

    def merge(self, accumulator1: Counted, accumulator2: Counted) -> Counted:
        accumulator1.n += accumulator2.n
        return accumulator1


@pytest.mark.parametrize("options", [{}, {"chaining": False}, {"batch_size": 1}], ids=repr)
def test_an_attribute_of_a_class_is_not_the_own_one_of_what_joins_and_windows_keep(options: Any) -> None:
    flow = sw.Pipeline("attributes")
    numbers, prices = _events(flow, [1, 2, 3]), _events(flow, [Price.LOW])
    joined = numbers.interval_join(prices).between(-5, 5).apply(lambda n, price: price.value).map(change).collect()
    versions = numbers.asof_join(prices).apply(lambda n, price: price.value).map(change).collect()
    counted = flow.from_collection([1, 2, 3], timestamp=lambda n: n).key_by(lambda n: n)
    rows = counted.window(SlidingEventTimeWindows(10, 5)).aggregate(CountsInARowOfItsClass()).collect()
    flow.run(**options)
    assert joined == versions == [{"n": 2}] * 3
    assert sorted(row["n"] for row in rows) == [1, 1, 2, 2, 3, 3]


def _change_all(key: int, window: Any, elements: list[Any]) -> Iterator[Any]:
    for element in elements:
        element["n"] += 1000
    yield [dict(element) for element in elements]


def _both(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
    return stream.map(change).union(stream.map(change))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_results_do_not_depend_on_how_records_come(program: Program) -> None:
    in_order = program is not PROGRAMS["two consumers change a record"]
    values = list(range(1, 8))
    stateful = program in (PROGRAMS["map returns an attribute"], PROGRAMS["flat_map returns an attribute"])
    if stateful or program is PROGRAMS["a filter remembers"]:
        # An attribute is no state: a restore loses it, and each subtask has its own. See the next test.
        return
    # At another parallelism records come in another order, which running results show.
    parallelism = (2,) if program in (PROGRAMS["in tuples"], PROGRAMS["tumbling windows of aggregate"]) else ()
    every_way(lambda s: program(s).map(seen), values, timestamps=values, ordered=in_order, parallelism=parallelism)


def test_timers_that_fire_together_each_emit_what_is_then() -> None:
    assert sorted(_run(PROGRAMS["on timers"])) == [f'{{"fired": {n}, "total": 28}}' for n in range(1, 8)]


# When timers fire among the records depends on when watermarks come, as it has to.
@pytest.mark.parametrize("backend", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "program", [pytest.param(p, id=name) for name, p in PROGRAMS.items() if name != "on timers"]
)
def test_a_record_at_a_time_is_the_measure(program: Program, backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    expected = _run(program, batch_size=1)
    assert expected
    for options in ({}, {"chaining": False}, {"batch_size": 2}, {"state_backend": backend}):
        assert sorted(_run(program, **options)) == sorted(expected), options


def _run(program: Program, **options: Any) -> list[str]:
    flow = sw.Pipeline("isolation")
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    stream = flow.from_collection(list(range(1, 8))).assign_timestamps_and_watermarks(strategy)
    # The end of the chain looks at records when it is given them, and again at the end.
    kept = program(stream).collect()
    words = program(stream).map(seen).collect()
    flow.run(**options)
    assert sorted(map(seen, kept)) == sorted(words)
    return words


def _yields_before_and_after(key: int, window: Any, elements: list[Any]) -> Iterator[Any]:
    row = {"n": len(elements)}
    yield TAG, row
    yield row
    row["n"] += 100
    yield row


class YieldsBeforeAndAfter(sw.ProcessWindowFunction[int, Any, Any]):
    def process(self, key: int, ctx: sw.WindowContext, elements: Sequence[Any]) -> Iterator[Any]:
        return _yields_before_and_after(key, None, list(elements))


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows(10), SlidingEventTimeWindows(10, 10), EventTimeSessionWindows.with_gap(10)],
    ids=repr,
)
def test_a_window_function_may_change_what_it_has_yielded(assigner: Any) -> None:
    flow = sw.Pipeline("windows")
    windows = flow.from_collection([1, 2], timestamp=lambda n: n).key_by(same).window(assigner)
    applied, processed = windows.apply(_yields_before_and_after), windows.process(YieldsBeforeAndAfter())
    collected = [s.collect() for s in (applied, processed, processed.get_side_output(TAG))]
    run_pipeline(flow)
    assert collected == [[{"n": 2}, {"n": 102}], [{"n": 2}, {"n": 102}], [{"n": 2}]]


class TestSources:
    def test_a_collection_is_left_alone(self) -> None:
        rows = [{"n": 1}, {"n": 2}]
        for _ in range(2):
            flow = sw.Pipeline("collection")
            results = flow.from_collection(rows).map(change).collect()
            flow.run()
            assert results == [{"n": 2}, {"n": 3}]
        assert rows == [{"n": 1}, {"n": 2}]

    def test_tuples_in_a_collection_are_looked_into(self) -> None:
        rows = [("a", 1), ("b", {"n": 1}), ("c", 2)]
        flow = sw.Pipeline("collection")
        flow.from_collection(rows).for_each(lambda row: isinstance(row[1], dict) and change(row[1]))
        flow.run()
        assert rows == [("a", 1), ("b", {"n": 1}), ("c", 2)]

    def test_a_function_may_yield_the_same_row(self) -> None:
        def rows() -> Iterator[dict[str, int]]:
            row = {"n": 0}
            for row["n"] in range(3):
                yield row

        flow = sw.Pipeline("function")
        results = flow.from_function(rows).collect()
        flow.run()
        assert results == [{"n": 0}, {"n": 1}, {"n": 2}]


class TestObjectReuse:
    def test_records_are_shared_where_that_is_wanted(self) -> None:
        flow = sw.Pipeline("reuse")
        results = flow.from_collection([1, 2, 3]).key_by(same).process(YieldsItsState()).collect()
        flow.run(object_reuse=True)
        assert results == [{"total": 6}] * 3

    def test_every_way_sees_what_is_shared(self) -> None:
        with pytest.raises(AssertionError, match="a record at a time"):
            every_way(lambda s: keyed(s).process(YieldsItsState()), [1, 2, 3], object_reuse=True)
        every_way(lambda s: keyed(s).process(YieldsItsState()), [1, 2, 3])


def test_a_hint_that_promises_too_much_does_no_harm_for_long() -> None:
    class Liar(sw.KeyedProcessFunction[int, int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.acc = {"total": 0}

        def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
            self.acc["total"] += value
            yield self.acc

    flow = sw.Pipeline("liar")
    results = flow.from_collection([1, 2, 3, 4]).key_by(same).process(Liar()).collect()
    flow.run(batch_size=1)
    assert results[-3:] == [{"total": 3}, {"total": 6}, {"total": 10}]


class TestCheck:
    def test_steps_that_may_change_what_they_share_are_named(self) -> None:
        flow = sw.Pipeline("check")
        words = flow.from_collection(["a", "b"]).map(lambda word: (word, 1)).key_by(lambda pair: pair[0])
        words.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("pure").collect()
        words.reduce(add).uid("in place").collect()
        words.process(YieldsItsState()).uid("process").collect()
        words.count().uid("count").collect()
        named = [f.node for f in flow.check(object_reuse=True) if f.code == "shared-records"]
        assert len(named) == 2
        assert not [f for f in flow.check() if f.code == "shared-records"]


class TestFunctionsOfBatches:
    def test_what_is_kept_is_copied(self) -> None:
        class Keeps(sw.BatchProcessFunction[int, Any]):
            def open(self, context: sw.RuntimeContext) -> None:
                self.rows: list[dict[str, int]] = [{"n": 0}]

            def process_batch(self, values: Any, ctx: Any) -> Any:
                for row in self.rows:
                    row["n"] += sum(values)
                return self.rows

        flow = sw.Pipeline("batches")
        results = flow.from_collection([1, 2, 3]).process(Keeps()).collect()
        flow.run(batch_size=1)
        assert results == [{"n": 1}, {"n": 3}, {"n": 6}]

    def test_what_is_made_anew_is_not(self) -> None:
        made: list[int] = []

        class Makes(sw.BatchProcessFunction[int, Any]):
            def process_batch(self, values: Any, ctx: Any) -> Any:
                rows = [{"n": value} for value in values]
                made.extend(map(id, rows))
                return rows

        flow = sw.Pipeline("batches")
        results = flow.from_collection([1, 2, 3]).process(Makes()).collect()
        flow.run()
        assert list(map(id, results)) == made


def into_the_first(one: Any, other: Any) -> Any:
    one["seen"] += other["seen"]
    return one


def into_the_second(one: Any, other: Any) -> Any:
    other["seen"] = one["seen"] + other["seen"]
    return other


class IntoTheFirstRecord(sw.AggregateFunction[Any, Any, Any]):
    """Accumulates in the first record itself."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value if accumulator is None else into_the_first(accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        return into_the_first(accumulator1, accumulator2)


@pytest.mark.parametrize("batch_size", [1, 1000])
@pytest.mark.parametrize("evicts", [False, True])
@pytest.mark.parametrize("fold", [into_the_first, into_the_second, IntoTheFirstRecord()])
def test_a_record_of_several_windows_is_combined_unchanged_in_each(
    fold: Any, evicts: bool, batch_size: int
) -> None:
    flow = sw.Pipeline("windows")
    records = flow.from_collection([{"seen": [n]} for n in range(4)], timestamp=lambda r: r["seen"][0])
    windowed = records.key_by(lambda _: 0).window(SlidingEventTimeWindows(4, 2)).trigger(CountTrigger(2))
    if evicts:
        windowed = windowed.evictor(CountEvictor(9))
    combined = windowed.aggregate(fold) if isinstance(fold, sw.AggregateFunction) else windowed.reduce(fold)
    out = combined.map(lambda record: record["seen"]).collect()
    flow.run(batch_size=batch_size)
    assert sorted(out) == [[0, 1], [0, 1], [0, 1, 2, 3], [2, 3]]


class TwoWindows(TumblingEventTimeWindows):
    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> list[TimeWindow]:
        (window,) = super().assign(value, timestamp, context)
        return [window, TimeWindow(window.start + 1000, window.end + 1000)]


@pytest.mark.parametrize("fold", [into_the_first, into_the_second, IntoTheFirstRecord()])
def test_a_subclass_of_a_built_in_assigner_may_assign_several_windows(fold: Any) -> None:
    flow = sw.Pipeline("windows")
    records = flow.from_collection([{"seen": [n]} for n in range(3)], timestamp=lambda r: r["seen"][0])
    windowed = records.key_by(lambda _: 0).window(TwoWindows(10))
    combined = windowed.aggregate(fold) if isinstance(fold, sw.AggregateFunction) else windowed.reduce(fold)
    out = combined.map(lambda record: record["seen"]).collect()
    flow.run()
    assert out == [[0, 1, 2], [0, 1, 2]]
