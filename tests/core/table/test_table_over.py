"""Aggregates over the last rows of a key: equal to a loop over all rows, at any batch size, and to DuckDB's."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import diagonal, first
from tests.core.table.column_harness import ColumnHarness, many_steps

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.kept import due_rows, keyed_runs
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError, GraphError, SluicewayError
from sluiceway.operators.columns import over
from sluiceway.table import TableStream, agg

SCHEMA = pa.schema(
    [("user", pa.string()), ("price", pa.float64()), ("note", pa.dictionary(pa.int8(), pa.string()))]
)
LATE: OutputTag[Any] = OutputTag("late")
BACKENDS = ["memory", "filesystem", "rocksdb"]
SETTINGS: list[dict[str, Any]] = [
    {"rows": 1},
    {"rows": 3},
    {"range": 0},
    {"range": 5},
    {"rows": 3, "range": 5},
    {"rows": 1000},
]
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "prices": agg.collect("price"),
    "high": agg.max("price"),
    "first": agg.first("price"),
}


def in_columns(given: dict[str, Any], named: Any = NAMED, **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        keyed = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        return keyed.over(**given).side_output_late_data(LATE).aggregate(**named).to_records()

    return ColumnHarness(program, SCHEMA, **options)


def expected_of(given: dict[str, Any], rows: list[Any]) -> list[Any]:
    """Return the results of rows, each with its time, that are in order of arrival."""
    found, most, age = [], given.get("rows"), given.get("range")
    for user in {row["user"] for row, _ in rows}:
        mine = sorted([(stamp, at, row) for at, (row, stamp) in enumerate(rows) if row["user"] == user])
        for place, (stamp, _, row) in enumerate(mine):
            window = mine[: place + 1] if most is not None else [each for each in mine if each[0] <= stamp]
            window = [each for each in window if age is None or each[0] >= stamp - age]
            window = window if most is None else window[-most:]
            prices = [each[2]["price"] for each in window if each[2]["price"] is not None]
            total = 0.0
            for price in prices:
                total += price
            results = {
                "n": len(window),
                "total": total if prices else None,
                "prices": prices,
                "high": max(prices, default=None),
                "first": prices[0] if prices else None,
            }
            found.append(({**row, **results}, stamp))
    return found


@pytest.mark.parametrize("seed", first(len(SETTINGS), range(18)))
def test_results_are_those_of_all_rows_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over, "_BURST", 3)
    monkeypatch.setattr(over, "_READS", 5)
    monkeypatch.setattr(idle_keys, "_IDLE", 1)
    monkeypatch.setattr(keyed_runs, "_PAUSE", 2)
    monkeypatch.setattr(due_rows, "_STEP", [1, 200, 1 << 27][seed % 3])
    chosen = SETTINGS[seed % len(SETTINGS)]
    steps = many_steps(
        seed,
        lambda dice, rows: [("ab"[n % 2], None if n == 8 else n / 10, n, time) for n, time in rows],
        lambda dice: (dice.randrange(1, 4), dice.choice(BACKENDS)),
    )
    # Without lists, rows that have one window share its results.
    named = {name: each for name, each in NAMED.items() if name != "prices" or seed % 2}
    columns = in_columns(chosen, named)
    found, late, taken, too_late = [], [], [], []
    now, passed = 0, -100
    try:
        for step in steps:
            if isinstance(step, int):
                now += step
                passed = now
                columns.process_watermark(now)
            elif isinstance(step, tuple):
                snapshot = columns.snapshot()
                found += columns.records
                late += columns.side_records(LATE)
                columns.close()
                columns = in_columns(chosen, named, parallelism=step[0], state_backend=step[1], restored=snapshot)
            else:
                rows = [{"user": user, "price": price, "note": f"n{note}"} for user, price, note, _ in step]
                stamps = [now + time - 6 for *_, time in step]
                columns.process_batch(rows, stamps)
                for row, stamp in zip(rows, stamps, strict=True):
                    (taken if stamp > passed else too_late).append((row, stamp))
        columns.process_watermark(MAX_WATERMARK)
        found += columns.records
        late += columns.side_records(LATE)
    finally:
        columns.close()
    expected = [
        ({name: value for name, value in row.items() if name in {*SCHEMA.names, *named}}, stamp)
        for row, stamp in expected_of(chosen, taken)
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert sorted(late, key=repr) == sorted(too_late, key=repr)


def test_rows_come_in_order_of_time_when_the_watermark_reaches_them() -> None:
    with in_columns({"rows": 2}) as columns:
        rows = [{"user": "a", "price": float(n), "note": None} for n in (5, 3, 9)]
        columns.process_batch(rows, [5, 3, 9])
        assert [row["prices"] for row in columns.process_watermark(5)] == [[3.0], [3.0, 5.0]]
        assert [row["prices"] for row in columns.process_watermark(8)] == []
        assert [row["prices"] for row in columns.process_watermark(9)] == [[5.0, 9.0]]


@pytest.mark.parametrize(("chosen", "most"), [({"rows": 4}, 2 * 3 * 8), ({"range": 8000}, 2 * 10)])
def test_no_more_rows_are_kept_than_windows_need(chosen: dict[str, Any], most: int) -> None:
    with in_columns(chosen) as columns:
        operator: Any = columns._subtasks[0].operators[0]
        for second in range(300):
            columns.process({"user": f"u{second % 8}", "price": 1.0, "note": "x"}, second * 1000)
            columns.process_watermark(second * 1000)
        columns.snapshot()
        assert len(operator._recent) <= most
        assert len(operator._waiting) == 0
        tables = [operator.backend.table(name) for name in (over._WAITING, over._RECENT)]
        assert sum(len(list(table.namespaces())) for table in tables) <= 8


# ---- whole jobs ------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(3)
_SIZE = 3000
_ORDERS = pa.table(
    {
        "user": [f"user-{n}" for n in _RNG.integers(0, 20, _SIZE)],
        "number": np.arange(_SIZE),
        "price": pa.array(_RNG.integers(0, 1000, _SIZE) / 4, mask=_RNG.random(_SIZE) < 0.1),
        "at": pa.array(_RNG.permutation(_SIZE) // 20 + np.arange(_SIZE) * 10, pa.timestamp("ms")),
    }
)
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_column("at")
_FRAMES = {
    'ORDER BY "at", number ROWS 9 PRECEDING': {"rows": 10},
    'ORDER BY "at" RANGE BETWEEN INTERVAL 2 SECOND PRECEDING AND CURRENT ROW': {"range": "2s"},
}


@pytest.mark.parametrize(
    ("options", "frame"),
    [
        *diagonal([{}, {"batch_size": 1}, {"chaining": False, "parallelism": 3}], list(_FRAMES)),
        *(pytest.param({"workers": 2}, frame, marks=pytest.mark.slow) for frame in _FRAMES),
    ],
)
def test_results_are_those_of_duckdb(options: dict[str, Any], frame: str) -> None:
    orders = _ORDERS  # noqa: F841 (DuckDB finds it by its name)
    expected = duckdb.sql(
        "SELECT number, count(price) OVER w, sum(price) OVER w, max(price) OVER w FROM orders "
        f"WINDOW w AS (PARTITION BY user {frame}) ORDER BY number"
    ).fetchall()
    table = Pipeline().table(_ORDERS, watermark_strategy=_STRATEGY)
    found = (
        table.key_by("user")
        .over(**_FRAMES[frame])
        .aggregate(n=agg.count("price"), total=agg.sum("price"), high=agg.max("price"))
        .to_arrow(**options)
    )
    rows = [(row["number"], row["n"], row["total"], row["high"]) for row in found.to_pylist()]
    assert sorted(rows, key=lambda row: row[0]) == expected
    if not options:
        assert found["at"].to_pylist() == sorted(_ORDERS["at"].to_pylist())


def test_mistakes_are_found_where_they_are_made() -> None:
    keyed = Pipeline().table(SCHEMA.empty_table()).key_by("user")
    with pytest.raises(ConfigurationError, match=r"give rows=, the number of the last rows, or range="):
        keyed.over()
    with pytest.raises(ConfigurationError, match=r"over\(rows=0, range=None\) at .*whole number from 1 to"):
        keyed.over(rows=0)
    with pytest.raises(ConfigurationError, match="whole number from 1 to"):
        keyed.over(rows=1 << 63)
    with pytest.raises(ConfigurationError, match=r"over\(rows=None, range='long'\)"):
        keyed.over(range="long")
    with pytest.raises(GraphError, match="a column 'price' already"):
        keyed.over(rows=2).aggregate(price=agg.sum("price"))
    with pytest.raises(GraphError, match=r"did you mean 'price'\?"):
        keyed.over(rows=2).aggregate(x=agg.sum("prise"))
    with pytest.raises(TypeError, match="takes at least one aggregate"):
        keyed.over(rows=2).aggregate()
    with pytest.raises(TypeError, match="takes an OutputTag"):
        keyed.over(rows=2).side_output_late_data("late")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.uint16(), pa.float64(), pa.bool_(), pa.timestamp("ms")]
)
def test_results_of_ranges_are_those_of_their_rows(kind: pa.DataType) -> None:
    """Without reading each range, to the last bit."""
    from sluiceway.columns.aggregation.ranges import of_ranges
    from sluiceway.columns.aggregation.row_positions import RowPositions
    from sluiceway.columns.aggregation.values import Values

    dice = np.random.default_rng(7)
    size = 300
    nulls = dice.random(size) < 0.2
    numbers = dice.integers(0, 2 if kind == pa.bool_() else 100, size).astype(float)
    if kind == pa.float64():
        numbers[dice.random(size) < 0.1] = np.nan
    column = pa.array(numbers if kind == pa.float64() else numbers.astype(int), mask=nulls).cast(
        kind if kind != pa.timestamp("ms") else pa.int64()
    )
    column = column.cast(kind)
    schema = pa.schema([("x", kind)])
    first = dice.integers(0, size - 1, 500)
    end = np.minimum(first + dice.integers(1, 90, 500), size)
    compared = 0
    for name in ("count", "sum", "mean", "min", "max"):
        try:
            bound = getattr(agg, name)("x").bind(schema, "test")
        except SluicewayError:
            continue  # no sum of times
        found = of_ranges(bound, {"x": Values(column)}, first, end)
        if found is None:
            continue
        compared += 1
        one_by_one = []
        for low, high in zip(first.tolist(), end.tolist(), strict=True):
            accumulator = bound.create()
            accumulator.resize(1)
            rows = RowPositions(np.zeros(high - low, np.int64), 1)
            accumulator.update(rows, [Values(column.slice(low, high - low))], np.arange(high - low))
            one_by_one.append(accumulator.result(1))
        assert repr(found.to_pylist()) == repr(pa.concat_arrays(one_by_one).to_pylist()), name
    assert compared >= 3


def test_rows_of_one_time_read_their_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    results = over.ColumnOverOperator._results

    def counted(self: Any, bounds: Any, count: int, at: Any, inside: Any, columns: Any) -> list[Any]:
        read.append(len(inside))
        return results(self, bounds, count, at, inside, columns)

    monkeypatch.setattr(over.ColumnOverOperator, "_results", counted)
    numbers = np.arange(600)
    rows = pa.table({"k": numbers % 3, "n": numbers / 8, "at": numbers // 300})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    keyed = Pipeline().table(rows, watermark_strategy=strategy).key_by("k")
    named = {"total": agg.sum("n"), "different": agg.count_distinct("n")}
    found = keyed.over(range=1).aggregate(**named).to_arrow(workers=0).to_pylist()
    for row in found:
        mine = [n / 8 for n in range(300 * (row["at"] + 1)) if n % 3 == row["k"]]
        assert (row["total"], row["different"]) == (sum(mine), len(mine))
    # The two times of three keys: 100 rows and 200.
    assert sum(read) == 3 * (100 + 200)


def test_an_overflow_counts_the_rows_whose_windows_have_it() -> None:
    rows = pa.table({"k": [1] * 3, "n": [2**62] * 3, "at": [1, 2, 3]})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    over = Pipeline().table(rows, watermark_strategy=strategy).key_by("k").over(rows=2)
    with pytest.raises(OverflowError, match=r"sum\('n'\) does not fit in int64: 2 of 3 results computed together"):
        over.aggregate(total=agg.sum("n")).to_arrow()
