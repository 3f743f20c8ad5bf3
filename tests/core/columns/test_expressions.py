"""Compiled expressions give what Narwhals gives for them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import narwhals as nw
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluiceway.columns import expressions
from sluiceway.columns.expressions import all_compiled
from sluiceway.columns.transforms import Filter, Select, Transform, WithColumns
from sluiceway.table import col, lit, when

COLUMNS = {
    "whole": pa.int64(),
    "small": pa.int8(),
    "count": pa.uint32(),
    "real": pa.float64(),
    "short": pa.float32(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "at": pa.timestamp("ms"),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-128, 127),
    "count": st.integers(0, 2**32 - 1),
    "real": st.floats(),
    "short": st.floats(width=32),
    "flag": st.booleans(),
    "text": st.text(max_size=3) | st.text("aAbBéß. ", max_size=6),
    "at": st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2030, 1, 1)).map(lambda t: t.replace(microsecond=0)),
}
NUMERIC: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
]
COMPARISONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


def _either(of: list[Callable[[Any, Any], Any]], one: Any, other: Any) -> st.SearchStrategy[nw.Expr]:
    """Return operations with either operand on the left."""
    functions = st.sampled_from(of)
    return st.builds(lambda f, a, b: f(a, b), functions, one, other) | st.builds(
        lambda f, a, b: f(b, a), functions, one, other
    )


constants: st.SearchStrategy[Any] = st.integers(-100, 100) | st.floats(-10, 10)
numbers = st.recursive(
    st.sampled_from(["whole", "small", "count", "real", "short"]).map(col),
    lambda inner: st.one_of(
        inner.map(lambda a: a.alias("other")),
        inner.map(lambda a: a.alias("other").__neg__()),
        _either(NUMERIC, inner, inner | constants | constants.map(lit)),
    ),
    max_leaves=4,
)
texts = st.recursive(
    st.just(col("text")),
    lambda inner: st.one_of(inner.map(lambda a: a.str.to_lowercase()), inner.map(lambda a: a.str.to_uppercase())),
    max_leaves=2,
)
patterns = st.text("aAbé. ", max_size=2)
predicates = st.recursive(
    st.one_of(
        st.builds(lambda a, b: a.str.contains(b, literal=True), texts, patterns),
        st.builds(lambda a, b: a.str.contains(b), texts, patterns),
        st.builds(lambda a, b: a.str.starts_with(b), texts, patterns),
        st.builds(lambda a, b: a.str.ends_with(b), texts, patterns),
        st.just(col("flag")),
        st.sampled_from(sorted(COLUMNS)).map(lambda name: col(name).is_null()),
        _either(COMPARISONS, numbers, numbers | constants),
        _either(COMPARISONS, st.just(col("text")), st.text(max_size=2)),
        _either(COMPARISONS, st.just(col("at")), VALUES["at"]),
    ),
    lambda inner: st.one_of(
        inner.map(lambda a: ~a),
        st.builds(lambda a, b: a & b, inner, inner | st.booleans()),
        st.builds(lambda a, b: a | b, inner, inner),
    ),
    max_leaves=3,
)
tables = (
    st.integers(0, 5)
    .flatmap(
        lambda rows: st.fixed_dictionaries(
            {name: st.lists(st.none() | of, min_size=rows, max_size=rows) for name, of in VALUES.items()}
        )
    )
    .map(lambda of: pa.record_batch([pa.array(of[n], kind) for n, kind in COLUMNS.items()], names=list(COLUMNS)))
)


def _by_narwhals(transform: Transform, data: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return what comes out; None: no operation of these types, which is refused before anything runs."""
    try:
        transform.apply(data.slice(0, 0), None)
        return transform.apply(data, None)[0]
    except Exception:
        return None


def _repr(data: pa.RecordBatch) -> str:
    return repr(data.to_pylist())  # NaN is equal to itself


of_texts = texts | st.one_of(
    texts.map(lambda a: a.str.len_chars()), st.builds(lambda a, b: a.str.split(b), texts, patterns)
)


@given(tables, numbers | predicates | of_texts)
def test_columns_are_those_of_narwhals(data: pa.RecordBatch, expression: nw.Expr) -> None:
    for transform in (Select((expression,)), WithColumns((expression, col("small")))):
        expected = _by_narwhals(transform, data)
        assume(expected is not None)
        assert expected is not None
        got, stamps = transform.compiled(expected.schema)(data, [7] * data.num_rows)
        assert got.schema == expected.schema
        assert _repr(got) == _repr(expected)
        assert stamps == [7] * data.num_rows


@pytest.mark.parametrize(
    "expression", [100 - col("whole"), 2 / col("real"), (1 - col("whole")) * 2, 3 + col("whole")]
)
def test_a_constant_to_the_left_names_the_column_as_in_narwhals(expression: nw.Expr) -> None:
    data = pa.record_batch([[1, 2], [0.5, 4.0]], names=["whole", "real"])
    transform = WithColumns((expression,))
    expected, _ = transform.apply(data, None)
    assert expected.schema.names == ["whole", "real", "literal"]
    got, _ = transform.compiled(expected.schema)(data, None)
    assert got.to_pydict() == expected.to_pydict()


@given(tables, predicates, predicates)
def test_rows_are_those_of_narwhals(data: pa.RecordBatch, one: nw.Expr, other: nw.Expr) -> None:
    for transform in (Filter((one,)), Filter((one, other))):
        expected = _by_narwhals(transform, data)
        assume(expected is not None)
        assert expected is not None
        stamps = range(data.num_rows)
        kept, times = transform.compiled(data.schema)(data, stamps)
        assert _repr(kept) == _repr(expected)
        _, expected_times = transform.apply(data, stamps)
        assert list(times or ()) == list(expected_times or ())


@pytest.mark.parametrize(
    "expression",
    [
        col("price") * col("count"),
        (col("price") * 2 - 1).alias("net"),
        (1 - col("price")) / 3,
        (col("price") > 3) & ~col("user").is_null(),
        col("user") == "ann",
        col("user") == lit("ann"),
        2 * col("price"),
        col("user").str.split(" ").alias("words"),
        col("user").str.to_lowercase().str.len_chars() > 3,
        col("user").str.starts_with("a") | col("user").str.contains("^b"),
    ],
    ids=str,
)
def test_what_is_compiled(expression: nw.Expr) -> None:
    assert all_compiled([expression]) is not None


@pytest.mark.parametrize(
    "expression",
    [
        lit(2),
        lit(2) * col("price"),
        col("price").cast(nw.Int64),
        col("price") + lit(1, nw.Int8),
        col("price") == None,  # noqa: E711 (an expression)
        col("price", "count"),
        nw.all(),
        col("user").str.to_titlecase(),
        col("user").str.to_uppercase().str.slice(0, 2),
        col("user").str.starts_with(col("price")),
        col("price").is_in([1, 2]),
        when(col("price") > 1).then(lit("a")),
        col("price") + when(col("price") > 1).then(1),
        col("price") ** 2,
        col("price").fill_null(0),
    ],
    ids=str,
)
def test_what_is_left_to_narwhals(expression: nw.Expr) -> None:
    assert all_compiled([expression]) is None
    assert all_compiled([col("price"), expression]) is None


def test_an_expression_of_another_version_is_left_to_narwhals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """Expression without the attributes."""

    assert expressions.all_compiled([Other()]) is None  # type: ignore[list-item]


def test_types_are_those_of_narwhals() -> None:
    data = pa.record_batch({"a": pa.array([1], pa.int8()), "b": pa.array([2], pa.int32())})
    made = Select(((col("a") / col("b")).alias("share"), (col("a") + 1).alias("next")))
    expected, _ = made.apply(data, None)
    found = all_compiled(made.expressions)
    assert found is not None
    assert [(name, values(data).type) for name, values in found] == [(f.name, f.type) for f in expected.schema]
