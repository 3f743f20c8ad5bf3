"""Queries give what DuckDB gives for the same rows, with NULL in each column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from effort import FEW, examples
from hypothesis import given
from hypothesis import strategies as st

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.errors import FunctionContractError

_MIDNIGHT = dt.datetime(2025, 3, 1)
_TABLE = pa.table(
    {
        "a": pa.array([1, -7, None, 7, 0, 3, -2, None], pa.int64()),
        "b": pa.array([2, 2, 3, -2, 0, None, 5, None], pa.int32()),
        "x": pa.array([0.5, None, -2.5, 3.0, 2.5, -0.5, 1.5, 0.0], pa.float64()),
        "s": pa.array(["ab", "", None, "a%b", " Ab ", "ärger", "b\na", "a_b"]),
        "p": pa.array([True, False, None, True, None, False, True, False]),
        "d": pa.array([_MIDNIGHT.date() + dt.timedelta(n * 100) for n in range(7)] + [None]),
        "t": pa.array(
            [None] + [_MIDNIGHT + n * dt.timedelta(hours=1001.25) for n in range(7)], pa.timestamp("us")
        ),
    }
)


def _ours(query: str, **options: Any) -> list[tuple[Any, ...]]:
    flow = Pipeline()
    rows = flow.sql(query, rows=flow.table(_TABLE)).to_arrow(**options)
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _duckdb(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET error_on_division_by_zero = false")  # NULL, as here
        connection.register("rows", _TABLE)
        return connection.sql(query).fetchall()


def _choose(*of: Any) -> st.SearchStrategy[str]:
    return st.one_of(*(st.just(one) if isinstance(one, str) else one for one in of))


def _filled(text: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda made: text.format(*made))


# Integers stay small, so that no DuckDB type overflows; doubles are halves, so that no result is rounded.
_INTEGERS = _choose("a", "b", "0", "-2", "CAST(NULL AS BIGINT)", "LENGTH(s)", "EXTRACT(DAY FROM d)", "MONTH(t)")
_DOUBLES = _choose("x", "1.5e0", "-2e0", "CAST(a AS DOUBLE)", "FLOOR(x)", "CEIL(x)", "ROUND(x)", "b / 2")
_TEXTS = _choose(
    "s", "'ab'", "''", "UPPER(s)", "TRIM(s)", "SUBSTRING(s, 2, 1)", "LEFT(s, 1)", "REPLACE(s, 'a', '')"
)
_TIMES = _choose(
    "t",
    "TIMESTAMP '2025-04-01 12:00'",
    "DATE_TRUNC('week', t)",
    "t + INTERVAL '90' MINUTE",
    "CAST(d AS TIMESTAMP)",
)
# In parentheses, as IS binds less than a comparison: "p = x IS NULL" compares p with x.
_CONDITIONS = _choose("p", "TRUE", "CAST(NULL AS BOOLEAN)", "(s LIKE 'a%')", "(s NOT LIKE '_b')", "(x IS NULL)")
_SIGN = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@st.composite
def _expressions(draw: st.DrawFn, kind: str = "any", depth: int = 3) -> str:
    """Return an expression of a kind: i(nteger), d(ouble), s (text), t(imestamp) or p (condition)."""
    if kind == "any":
        kind = draw(st.sampled_from("idstppp"))
    plain = {"i": _INTEGERS, "d": _DOUBLES, "s": _TEXTS, "t": _TIMES, "p": _CONDITIONS}[kind]
    if depth == 0:
        return draw(plain)

    def of(wanted: str) -> st.SearchStrategy[str]:
        return _expressions(wanted, depth - 1)

    same = of(kind)
    condition = of("p")
    forms = [
        plain,
        _filled("CASE WHEN {} THEN {} WHEN {} THEN {} END", condition, same, condition, same),
        _filled("IF({}, {}, NULL)", condition, same),
        _filled("COALESCE({}, {})", same, same),
    ]
    if kind == "i":
        forms += [_filled(f"({{}} {sign} {{}})", same, same) for sign in ("+", "-", "*", "//", "%")]
        forms += [_filled("ABS({})", same), _filled("NULLIF({}, {})", same, same)]
        forms += [_filled("CAST({} AS INTEGER)", condition)]
    elif kind == "d":
        forms += [_filled(f"({{}} {sign} {{}})", same, _choose(same, of("i"))) for sign in ("+", "-")]
        forms += [_filled("({} * 2)", same), _filled("({} / 4)", of("i"))]
    elif kind == "s":
        forms += [_filled("({} || {})", same, same), _filled("CAST({} AS VARCHAR)", _choose(of("i"), condition))]
    elif kind == "p":
        for part in (of("i"), of("d"), of("s"), of("t")):
            three = ("({} BETWEEN {} AND {})", "({} IN ({}, {}))")
            forms += [_filled("({} {} {})", part, _SIGN, part), _filled("({} IS DISTINCT FROM {})", part, part)]
            forms += [_filled(one, part, part, part) for one in three]
            forms += [_filled("({} IS NOT NULL)", part)]
        word = st.sampled_from(["AND", "OR", "="])
        forms += [_filled("({} {} {})", same, word, same), _filled("(NOT {})", same)] * 4
        forms += [_filled("(a {} (1, NULL, 7))", st.sampled_from(["IN", "NOT IN"])), _filled("({} IS TRUE)", same)]
        forms += [st.just("(s IN ('ab', 'a_b'))"), st.just("(d < '2025-06-09')")]
    return draw(st.one_of(forms))


@examples(FEW, 300)
@given(_expressions(), _expressions("p"))
def test_expressions(expression: str, condition: str) -> None:
    query = f"SELECT a, {expression} AS r FROM rows WHERE {condition}"
    assert _ours(query) == _duckdb(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a - b * 2 // 3 % 2 - -a AS r, NOT p OR a > 1 AND x < 2 AS q FROM rows",
        "SELECT a // b AS q, a % b AS m, 7 // b AS l, -7 % b AS n, a / b AS f FROM rows WHERE b <> 0",
        "SELECT a // 0 AS q, a % 0 AS m FROM rows",
        "SELECT CAST(x AS INTEGER) AS i, CAST(x AS BIGINT) AS l, CAST(a::VARCHAR AS BIGINT) AS t FROM rows",
        "SELECT s LIKE 'a!%b' ESCAPE '!' AS l, s ILIKE '%AB%' AS i, s LIKE '%' AS e, s LIKE 'b_a' AS n FROM rows",
        "SELECT starts_with(s, 'a') AS a, ends_with(s, 'b') AS b, contains(s, '%') AS c FROM rows",
        "SELECT year(t) AS y, quarter_start AS q, hour(t) AS h, minute(t) AS m, second(t) AS s, isodow(d) AS w "
        "FROM (SELECT *, date_trunc('quarter', t) AS quarter_start FROM rows)",
        "SELECT CASE b WHEN 2 THEN 'two' WHEN 3 THEN 'three' ELSE s END AS c FROM rows",
        "SELECT CASE WHEN p THEN a ELSE x END AS mixed, COALESCE(b, x, 0) AS c FROM rows",
        "SELECT * FROM rows",
        "SELECT * EXCLUDE (s, d, t), a + 1 AS next FROM rows AS r WHERE r.a > 0",
        "SELECT r.* FROM rows r WHERE TRUE",
        "SELECT 1 AS one, 'x' AS text FROM rows WHERE 1 = 1",
        'SELECT A, "a" + 1 AS B FROM ROWS',
        "WITH few AS (SELECT a AS k FROM rows WHERE a > 0), more AS (SELECT 2 * k AS k FROM few) "
        "SELECT * FROM more",
        "SELECT a, s FROM rows WHERE a > 0 UNION ALL SELECT x, 'b' FROM rows "
        "UNION ALL SELECT b, NULL::VARCHAR FROM rows",
        "WITH rows AS (SELECT a FROM rows WHERE a = 7) SELECT a FROM rows",
        "SELECT upper(s), a + b, coalesce(a, 0) FROM rows",
        "SELECT dayofyear(d) AS d, EXTRACT(DOY FROM t) AS t FROM rows",
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}])
def test_queries(query: str, options: dict[str, Any]) -> None:
    def order(row: tuple[Any, ...]) -> str:
        return repr(tuple(float(one) if isinstance(one, int) else one for one in row))

    assert sorted(_ours(query, **options), key=order) == sorted(_duckdb(query), key=order)


@pytest.mark.parametrize("query", ["SELECT X.A FROM x", "SELECT A FROM x", 'SELECT y."a", Y.A + 1 FROM x AS Y'])
def test_columns_have_the_names_of_the_table(query: str) -> None:
    table = pa.table({"a": [1]})
    flow = Pipeline()
    with duckdb.connect() as connection:
        connection.register("x", table)
        names = connection.sql(query).columns
    assert flow.sql(query, x=flow.table(table)).schema.names[0] == names[0] == "a"


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(n AS DOUBLE)",
        "n / 2",
        "3 / n",
        "n + x",
        "n < x",
        "n IN (2e0, 7)",
        "COALESCE(n, x)",
        "CEIL(n)",
        "n::FLOAT",
    ],
)
def test_integers_that_a_double_rounds(expression: str) -> None:
    numbers = [2**63 - 1, -(2**63), 2**53 + 1, None, 7, 0, -(2**62) - 511]
    table = pa.table({"n": numbers, "x": [0.5, None, 2.0**53, 1.5, 7.0, 0.0, -1.0]})
    query = f"SELECT {expression} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"].to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        assert found == [row[0] for row in connection.sql(query).fetchall()]


_AT = "1970-01-01 00:00:00"


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(s AS TIMESTAMP)",
        "CAST(ms AS TIMESTAMP)",
        "CASE WHEN ms > '1970-01-01' THEN ms::TIMESTAMP END",
        "CAST(zms AS TIMESTAMPTZ)",
        "CAST(berlin AS TIMESTAMPTZ)",
        f"ns = '{_AT}.000002'",
        f"ns > '{_AT}.000002'",
        f"ns <= TIMESTAMP '{_AT}.000001'",
        "ns BETWEEN '1970-01-01' AND '1970-01-02 00:00'",
        f"ns IN ('1970-01-01', '{_AT}.0000010')",
        f"ns IS DISTINCT FROM '{_AT}.000001'",
        f"COALESCE(ns, '{_AT}.000001')",
        f"zns = '{_AT}.000001+00:00'",
        f"zns > TIMESTAMPTZ '{_AT}.000002+00:00'",
        "DATE_TRUNC('second', ns) = '1970-01-01'",
        "DATE_TRUNC('millisecond', ns) = '1970-01-01'",
        f"DATE_TRUNC('microsecond', ns) = '{_AT}.000001'",
        "DATE_TRUNC('week', ms) = '1969-12-29'",
    ],
)
@pytest.mark.parametrize("clause", ["SELECT {} AS r FROM rows", "SELECT s AS r FROM rows WHERE ({}) IS NOT NULL"])
def test_times_of_all_units(expression: str, clause: str) -> None:
    table = pa.table(
        {
            "s": pa.array([1, 2, None], pa.timestamp("s")),
            "ms": pa.array([1, 2, None], pa.timestamp("ms")),
            "ns": pa.array([1_000, 2_001, None], pa.timestamp("ns")),
            "zms": pa.array([1, 2, None], pa.timestamp("ms", "UTC")),
            "zns": pa.array([1_000, 2_001, None], pa.timestamp("ns", "UTC")),
            "berlin": pa.array([1, 2, None], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    query = clause.format(expression)
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table)
        expected = connection.sql(query).to_arrow_table()["r"]
    counts = [each.cast(pa.int64()).to_pylist() for each in (found, expected.cast(found.type))]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "expression",
    [
        "CASE WHEN p THEN {} END",
        "CASE WHEN p THEN NULL ELSE {} END",
        "CASE WHEN p THEN NULL WHEN NOT p THEN {} ELSE NULL END",
        "IF(p, {}, NULL)",
        "COALESCE(NULL, {}, NULL)",
    ],
)
@pytest.mark.parametrize("column", ["l", "s", "d", "b"])
def test_null_takes_the_type_of_the_other_values(expression: str, column: str) -> None:
    table = pa.table(
        {
            "p": [True, False, None],
            "l": [[1], [2], None],
            "s": [{"x": 1}, {"x": 2}, None],
            "d": pa.array([1, 2, 3], pa.decimal128(5, 2)),
            "b": [b"1", b"2", b"3"],
        }
    )
    query = f"SELECT {expression.format(column)} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"]
    with duckdb.connect() as connection:
        connection.register("rows", table)
        expected = [row[0] for row in connection.sql(query).fetchall()]
    assert found.type == table.schema.field(column).type
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    "condition",
    [
        "d > 1.5",
        "0.1 = d",
        "d <> 12345.67",
        "d < 3",
        "d >= n",
        "small > d",
        "d = e",
        "d <= e AND e < 1e3",
        "d BETWEEN -2.5 AND 2",
        "d IN (0.1, 3, 12345.67)",
        "d NOT IN (0.1, NULL)",
        "d IS DISTINCT FROM 0.10",
        "d = NULL",
        "d > x",
        "x <= d",
        "CASE d WHEN 0.1 THEN TRUE ELSE e > 2 END",
    ],
)
def test_decimals_are_compared(condition: str) -> None:
    assert _of_decimals(condition) is None


def _of_decimals(expression: str) -> Any:
    """Return the type of an expression of decimals, None for a condition; its values are those of DuckDB."""
    numbers = ["0.10", "-2.50", "3.00", "12345.67", "1.50", None]
    table = pa.table(
        {
            "d": pa.array([None if one is None else Decimal(one) for one in numbers], pa.decimal128(12, 2)),
            "e": pa.array(
                [Decimal(one) for one in ("0.1", "7", "3", "12345.6700001", "1", "2")], pa.decimal128(20, 7)
            ),
            "n": [0, -3, 3, 12346, 2, 1],
            "small": pa.array([0, -3, 3, 127, 2, None], pa.int8()),
            "x": [0.1, -2.5, 3.5, 12345.67, None, 1.0],
        }
    )
    query = f"SELECT {expression} AS r FROM rows"
    flow = Pipeline()
    result = flow.sql(query, rows=flow.table(table))
    found = result.to_arrow()["r"]
    with duckdb.connect() as connection:
        connection.register("rows", table)
        expected = [row[0] for row in connection.sql(query).fetchall()]
    assert found.to_pylist() == expected
    assert found.type == result.schema.field("r").type
    return None if pa.types.is_boolean(found.type) else found.type


@pytest.mark.parametrize(
    ("expression", "digits"),
    [
        ("d + e", (21, 7)),
        ("d - 1", (13, 2)),
        ("n - d", (22, 2)),
        ("d * small", (16, 2)),
        ("d * n", (32, 2)),
        ("d * 1.19", (16, 4)),
        ("d + -1234567890123456789.12345678901234567", (37, 17)),
        ("-d", (14, 2)),
        ("-(d * 2)", (16, 2)),
        ("(d + e) * 2", (23, 7)),
        ("d * d - e", (29, 7)),
        ("d + NULL", (13, 2)),
        ("abs(d)", (12, 2)),
        ("COALESCE(d, 0)", (12, 2)),
        ("COALESCE(small, d)", (12, 2)),
        ("CASE WHEN n > 0 THEN d ELSE -0.125 END", (13, 3)),
        ("CASE WHEN n > 0 THEN NULL ELSE d END", (12, 2)),
        ("IF(n > 1, d, e)", (20, 7)),
        ("NULLIF(d, 0.1)", (12, 2)),
    ],
)
def test_decimals_keep_their_digits(expression: str, digits: tuple[int, int]) -> None:
    assert _of_decimals(expression) == pa.decimal128(*digits)


@pytest.mark.parametrize(
    "expression",
    [
        "d + x",
        "x - e",
        "d / e",
        "d / 0",
        "n / d",
        "d + 1e3",
        "CASE WHEN n > 0 THEN d ELSE x END",
        "CAST(e AS DOUBLE)",
    ],
)
def test_decimals_beside_doubles_are_such(expression: str) -> None:
    assert _of_decimals(expression) == pa.float64()


def test_decimals_are_aggregated_and_united() -> None:
    table = pa.table(
        {
            "g": [1, 1, 2],
            "d": pa.array([Decimal("1.25"), None, Decimal("-0.50")], pa.decimal128(9, 2)),
            "n": pa.array([3, 4, 5], pa.int32()),
        }
    )
    for query in (
        "SELECT g, sum(d * n) AS s, min(COALESCE(d, 0)) AS low FROM rows GROUP BY g",
        "SELECT d FROM rows UNION ALL SELECT d * n FROM rows",
    ):
        flow = Pipeline()
        found = flow.sql(query, rows=flow.table(table)).to_arrow()
        with duckdb.connect() as connection:
            connection.register("rows", table)
            expected = connection.sql(query).fetchall()
        rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
        assert sorted(map(str, rows)) == sorted(map(str, expected))


@pytest.mark.parametrize(
    "expression",
    [
        "GREATEST(x, y)",
        "LEAST(x, y)",
        "LEAST(y, x)",
        "GREATEST(x, y, n, i)",
        "GREATEST(n, i)",
        "LEAST(n, i, 3)",
        "GREATEST(NULL, n)",
        "GREATEST(x)",
        "LEAST(s, t)",
        "GREATEST(s, t, 'm')",
        "GREATEST(d, n)",
        "LEAST(d, 0.75)",
        "GREATEST(day, '1970-01-04')",
        "LEAST(time, TIMESTAMP '1970-01-03 00:00:00')",
        "MOD(n, 2)",
        "CONCAT(s, t)",
        "CONCAT(s, '-', n, i)",
        "CONCAT(NULL, s)",
        "CONCAT('a', 'b')",
        "REGEXP_MATCHES(s, '^[a-m]+$')",
        r"REGEXP_MATCHES(s, '\w')",
        "s ~ 'a.*b'",
        "NOT s ~ '(?i)ANN|É'",
    ],
)
def test_functions_of_several_values(expression: str) -> None:
    nan = float("nan")
    table = pa.table(
        {
            "x": [1.0, nan, None, nan, None, 2.5, None],
            "y": [2.0, 1.0, nan, nan, None, -1.0, 3.0],
            "n": [1, None, 3, -4, 5, 6, None],
            "i": pa.array([5, 2, None, -4, 0, 7, None], pa.int32()),
            "s": ["ann", None, "b.b", "", "É", "a\nb", "xx"],
            "t": ["z", "b", None, "", "e", "a", "b"],
            "d": pa.array(
                [Decimal("1.5"), None, None, Decimal("0.80"), None, None, Decimal(0)], pa.decimal128(9, 2)
            ),
            "day": pa.array([1, 2, None, 4, 5, 6, 7], pa.date32()),
            "time": pa.array([86_400_000 * n for n in range(7)], pa.timestamp("ms")),
        }
    )
    query = f"SELECT {expression} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"].to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        expected = [row[0] for row in connection.sql(query).fetchall()]
    assert repr(found) == repr(expected)  # NaN is not equal to itself


def test_the_bounds_of_a_window_are_cast() -> None:
    flow = Pipeline()
    times: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    rows = flow.table(pa.table({"at": pa.array([12_000], pa.timestamp("ms"))}), watermark_strategy=times)
    query = "SELECT CAST(window_start AS TIMESTAMPTZ) AS s FROM rows GROUP BY TUMBLE(at, INTERVAL '10' SECOND)"
    found = flow.sql(query, rows=rows).to_arrow()
    assert found["s"].to_pylist() == [dt.datetime(1970, 1, 1, 0, 0, 10, tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    "expression",
    [
        "NULLIF(n, 0.5e0)",
        "NULLIF(n, x)",
        "NULLIF(i, 2)",
        "NULLIF(i, n)",
        "NULLIF(f, 0.5e0)",
        "NULLIF(s, 'a')",
        "NULLIF(c, 'a')",
        "NULLIF(d, '1970-01-02')",
        "NULLIF('1970-01-02', d)",
        "NULLIF(t, '1970-01-01 00:00:00.001')",
    ],
)
def test_nullif_has_the_type_of_its_first_value(expression: str) -> None:
    table = pa.table(
        {
            "n": [2**53 + 1, 5, None],
            "i": pa.array([1, 2, None], pa.int32()),
            "f": pa.array([0.5, 2.0, None], pa.float32()),
            "x": [5.0, 5.0, None],
            "s": ["a", "b", None],
            "c": pa.array(["a", "b", None]).dictionary_encode(),
            "d": pa.array([1, 2, None], pa.date32()),
            "t": pa.array([1, 2, None], pa.timestamp("ms")),
        }
    )
    query = f"SELECT {expression} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        expected = connection.sql(query).to_arrow_table()
    assert found["r"].to_pylist() == expected["r"].to_pylist()
    assert found.schema.types == expected.schema.types


@pytest.mark.parametrize("pattern", ["'ΣΑΣ'", "'i%'", "'S'", "'k'", "'%SS'", "'ẞ%'", "'sX_' ESCAPE 'x'"])
def test_ilike_compares_letters_as_lower_makes_them(pattern: str) -> None:
    table = pa.table({"s": ["Σας", "ΣΑΣ", "İzmir", "I_", "\u017f", "\u212a", "ß", "STRASS", "s_"]})
    query = f"SELECT s ILIKE {pattern} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"].to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        assert found == [row[0] for row in connection.sql(query).fetchall()]


_ENDS = [-(2**63), -(2**63) + 1, 2**63 - 1, -7, -1, 0, 1, 2, 7, None]


@pytest.mark.parametrize("sign", ["//", "%"])
@pytest.mark.parametrize("divisor", ["b", "-1", "7", "0", "CAST(b AS BIGINT)"])
def test_divisions_at_the_ends_of_64_bits(sign: str, divisor: str) -> None:
    """The one quotient that does not fit, for which DuckDB fails, wraps around like other arithmetic."""
    pairs = [(a, b) for a in _ENDS for b in _ENDS]
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})
    query = f"SELECT a {sign} {divisor} AS r FROM rows"
    flow = Pipeline()
    found = flow.sql(query, rows=flow.table(table)).to_arrow()["r"].to_pylist()
    with duckdb.connect() as connection:
        connection.execute("SET error_on_division_by_zero = false")
        connection.register("rows", table)
        wide = query.replace("a //", "CAST(a AS HUGEINT) //")
        expected = [row[0] for row in connection.sql(wide).fetchall()]
    assert found == [-(2**63) if value == 2**63 else value for value in expected]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT", [0.5, 1.5, -0.5, 2.0**53 + 2, 9223372036854774784.0, -(2.0**63), None]),
        ("BIGINT", [2.0**63]),
        ("BIGINT", [-(2.0**63) - 2048]),
        ("BIGINT", [float("nan")]),
        ("BIGINT", [float("inf")]),
        ("BIGINT", ["9223372036854775807", "-9223372036854775808"]),
        ("BIGINT", ["9223372036854775808"]),
        ("INTEGER", [2147483647.4, -2147483648.5]),
        ("INTEGER", [2147483647.5]),
        ("INTEGER", [-2147483648.6]),
        ("INTEGER", [2**31 - 1, -(2**31)]),
        ("INTEGER", [2**31]),
        ("TINYINT", [127.4, -128.5]),
        ("TINYINT", [127.5]),
        ("VARCHAR", [2**63 - 1, -(2**63)]),
        ("DOUBLE", pa.array([2**64 - 1, 2**53 + 1, 5, None], pa.uint64())),
    ],
)
def test_casts_at_the_ends_of_types(kind: str, values: Any) -> None:
    """The same values, or an error of both."""
    table = pa.table({"a": values})
    query = f"SELECT CAST(a AS {kind}) AS r FROM rows"
    flow = Pipeline()
    rows = flow.sql(query, rows=flow.table(table))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        try:
            expected = [row[0] for row in connection.sql(query).fetchall()]
        except duckdb.ConversionException:
            with pytest.raises(FunctionContractError):
                rows.to_arrow()
            return
    assert rows.to_arrow()["r"].to_pylist() == expected


@pytest.mark.parametrize(
    "query",
    [
        "SELECT gone, n AS m FROM rows",
        "SELECT gone AS other FROM rows",
        "SELECT gone, count(*) AS m FROM rows GROUP BY gone",
        "SELECT gone, n FROM rows UNION ALL SELECT 'a' AS gone, n FROM rows",
    ],
)
def test_a_column_without_values_and_type_is_one(query: str) -> None:
    rows = pa.table({"gone": pa.nulls(2), "n": [1, 2]})
    flow = Pipeline()
    expected = duckdb.sql(query).fetchall()
    assert [
        tuple(row.values()) for row in flow.sql(query, rows=flow.table(rows)).to_arrow().to_pylist()
    ] == expected
