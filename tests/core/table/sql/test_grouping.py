"""GROUP BY gives what DuckDB gives for the same rows, whatever the batches; the rest is refused."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.errors import GraphError
from sluiceway.table import KeyedTable, TableStream, agg, col, lit
from sluiceway.windows import TumblingEventTimeWindows

_START = dt.datetime(2025, 3, 1, tzinfo=dt.UTC)


def _rows(count: int = 300) -> pa.Table:
    chance = random.Random(5)
    return pa.table(
        {
            "user": [chance.choice(["ann", "bob", None, "eve"]) for _ in range(count)],
            "item": pa.array([chance.randrange(3) for _ in range(count)], pa.int32()),
            "price": [chance.choice([None, *(n / 2 for n in range(20))]) for _ in range(count)],
            "place": [chance.choice([None, {"x": chance.randrange(3), "y": 7}]) for _ in range(count)],
            "paid": [chance.choice([True, False, None]) for _ in range(count)],
            "time": pa.array(
                [_START + dt.timedelta(milliseconds=200 * n + chance.randrange(3000)) for n in range(count)],
                pa.timestamp("ms", "UTC"),
            ),
        }
    )


_TABLE = _rows()
_TIMES: Any = WatermarkStrategy.for_bounded_out_of_orderness("10s").with_timestamp_column("time")
_ALL = (
    "sum(price) AS total, count(*) AS n, count(price) AS priced, count(DISTINCT item) AS items, "
    "min(price) AS low, max(user) AS high, avg(price) AS mean, variance(item) AS v, var_pop(price) AS vp, "
    "stddev(item) AS sd, stddev_pop(price) AS sp, sum(item * 2) AS twice, count(1) AS ones, sum(paid) AS paid"
)
_TUMBLE = "TUMBLE(time, INTERVAL '10' SECOND)"
_CUT = "(SELECT *, time_bucket(INTERVAL '{}' SECOND, time) AS s FROM rows)"


def _ours(query: str, **options: Any) -> list[tuple[Any, ...]]:
    flow = Pipeline()
    rows = flow.sql(query, rows=flow.table(_TABLE, watermark_strategy=_TIMES)).to_arrow(**options)
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _duckdb(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", _TABLE)
        return connection.sql(query).fetchall()


def _comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    def plain(one: Any) -> Any:
        if isinstance(one, dt.datetime):
            return one.timestamp()
        return round(float(one), 9) if isinstance(one, int | float) else one

    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


@pytest.mark.parametrize(
    ("query", "theirs"),
    [
        (
            f"SELECT user, {_ALL}, window_start, window_end FROM rows GROUP BY user, {_TUMBLE}",
            f"SELECT user, {_ALL}, s, s + INTERVAL '10' SECOND FROM {_CUT.format(10)} GROUP BY user, s",
        ),
        (f"SELECT user, item, {_ALL} FROM rows GROUP BY item, user", None),
        (
            f"SELECT count(*) AS n, TUMBLE_START(time, INTERVAL '10' SECOND) AS b FROM rows GROUP BY {_TUMBLE}",
            "SELECT count(*) AS n, time_bucket(INTERVAL '10' SECOND, time) AS b FROM rows GROUP BY b",
        ),
        (
            "SELECT user, sum(price), count(*), window_start, window_end FROM rows "
            "GROUP BY HOP(time, INTERVAL '5' SECOND, INTERVAL '15' SECOND), user",
            "SELECT user, sum(price), count(*), b, b + INTERVAL '15' SECOND FROM (SELECT *, "
            f"s - INTERVAL '5' SECOND * unnest([0, 1, 2]) AS b FROM {_CUT.format(5)}) GROUP BY user, b",
        ),
        (
            "SELECT user, sum(price), count(*), window_start, window_end FROM rows "
            "GROUP BY CUMULATE(time, INTERVAL '5' SECOND, INTERVAL '15' SECOND), user",
            "SELECT user, sum(price), count(*), s, e FROM (SELECT *, "
            f"s + INTERVAL '5' SECOND * unnest([1, 2, 3]) AS e FROM {_CUT.format(15)}) "
            "WHERE time < e GROUP BY user, s, e",
        ),
        (
            "SELECT user, sum(price), SESSION_START(time, INTERVAL 900 MILLISECOND) AS b, window_end FROM rows "
            "GROUP BY user, SESSION(time, INTERVAL 900 MILLISECOND)",
            "SELECT user, sum(price), min(time), max(time) + INTERVAL 900 MILLISECOND FROM (SELECT *, "
            "sum(new) OVER (PARTITION BY user ORDER BY time ROWS UNBOUNDED PRECEDING) AS session FROM (SELECT *, "
            "coalesce(time - lag(time) OVER (PARTITION BY user ORDER BY time) > INTERVAL 900 MILLISECOND, true)"
            "::int AS new FROM rows)) GROUP BY user, session",
        ),
        ("SELECT DISTINCT user, item FROM rows WHERE price > 2", None),
        ("SELECT DISTINCT count(*) > 9 AS many, item FROM rows GROUP BY user, item", None),
        ("SELECT user FROM rows WHERE item = 1 UNION SELECT upper(user) FROM rows", None),
        (
            "SELECT user AS who, sum(price) / count(*) + 1 AS per_row, upper(user) FROM rows WHERE price > 1 "
            "GROUP BY user HAVING per_row > 1 AND count(*) > 10 AND user IS NOT NULL",
            None,
        ),
        (
            f"SELECT user, {_ALL}, window_start, window_end FROM TABLE("
            "TUMBLE(TABLE rows, DESCRIPTOR(time), INTERVAL '10' SECONDS)) GROUP BY Window_Start, window_end, user",
            f"SELECT user, {_ALL}, s, s + INTERVAL '10' SECOND FROM {_CUT.format(10)} GROUP BY user, s",
        ),
        (
            "SELECT w.user AS u, count(*), w.window_start FROM hop(TABLE rows, DESCRIPTOR(time), "
            "INTERVAL '5' SECOND, INTERVAL '15' SECOND) AS w WHERE price > 1 "
            "GROUP BY window_start, window_end, w.user HAVING count(*) > 1",
            "SELECT user, count(*), b FROM (SELECT *, s - INTERVAL '5' SECOND * unnest([0, 1, 2]) AS b FROM "
            f"{_CUT.format(5)}) WHERE price > 1 GROUP BY user, b HAVING count(*) > 1",
        ),
        (
            "SELECT user, sum(price), window_end FROM TABLE(SESSION(TABLE rows PARTITION BY user, "
            "DESCRIPTOR(time), INTERVAL 900 MILLISECOND)) GROUP BY user, window_start, window_end",
            "SELECT user, sum(price), max(time) + INTERVAL 900 MILLISECOND FROM (SELECT *, "
            "sum(new) OVER (PARTITION BY user ORDER BY time ROWS UNBOUNDED PRECEDING) AS session FROM (SELECT *, "
            "coalesce(time - lag(time) OVER (PARTITION BY user ORDER BY time) > INTERVAL 900 MILLISECOND, true)"
            "::int AS new FROM rows)) GROUP BY user, session",
        ),
        (
            "WITH fives AS (SELECT user, window_time AS at, sum(price) AS p FROM TABLE(TUMBLE(TABLE rows, "
            "DESCRIPTOR(time), INTERVAL '5' SECONDS)) GROUP BY user, window_start, window_end, window_time) "
            "SELECT sum(p), count(*), window_start, window_time FROM TABLE(TUMBLE(TABLE fives, DESCRIPTOR(at), "
            "INTERVAL '15' SECONDS)) GROUP BY window_start, window_end",
            "SELECT sum(p), count(*), time_bucket(INTERVAL '15' SECOND, s) AS b, b + INTERVAL 14999 MILLISECOND "
            f"FROM (SELECT user, s, sum(price) AS p FROM {_CUT.format(5)} GROUP BY user, s) GROUP BY b",
        ),
        (
            "SELECT user, n, count(*) OVER (PARTITION BY user ORDER BY window_time ROWS 1 PRECEDING) FROM ("
            f"SELECT user, count(*) AS n, window_time FROM rows GROUP BY user, {_TUMBLE} "
            "HAVING window_time < TIMESTAMPTZ '2025-03-01 00:00:20+00')",
            "SELECT user, n, count(*) OVER (PARTITION BY user ORDER BY s ROWS 1 PRECEDING) FROM ("
            f"SELECT user, count(*) AS n, s FROM {_CUT.format(10)} "
            "WHERE time < TIMESTAMPTZ '2025-03-01 00:00:20+00' GROUP BY user, s)",
        ),
        (
            f"SELECT user, count(*), window_time AS t FROM rows GROUP BY Window_End, {_TUMBLE}, t, 1",
            f"SELECT user, count(*), s + INTERVAL 9999 MILLISECOND FROM {_CUT.format(10)} GROUP BY user, s",
        ),
        (
            "SELECT max(n), window_time FROM (SELECT user, count(*) AS n, window_time FROM rows "
            f"GROUP BY user, {_TUMBLE}, window_time) GROUP BY TUMBLE(window_time, INTERVAL '1' HOUR), window_time",
            f"SELECT max(n), s + INTERVAL 9999 MILLISECOND FROM (SELECT s, count(*) AS n FROM {_CUT.format(10)} "
            "GROUP BY user, s) GROUP BY s",
        ),
        ("SELECT item FROM rows GROUP BY item", None),
        (
            "SELECT user, sum(price) FILTER (WHERE paid), count(*) FILTER (WHERE price > 4 OR paid) AS n, "
            "count(DISTINCT item) FILTER (WHERE NOT paid) AS d, max(user) FILTER (item = 1) AS u, "
            "count_if(price > 3) + 1, count_if(paid) FILTER (WHERE item < 2) AS c, bool_and(paid), "
            "bool_or(price > 9) FILTER (WHERE item = 2) AS o, avg(price) FILTER (WHERE user = 'none') AS nothing "
            "FROM rows GROUP BY user HAVING count(*) FILTER (WHERE paid) > 1",
            None,
        ),
        ("SELECT upper(user), count(*) FROM rows GROUP BY upper(user)", None),
        ("SELECT upper(user) AS user, sum(price) FROM rows GROUP BY 1", None),
        ("SELECT user AS u, item, count(*) FROM rows GROUP BY 2, 1", None),
        (
            "SELECT date_trunc('minute', TIME), (item + 1) * 2 AS twice, count(*) FROM rows r "
            "GROUP BY (r.item + 1), date_trunc('minute', time) HAVING max(price) > 3 AND Item + 1 > 1",
            None,
        ),
        ("SELECT sum(item + 1), item + 1 AS i FROM rows GROUP BY item + 1", None),
        ("SELECT item % 2 + sum(length(user)) FROM rows GROUP BY item % 2, user IS NULL", None),
        ("SELECT place.x, place.x + max(place.y) AS sum FROM rows GROUP BY place.x", None),
        (
            "SELECT Rows.Place.X AS x, place.x + max(rows.place.y) AS sum FROM rows GROUP BY rows.place.x",
            "SELECT place.x, place.x + max(place.y) AS sum FROM rows GROUP BY place.x",
        ),
        (
            f"SELECT item % 2, count(*), window_end FROM rows GROUP BY item % 2, {_TUMBLE}",
            "SELECT item % 2, count(*), time_bucket(INTERVAL '10' SECOND, time) + INTERVAL '10' SECOND FROM rows "
            "GROUP BY ALL",
        ),
        ("SELECT date_trunc('minute', time) AS t, item + 1 AS i, count(*) AS n FROM rows GROUP BY t, I", None),
        ('SELECT item + 1 AS "I", i * 2 AS j, sum(price) FROM rows GROUP BY i HAVING I > 1 OR j < 9', None),
        ("SELECT upper(user) AS who, user IS NULL AS none, max(item) FROM rows GROUP BY who, none", None),
        ("SELECT 1 AS one, user AS u, count(*) FROM rows GROUP BY one, u", None),
        (
            f"SELECT item % 2 AS odd, time AS t, count(*) AS n FROM rows GROUP BY odd, t, {_TUMBLE}",
            "SELECT item % 2 AS odd, time AS t, count(*) AS n FROM rows GROUP BY odd, t",
        ),
        ("SELECT 1 AS one, max(item) + min(item) AS both FROM rows r GROUP BY r.user HAVING TRUE", None),
        (
            "SELECT user, count(*) AS n FROM (SELECT DISTINCT user, item, time FROM rows) "
            f"GROUP BY user, {_TUMBLE}",
            f"SELECT user, count(*) FROM (SELECT DISTINCT user, item, time, s FROM {_CUT.format(10)}) "
            "GROUP BY user, s",
        ),
        (
            "SELECT v, count(*) AS n FROM (SELECT item AS v, time FROM rows UNION ALL "
            f"SELECT price, time FROM rows) GROUP BY v, {_TUMBLE}",
            f"SELECT v, count(*) FROM (SELECT item AS v, s FROM {_CUT.format(10)} UNION ALL "
            f"SELECT price, s FROM {_CUT.format(10)}) GROUP BY v, s",
        ),
        (
            "SELECT v, count(*) AS n FROM (SELECT item AS v, time FROM rows UNION SELECT price, time FROM rows) "
            f"GROUP BY v, {_TUMBLE}",
            "SELECT v, count(*) FROM (SELECT item AS v, time FROM rows UNION SELECT price, time FROM rows) "
            "GROUP BY v, time_bucket(INTERVAL '10' SECOND, time)",
        ),
        (
            "WITH late AS (SELECT USER AS u, time AS t FROM rows WHERE item > 0) SELECT u, count(*) AS n FROM "
            "(SELECT * FROM late UNION ALL SELECT u, t FROM late) GROUP BY TUMBLE(t, INTERVAL 1 MINUTE), u",
            "SELECT user, 2 * count(*) FROM rows WHERE item > 0 "
            "GROUP BY user, time_bucket(INTERVAL 1 MINUTE, time)",
        ),
    ],
)
def test_results_are_those_of_duckdb(query: str, theirs: str | None) -> None:
    expected = _comparable(_duckdb(theirs or query))
    assert len(expected) > 2
    assert _comparable(_ours(query)) == expected
    assert _comparable(_ours(query, batch_size=1, parallelism=2)) == expected


@pytest.mark.parametrize(
    "query",
    [
        'SELECT sum(x + 1) AS s, "$x + 1" AS o FROM rows GROUP BY "$x + 1"',
        'SELECT count(1) AS n, "$1" AS o FROM rows GROUP BY "$1"',
        'SELECT sum("$all") AS s FROM rows GROUP BY TRUE',
        'SELECT "$over0" AS o, row_number() OVER (ORDER BY time) AS n FROM rows',
        'SELECT "$x % 2", sum("$all") OVER (PARTITION BY x % 2 ORDER BY time ROWS 1 PRECEDING) AS s FROM rows',
        'SELECT "$element" AS o, unnest("list") AS e FROM rows',
    ],
)
def test_columns_may_have_any_name(query: str) -> None:
    names = ("$x + 1", "$1", "$all", "$over0", "$row", "$x % 2", "$element")
    table = pa.table(
        {
            "x": [1, 2, 2, 4],
            "list": [[1], [2, 3], [], [4]],
            "time": pa.array([1, 2, 3, 4], pa.timestamp("ms")),
            **{name: [5 + n, 5 + n, 7 + n, None] for n, name in enumerate(names)},
        }
    )
    flow = Pipeline()
    made = flow.sql(query, rows=flow.table(table, watermark_strategy=_TIMES)).to_arrow().to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        expected = connection.sql(query).fetchall()
    assert _comparable([tuple(row.values()) for row in made]) == _comparable(expected)


def test_a_condition_that_is_always_null_counts_nothing() -> None:
    """DuckDB says NULL here, unlike for ``COUNT``."""
    flow = Pipeline()
    rows = flow.table(pa.table({"p": pa.array([None, None], pa.bool_())}))
    (row,) = flow.sql("SELECT count_if(p) AS n FROM rows GROUP BY 'all'", rows=rows).to_arrow().to_pylist()
    assert row == {"n": 0}


def test_a_filter_of_decimals() -> None:
    table = pa.table({"p": [True, False, None, True], "d": pa.array([1, 2, 3, 4], pa.decimal128(9, 2))})
    flow = Pipeline()
    query = "SELECT sum(d) FILTER (WHERE p) AS s, max(d) FILTER (WHERE NOT p) AS m FROM rows GROUP BY 'all'"
    (row,) = flow.sql(query, rows=flow.table(table)).to_arrow().to_pylist()
    assert row == {"s": 5, "m": 2}


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        ("SELECT price FROM rows GROUP BY user", 8, "'price' must stand in GROUP BY or in an aggregate"),
        ("SELECT prize FROM rows GROUP BY user", 8, "no column 'prize'; did you mean price"),
        ("SELECT * FROM rows GROUP BY user", 8, r"takes no \*"),
        ("SELECT sum(item) AS total FROM rows GROUP BY total", 46, "GROUP BY takes what rows have, and no SUM"),
        ("SELECT upper(item) AS u FROM rows GROUP BY u", 14, "UPPER takes a text, not item"),
        ("SELECT item + 1 AS user FROM rows GROUP BY user", 8, "'item' must stand in GROUP BY"),
        ("SELECT user FROM rows GROUP BY upper(user)", 8, "'user' must stand in GROUP BY or in an aggregate"),
        ("SELECT upper(user) FROM rows GROUP BY lower(user)", 14, "'user' must stand in GROUP BY"),
        ("SELECT user FROM rows GROUP BY 2", 32, "SELECT has the columns 1 to 1, and no 2"),
        ("SELECT user FROM rows GROUP BY 0", 32, "SELECT has the columns 1 to 1, and no 0"),
        ("SELECT user FROM rows GROUP BY 1.5", 32, "and no 1.5"),
        ("SELECT user, max(item) FROM rows GROUP BY 2", 43, "GROUP BY takes what rows have, and no MAX"),
        ("SELECT user FROM rows GROUP BY prize + 1", 32, "no column 'prize'; did you mean price"),
        ("SELECT * FROM rows GROUP BY 1", 29, "names its columns"),
        ("SELECT user FROM rows GROUP BY ALL", 8, "GROUP BY ALL has no translation"),
        ("SELECT user FROM rows GROUP BY ROLLUP (user)", 40, "ROLLUP has no translation"),
        ("SELECT user FROM rows HAVING user > 'a'", 23, "HAVING takes the results of GROUP BY"),
        ("SELECT user FROM rows WHERE sum(price) > 1 GROUP BY user", 29, "SUM combines rows"),
        (
            "SELECT count(*) FROM rows",
            8,
            "COUNT combines rows: .* of a query with GROUP BY, as GROUP BY user, or GROUP BY TRUE for all rows\n",
        ),
        ("SELECT sum(user) FROM rows GROUP BY user", 12, "SUM does not take user .string.: CAST"),
        ("SELECT sum(max(price)) FROM rows GROUP BY user", 16, "MAX combines rows: .* a query with GROUP BY\n"),
        ("SELECT median(price) FROM rows GROUP BY user", 8, "MEDIAN .*: agg.quantile.*; aggregates are SUM"),
        ("SELECT sum(DISTINCT item) FROM rows GROUP BY user", 12, r"COUNT\(DISTINCT value\) alone"),
        ("SELECT sum(price) FILTER (WHERE prize > 1) FROM rows GROUP BY user", 33, "no column 'prize'"),
        ("SELECT median(price) FILTER (WHERE paid) FROM rows GROUP BY user", 8, "MEDIAN has no translation"),
        ("SELECT bool_or(price) FROM rows GROUP BY user", 16, "BOOL_OR takes a condition"),
        ("SELECT sum(price) OVER () FROM rows GROUP BY user", 8, "OVER .. has no translation"),
        ("SELECT window_start FROM rows GROUP BY user", 8, r"needs a window: GROUP BY TUMBLE\(time"),
        ("SELECT user FROM rows GROUP BY user, Window_Time", 38, r"Window_Time needs a window: GROUP BY TUMBLE"),
        ("SELECT user FROM rows GROUP BY user, TUMBLE(user, INTERVAL 1 DAY)", 45, "which is 'time', not user"),
        ("SELECT user FROM rows GROUP BY user, TUMBLE(time)", 38, "TUMBLE takes time, size, as in TUMBLE"),
        ("SELECT user FROM rows GROUP BY DATE(time, INTERVAL 1 DAY)", 32, "the function DATE has no translation"),
        ("SELECT user FROM rows GROUP BY tumbling(time, INTERVAL 1 DAY)", 32, "and no TUMBLING"),
        ("SELECT user FROM rows GROUP BY TUMBLE(time, INTERVAL 1 MONTH)", 32, "an interval is of a number and"),
        ("SELECT user FROM rows GROUP BY TUMBLE(time, INTERVAL 0 DAY)", 32, "longer than 0"),
        (
            "SELECT min(item) FROM rows GROUP BY HOP(time, INTERVAL 2 DAY, INTERVAL 1 DAY)",
            37,
            "tumbling, sliding .without gaps",
        ),
        (f"SELECT user FROM rows GROUP BY {_TUMBLE}, {_TUMBLE}", 68, "takes one window"),
        (
            f"SELECT TUMBLE_START(time, INTERVAL '5' SECOND) FROM rows GROUP BY {_TUMBLE}",
            8,
            "TUMBLE_START takes the arguments of TUMBLE",
        ),
        (
            "SELECT TUMBLE_START(time, INTERVAL '10' SECOND) AS s, count(*) AS n FROM rows GROUP BY 1",
            88,
            "GROUP BY takes no name or position of TUMBLE_START: a window stands there itself",
        ),
        (
            "SELECT TUMBLE_START(time, INTERVAL '10' SECOND) AS s, count(*) AS n FROM rows GROUP BY s",
            88,
            "GROUP BY takes no name or position of TUMBLE_START: a window stands there itself",
        ),
        ("SELECT TUMBLE(time, INTERVAL '5' SECOND) FROM rows", 8, "TUMBLE stands in GROUP BY"),
        (
            "SELECT * FROM TABLE(TUMBLE(TABLE rows, DESCRIPTOR(time), INTERVAL '10' SECONDS))",
            21,
            "TUMBLE around a table takes GROUP BY window_start, window_end",
        ),
        (
            "SELECT count(*) FROM TABLE(TUMBLE(TABLE rows, DESCRIPTOR(item), INTERVAL '10' SECONDS)) "
            "GROUP BY window_start, window_end",
            58,
            "which is 'time', not item",
        ),
        (
            "SELECT * FROM TABLE(TUMBLE(DATA => TABLE rows, TIMECOL => DESCRIPTOR(time)))",
            15,
            "a window is written as in FROM TUMBLE",
        ),
        ("SELECT * FROM TUMBLE(TABLE rows, time, INTERVAL '10' SECONDS)", 15, "a window is written as in FROM"),
        (
            "SELECT count(*) FROM TABLE(SESSION(TABLE rows, DESCRIPTOR(time), INTERVAL '10' SECONDS)) "
            "GROUP BY user, window_start, window_end",
            28,
            "SESSION takes PARTITION BY with the other columns",
        ),
        (
            "SELECT count(*) FROM TABLE(TUMBLE(TABLE rows PARTITION BY user, DESCRIPTOR(time), INTERVAL 1 DAY)) "
            "GROUP BY user, window_start, window_end",
            59,
            "PARTITION BY belongs to SESSION",
        ),
        (
            f"SELECT user FROM (SELECT user, time + INTERVAL 1 DAY AS time FROM rows) GROUP BY {_TUMBLE}",
            89,
            "none is known here",
        ),
    ],
)
def test_a_refusal_has_the_position(query: str, column: int, says: str) -> None:
    flow = Pipeline()
    with pytest.raises(GraphError, match=says) as told:
        flow.sql(query, rows=flow.table(_TABLE, watermark_strategy=_TIMES))
    assert f"line 1, column {column}: " in str(told.value)


@pytest.mark.parametrize("made", ["distinct", "running", "over", "asof"])
@pytest.mark.parametrize("options", [{}, {"batch_size": 7, "parallelism": 2}])
def test_rows_of_steps_with_a_key_keep_the_event_time_of_their_column(made: str, options: dict[str, Any]) -> None:
    flow = Pipeline()
    rows = flow.table(_TABLE, watermark_strategy=_TIMES)
    by_user = rows.key_by("user")
    steps: dict[str, Callable[[], TableStream]] = {
        "distinct": rows.key_by("user", "item", "time").distinct,
        "running": lambda: by_user.running(n=agg.count()),
        "over": lambda: by_user.over(rows=2).aggregate(n=agg.count()),
        "asof": lambda: by_user.asof_join(rows.select("user", late="time").key_by("user")),
    }
    stamped = steps[made]().to_records().process(lambda row, ctx: [(row["time"], ctx.timestamp())]).collect()
    flow.run(**options)
    assert len(list(stamped)) > 100
    assert all(round(time.timestamp() * 1000) == stamp for time, stamp in stamped)


@pytest.mark.parametrize("step", ["window", "distinct", "over", "asof", "left of interval", "right of interval"])
def test_late_rows_keep_the_event_time_of_their_column(step: str) -> None:
    flow = Pipeline()
    tag: OutputTag[Any] = OutputTag("late")
    no_delay: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("time")
    rows = flow.table(_TABLE, watermark_strategy=no_delay)
    by_user = rows.key_by("user")
    windows = by_user.window(TumblingEventTimeWindows("1s")).side_output_late_data(tag)

    def times() -> KeyedTable:
        return rows.select("user", of="time").key_by("user")

    steps: dict[str, Callable[[], TableStream]] = {
        "window": lambda: windows.aggregate(n=agg.count()),
        "distinct": lambda: windows.distinct(),
        "over": lambda: by_user.over(rows=2).side_output_late_data(tag).aggregate(n=agg.count()),
        "asof": lambda: by_user.asof_join(times(), left_late=tag),
        "left of interval": lambda: by_user.interval_join(times(), 0, 5, left_late=tag),
        "right of interval": lambda: times().interval_join(by_user, 0, 5, right_late=tag),
    }
    late = steps[step]().get_side_output(tag)
    stamped = late.to_records().process(lambda row, ctx: [(row["time"], ctx.timestamp())]).collect()
    query = "SELECT count(*) AS n FROM late GROUP BY TUMBLE(time, INTERVAL 1 DAY)"
    counted = flow.sql(query, late=late).collect()
    flow.run(batch_size=1, auto_watermark_interval=0)
    assert all(round(time.timestamp() * 1000) == stamp for time, stamp in stamped)
    assert [row["n"] for row in counted] == [len(list(stamped))]
    assert len(list(stamped)) > 5


def test_the_column_of_the_event_time_is_followed() -> None:
    flow = Pipeline()
    rows = flow.table(_TABLE, watermark_strategy=_TIMES)
    day = lit(dt.timedelta(days=1))

    def known(table: TableStream, name: str = "time") -> bool:
        try:
            flow.sql(f"SELECT count(*) AS n FROM t GROUP BY TUMBLE({name}, INTERVAL 1 DAY)", t=table)
        except GraphError as error:
            if "takes the column of the event time" not in str(error):
                raise
            return False
        return True

    assert known(rows)
    assert known(rows.select("user", at=col("time")).filter(col("user") == "ann").rebalance(), "at")
    assert known(rows.rename({"time": "at", "user": "time"}), "at")
    assert not known(rows.rename({"time": "at", "user": "time"}))
    assert known(rows.with_columns(x=col("price") + 1).drop("user"))
    assert not known(rows.with_columns(time=col("time") + day))
    assert not known(rows.with_columns(moved=col("time") + day), "moved")
    assert not known(rows.with_columns(moved=col("time"), time=col("time") + day))
    assert known(rows.with_columns(moved=col("time"), time=col("time") + day), "moved")
    assert not known(rows.select((col("time") + day).alias("time")))
    assert not known(rows.map_batches(lambda batch: batch))
    by_user = rows.key_by("user")
    assert known(by_user.distinct())
    assert known(by_user.window(TumblingEventTimeWindows("1s")).distinct())
    assert known(by_user.running(n=agg.count()))
    assert known(by_user.over(rows=2).aggregate(n=agg.count()))
    assert known(by_user.asof_join(rows.key_by("user"), suffix="_right"))
    assert not known(by_user.asof_join(rows.key_by("user"), suffix="_right"), "time_right")
    assert not known(by_user.interval_join(rows.key_by("user"), 0, 5, suffix="_right"))
    for how, of_left, of_right in (("left", True, False), ("right", False, True), ("full", False, False)):
        before = by_user.interval_join(rows.key_by("user"), -5, 0, how=how, suffix="_right")
        assert (known(before), known(before, "time_right")) == (of_left, False)
        behind = by_user.interval_join(rows.key_by("user"), 0, 5, how=how, suffix="_right")
        assert (known(behind), known(behind, "time_right")) == (False, of_right)
    assert not known(by_user.window(TumblingEventTimeWindows("1s")).aggregate(time=agg.max("time")))
    assert not known(rows.drop("time").key_by("user").running(time=agg.count()))
    assert known(rows.union(rows))
    assert not known(rows.union(flow.table(_TABLE)))
    assert not known(flow.table(_TABLE))
    assert known(flow.table(_TABLE).assign_timestamps_and_watermarks(_TIMES))
    other = rows.with_columns(later=col("time") + day)
    moved: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("later")
    assert not known(other.assign_timestamps_and_watermarks(moved))
    assert known(other.assign_timestamps_and_watermarks(moved), "later")
    functions: Any = WatermarkStrategy.for_monotonous_timestamps()
    assert known(rows.assign_timestamps_and_watermarks(functions))
