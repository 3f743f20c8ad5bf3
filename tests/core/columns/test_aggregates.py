"""Aggregates in columns against Python over all values, cut into batches, merged and restored anywhere."""

from __future__ import annotations

import copy
import datetime as dt
import math
import sys
from collections import defaultdict
from decimal import Decimal
from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from effort import tries
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation.accumulator import Arrays
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.sums import AggregateOverflowError
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.key_columns import counts_type
from sluiceway.errors import ConfigurationError, FunctionContractError, GraphError

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.floats(-1e6, 1e6)
VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): FLOATS,
    pa.string(): st.text("ab", max_size=3),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.duration("ms"): st.integers(-(10**6), 10**6).map(lambda ms: dt.timedelta(milliseconds=ms)),
    pa.list_(pa.int8()): st.lists(st.integers(0, 3), max_size=2),
}


class Product(agg.ColumnAggregate):
    """Sum of the products of two columns, modulo a prime."""

    result_type = pa.int64()

    def accumulators(self):
        return {"total": 0}

    def update(self, state, at, left, right):
        np.add.at(state["total"], at, left.astype(np.int64) % 97 * (right.astype(np.int64) % 97))

    def merge(self, state, at, other):
        state["total"][at] += other["total"]

    def result(self, state):
        return state["total"]


def mean(values):
    return float(sum(values)) / len(values)


def decimal_mean(values):
    total, n = int(sum(values) * 10**6), len(values)
    return Decimal((2 * abs(total) + n) // (2 * n) * (1 if total >= 0 else -1)).scaleb(-6)


def variance(values):
    middle = math.fsum(values) / len(values)
    return math.fsum((x - middle) ** 2 for x in values) / (len(values) - 1) if len(values) > 1 else None


NUMBERS = [pa.int64(), pa.int16(), pa.uint64(), pa.float64(), pa.decimal128(20, 2)]
TIMES = [pa.date32(), pa.timestamp("us", "UTC"), pa.duration("ms")]
FLAT = [*NUMBERS, *TIMES, pa.bool_(), pa.string()]
MODELS = {
    agg.count("x"): (list(VALUES), len),
    agg.sum("x"): ([*NUMBERS, pa.bool_()], lambda v: reduce(lambda a, b: a + b, v, 0 * v[0])),
    agg.mean("x"): ([pa.int16(), pa.bool_()], mean),
    agg.min("x"): (FLAT, min),
    agg.max("x"): (FLAT, max),
    agg.first("x"): (list(VALUES), lambda v: v[0]),
    agg.last("x"): (list(VALUES), lambda v: v[-1]),
    agg.count_distinct("x"): (FLAT, lambda v: len(set(v))),
    agg.top_k("x", 2): ([pa.int64(), pa.uint64(), pa.float64(), *TIMES], lambda v: sorted(v, reverse=True)[:2]),
    agg.collect("x"): (list(VALUES), list),
    agg.custom(Product(), "x", "x"): ([pa.int16()], lambda v: sum((x % 97) ** 2 for x in v)),
}


@st.composite
def inputs(draw):
    aggregate = draw(st.sampled_from(list(MODELS)))
    kinds, model = MODELS[aggregate]
    kind = draw(st.sampled_from(kinds))
    rows = draw(st.lists(st.tuples(st.integers(0, 3), VALUES[kind] | st.none()), max_size=30))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return aggregate, kind, model, rows, cuts


def fold(bound, kind, rows, cuts, start=0):
    """Accumulators of the rows, added in batches, with a snapshot and restore in between."""
    accumulator, positions = bound.create(), {}
    for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = rows[low:high]
        at = np.array([positions.setdefault(key, len(positions)) for key, _ in part], np.int64)
        accumulator.resize(len(positions))
        column = Values(pa.array([value for _, value in part], kind))
        rows_at = RowPositions(at, len(positions))
        accumulator.update(rows_at, [column] * len(bound.columns), np.arange(start + low, start + high))
        if len(part) % 2:
            count = len(positions)
            kept, accumulator = accumulator.state(count), bound.create()
            accumulator.resize(count)
            turned = np.arange(count)[::-1]
            accumulator.restore(turned, kept)
            positions = {key: count - 1 - position for key, position in positions.items()}
    return accumulator, positions


def results(accumulator, positions):
    found = accumulator.result(len(positions))
    found.validate(full=True)
    values = found.to_pylist()
    return {key: values[position] for key, position in positions.items()}


@given(inputs())
@example(
    (agg.sum("x"), pa.int64(), MODELS[agg.sum("x")][1], [(0, 2**63 - 1), (0, 5), (0, -(2**63)), (1, 1)], [1, 2])
)
def test_results_are_those_of_python(case):
    aggregate, kind, model, rows, cuts = case
    bound = aggregate.bind(pa.schema([("x", kind)]), "step 's'")
    expected, grouped = {}, defaultdict(list)
    for key, value in rows:
        if value is not None:
            grouped[key].append(value)
        expected.setdefault(key, {"count": 0, "count_distinct": 0, "custom": 0}.get(aggregate.kind))
        if aggregate.kind in ("top_k", "collect"):
            expected[key] = []
    expected |= {key: model(values) for key, values in grouped.items()}
    if aggregate.kind == "sum" and kind in (pa.int64(), pa.uint64()):
        fits = range(-(2**63), 2**63) if kind == pa.int64() else range(2**64)
        if any(total is not None and total not in fits for total in expected.values()):
            with pytest.raises(
                AggregateOverflowError, match=r"sum\('x'\) does not fit in u?int64: .* to a decimal before"
            ):
                results(*fold(bound, kind, rows, cuts))
            return
    found = results(*fold(bound, kind, rows, cuts))
    assert found == expected
    assert bound.create().result(0).type == bound.result_type


@given(inputs(), st.data())
def test_merged_accumulators_are_those_of_all_rows(case, data):
    aggregate, kind, _, rows, cuts = case
    if kind == pa.float64() and aggregate.kind == "sum":
        rows = [(key, value and float(round(value) % 1000)) for key, value in rows]  # in another order, but exact
    bound = aggregate.bind(pa.schema([("x", kind)]), "step 's'")
    cut = data.draw(st.integers(0, len(rows)))
    try:
        whole = results(*fold(bound, kind, rows, []))
    except AggregateOverflowError:
        return
    target, positions = bound.create(), {}
    # The later rows first: what is first and last is decided by the arrival.
    for part, start in ((rows[cut:], cut), (rows[:cut], 0)):
        other, theirs = fold(bound, kind, part, [c for c in cuts if c <= len(part)], start)
        at = np.array(
            [positions.setdefault(key, len(positions)) for key in sorted(theirs, key=theirs.get)], np.int64
        )
        target.resize(len(positions))
        target.merge(at, other)
    assert results(target, positions) == whole


@given(inputs(), st.data())
def test_parts_are_those_of_the_whole_state(case, data):
    aggregate, kind, _, rows, cuts = case
    if pa.types.is_integer(kind) and data.draw(st.booleans()):
        aggregate = agg.quantile("x", 0.5)
    bound = aggregate.bind(pa.schema([("x", kind)]), "step 's'")
    accumulator, positions = fold(bound, kind, rows, cuts)
    for _ in range(2):
        count = len(positions)
        at = np.array(
            data.draw(st.lists(st.integers(0, count - 1), unique=True) if count else st.just([])), np.int64
        )
        part = accumulator.part(at)
        part.validate(full=True)
        whole = copy.deepcopy(accumulator).state(count).take(pa.array(at))
        assert part.type == whole.type
        assert part.to_pylist() == whole.to_pylist()
        other, theirs = fold(bound, kind, rows, [], len(rows))
        into = [positions.setdefault(key, len(positions)) for key in sorted(theirs, key=theirs.get)]
        accumulator.resize(len(positions))
        accumulator.merge(np.array(into, np.int64), other)


def running(bound, kind, rows, cuts):
    """Return the result of the key of each row after it, and the accumulators."""
    accumulator, positions, found = bound.create(), {}, []
    for low, high in pairwise(sorted({0, *(c for c in cuts if c < len(rows)), len(rows)})):
        part = rows[low:high]
        at = np.array([positions.setdefault(key, len(positions)) for key, _ in part], np.int64)
        accumulator.resize(len(positions))
        columns = [Values(pa.array([value for _, value in part], kind))] * len(bound.columns)
        made = accumulator.running(Runs(at), columns, np.arange(low, high)).result(len(part))
        made.validate(full=True)
        found += made.to_pylist()
    return found, results(accumulator, positions)


@given(inputs())
@example((agg.sum("x"), pa.float64(), None, [(n % 70 % 3, 1 / (n + 1)) for n in range(400)], [1, 200]))
@example((agg.max("x"), pa.int64(), None, [(n % 70 % 3, n * 7 % 31) for n in range(400)], [1, 200]))
def test_running_results_are_those_of_rows_one_by_one(case):
    aggregate, kind, _, rows, cuts = case
    bound = aggregate.bind(pa.schema([("x", kind)]), "step 's'")
    if aggregate.kind not in agg.RUNNING:
        with pytest.raises(NotImplementedError):
            running(bound, kind, [(0, None)], [])
        return
    expected, one_by_one, positions = [], bound.create(), {}
    try:
        for row, (key, value) in enumerate(rows):
            at = positions.setdefault(key, len(positions))
            one_by_one.resize(len(positions))
            column = Values(pa.array([value], kind))
            one_by_one.update(
                RowPositions(np.array([at]), len(positions)), [column] * len(bound.columns), np.array([row])
            )
            expected.append(results(one_by_one, positions)[key])
    except AggregateOverflowError:
        with pytest.raises(AggregateOverflowError):
            running(bound, kind, rows, cuts)
        return
    assert running(bound, kind, rows, cuts) == (expected, results(one_by_one, positions))


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.decimal128(12, 3)])
def test_variance_mean_and_quantile(kind):
    rng = np.random.default_rng(3)
    rows = [(int(k), int(x)) for k, x in zip(rng.integers(0, 5, 500), rng.integers(-1000, 1000, 500), strict=True)]
    grouped = defaultdict(list)
    for key, value in rows:
        grouped[key].append(value)
    schema = pa.schema([("x", kind)])
    for aggregate, model in [
        (agg.variance("x"), variance),
        (agg.stddev("x"), lambda v: math.sqrt(variance(v))),
        (agg.mean("x"), mean),
    ]:
        bound = aggregate.bind(schema, "step 's'")
        left, positions = fold(bound, kind, rows[:200], [50])
        right, theirs = fold(bound, kind, rows[200:], [7], 200)
        left.merge(np.array([positions[key] for key in sorted(theirs, key=theirs.get)]), right)
        found = results(left, positions)
        for key, values in grouped.items():
            if isinstance(found[key], Decimal):
                assert found[key] == decimal_mean(values)
            else:
                assert found[key] == pytest.approx(model(values), rel=1e-12)
    for q in (0, 0.25, 0.5, 0.99, 1):
        bound = agg.quantile("x", q).bind(schema, "step 's'")
        found = results(*fold(bound, kind, rows, [100, 101]))
        assert found == results(*fold(bound, kind, rows[::-1], []))
        for key, values in grouped.items():
            exact = sorted(values)[math.floor(q * (len(values) - 1))]
            assert found[key] == pytest.approx(exact, rel=0.0101)


def test_sums_of_floats_do_not_depend_on_batches():
    rng = np.random.default_rng(5)
    size = tries(500, 2000)
    rows = [(int(k), float(x)) for k, x in zip(rng.integers(0, 3, size), rng.normal(size=size) * 1e8, strict=True)]
    for aggregate in (agg.sum("x"), agg.mean("x"), agg.variance("x")):
        bound = aggregate.bind(pa.schema([("x", pa.float64())]), "step 's'")
        runs = [
            running(bound, pa.float64(), rows, cuts) for cuts in ([], [7, size // 2, size - 99], list(range(size)))
        ]
        assert runs[0] == runs[1] == runs[2]
        ways = [
            fold(bound, pa.float64(), rows, cuts) for cuts in ([], list(range(size)), [7, size // 2, size - 99])
        ]
        assert len({tuple(sorted(results(*way).items())) for way in ways}) == 1


def test_nan_is_greatest():
    nan = float("nan")
    schema = pa.schema([("x", pa.float64())])
    rows = [(0, nan), (0, 1.0), (0, float("inf")), (1, nan)]
    found = {
        a: results(*fold(a.bind(schema, "step 's'"), pa.float64(), rows, [1]))
        for a in (agg.min("x"), agg.max("x"))
    }
    assert found[agg.min("x")][0] == 1.0
    assert all(math.isnan(x) for x in (*found[agg.max("x")].values(), found[agg.min("x")][1]))
    assert results(*fold(agg.count_distinct("x").bind(schema, "step 's'"), pa.float64(), rows * 2, [3])) == {
        0: 3,
        1: 1,
    }
    top = results(*fold(agg.top_k("x", 2).bind(schema, "step 's'"), pa.float64(), rows, []))
    assert math.isnan(top[0][0])
    assert top[0][1] == float("inf")
    assert results(*fold(agg.quantile("x", 0.5).bind(schema, "step 's'"), pa.float64(), rows, []))[0] == float(
        "inf"
    )


def test_a_decimal_sum_that_does_not_fit_fails():
    kind = pa.decimal128(38, 0)
    bound = agg.sum("x").bind(pa.schema([("x", kind)]), "step 's'")
    with pytest.raises(
        AggregateOverflowError, match=r"does not fit in decimal128.* Cast the column to a float before"
    ):
        results(*fold(bound, kind, [(0, Decimal(10**38 - 1)), (0, Decimal(1))], []))
    assert results(*fold(bound, kind, [(0, Decimal(1 - 10**38)), (0, Decimal(0))], [])) == {0: Decimal(1 - 10**38)}


def test_a_sum_of_durations_that_does_not_fit_fails():
    kind = pa.duration("us")
    bound = agg.sum("x").bind(pa.schema([("x", kind)]), "step 's'")
    with pytest.raises(AggregateOverflowError, match="Cast the column to int64 and then to a decimal before"):
        results(*fold(bound, kind, [(0, dt.timedelta(days=106_000_000))] * 2, []))


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (
            agg.sum("pirce"),
            "step 'w': sum('pirce') names column 'pirce', which the rows do not have: did you mean 'price'? They "
            "have user, price, tags, nothing, any, several",
        ),
        (
            agg.sum("user"),
            "step 'w': sum('user') is not there for column 'user' of type string: it takes integers, floats and "
            "decimals of 128 bits, bools and durations. Cast the column before it, or use another aggregate",
        ),
        (
            agg.top_k("tags", 3),
            "step 'w': top_k('tags', k=3) is not there for column 'tags' of type list<item: string>: it takes "
            "integers, floats, dates and times",
        ),
        (agg.quantile("user", 0.5), "it takes integers, floats and decimals of 128 bits"),
        (agg.min("nothing"), "of type null: it takes all but nulls, lists, structs and maps"),
        (agg.last("any"), "of type dense_union<a: int8=0>: it takes all but unions"),
        (agg.collect("any"), "of type dense_union<a: int8=0>: it takes all but unions"),
        (agg.collect("several"), "it takes all but unions"),
    ],
)
def test_errors_name_column_and_type(aggregate, message):
    fields = [
        ("user", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("nothing", pa.null()),
    ]
    schema = pa.schema(fields)
    union = pa.dense_union([pa.field("a", pa.int8())])
    schema = schema.append(pa.field("any", union)).append(pa.field("several", pa.list_(union)))
    with pytest.raises(GraphError) as raised:
        aggregate.bind(schema, "step 'w'")
    assert message in str(raised.value)


def test_a_custom_aggregate_cannot_change_what_others_read():
    class Raised(Product):
        def update(self, state, at, left, right):
            left += 100

    bound = agg.custom(Raised(), "x", "x").bind(pa.schema([("x", pa.int64())]), "step 's'")
    for some in ([1, 2], [1, None]):
        values = Values(pa.array(some))
        numbers = values.take(np.array([0, 1])).numbers.copy()
        accumulator = bound.create()
        accumulator.resize(1)
        for column in (values, values.take(np.array([0, 1]))):
            with pytest.raises(ValueError, match="read-only"):
                accumulator.update(RowPositions(np.array([0, 0]), 1), [column, column], np.array([0, 1]))
            assert column.numbers.tolist() == numbers.tolist()


def test_results_of_another_type_than_said_are_no_other_values():
    class Flag(Product):
        result_type = pa.bool_()

    accumulator = agg.custom(Flag(), "x", "x").bind(pa.schema([("x", pa.int64())]), "step 's'").create()
    accumulator.resize(1)
    with pytest.raises(FunctionContractError, match="returned int64, where it is said to have bool"):
        accumulator.result(1)


def test_errors_of_arguments():
    with pytest.raises(ConfigurationError, match="k must be a whole number"):
        agg.top_k("x", 0)
    with pytest.raises(ConfigurationError, match="q must be from 0 to 1"):
        agg.quantile("x", 95)
    with pytest.raises(ConfigurationError, match="q='half' must be a number"):
        agg.quantile("x", "half")
    with pytest.raises(ConfigurationError, match="a whole number from 0 to 2147483647"):
        agg.variance("x", 10**30)
    with pytest.raises(FunctionContractError, match="a subclass of ColumnAggregate"):
        agg.custom(print, "x")
    with pytest.raises(ConfigurationError, match="names its column by a text, not by 3"):
        agg.sum(3)


def test_extremes_of_both_zeros_do_not_depend_on_batches():
    rng = np.random.default_rng(7)
    rows = [
        (int(k), -0.0 if one else 0.0) for k, one in zip(rng.integers(0, 3, 99), rng.random(99) < 0.5, strict=True)
    ]
    for aggregate in (agg.min("x"), agg.max("x")):
        for kind in (pa.float64(), pa.float32()):
            bound = aggregate.bind(pa.schema([("x", kind)]), "step 's'")
            whole, by_row = (running(bound, kind, rows, cuts)[0] for cuts in ([], range(len(rows))))
            signs = [[math.copysign(1, x) for x in found] for found in (whole, by_row)]
            assert signs[0] == signs[1]


def test_greatest_values_with_both_zeros_do_not_depend_on_restores():
    bound = agg.top_k("x", 3).bind(pa.schema([("x", pa.float64())]), "step 's'")
    rows = [(0, x) for x in (0.0, -0.0, 0.0, -0.0)]
    found = [repr(results(*fold(bound, pa.float64(), rows, cuts))) for cuts in ([], [1, 2, 3], [1])]
    assert found == [found[0]] * 3


TIMES_INSIDE = [
    pa.struct([("x", pa.time64("ns"))]),
    pa.list_(pa.time64("ns")),
    pa.large_list(pa.struct([("x", pa.list_(pa.timestamp("us"), 1))])),
    pa.map_(pa.string(), pa.duration("ns")),
]


@pytest.mark.parametrize("kind", TIMES_INSIDE, ids=str)
@pytest.mark.parametrize("aggregate", [agg.first("x"), agg.last("x")], ids=str)
def test_times_inside_of_other_types_keep_their_nanoseconds_and_years(aggregate, kind):
    counts = counts_type(kind)

    def nested(number, of):
        if pa.types.is_struct(of):
            return {"x": nested(number, of.field(0).type)}
        if pa.types.is_map(of):
            return [("k", number)]
        return [nested(number, of.value_type)] if pa.types.is_nested(of) else number

    numbers = [nested(each, counts) if each is not None else None for each in (None, 10**12 + 1, 2**40, None)]
    given = pa.array(numbers, counts).view(kind)
    accumulator = aggregate.bind(pa.schema([("x", kind)]), "step 's'").create()
    accumulator.resize(2)
    for row in range(len(given)):
        accumulator.update(RowPositions(np.array([0]), 2), [Values(given.slice(row, 1))], np.array([row]))
    expected = pa.array([numbers[1 if aggregate.kind == "first" else 2], None], counts)
    assert accumulator.result(2).view(counts) == expected
    assert accumulator.state(2).field("value").view(counts) == expected


@pytest.mark.parametrize(
    ("kind", "values"), [(pa.int64(), [2**53 + 1, -(2**63), 2**62]), (pa.uint64(), [2**64 - 1])]
)
def test_quantiles_of_integers_that_no_float_has(kind, values):
    bound = agg.quantile("x", 0.5).bind(pa.schema([("x", kind)]), "step 's'")
    found = results(*fold(bound, kind, [(0, value) for value in values], [1]))
    assert found[0] == pytest.approx(sorted(values)[(len(values) - 1) // 2], rel=0.0101)


@pytest.mark.parametrize("value", [sys.float_info.max, 1e308, -1e308])
def test_quantiles_of_the_largest_floats_are_no_infinities(value):
    bound = agg.quantile("x", 0.5).bind(pa.schema([("x", pa.float64())]), "step 's'")
    assert results(*fold(bound, pa.float64(), [(0, value)], [])) == {0: pytest.approx(value, rel=0.0101)}


@given(st.lists(st.lists(st.integers(0, 300), max_size=400), max_size=6), st.booleans())
def test_marks_are_those_of_all_rows_so_far(batches, by_arrival):
    """Positions in the order of their first rows, or of which some have none yet."""
    arrays, expected, seen = Arrays(some=False), set(), {}
    for batch in batches:
        at = np.array([seen.setdefault(each, len(seen)) if by_arrival else each for each in batch], np.int64)
        expected |= set(at.tolist())
        size = max(len(seen), int(at.max(initial=-1)) + 1, arrays.size)
        arrays.resize(size)
        arrays.mark("some", RowPositions(at, size))
        assert set(np.flatnonzero(arrays["some"]).tolist()) == expected


def test_the_largest_of_some_rows_bounds_those_of_the_whole_column():
    values = Values(pa.array([3, None, -70, 5]))
    assert values.largest == 70
    taken = values.take(np.array([0, 1]))
    assert taken.largest == 70
    assert taken.present.tolist() == [0]
    assert Values(pa.array([1, 2])).present is None
    assert Values(pa.array([], pa.int64())).largest == 0
