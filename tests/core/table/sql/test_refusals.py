"""Refusals of queries: what, where in the text, and what to write in its place."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pytest

from sluiceway import Pipeline
from sluiceway.errors import GraphError

_TABLE = pa.table(
    {
        "user": ["u"],
        "price": [1.5],
        "count": [2],
        "at": [dt.datetime(2025, 3, 1, tzinfo=dt.UTC)],
        "place": [{"x": 1}],
        "cost": pa.array([1], pa.decimal128(9, 2)),
        "fine": pa.array([1], pa.timestamp("ns")),
        "wide": pa.array([1], pa.decimal256(50, 2)),
    }
)


@pytest.mark.parametrize(
    ("query", "line", "column", "says"),
    [
        ("SELECT usr FROM orders", 1, 8, "no column 'usr'; did you mean user"),
        ("SELECT user\nFROM order", 2, 6, "no table 'order'; did you mean orders"),
        ("SELECT o.user, p.user FROM orders o", 1, 16, "no table 'p' here; it is 'o'"),
        (
            "SELECT place.* FROM orders o",
            1,
            8,
            "'place' is no table, but a column of type struct<x: int64>: name the",
        ),
        ("SELECT price.x FROM orders", 1, 8, "'price' is no table, but a column of type double"),
        (
            "SELECT user\nFROM orders GROUP BY user HAVING place.user > 1",
            2,
            40,
            "no column .user.; the fields of place are x",
        ),
        (
            "SELECT place.x, count(*) FROM (SELECT price AS x, place FROM orders)\nGROUP BY x",
            1,
            8,
            r"'place.x' must stand in GROUP BY or in an aggregate, as in MAX\(place.x\)",
        ),
        ("SELECT user FROM orders\nORDER BY user", 2, 1, "no order over all rows"),
        ("SELECT user FROM orders LIMIT 3", 1, 25, "order in which rows arrive"),
        ("SELECT user, sum(price) FROM orders", 1, 14, r"SUM combines rows: it stands in SELECT or HAVING"),
        ("SELECT DISTINCT ON (user) user FROM orders", 1, 17, "DISTINCT ON has no translation"),
        ("SELECT DISTINCT place FROM orders", 1, 17, "struct.* cannot be a key"),
        ("SELECT user FROM orders UNION ALL SELECT price FROM orders", 1, 25, "not user .string. and price"),
        (
            "SELECT b.user FROM orders JOIN orders AS b ON TRUE",
            1,
            32,
            "a join takes an equality of columns of both",
        ),
        ("SELECT user FROM orders, orders", 1, 26, "two tables have the name 'orders'"),
        ("SELECT price + user FROM orders", 1, 16, "arithmetic takes numbers, not user"),
        ("SELECT user FROM orders WHERE user > 3", 1, 38, "values of one type"),
        ("SELECT user FROM orders WHERE price", 1, 31, "WHERE takes a condition"),
        ("SELECT price % 2 FROM orders", 1, 8, "% takes whole numbers"),
        ("SELECT cost + user FROM orders", 1, 15, "arithmetic takes numbers, not user"),
        ("SELECT COALESCE(cost, user) FROM orders", 1, 23, "COALESCE takes numbers beside a decimal, not user"),
        (
            "SELECT cost * cost * cost * cost FROM orders",
            1,
            8,
            "have too many digits together: CAST one AS DOUBLE",
        ),
        (f"SELECT cost * {'9' * 400}.5 FROM orders", 1, 15, "9 has too many digits beside a decimal"),
        ("SELECT cost % 2 FROM orders", 1, 8, "% takes whole numbers"),
        ("SELECT user FROM orders WHERE at > '2025-03-01'", 1, 36, "must have an offset"),
        ("SELECT user FROM orders WHERE at > 'soon'", 1, 36, "'soon' is no timestamp"),
        ("SELECT user FROM orders WHERE fine > '9999-01-01'", 1, 38, "has the years from 1678 to 2261"),
        ("SELECT user FROM orders WHERE fine < '2025-03-01 12:00:00.0000007'", 1, 38, "write six digits"),
        ("SELECT CAST(fine AS TIMESTAMP) AS at FROM orders", 1, 13, "engines differ"),
        ("SELECT floo(price) FROM orders", 1, 8, "FLOO has no translation; did you mean FLOOR"),
        ("SELECT regexp_matches(user, 'a(') FROM orders", 1, 29, "Invalid regular expression: missing"),
        ("SELECT regexp_matches(user, user) FROM orders", 1, 29, "a text that is written here, in quotes"),
        ("SELECT concat(user, price) FROM orders", 1, 21, "CONCAT takes a text, not price"),
        ("SELECT greatest(price, user) FROM orders", 1, 24, "GREATEST takes values of one type"),
        ("SELECT least(price > 1, TRUE) FROM orders", 1, 14, "LEAST takes numbers, texts or times"),
        ("SELECT round(price, 2) FROM orders", 1, 21, "this argument of ROUND has no translation"),
        ("SELECT :price FROM orders", 1, 8, "a query has no parameters: write the value in its place"),
        ("SELECT user FROM orders WHERE price > :p", 1, 31, "a query has no parameters"),
        ("SELECT price + FROM orders", 1, 16, "ADD lacks an operand or argument here"),
        ("SELECT log(2, price) FROM orders", 1, 8, r"the function LOG has no translation\. Those that have: ABS,"),
        ("SELECT replace('abc', 'a', 'b') AS x FROM orders", 1, 16, "REPLACE takes a text with a column in it"),
        (
            "SELECT rank() OVER () FROM orders",
            1,
            8,
            "RANK has no translation: ROW_NUMBER counts .*; aggregates are SUM",
        ),
        (
            "SELECT string_agg(user, ',') FROM orders GROUP BY count",
            1,
            19,
            "STRING_AGG or LISTAGG neither: agg.collect",
        ),
        ("SELECT GROUPING(user) FROM orders GROUP BY user", 1, 8, "GROUPING has no translation; aggregates are"),
        (
            "SELECT abs(wide) FROM orders",
            1,
            12,
            r"ABS takes a number, not wide .*: CAST\(... AS DOUBLE\) converts",
        ),
        ("SELECT -wide AS x FROM orders", 1, 9, r"- takes a number, not wide .*: CAST\(... AS DOUBLE\) converts"),
        ("SELECT wide = cost AS x FROM orders", 1, 8, r"a decimal, not wide .*: CAST\(... AS DOUBLE\) converts"),
        ("SELECT user, `count` FROM orders", 1, 20, 'names are quoted as in "user", without backticks'),
        (
            "SELECT user FROM TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR)",
            1,
            18,
            "TUMBLE around a table takes GROUP BY window_start",
        ),
        (
            "SELECT user FROM orders WHERE count IN (SELECT 1)",
            1,
            48,
            "IN takes the values themselves, and no query",
        ),
        ("SELECT CASE WHEN count > 1 THEN CAST(user AS INT) END FROM orders", 1, 38, "computes it for all"),
        ("SELECT TRY_CAST(user AS INT) AS n FROM orders", 1, 17, "TRY_CAST has no translation"),
        ("SELECT CAST(price AS VARCHAR) AS n FROM orders", 1, 13, "engines differ"),
        ("SELECT CAST(price AS DECIMAL(9, 2)) AS n FROM orders", 1, 13, "CAST converts to TINYINT"),
        ("SELECT NULL AS n FROM orders", 1, 16, "NULL has no type here"),
        ("SELECT sum(NULL) AS n FROM orders GROUP BY user", 1, 8, r"NULL has no type here: CAST\(NULL AS type\)"),
        ("SELECT user, price AS user FROM orders", 1, 14, "two columns would have the name 'user'"),
        ("SELECT * EXCEPT (usr) FROM orders", 1, 18, "no column 'usr'"),
        (f"SELECT count + {'9' * 5000} FROM orders", 1, 16, "999 is no BIGINT"),
        ("SELECT at + INTERVAL '999999999999999' DAY FROM orders", 1, 22, "DAY is longer than 999999999 days"),
        ("SELECT user\n  FORM orders", 2, 8, "Invalid expression"),
        ("SELECT FROM orders", 1, 1, "at least one column"),
        ("SELECT 1", 1, 8, "takes its rows FROM a table"),
        ("SELECT user FROM orders WHERE user LIKE user", 1, 41, "written here"),
        ("SELECT place.y FROM orders", 1, 14, "the fields of place are x"),
        ("SELECT orders.place.y FROM orders", 1, 21, "the fields of place are x"),
        ("SELECT orders.price.x FROM orders", 1, 15, "'price' is a column of type double, which has no fields"),
        ("SELECT place.x.y FROM orders", 1, 8, "'place.x' is a column of type int64, which has no fields"),
        ("SELECT other.place.x FROM orders", 1, 8, "there is no table 'other' here; it is 'orders'"),
        ("SELECT user,\n 'x FROM orders", 2, 2, "' is missing at the end of what begins here"),
        ('SELECT "user FROM orders', 1, 8, '" is missing at the end'),
        ("SELECT $x$ FROM orders", 1, 8, r"\$x\$ is missing at the end"),
        ("SELECT user /* all FROM orders", 1, 13, r"\*/ is missing at the end of the comment that begins here"),
        ("SELECT user FROM orders /* /* */", 1, 28, r"\*/ is missing at the end of the comment"),
        ("SELECT 1e AS x FROM orders", 1, 8, "1e is no number, as 1e3 is"),
        ("DELETE FROM orders", 1, 13, "this is no query"),
        ("SELECT user FROM orders TABLESAMPLE 10%", 1, 37, "has no translation"),
    ],
)
def test_a_refusal_has_the_position(query: str, line: int, column: int, says: str) -> None:
    flow = Pipeline()
    with pytest.raises(GraphError, match=says) as told:
        flow.sql(query, orders=flow.table(_TABLE))
    message = str(told.value)
    assert re.search(r"sql\(\) at \S*test_refusals.py:\d+: line", message)
    assert f"line {line}, column {column}: " in message
    _, shown, mark = message.split("\n")
    assert shown == f"  {query.splitlines()[line - 1]}"
    assert mark == f"  {' ' * (column - 1)}^"


def test_texts_that_are_no_query() -> None:
    flow = Pipeline()
    with pytest.raises(GraphError, match="takes one query, not 2"):
        flow.sql("SELECT user FROM orders; SELECT 1", orders=flow.table(_TABLE))
    with pytest.raises(GraphError, match="cannot read the query"):
        flow.sql("SELECT {: 1} FROM orders", orders=flow.table(_TABLE))


def test_comments_behind_the_end_of_a_query_are_no_query() -> None:
    flow = Pipeline()
    made = flow.sql("SELECT user FROM orders; -- all of them\n/* indeed */ ;", orders=flow.table(_TABLE))
    assert made.to_arrow().num_rows == len(_TABLE)


def test_tables_that_are_none() -> None:
    flow = Pipeline()
    with pytest.raises(TypeError, match="orders= takes a TableStream"):
        flow.sql("SELECT user FROM orders", orders=["ann"])
    with pytest.raises(GraphError, match="'orders' belongs to another pipeline"):
        flow.sql("SELECT user FROM orders", orders=Pipeline().table(_TABLE))
    doubled = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(GraphError, match="doubled= has two columns of one name"):
        flow.sql("SELECT user FROM orders", orders=flow.table(_TABLE), doubled=doubled)


def test_hundreds_of_conditions_are_refused_as_nested_too_deeply() -> None:
    flow = Pipeline()
    conditions = " OR ".join(f"price = {n}" for n in range(2000))
    with pytest.raises(GraphError, match=r"sql\(\) at \S*test_refusals.py:\d+: the query is nested too deeply"):
        flow.sql(f"SELECT user FROM orders WHERE {conditions}", orders=flow.table(_TABLE))


def test_a_cast_of_wide_numbers_may_fail_as_well() -> None:
    flow = Pipeline()
    table = flow.table(pa.table({"small": [True, False], "n": pa.array([1, 1 << 63], pa.uint64())}))
    with pytest.raises(GraphError, match=r"column 34: CAST of n \(uint64\) to BIGINT can fail, and CASE computes"):
        flow.sql("SELECT CASE WHEN small THEN CAST(n AS BIGINT) END FROM rows", rows=table)
    made = flow.sql("SELECT CAST(n AS BIGINT) AS n FROM rows WHERE small", rows=table)
    assert made.to_arrow().to_pylist() == [{"n": 1}]


def test_fields_and_zoned_times() -> None:
    flow = Pipeline()
    times = "at >= '2025-03-01 01:00:00+01:00' AND at < at + INTERVAL 1 DAY"
    query = f"SELECT place.x, year(at) AS y FROM orders WHERE {times}"
    assert flow.sql(query, orders=flow.table(_TABLE)).to_arrow().to_pylist() == [{"x": 1, "y": 2025}]
