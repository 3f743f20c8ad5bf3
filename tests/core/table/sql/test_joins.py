"""JOIN gives what DuckDB gives for the same rows, whatever the batches; the rest is refused."""

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


def _rows(seed: int, count: int, unit: str = "ms") -> pa.Table:
    chance = random.Random(seed)
    us = 1000 if unit == "ms" else 1
    return pa.table(
        {
            "id": list(range(count)),
            "user": [chance.choice(["ann", "bob", None, "eve", f"u{seed}"]) for _ in range(count)],
            "item": pa.array([chance.choice([1, 2, None]) for _ in range(count)], pa.int32()),
            "price": [chance.randrange(100) / 2 for _ in range(count)],
            "time": pa.array(
                [
                    _START + dt.timedelta(microseconds=us * chance.randrange(60_000_000 // us))
                    for _ in range(count)
                ],
                pa.timestamp(unit),
            ),
            "place": [chance.choice([None, {"x": chance.randrange(3)}]) for _ in range(count)],
        }
    )


_TABLES = {
    "a": _rows(1, 60),
    "b": _rows(2, 50).append_column("kind", pa.array([n % 3 for n in range(50)])),
    "f": _rows(3, 60, "us"),
    "g": _rows(4, 60, "us"),
}
_STAYS = {
    "users": pa.table(
        {"user": ["ann", "eve", None, "joe"], "land": ["at", "fr", "xx", None], "rank": [1, 2, 3, 4]}
    ),
    "items": pa.table({"item": [1, 2], "name": ["tea", None]}),
    "moves": pa.table({"user": ["ann", "bob", "ann"], "land": ["at", "de", "de"], "year": [2024, 2024, 2025]}),
    "titles": pa.table({"user": ["ann", "eve", "bob"], "title": ["Dr", None, "Sir"]}),
}
_TIMES: Any = WatermarkStrategy.for_bounded_out_of_orderness("1h").with_timestamp_column("time")
_NEAR = "b.time BETWEEN a.time - INTERVAL '3' SECOND AND a.time + INTERVAL '2' SECOND"


def _flow(query: str) -> Any:
    flow = Pipeline()
    tables = {name: flow.table(rows, watermark_strategy=_TIMES) for name, rows in _TABLES.items()}
    return flow.sql(query, **tables, **_STAYS)


def _comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT a.id, b.id AS other, a.user, b.user AS theirs FROM a JOIN b ON a.user = b.user AND {_NEAR}",
        f"SELECT a.id, b.id AS other, b.user, price * 2 FROM a LEFT JOIN (SELECT id, user, time FROM b) AS b "
        f"ON b.user = a.user AND {_NEAR}",
        f"SELECT a.id, b.id AS other, a.user, b.user AS u FROM a RIGHT JOIN b ON a.user = b.user AND {_NEAR}",
        f"SELECT a.id, b.id AS other, a.user, b.user AS u FROM a FULL OUTER JOIN b ON a.user = b.user AND {_NEAR}",
        "SELECT a.id, b.id AS other FROM a JOIN b USING (user, item) WHERE "
        "b.time > a.time - INTERVAL '9' SECOND AND b.time < a.time",
        f"SELECT a.id, b.id AS other FROM a JOIN b ON (a.user = b.user AND (a.item = b.item)) AND {_NEAR}",
        f"SELECT a.id, b.id AS other FROM a JOIN b ON (a.user = b.user) AND ({_NEAR})",
        f"SELECT a.id, b.id AS other FROM a LEFT JOIN b ON (a.user = b.user) AND ((a.item = b.item)) "
        f"AND ({_NEAR})",
        f"SELECT a.id, b.id AS other FROM a JOIN b ON a.user = b.user AND {_NEAR} AND (a.id > 9 OR (b.kind = 1))",
        "SELECT a.id, land FROM a JOIN users ON (a.user = users.user)",
        f"SELECT a.id, b.id AS other FROM a JOIN b ON upper(a.user) = upper(b.user) AND {_NEAR} "
        "AND a.price > b.price AND b.kind = 1 WHERE a.price > 9 AND b.price < 40 AND a.id + b.id > 20",
        f"SELECT a.id, b.id AS other FROM a, b WHERE a.user = b.user AND {_NEAR} AND b.kind + a.id > 9",
        "SELECT a.id, land FROM a CROSS JOIN users u WHERE a.user = u.user",
        "SELECT a.id, b.id AS other FROM a JOIN b ON a.user = b.user AND b.time > a.time - INTERVAL '3' SECOND "
        "AND a.time + INTERVAL '2' SECOND > b.time",
        "SELECT f.id, g.id AS other FROM f JOIN g ON f.user = g.user AND g.time > f.time - INTERVAL '3' SECOND "
        "AND g.time <= f.time + INTERVAL '3' SECOND",
        "SELECT f.id, g.id AS other FROM f LEFT JOIN g ON f.user = g.user AND DATE_TRUNC('millisecond', g.time) "
        "BETWEEN DATE_TRUNC('millisecond', f.time) - INTERVAL '3' SECOND AND DATE_TRUNC('millisecond', f.time)",
        f"SELECT a.id, b.kind FROM a LEFT JOIN b ON a.user = b.user AND b.kind = 2 AND {_NEAR} WHERE a.price > 5",
        f"SELECT a.id, b.kind FROM a LEFT JOIN b ON a.user = b.user AND {_NEAR} "
        "WHERE b.kind = 2 OR b.kind IS NULL",
        f"SELECT a.id, b.id AS o FROM a RIGHT JOIN b ON a.user = b.user AND a.price > 20 AND {_NEAR} "
        "WHERE a.id IS NULL OR a.price < 40",
        f"SELECT b.kind, count(*) AS n, sum(a.price) FROM a JOIN b ON a.user = b.user AND {_NEAR} GROUP BY kind "
        "HAVING count(*) > 2",
        f"SELECT a.user || b.user AS pair, max(b.price) FROM a JOIN b ON a.user = b.user AND {_NEAR} "
        "GROUP BY pair",
        "SELECT x.*, y.kind FROM a AS x JOIN b AS y ON x.user = y.user AND y.time < x.time "
        "AND INTERVAL '5' SECOND + y.time > x.time",
        "SELECT a.id, b.id AS other FROM a ASOF JOIN b ON a.user = b.user AND a.time >= b.time",
        "SELECT a.id, b.id AS other FROM a ASOF LEFT JOIN b ON a.user = b.user AND b.time <= a.time "
        "WHERE a.price > 9 AND (b.kind = 1 OR b.kind IS NULL)",
        "SELECT f.id, g.id AS other FROM f ASOF JOIN g ON f.user = g.user "
        "AND DATE_TRUNC('millisecond', f.time) >= DATE_TRUNC('millisecond', g.time)",
        "SELECT a.id, land FROM a JOIN users ON a.user = users.user",
        "SELECT a.id, land FROM a JOIN users u ON a.user = u.user AND a.item = u.rank WHERE a.item = u.rank",
        "SELECT a.*, u.land, u.user AS u FROM a LEFT JOIN users u ON u.user = upper(lower(a.user)) AND u.rank < 2",
        "SELECT id, user, name, land FROM a LEFT JOIN users USING (user) JOIN items i ON i.item = a.item",
        "SELECT * FROM (SELECT id, user FROM a) JOIN users USING (user) WHERE rank = 1 AND id > 3",
        "SELECT a.id, land FROM a JOIN moves m ON a.user = m.user AND m.year = 2025 AND a.id + m.year > 2030",
        "SELECT a.id, land FROM a LEFT JOIN moves m ON a.user = m.user AND m.year = 2025",
        "SELECT a.id, land FROM a LEFT JOIN moves m ON a.user = m.user AND m.year = 2025 WHERE m.year = 2025",
        "SELECT a.id, land FROM a, moves AS m WHERE a.user = m.user AND m.year > 2024 AND m.land = 'de'",
        "SELECT * FROM (SELECT id, user FROM a) JOIN users USING (user) JOIN titles USING (user) WHERE user > 'b'",
        "SELECT user, land, titles.user AS u FROM (SELECT id, user FROM a) LEFT JOIN users USING (user) "
        "LEFT JOIN titles USING (user)",
        f"SELECT a.id, b.id AS o, land FROM a JOIN b ON a.user = b.user AND {_NEAR} "
        "JOIN users ON users.user = b.user",
        f"SELECT a.place.x, b.place.x AS other FROM a JOIN b ON a.place.x = b.place.x AND {_NEAR} "
        "WHERE b.place.x > 0",
        "SELECT land, count(*) FROM a JOIN users u ON a.user = u.user GROUP BY land",
        "SELECT a.id, b.id AS o, c.id AS p FROM a JOIN b ON a.user = b.user AND b.time >= a.time "
        "AND b.time < a.time + INTERVAL '3' SECOND "
        "JOIN b AS c ON c.user = b.user AND c.time BETWEEN b.time - INTERVAL '2' SECOND AND b.time",
    ],
)
def test_results_are_those_of_duckdb(query: str) -> None:
    with duckdb.connect() as connection:
        for name, rows in (_TABLES | _STAYS).items():
            connection.register(name, rows)
        expected = _comparable(connection.sql(query).fetchall())
    assert len(expected) > 1
    for options in ({}, {"batch_size": 1}, {"parallelism": 3}):
        found = _flow(query).to_arrow(**options)
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        assert _comparable(rows) == expected


_TWICE = pa.table({"user": ["ann", "ann"], "land": ["at", "de"]})


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        ("SELECT a.id FROM a JOIN b ON a.user = b.user", 25, "takes both ends of their times, or rows would wait"),
        ("SELECT a.id FROM a JOIN b ON a.user = b.user AND a.time > b.time", 25, "takes both ends of their times"),
        (f"SELECT a.id FROM a JOIN b ON {_NEAR}", 25, "takes an equality of columns of both"),
        (f"SELECT id FROM a JOIN b ON a.user = b.user AND {_NEAR}", 8, "'id' is a column of a and b: write a.id"),
        (
            "SELECT user FROM a JOIN users USING (user) JOIN titles t ON t.user = a.user",
            8,
            "'user' is a column of a and users and t: write a.user",
        ),
        (
            "SELECT * FROM (SELECT id, user FROM a) a JOIN users USING (user) JOIN titles t ON t.user = a.user",
            8,
            "two columns would have the name 'user'",
        ),
        (f"SELECT a.prize FROM a JOIN b ON a.user = b.user AND {_NEAR}", 10, "no column 'prize' in a, which has"),
        (f"SELECT c.id FROM a JOIN b ON a.user = b.user AND {_NEAR}", 8, "no table 'c' here; they are a, b"),
        (f"SELECT c.* FROM a JOIN b ON a.user = b.user AND {_NEAR}", 8, "no table 'c' here"),
        (f"SELECT * FROM a JOIN b ON a.user = b.user AND {_NEAR}", 8, "two columns would have the name 'id'"),
        ("SELECT a.id FROM a JOIN a ON a.user = a.user", 25, "two tables have the name 'a'"),
        ("SELECT a.id FROM a SEMI JOIN b ON a.user = b.user", 30, "SEMI JOIN has no translation"),
        ("SELECT a.id FROM a NATURAL JOIN b", 33, "NATURAL JOIN has no translation"),
        ("SELECT a.id FROM a RIGHT JOIN b USING (user)", 31, "USING has one column for both"),
        ("SELECT a.id FROM a JOIN b USING (kind)", 34, "'kind' is no column of both tables"),
        (
            f"SELECT a.id FROM a LEFT JOIN b ON a.user = b.user AND a.price > b.price AND {_NEAR}",
            55,
            "an outer join takes equalities and times in ON",
        ),
        (
            "SELECT f.id FROM f LEFT JOIN g ON f.user = g.user AND g.time BETWEEN f.time AND f.time",
            55,
            "compare DATE_TRUNC.'millisecond', time. of both tables",
        ),
        (
            "SELECT a.id FROM a JOIN b ON a.user = b.user AND b.time >= a.time AND b.time < a.time",
            25,
            "end before they begin",
        ),
        ("SELECT a.id FROM a ASOF JOIN b ON a.user = b.user AND a.time > b.time", 30, "one comparison of times"),
        ("SELECT a.id FROM a ASOF RIGHT JOIN b ON a.user = b.user AND a.time >= b.time", 36, "is inner or LEFT"),
        ("SELECT a.id FROM a ASOF JOIN users u ON a.user = u.user", 30, "is joined by JOIN or LEFT JOIN"),
        ("SELECT a.id FROM a RIGHT JOIN users u ON a.user = u.user", 31, "is joined by JOIN or LEFT JOIN"),
        ("SELECT a.id FROM a LEFT JOIN users u ON a.user = u.user AND a.id = u.rank", 30, "found by one equality"),
        ("SELECT a.id FROM a JOIN users u ON a.id = u.land", 43, "values of one type"),
        ("SELECT a.id FROM a JOIN twice t ON a.user = t.user", 25, "a value of column t.user .* occurs twice"),
        ("SELECT land FROM users JOIN a ON a.user = users.user", 18, "stands behind JOIN"),
        ("SELECT land FROM users", 18, "users stays the same, and stands behind JOIN: flow.table"),
        (
            f"SELECT a.id FROM a JOIN b ON a.user = b.user AND {_NEAR} JOIN b AS c ON c.user = a.user "
            "AND c.time BETWEEN a.time AND a.time",
            132,
            "by event time, and the rows before it have no column of it here",
        ),
        (
            "SELECT count(*) FROM TUMBLE(TABLE a, DESCRIPTOR(time), INTERVAL 1 DAY) JOIN users USING (user)",
            22,
            "a window around a table has no JOIN beside it",
        ),
        (f"SELECT * EXCEPT (id) FROM a JOIN b ON a.user = b.user AND {_NEAR}", 18, "EXCEPT has no translation"),
        (
            "SELECT a.id, (SELECT 1) AS one FROM a JOIN users u ON a.user = u.user",
            22,
            "a query belongs into FROM or WITH",
        ),
    ],
)
def test_a_refusal_has_the_position(query: str, column: int, says: str) -> None:
    flow = Pipeline()
    tables = {name: flow.table(rows, watermark_strategy=_TIMES) for name, rows in _TABLES.items()}
    with pytest.raises(GraphError, match=says) as told:
        flow.sql(query, **tables, **_STAYS, twice=_TWICE)
    assert f"line 1, column {column}: " in str(told.value)


@pytest.mark.parametrize(
    ("how", "ends", "later"),
    [
        ("", "b.time BETWEEN a.time AND a.time + INTERVAL '3' SECOND", "b"),
        ("", "b.time <= a.time AND b.time > a.time - INTERVAL '3' SECOND", "a"),
        ("", "b.time > a.time AND b.time < a.time + INTERVAL '4' SECOND", "b"),
        ("RIGHT", "b.time BETWEEN a.time AND a.time + INTERVAL '3' SECOND", "b"),
        ("LEFT", "b.time <= a.time AND b.time > a.time - INTERVAL '3' SECOND", "a"),
        ("LEFT", "b.time = a.time", "a"),
        ("RIGHT", "b.time = a.time", "b"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 2}])
def test_windows_of_pairs_go_by_the_later_time(how: str, ends: str, later: str, options: dict[str, Any]) -> None:
    join = f"FROM a {how} JOIN b ON a.user = b.user AND {ends}"
    window = f"TUMBLE({later}.time, INTERVAL '5' SECOND)"
    query = f"SELECT a.user, window_end, count(*) AS n, max(a.id + b.id) AS top {join} GROUP BY a.user, {window}"
    bucket = f"time_bucket(INTERVAL '5' SECOND, {later}.time) + INTERVAL '5' SECOND"
    with duckdb.connect() as connection:
        for name in "ab":
            connection.register(name, _TABLES[name])
        expected = connection.sql(
            f"SELECT a.user, {bucket}, count(*), max(a.id + b.id) {join} GROUP BY ALL"
        ).fetchall()
    rows = _flow(query).to_arrow(**options).to_pylist()
    found = [(row["user"], row["window_end"].replace(tzinfo=None), row["n"], row["top"]) for row in rows]
    assert len(found) > 5
    assert _comparable(found) == _comparable(expected)
    with pytest.raises(GraphError, match=f"which is '{later}.time', not"):
        _flow(query.replace(window, f"TUMBLE({'a' if later == 'b' else 'b'}.time, INTERVAL '5' SECOND)"))


@pytest.mark.parametrize("table", ["a", "f"])
@pytest.mark.parametrize(
    "ends",
    [
        "x.time = y.time",
        "y.time BETWEEN x.time AND x.time",
        "x.time >= y.time AND y.time + INTERVAL 1 SECOND >= x.time + INTERVAL 1 SECOND",
    ],
)
def test_rows_of_equal_times_have_them_in_both_columns(table: str, ends: str) -> None:
    pairs = f"FROM {table} AS x JOIN {table} AS y ON x.item = y.item AND {ends}"
    three = f"SELECT x.id, y.id AS other, z.time {pairs} JOIN {table} AS z ON z.id = y.id AND y.time = z.time"
    windows = [
        f"SELECT window_end, count(*) AS n {pairs} WHERE y.id > 3 GROUP BY TUMBLE({name}.time, INTERVAL 5 SECOND)"
        for name in "xy"
    ]
    bucket = "time_bucket(INTERVAL '5' SECOND, x.time) + INTERVAL '5' SECOND"
    with duckdb.connect() as connection:
        connection.register(table, _TABLES[table])
        expected = connection.sql(f"SELECT {bucket}, count(*) {pairs} WHERE y.id > 3 GROUP BY ALL").fetchall()
        triples = connection.sql(three).fetchall()
    for query in windows:
        rows = _flow(query).to_arrow().to_pylist()
        found = [(row["window_end"].replace(tzinfo=None), row["n"]) for row in rows]
        assert _comparable(found) == _comparable(expected)
    rows = _flow(three).to_arrow().to_pylist()
    assert _comparable([tuple(row.values()) for row in rows]) == _comparable(triples)
    assert len(triples) > 30


def test_times_that_are_equal_to_the_millisecond_stay_what_they_are() -> None:
    flow = Pipeline()
    moments = [_START + dt.timedelta(microseconds=us) for us in (1, 2)]
    one, two = (
        flow.table(pa.table({"id": [1], "time": pa.array([at], pa.timestamp("us"))}), watermark_strategy=_TIMES)
        for at in moments
    )
    query = (
        "SELECT a.time, b.time AS other FROM a JOIN b ON a.id = b.id "
        "AND DATE_TRUNC('millisecond', a.time) = DATE_TRUNC('millisecond', b.time)"
    )
    assert flow.sql(query, a=one, b=two).to_arrow().to_pylist() == [{"time": moments[0], "other": moments[1]}]


def test_tables_without_event_times_are_not_joined_by_them() -> None:
    flow = Pipeline()
    rows = {name: flow.table(_TABLES[name]) for name in "ab"}
    with pytest.raises(GraphError, match="by event time, and the rows before it have no column of it here: give"):
        flow.sql(f"SELECT a.id FROM a JOIN b ON a.user = b.user AND {_NEAR}", **rows)
    with pytest.raises(TypeError, match=r"users= takes a TableStream, .* for JOIN a pyarrow.Table or frame"):
        flow.sql("SELECT a.id FROM a JOIN users u ON a.user = u.user", **rows, users=7)


def test_a_value_of_a_table_that_stays_the_same_that_cannot_be_cast_is_refused() -> None:
    codes = pa.table({"code": ["1", "n/a"], "land": ["at", "fr"]})
    query = "SELECT a.id, land FROM a JOIN codes c ON a.id = CAST(c.code AS BIGINT)"
    flow = Pipeline()
    with pytest.raises(GraphError, match=r"line 1, column 31: a value of this table cannot be computed: .*'n/a'"):
        flow.sql(query, a=flow.table(_TABLES["a"], watermark_strategy=_TIMES), codes=codes)


@pytest.mark.parametrize(
    ("how", "found"), [("JOIN", [(3, "fr")]), ("LEFT JOIN", [(1, None), (2, None), (3, "fr")])]
)
def test_nan_finds_nothing_in_a_table_that_stays_the_same(how: str, found: list[tuple[int, str | None]]) -> None:
    nan = float("nan")
    rates = pa.table({"rate": [nan, 1.5], "land": ["at", "fr"]})
    flow = Pipeline()
    rows = flow.table(pa.table({"id": [1, 2, 3], "rate": [nan, None, 1.5]}))
    made = flow.sql(f"SELECT a.id, land FROM a {how} rates r ON a.rate = r.rate", a=rows, rates=rates)
    assert sorted((row["id"], row["land"]) for row in made.to_arrow().to_pylist()) == found


def test_windows_go_on_behind_a_table_that_stays_the_same() -> None:
    query = (
        "SELECT land, window_end, count(*) AS n FROM a JOIN users u ON a.user = u.user "
        "GROUP BY land, TUMBLE(a.time, INTERVAL '20' SECOND)"
    )
    theirs = (
        "SELECT land, time_bucket(INTERVAL '20' SECOND, time) + INTERVAL '20' SECOND, count(*) FROM a "
        "JOIN users USING (user) GROUP BY ALL"
    )
    with duckdb.connect() as connection:
        connection.register("a", _TABLES["a"])
        connection.register("users", _STAYS["users"])
        expected = connection.sql(theirs).fetchall()
    rows = _flow(query).to_arrow().to_pylist()
    found = [(row["land"], row["window_end"].replace(tzinfo=None), row["n"]) for row in rows]
    assert _comparable(found) == _comparable(expected)
