"""Expressions that are said to fail on no row do not fail on the least and greatest values of their columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import narwhals as nw
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from narwhals import col, lit, when

from sluiceway.columns.infallible import cannot_fail

_INTEGERS = {"i8": (-(2**7), 2**7 - 1), "i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
_UNSIGNED = {"u8": 2**8 - 1, "u32": 2**32 - 1, "u64": 2**64 - 1}
_TABLE = pa.table(
    {
        **{name: pa.array([*ends, 1, None], f"int{name[1:]}") for name, ends in _INTEGERS.items()},
        **{name: pa.array([0, end, 1, None], f"uint{name[1:]}") for name, end in _UNSIGNED.items()},
        "f32": pa.array([-3e38, 3e38, 0.5, None], pa.float32()),
        "f64": [-1e308, 1e308, float("nan"), None],
        "money": pa.array([Decimal("-9999999.99"), Decimal("9999999.99"), Decimal(1), None], pa.decimal128(9, 2)),
        "large": pa.array([Decimal("9" * 18), Decimal("-" + "9" * 18), Decimal(1), None], pa.decimal128(18, 0)),
        "text": ["", "x", "9", None],
        "word": pa.array(["", "x", "9", None]).dictionary_encode(),
        "yes": [True, False, True, None],
        "ms": pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), None, None], pa.timestamp("ms")),
        "us": pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), None, None], pa.timestamp("us")),
        "ns": pa.array([-(2**63) + 1, 2**63 - 1, None, None], pa.timestamp("ns")),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None, None]),
    }
)
_NAMES = st.sampled_from(_TABLE.schema.names)
_NUMBERS = [0, 7, -1, 300, 2**60 + 1, 0.5, 2.0, Decimal("1.5")]
_CONSTANTS = st.sampled_from([*_NUMBERS, "x", True, None, dt.datetime(2025, 3, 1), dt.date(2025, 3, 1)])


@st.composite
def _expressions(draw: st.DrawFn, depth: int = 2) -> nw.Expr:
    if not depth:
        return draw(_NAMES.map(col))
    one = draw(_expressions(depth - 1))
    other: Any = draw(st.one_of(_expressions(depth - 1), _CONSTANTS, _CONSTANTS.map(lit)))
    made: list[Any] = [
        lambda: one + other,
        lambda: one - other,
        lambda: one * other,
        lambda: one == other,
        lambda: one < other,
        lambda: one.is_between(other, draw(_CONSTANTS)),
        lambda: one.is_in(draw(st.lists(_CONSTANTS, min_size=1, max_size=2))),
        lambda: one.fill_null(draw(_CONSTANTS.filter(lambda value: value is not None))),
        lambda: when(col("yes")).then(one).otherwise(other),
        lambda: nw.coalesce(one, other if isinstance(other, nw.Expr) else lit(other)),
        lambda: one.is_null() & (one == other),
        lambda: one.str.len_chars(),
        lambda: one.is_finite(),
    ]
    return draw(st.sampled_from(made))()  # type: ignore[no-any-return]


@given(_expressions())
def test_what_cannot_fail_does_not_fail_on_the_ends_of_types(expression: nw.Expr) -> None:
    if not cannot_fail([expression], _TABLE.schema):
        return
    frame = nw.from_native(_TABLE, eager_only=True)
    try:
        frame.head(0).select(expression)
    except Exception:  # refused where it is given
        reject()
    frame.select(expression)


@pytest.mark.parametrize(
    ("expression", "safe"),
    [
        (col("i64") + 1, True),
        (col("i64") + 0.5, False),
        (col("i64") < col("f64"), False),
        (col("i32") < col("f64"), True),
        (col("i32") * 0.5, True),
        (col("i32") * col("u32") + 0.5, False),
        (col("i32") < col("f32"), False),
        (col("f64") > 50, True),
        (col("u64") > 5, False),
        (col("u64") == col("u64"), True),
        (col("money") * col("i64") > Decimal("1.5"), True),
        ((col("i64") > 5) & ~(col("f64") < 1.5) | col("yes"), True),
        (col("f64").is_in([1, 2]), False),
        (col("f64").is_in([1.0, 2.5]), True),
        (col("i64").is_in([1, 2]), True),
        (col("i64").is_in([0.5]), False),
        (col("i64").is_between(1, 2.5), False),
        (col("i64").fill_null(0).is_between(1, 2), True),
        (when(col("yes")).then(col("i64")).otherwise(0.5), False),
        (when(col("yes")).then("i64").otherwise(lit(1)).alias("n"), True),
        (nw.coalesce("i64", "f64"), False),
        (nw.coalesce("f64", lit(0.0)), True),
        (col("word").is_in(["x"]), True),
        (col("text").str.to_lowercase().str.contains("x"), True),
        (col("ms") > dt.datetime(2025, 3, 1), True),
        (col("ms") > lit(dt.datetime(2025, 3, 1)), True),
        (col("ns") > col("us"), False),
        (col("us").is_null() & col("us").is_null(), True),
        (col("i64") == lit(1, nw.Int64), True),
        (col("i64") == lit(None, nw.Float64), False),
        (col("text").cast(nw.Int64), False),
        (col("i64") // col("i64"), False),
    ],
    ids=str,
)
def test_types_say_if_a_row_can_fail(expression: nw.Expr, safe: bool) -> None:
    assert cannot_fail([expression], _TABLE.schema) is safe
