"""OVER gives what DuckDB gives for the same rows, whatever the batches; the rest is refused."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.errors import GraphError

_START = dt.datetime(2025, 3, 1)
_TIMES: Any = WatermarkStrategy.for_bounded_out_of_orderness("1h").with_timestamp_column("time")


def _rows(unit: str, *, tied: bool = False) -> pa.Table:
    chance = random.Random(7)
    count = 120
    # Without ties, so that SQL's rows have one order.
    times = [chance.randrange(40) * 500 for _ in range(count)] if tied else chance.sample(range(60_000), count)
    return pa.table(
        {
            "id": list(range(count)),
            "user": [chance.choice(["ann", "bob", None]) for _ in range(count)],
            "item": pa.array([chance.choice([1, 2, None]) for _ in range(count)], pa.int32()),
            "price": [chance.choice([None, *range(20)]) for _ in range(count)],
            "paid": [chance.choice([True, False, None]) for _ in range(count)],
            "time": pa.array([_START + dt.timedelta(milliseconds=ms) for ms in times], pa.timestamp(unit)),
        }
    )


_TABLES = {"rows": _rows("ms"), "ties": _rows("ms", tied=True), "fine": _rows("us")}
_USERS = pa.table({"user": ["ann", "bob"], "land": ["at", "fr"]})
_LAST = "PARTITION BY user ORDER BY time ROWS BETWEEN 3 PRECEDING AND CURRENT ROW"


def _sql(query: str) -> Any:
    flow = Pipeline()
    tables = {name: flow.table(rows, watermark_strategy=_TIMES) for name, rows in _TABLES.items()}
    return flow.sql(query, **tables, users=_USERS)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT *, sum(price) OVER ({_LAST}) AS s FROM rows",
        f"SELECT id, sum(price) OVER ({_LAST}) / count(*) OVER ({_LAST}) + 1 AS share FROM rows WHERE id > 5",
        "SELECT id, avg(price) OVER w AS mean, max(item) OVER w AS high, count(DISTINCT item) OVER w AS items "
        "FROM rows WINDOW w AS (PARTITION BY user, item ORDER BY time ROWS 5 PRECEDING)",
        "SELECT id, sum(price) FILTER (WHERE paid) OVER (ORDER BY time ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) "
        "AS s, count(*) OVER (PARTITION BY paid ORDER BY time ROWS BETWEEN CURRENT ROW AND CURRENT ROW) AS one "
        "FROM rows",
        "SELECT id, sum(price * 2) OVER (PARTITION BY upper(user) ORDER BY time "
        "RANGE BETWEEN INTERVAL '4' SECOND PRECEDING AND CURRENT ROW) AS s FROM ties",
        "SELECT id, count(*) OVER (PARTITION BY user ORDER BY time RANGE BETWEEN CURRENT ROW AND CURRENT ROW) AS "
        "n, min(id) OVER (PARTITION BY user ORDER BY time RANGE INTERVAL '4' SECOND PRECEDING) AS low FROM ties",
        "SELECT * EXCEPT (time, price), count(price) OVER (PARTITION BY item + 1 ORDER BY "
        "DATE_TRUNC('millisecond', time) ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS n FROM fine",
        "select id, sum(price) over (partition by item order by time rows between 3 preceding and current row) s, "
        "count(*) over (order by time range between interval '4' second preceding and current row) as n, "
        "min(item) over (order by time rows between unbounded preceding and current row) as low from rows",
        f"SELECT user, max(s) AS top FROM (SELECT user, sum(price) OVER ({_LAST}) AS s FROM rows) GROUP BY user",
        "SELECT r.id, land, sum(price) OVER (PARTITION BY land ORDER BY r.time ROWS BETWEEN 2 PRECEDING AND "
        "CURRENT ROW) AS s FROM rows r JOIN users u ON r.user = u.user",
        "SELECT r.id, count(*) OVER w AS n FROM rows r JOIN users u ON r.user = u.user "
        "WINDOW w AS (PARTITION BY u.land ORDER BY r.time ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
        "SELECT id, lag(price) OVER (PARTITION BY user ORDER BY time) AS p FROM rows",
        "SELECT id, price - lag(price, 2, 0) OVER w AS d, lag(time, 1, time) OVER w AS t, lag(item, 0) OVER w AS "
        f"i FROM rows WINDOW w AS ({_LAST})",
        "SELECT id, first_value(item) OVER w, first(item IGNORE NULLS) OVER w AS f, last_value(item) OVER w AS l, "
        f"last_value(item IGNORE NULLS) OVER w AS known FROM rows WINDOW w AS ({_LAST})",
        "SELECT id, first_value(id) OVER w AS f, last_value(paid IGNORE NULLS) OVER w AS l FROM rows "
        "WINDOW w AS (PARTITION BY user ORDER BY time RANGE BETWEEN INTERVAL 9 SECOND PRECEDING AND CURRENT ROW)",
        "SELECT id, row_number() OVER (PARTITION BY user ORDER BY time) AS n, sum(price) OVER w AS s, "
        "count(DISTINCT item) OVER w AS items, last_value(price IGNORE NULLS) OVER w AS p FROM rows "
        "WINDOW w AS (PARTITION BY user ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        "SELECT id, user FROM rows QUALIFY row_number() OVER (PARTITION BY user ORDER BY time) <= 2",
        "SELECT id, id + row_number() OVER (ORDER BY time) AS n FROM rows QUALIFY N > 60 AND id <> 7",
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY time) AS n FROM rows "
        "WHERE id > 3) WHERE n = 1",
        "SELECT r.id, lag(r.price) OVER (PARTITION BY u.land ORDER BY r.time) AS n FROM rows r "
        "JOIN users u ON r.user = u.user QUALIFY n > 2 OR r.id = lag(r.id) OVER (ORDER BY r.time) + 1",
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 3}])
def test_results_are_those_of_duckdb(query: str, options: dict[str, Any]) -> None:
    with duckdb.connect() as connection:
        for name, rows in _TABLES.items():
            connection.register(name, rows)
        connection.register("users", _USERS)
        expected = connection.sql(query).fetchall()
    found = _sql(query).to_arrow(**options)
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert sorted(map(_plain, rows), key=repr) == sorted(map(_plain, expected), key=repr)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(float(one), 9) if isinstance(one, int | float) else one for one in row)


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        (
            "SELECT sum(price) OVER (PARTITION BY user ORDER BY time) FROM rows",
            8,
            "takes the rows that count",
        ),
        (
            "SELECT sum(price) OVER (PARTITION BY user ROWS 3 PRECEDING) FROM rows",
            8,
            "ORDER BY the event time",
        ),
        ("SELECT sum(price) OVER (ORDER BY time DESC ROWS 3 PRECEDING) FROM rows", 8, "the earliest first"),
        ("SELECT sum(price) OVER (ORDER BY id ROWS 3 PRECEDING) FROM rows", 34, "which is 'time', not id"),
        ("SELECT sum(price) OVER (ORDER BY time ROWS 3 PRECEDING) FROM fine", 34, "ORDER BY DATE_TRUNC"),
        (
            "SELECT sum(id) OVER (ORDER BY time RANGE UNBOUNDED PRECEDING) FROM rows",
            8,
            "takes ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        ),
        (
            "SELECT lag(id IGNORE NULLS) OVER (ORDER BY time) FROM rows",
            8,
            "with FIRST_VALUE and LAST_VALUE alone",
        ),
        ("SELECT lag(id, item) OVER (ORDER BY time) FROM rows", 8, "LAG takes a whole number of rows"),
        ("SELECT lag(id, 1, user) OVER (ORDER BY time) FROM rows", 19, "LAG takes values of one type, not id"),
        ("SELECT lag(id) OVER () FROM rows", 12, "takes ORDER BY the event time"),
        (
            "SELECT lead(id) OVER (ORDER BY time) FROM rows",
            8,
            "LEAD has no translation: .* LAG on that row .* with OVER ROW_NUMBER, LAG",
        ),
        ("SELECT nth_value(id, 2) OVER (ORDER BY time) FROM rows", 8, "NTH_VALUE has no translation; aggregates"),
        ("SELECT id FROM rows QUALIFY id", 29, "QUALIFY takes a condition"),
        ("SELECT id FROM rows GROUP BY id QUALIFY id > 1", 33, "no translation beside GROUP BY: use a sub-query"),
        (
            "SELECT sum(id) OVER (ORDER BY time ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM rows",
            8,
            "end with the row itself",
        ),
        ("SELECT sum(id) OVER (ORDER BY time RANGE 3 PRECEDING) FROM rows", 8, "RANGE takes an interval"),
        (
            "SELECT sum(id) OVER (ORDER BY time GROUPS 3 PRECEDING) FROM rows",
            8,
            "GROUPS has no translation: OVER takes ROWS or RANGE, as in SUM",
        ),
        (
            "SELECT rank() OVER (ORDER BY time ROWS 3 PRECEDING) FROM rows",
            8,
            "RANK has no",
        ),
        ("SELECT sum(prize) OVER (ORDER BY time ROWS 3 PRECEDING) FROM rows", 12, "no column 'prize'"),
        ("SELECT sum(id) OVER w FROM rows", 21, "there is no window 'w'"),
        (
            "SELECT sum(max(id)) OVER (ORDER BY time ROWS 3 PRECEDING) FROM rows GROUP BY user",
            8,
            "no translation beside GROUP BY",
        ),
        ("SELECT id FROM rows WHERE sum(id) OVER (ORDER BY time ROWS 3 PRECEDING) > 1", 27, "has no translation"),
        (
            "SELECT (SELECT * FROM limits), row_number() OVER (PARTITION BY user ORDER BY time) AS n FROM rows",
            16,
            "a query belongs into FROM or WITH",
        ),
    ],
)
def test_a_refusal_has_the_position(query: str, column: int, says: str) -> None:
    with pytest.raises(GraphError, match=says) as told:
        _sql(query)
    assert f"line 1, column {column}: " in str(told.value)
