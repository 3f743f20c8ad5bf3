"""Columns and filters of the steps behind a Parquet source, which the source leaves out by itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import narwhals as nw
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.api.table.stream import TableStream
from sluiceway.clock import SystemClock
from sluiceway.columns.pushdown import implied, kept_names, read_by
from sluiceway.config.settings import Settings
from sluiceway.connector import END_OF_INPUT, ReaderContext
from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, ConnectorError, FunctionContractError, GraphError
from sluiceway.metrics import MetricGroup
from sluiceway.steps import SourceStep
from sluiceway.table import agg, col, lit, when
from sluiceway.testing.drivers import drive_source
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource

ROWS = 400
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("user", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("ms")),
        ("x", pa.int32()),
        ("fine", pa.timestamp("us")),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
    ]
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of ten row groups each, whose numbers rise, with nulls and NaN."""
    there = tmp_path_factory.mktemp("files")
    for part in range(2):
        numbers = range(part * ROWS, (part + 1) * ROWS)
        columns = {
            "n": [None if n % 97 == 0 else n for n in numbers],
            "user": [None if n % 31 == 0 else f"u{n // 50:02}" for n in numbers],
            "price": [float("nan") if n % 13 == 0 else n / 8 for n in numbers],
            "at": [dt.datetime(2026, 1, 1) + dt.timedelta(minutes=n) for n in numbers],
            "x": [n % 7 for n in numbers],
            "fine": [dt.datetime(2026, 1, 1) + dt.timedelta(minutes=n) for n in numbers],
            "day": [dt.date(2026, 1, 1) + dt.timedelta(days=n // 1440) for n in numbers],
            "flag": [n < 80 for n in numbers],
        }
        pq.write_table(pa.table(columns, SCHEMA), there / f"{part}.parquet", row_group_size=40)
    return there


def _source(stream: TableStream) -> Any:
    graph = stream._pipeline.graph(Settings())
    (step,) = [node.step for node in graph.nodes if isinstance(node.step, SourceStep)]
    return step


def _read(source: Any, splits: Any = None) -> list[tuple[pa.RecordBatch, Any]]:
    """Return what a reader returns, each time with the splits that are left."""
    reader = source.create_reader(ReaderContext(0, 1, SystemClock(), lambda: None, lambda: None, MetricGroup()))
    reader.add_splits(source._plan() if splits is None else splits)
    reader.no_more_splits()
    found = []
    try:
        while (polled := reader.poll(1)) is not END_OF_INPUT:
            if isinstance(polled, Batch):
                found.append((polled.columns, reader.snapshot()))
    finally:
        reader.close()
    return found


def _numbers(read: Iterable[tuple[pa.RecordBatch, Any]]) -> list[int | None]:
    return [n for batch, _ in read for n in batch.column("n").to_pylist()]


def _sunk(stream: TableStream) -> TableStream:
    stream.collect()
    return stream


def test_row_groups_and_columns_that_no_step_needs_are_not_read(files: Path) -> None:
    flow = Pipeline()
    rows = flow.table(FilesSource.parquet(str(files))).filter(col("n") >= 700, col("user") != "u15").select("x")
    rows.collect()
    step = _source(rows)
    assert step.pushed == "columns n, user, x, rows where n >= 700 and user != 'u15'"
    assert sum(batch.num_rows for batch, _ in _read(step.source)) == 2 * 40
    assert "pushed down columns n, user, x, rows where n >= 700" in flow.explain()


@pytest.mark.parametrize(
    ("where", "pushed"),
    [
        ("n >= 700 AND user <> 'u15'", "n >= 700 and user != 'u15'"),
        ("700 <= n AND x = 3", "n >= 700 and x = 3"),
        ("n BETWEEN 350 AND 420", "n >= 350 and n <= 420"),
        ("price < 12 OR n > 700", "price < 12.0 or n > 700"),
        ("user IN ('u03', 'u04')", "user in ('u03', 'u04')"),
        ("n IN (3, 400)", "n in (3, 400)"),
        ("fine > '2026-01-01 12:00' AND day = '2026-01-01'", "fine > datetime.datetime(2026, 1, 1, 12, 0)"),
        ("n > 350 AND upper(user) = 'U08'", "n > 350"),
        ("flag = TRUE AND n < 90", "flag = True and n < 90"),
    ],
)
def test_conditions_of_queries_are_those_of_expressions(files: Path, where: str, pushed: str) -> None:
    query = f"SELECT n, x FROM rows WHERE {where}"
    flow = Pipeline()
    rows = flow.sql(query, rows=flow.table(FilesSource.parquet(str(files))))
    found = _source(_sunk(rows)).pushed
    assert found is not None
    assert f"rows where {pushed}" in found
    with duckdb.connect() as connection:
        connection.register("rows", pq.read_table(files))
        expected = connection.sql(query).fetchall()
    assert expected
    got = [tuple(row.values()) for row in rows.to_arrow().to_pylist()]
    assert sorted(got, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize(
    "where", ["x * 2 > 4", "CAST(price AS BIGINT) > 90", "NOT n > 700", "at > '2026-01-01 12:00'", "n > 0.5"]
)
def test_conditions_of_queries_that_a_source_cannot_have(files: Path, where: str) -> None:
    flow = Pipeline()
    rows = flow.sql(f"SELECT * FROM rows WHERE {where}", rows=flow.table(FilesSource.parquet(str(files))))
    assert _source(_sunk(rows)).pushed == ""


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 3}, {"workers": 2, "parallelism": 2}])
def test_rows_are_those_of_a_source_that_reads_all(files: Path, options: dict[str, Any]) -> None:
    whole = pq.read_table(files)
    kept = [row for row in whole.to_pylist() if row["n"] is not None and row["n"] >= 350 and row["x"] == 3]
    rows = Pipeline().table(FilesSource.parquet(str(files))).filter((col("n") >= 350) & (col("x") == 3))
    found = rows.with_columns(y=col("x") + 1).rename({"n": "m"}).select("m", "y").to_arrow(**options)
    assert sorted(found.to_pylist(), key=lambda row: row["m"]) == [{"m": row["n"], "y": 4} for row in kept]


@pytest.mark.parametrize("size", [2, 4])
def test_whether_a_row_fails_the_job_does_not_depend_on_row_groups(tmp_path: Path, size: int) -> None:
    table = pa.table({"id": [1, 2, 3, 4], "n": [1, 2, 2**60 + 1, 4]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=size)
    rows = Pipeline().table(FilesSource.parquet(str(tmp_path)))
    with pytest.raises(FunctionContractError, match="Integer value 1152921504606846977 not in range"):
        rows.with_columns(r=col("n") + 0.5).filter(col("id") <= 2).to_arrow()
    with pytest.raises(FunctionContractError, match="Integer value 1152921504606846977 not in range"):
        rows.filter(col("n") > 0.5).filter(col("id") <= 2).to_arrow()


_COMPARED = st.sampled_from(["n", "user", "price", "x"])
_VALUES: dict[str, Any] = {
    "n": st.integers(-1, 801),
    "user": st.sampled_from(["", "u00", "u07", "u15", "v"]),
    "price": st.sampled_from([0.0, -0.0, 12.5, 99.875, 50, 1e9]),
    "x": st.integers(0, 7),
}


@st.composite
def _predicates(draw: st.DrawFn, depth: int = 2) -> nw.Expr:
    if depth and draw(st.booleans()):
        left, right = draw(_predicates(depth - 1)), draw(_predicates(depth - 1))
        return left & right if draw(st.booleans()) else left | right
    name = draw(_COMPARED)
    value = draw(_VALUES[name])
    match draw(st.integers(0, 8)):
        case 0:
            return col(name) == value
        case 1:
            return col(name) != value
        case 2:
            return col(name) < value
        case 3:
            return value <= col(name)
        case 4:
            return lit(value) > col(name) if draw(st.booleans()) else lit(value) < col(name)
        case 5:
            return col(name).is_in([value, draw(_VALUES[name])])
        case 6:
            bounds = [lit(value), lit(draw(_VALUES[name]))]
            return col(name).is_between(*bounds, closed=draw(st.sampled_from(["both", "left"])))
        case 7:
            return ~(col(name) > value)
        case _:
            return col(name).is_null()


def _loses_no_row(files: Path, predicate: nw.Expr) -> None:
    rows = _sunk(Pipeline().table(FilesSource.parquet(str(files))).filter(predicate).select("n", "at"))
    source: Any = _source(rows).source
    whole = pq.read_table(files)
    names = source._format.schema.names
    read = pa.Table.from_batches([batch for batch, _ in _read(source)], whole.select(names).schema)
    have, all_rows = (nw.from_native(table, eager_only=True).filter(predicate).shape[0] for table in (read, whole))
    assert have == all_rows, str(predicate)


@given(predicate=_predicates())
def test_no_row_group_is_skipped_that_has_a_row_of_the_filter(files: Path, predicate: nw.Expr) -> None:
    _loses_no_row(files, predicate)


def test_each_comparison_keeps_its_row_groups(files: Path) -> None:
    n, v = col("n"), lit(200)
    for one in (n == 200, n != 200, n < 200, n <= 200, n > 200, n >= 200):
        _loses_no_row(files, one)
    for one in (v == n, v != n, v < n, v <= n, v > n, v >= n, n.is_in([200, 600]), n.is_in([])):
        _loses_no_row(files, one)
    for closed in ("both", "left", "right", "none"):
        _loses_no_row(files, n.is_between(200, 240, closed=closed))


def test_filters_stay_behind_watermarks_and_steps_that_change_the_meaning(files: Path) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1min").with_timestamp_column("at")
    source = FilesSource.parquet(str(files))

    def pushed(stream: TableStream) -> str:
        return _source(_sunk(stream)).pushed

    late = Pipeline().table(source, watermark_strategy=strategy)
    assert pushed(late.filter(col("n") > 5).select("n")) == "columns n, at"
    assert pushed(Pipeline().table(source).map_batches(lambda rows: rows).filter(col("n") > 5)) == ""
    assert pushed(Pipeline().table(source).filter(col("user").cast(nw.Int64) > 5).filter(col("n") > 5)) == ""
    assert pushed(Pipeline().table(source).with_columns(n=col("n") + 1).filter(col("n") > 5)) == ""
    renamed = Pipeline().table(source).rename({"n": "m", "x": "n"}).with_columns(k=col("n") + 1)
    assert pushed(renamed.filter(col("m") > 5, col("n") > 1)) == "rows where n > 5 and x > 1"
    kept = Pipeline().table(source).select(col("n").alias("x"), "user").filter(col("x") > 5)
    assert pushed(kept) == "columns n, user, rows where n > 5"


def test_a_source_with_two_consumers_reads_for_both(files: Path) -> None:
    flow = Pipeline()
    rows = flow.table(FilesSource.parquet(str(files)))
    low, high = rows.filter(col("n") < 20).select("n"), rows.filter(col("n") > 780).select("user")
    found = low.collect(), high.collect()
    assert _source(rows).pushed == "columns n, user, rows where n < 20 or n > 780"
    flow.run()
    assert len(found[0]) == 19
    assert len(found[1]) == 19


def test_windows_of_event_time_have_the_rows_of_before(files: Path) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1min").with_timestamp_column("at")
    rows = Pipeline().table(FilesSource.parquet(str(files)), watermark_strategy=strategy)
    sums = rows.filter(col("n") < 100).select("user", "n").key_by("user")
    found = sums.window(TumblingEventTimeWindows("1h")).aggregate(total=agg.sum("n")).to_arrow()
    assert sum(found["total"].to_pylist()) == sum(range(98)) + 98 + 99 - 97 + 97 - 97


def test_a_checkpoint_goes_on_with_another_filter(files: Path, tmp_path: Path) -> None:
    """Positions count rows of row groups, whatever a source leaves out."""
    failed = tmp_path / "failed"

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 600 and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    flow = Pipeline(parallelism=2)
    rows = flow.table(FilesSource.parquet(str(files))).filter(col("n") > 100).select("n").map_batches(fail_once)
    rows.sink(FilesSink.parquet(str(tmp_path / "out")))
    kept: dict[str, Any] = {"checkpoints": str(tmp_path / "kept"), "checkpoint_interval": "20ms"}
    flow.run(batch_size=1, restart="fixed-delay:3:10ms", **kept)
    assert failed.exists()
    found = pq.read_table(tmp_path / "out")["n"].to_pylist()
    assert sorted(found) == [n for n in range(101, 800) if n % 97]


def test_row_groups_that_only_an_earlier_filter_excludes_are_read(files: Path) -> None:
    source = FilesSource.parquet(str(files), filters=[("n", ">=", 400)])
    earlier = _source(_sunk(Pipeline().table(source).filter(col("n") >= 600).select("n"))).source
    later = _source(_sunk(Pipeline().table(source).filter(col("n") < 520).select("n"))).source
    assert _numbers(_read(later, earlier._plan())) == [n for n in range(400, 520) if n % 97]


def test_any_position_in_a_run_of_row_groups_leads_to_the_rows_after_it(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_files._parquet.ROWS_PER_RECORD", 9)
    monkeypatch.setattr("sluiceway_files._parquet._ColumnsReader.rows_at_once", 20)
    source = FilesSource.parquet(str(files / "1.parquet"))
    none = _source(_sunk(Pipeline().table(source).filter(col("n") > 800).select("n"))).source
    some = _source(_sunk(Pipeline().table(source).filter((col("n") < 450) | (col("n") > 700)).select("n"))).source
    (run,) = none._plan()
    read = _read(some, [run])
    assert [n for n in _numbers(read) if n is not None] == [
        n for n in (*range(400, 480), *range(680, 800)) if n % 97
    ]
    for number, (_, left) in enumerate(read, 1):
        assert _numbers(_read(some, left)) == _numbers(read[number:])


# ---- directories ------------------------------------------------------------------------------------------


def _partitioned(directory: Path) -> pa.Table:
    days = [dt.date(2026, 1, day) for day in (1, 2, 3)]
    rows = pa.table(
        {
            "n": list(range(60)),
            "day": [days[n % 3] for n in range(60)],
            "place": [None if n % 4 == 0 else ["a b", "c/d", "50%"][n % 3] for n in range(60)],
            "kind": [n % 2 for n in range(60)],
        }
    )
    flow = Pipeline()
    flow.table(rows).sink(FilesSink.parquet(str(directory), partition_by=["day", "place", "kind"]))
    flow.run()
    return rows


DIRECTORIES = pa.schema([("day", pa.date32()), ("place", pa.string()), ("kind", pa.int8())])


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 3}])
def test_columns_of_directories_are_read_back(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = _partitioned(tmp_path / "t")
    source = FilesSource.parquet(str(tmp_path / "t"), partitions=DIRECTORIES)
    found = Pipeline().table(source).to_arrow(**options)
    assert found.schema.field("kind").type == pa.int8()
    assert sorted(found.to_pylist(), key=lambda row: row["n"]) == rows.to_pylist()
    flow = Pipeline()
    records = flow.source(source).collect()
    flow.run(**options)
    assert sorted(records, key=lambda row: row["n"]) == rows.to_pylist()


def test_directories_that_a_filter_excludes_are_not_opened(tmp_path: Path) -> None:
    rows = _partitioned(tmp_path / "t")
    day = dt.date(2026, 1, 2)
    for path in (tmp_path / "t").glob("day=2026-01-0[13]/**/*.parquet"):
        path.write_bytes(b"broken")
    wanted = [row for row in rows.to_pylist() if row["day"] == day and row["kind"] == 1]
    # The first path is a file that can be read, from which the schema comes.
    all_of_it = FilesSource.parquet(
        [str(tmp_path / "t" / "day=2026-01-02"), str(tmp_path / "t")], partitions=DIRECTORIES
    )
    table = Pipeline().table(all_of_it).filter(col("day") == day, col("kind") == 1, col("n") >= 0)
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["n"]) == wanted
    flow = Pipeline()
    given = [("day", "=", day), ("kind", "=", 1)]
    columns = ["n", "day", "place", "kind"]
    first = FilesSource.parquet(str(tmp_path / "t"), partitions=DIRECTORIES, filters=given, columns=columns)
    records = flow.source(first).collect()
    flow.run()
    assert sorted(records, key=lambda row: row["n"]) == wanted


def test_directories_that_only_an_earlier_filter_excludes_are_read(tmp_path: Path) -> None:
    rows = _partitioned(tmp_path / "t")
    source = FilesSource.parquet(str(tmp_path / "t"), partitions=DIRECTORIES)
    days = dt.date(2026, 1, 2), dt.date(2026, 1, 3)
    filtered = [Pipeline().table(source).filter(col("day") == day).select("n") for day in days]
    earlier, later = [_source(_sunk(rows)).source for rows in filtered]
    wanted = [row["n"] for row in rows.to_pylist() if row["day"] == days[1]]
    assert sorted(_numbers(_read(later, earlier._plan()))) == wanted


def test_directories_alone_can_be_selected(tmp_path: Path) -> None:
    _partitioned(tmp_path / "t")
    source = FilesSource.parquet(str(tmp_path / "t"), partitions=DIRECTORIES)
    found = Pipeline().table(source).select("day").to_arrow()
    assert found.num_rows == 60
    assert found.schema.names == ["day"]


@pytest.mark.parametrize("filters", [None, [("kind", "=", 1)]])
@pytest.mark.parametrize("columns", [["n"], ["day"], ["n", "place"], []])
def test_records_have_only_the_columns_asked_for(tmp_path: Path, columns: list[str], filters: Any) -> None:
    rows = _partitioned(tmp_path / "t").to_pylist()
    wanted = [{name: row[name] for name in columns} for row in rows if filters is None or row["kind"] == 1]
    source = FilesSource.parquet(tmp_path / "t", partitions=DIRECTORIES, columns=columns, filters=filters)
    assert sorted(map(repr, drive_source(source))) == sorted(map(repr, wanted))


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (
            ["hour"],
            r"is in no directory hour=\.\.\., which partitions= names; its directories have day, place, kind",
        ),
        (pa.schema([("place", pa.int64())]), r"place=\S+ is no value of int64"),
    ],
)
def test_directories_that_do_not_fit_are_told(tmp_path: Path, partitions: Any, message: str) -> None:
    _partitioned(tmp_path / "t")
    with pytest.raises(ConnectorError, match=message):
        Pipeline().table(FilesSource.parquet(str(tmp_path / "t"), partitions=partitions)).to_arrow()


@pytest.mark.parametrize("partitions", [[], [3], ["a", "a"], pa.schema([("a", pa.float64())]), 7])
def test_what_names_no_directories_is_refused(partitions: Any) -> None:
    with pytest.raises(ConfigurationError, match="partitions="):
        FilesSource.parquet("x", partitions=partitions)


# ---- expressions ------------------------------------------------------------------------------------------


def test_expressions_say_what_they_read() -> None:
    assert read_by([when(col("a") > 5).then("b").otherwise(lit("c"))]) == {"a", "b"}
    assert read_by([nw.concat_str("a", "b", separator="x"), col("c").fill_null(col("d"))]) == {"a", "b", "c", "d"}
    assert read_by([nw.all()]) is None
    assert kept_names([col("a").alias("b"), nw.col("c", "d")]) == {"b": "a", "c": "c", "d": "d"}
    assert kept_names([col("a") + 1]) is None


def test_expressions_that_nulls_make_true_imply_nothing() -> None:
    assert implied([nw.all_horizontal(col("a") > 5, ignore_nulls=True)]) is None
    assert implied([col("a").is_in([1, None])]) is None
    assert implied([~col("a").is_in([1])]) is None
    assert implied([col("a").is_between("b", "c")]) is None


def test_a_column_that_is_not_there_is_told_where_it_is_named(files: Path) -> None:
    with pytest.raises(GraphError, match="there is no column 'pric'; did you mean 'price'"):
        Pipeline().table(FilesSource.parquet(str(files))).filter(col("pric") > 5)


@pytest.mark.parametrize(
    ("predicate", "holds"),
    [
        (when(col("a") > 1).then(col("b") > 2), ((("a", ">", 1), ("b", ">", 2)),)),
        (when(col("a") > 1).then(col("b") > 2).otherwise(lit(True)), None),
        (~when(col("a") > 1).then(col("b") > 2), None),
        (col("a") == lit(1, nw.Int64), ((("a", "=", 1),),)),
        (col("a") == lit(1, nw.Float64), None),
        (col("a") == lit(1.5, nw.Int64), None),
        (col("t") > lit(dt.datetime(2026, 1, 1), nw.Datetime("us")), ((("t", ">", dt.datetime(2026, 1, 1)),),)),
        (col("t") > lit(dt.datetime(2026, 1, 1), nw.Datetime("ms")), None),
        (col("t") > lit(dt.datetime(2026, 1, 1), nw.Datetime("us", "UTC")), None),
    ],
)
def test_what_constants_with_a_type_and_choices_imply(predicate: nw.Expr, holds: Any) -> None:
    assert implied([predicate]) == holds
