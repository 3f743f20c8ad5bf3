"""Parquet in columns: from files to files, exactly once, at any size of batches."""

from __future__ import annotations

import asyncio
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import PATIENT_S

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.engine import JobStatus
from sluiceway.errors import ConnectorError
from sluiceway.table import agg, col
from sluiceway.util.arrow_values import rows_as_dicts
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource, _parquet

ROWS = 20_000


@pytest.fixture
def files(tmp_path: Path) -> Path:
    there = tmp_path / "in"
    there.mkdir()
    for part in range(3):
        numbers = range(part * ROWS, (part + 1) * ROWS)
        table = pa.table(
            {"n": list(numbers), "user": [f"u{n % 50}" for n in numbers], "price": [n / 8 for n in numbers]}
        )
        pq.write_table(table, there / f"{part}.parquet", row_group_size=3_000)
    return there


def _total(directory: Path) -> Any:
    return duckdb.sql(f"select count(*), sum(n), count(distinct n) from '{directory}/*.parquet'").fetchall()[0]


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 3}])
def test_rows_go_from_files_to_files_as_columns(files: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    flow = Pipeline()
    rows = flow.table(FilesSource.parquet(str(files), columns=["n", "price"]))
    assert rows.schema.names == ["n", "price"]
    rows.filter(col("price") > 100).drop("price").sink(FilesSink.parquet(str(tmp_path / "out")))
    flow.run(**options)
    wanted = [n for n in range(3 * ROWS) if n / 8 > 100]
    assert _total(tmp_path / "out") == (len(wanted), sum(wanted), len(wanted))


def test_the_footer_of_a_file_is_read_once_for_all_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr("sluiceway_files._parquet._LARGE_RUN", 1)

    class Opened(pq.ParquetFile):
        """File that says whether its footer was known."""

        def __init__(self, *args: Any, metadata: Any = None, **options: Any) -> None:
            given.append(metadata is not None)
            super().__init__(*args, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", Opened)
    # Of the same length: the bytes are compared.
    for start in (0, 10_000):
        path = tmp_path / f"{start}.parquet"
        pq.write_table(
            pa.table({"n": pa.array(range(start + 10, start + 60), pa.int64())}), path, row_group_size=10
        )
        given.clear()
        rows = Pipeline().table(FilesSource.parquet(str(path))).to_arrow(parallelism=1)
        assert rows["n"].to_pylist() == list(range(start + 10, start + 60))
        assert len(given) > 5
        assert given.count(False) == 1


def test_a_failure_leaves_each_row_once(files: Path, tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 2 * ROWS and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    flow = Pipeline(parallelism=2)
    rows = flow.table(FilesSource.parquet(str(files))).map_batches(fail_once).rebalance().with_columns(m=col("n"))
    rows.sink(FilesSink.parquet(str(tmp_path / "out")))
    flow.run(
        workers=2,
        batch_size=8,
        checkpoints=str(tmp_path / "checkpoints"),
        checkpoint_interval="20ms",
        restart="fixed-delay:3:10ms",
    )
    assert failed.exists()
    assert _total(tmp_path / "out") == (3 * ROWS, sum(range(3 * ROWS)), 3 * ROWS)


def test_records_are_those_of_a_stream_in_columns(tmp_path: Path) -> None:
    times = pa.array([1_000, None], pa.timestamp("ns"))
    columns = {
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "at": times,
        "inner": pa.array([{"clock": 5_000}, None], pa.struct([("clock", pa.time64("ns"))])),
        "same": times.dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    at = datetime(1970, 1, 1, microsecond=1)
    read = _read(FilesSource.parquet(str(tmp_path)))
    assert read == [
        {"map": {"a": 1}, "at": at, "inner": {"clock": time(microsecond=5)}, "same": at},
        {"map": {}, "at": None, "inner": None, "same": None},
    ]
    assert {type(row["at"]) for row in read} == {datetime, type(None)}  # an object of pandas is a datetime, too
    flow = Pipeline()
    converted = flow.table(FilesSource.parquet(str(tmp_path))).to_records().collect()
    flow.run()
    assert list(converted) == read


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_a_time_that_python_has_none_for_is_refused_or_skipped_with_its_row(
    tmp_path: Path, batch_size: int
) -> None:
    pq.write_table(
        pa.table({"n": range(4), "at": pa.array([0, 1_000, 2_001, 3_000], pa.timestamp("ns"))}),
        tmp_path / "a.parquet",
    )
    with pytest.raises(ConnectorError, match=r"a\.parquet, row group 0, row 3: column 'at' has timestamp\[ns\]"):
        _read(FilesSource.parquet(str(tmp_path)), batch_size=batch_size)
    for filters, left in ((None, [0, 1, 3]), ([("n", ">", 1)], [3])):
        source = FilesSource.parquet(str(tmp_path), filters=filters, on_error="skip")
        assert [row["n"] for row in _read(source, batch_size=batch_size)] == left


def _read(source: Any, **options: Any) -> list[Any]:
    flow = Pipeline()
    records = flow.source(source).collect()
    flow.run(**options)
    return list(records)


def test_files_of_other_columns_are_an_error_with_their_name(files: Path) -> None:
    pq.write_table(pa.table({"n": ["x"]}), files / "9.parquet")
    with pytest.raises(ConnectorError, match=r"9\.parquet has (no|other) column"):
        Pipeline().table(FilesSource.parquet(str(files))).to_arrow()


NOON = datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([True]), pa.array([5])),
        (pa.array([1]), pa.array([NOON])),
        (pa.array([1]), pa.array(["1"])),
        (pa.array([NOON.date()]), pa.array([NOON])),
        (pa.array([NOON]), pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))),
        (pa.array([1.5], pa.float32()), pa.array([1e300])),
        (pa.array([Decimal("1.50")]), pa.array([1.239])),
        (pa.array([1.5]), pa.array([Decimal("12345678901234567890.5")])),
        (pa.array([[True]]), pa.array([[5]])),
        (pa.array([{"x": True}]), pa.array([{"x": 5}])),
        (pa.array([[("k", True)]], pa.map_("string", "bool")), pa.array([[("k", 5)]], pa.map_("string", "int8"))),
    ],
)
def test_no_value_becomes_another_one_in_the_type_of_the_first_file(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    pq.write_table(pa.table({"a": first}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": second}), tmp_path / "1.parquet")
    source = FilesSource.parquet(str(tmp_path))
    with pytest.raises(ConnectorError) as caught:
        Pipeline().table(source).to_arrow()
    begin, end = str(caught.value).split(" has other columns than the first file (")
    assert begin == f"{tmp_path}/1.parquet"
    assert "): column 'a' has " in end
    assert end.endswith(
        "source() gives the records of each file as they are, and to_columns() makes columns of them"
    )
    assert [row["a"] for row in _read(source)] == rows_as_dicts_of(first, second)


def test_a_null_struct_has_nulls_in_fields_that_are_not_null(tmp_path: Path) -> None:
    """In the files that are read its fields may be null, in the first one and in those that are written not."""
    required = pa.schema([("of", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"of": [{"a": 1}]}, required), tmp_path / "in" / "0.parquet")
    pq.write_table(pa.table({"of": pa.nulls(1, pa.struct([("a", pa.int32())]))}), tmp_path / "in" / "1.parquet")
    flow = Pipeline()
    rows = flow.table(FilesSource.parquet(str(tmp_path / "in")))
    rows.sink(FilesSink.parquet(str(tmp_path / "out"), schema=required))
    flow.run()
    assert pq.read_table(tmp_path / "out").sort_by("of").to_pylist() == [{"of": {"a": 1}}, {"of": None}]
    plain = Pipeline()
    plain.table(pa.table({"of": pa.nulls(1, pa.struct([("a", pa.int64())]))})).sink(
        FilesSink.parquet(str(tmp_path / "more"), schema=required)
    )
    plain.run()
    assert pq.read_table(tmp_path / "more").to_pylist() == [{"of": None}]


def rows_as_dicts_of(*arrays: pa.Array) -> list[Any]:
    return [row["a"] for array in arrays for row in rows_as_dicts(pa.record_batch({"a": array}))]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1], pa.int8()), pa.array([5])),
        (pa.array([1.5]), pa.array([5])),
        (pa.array([1.5]), pa.array([2.5], pa.float32())),
        (pa.array([1]), pa.array([5.0])),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("2.5")])),
        (pa.array([b"x"]), pa.array(["y"])),
        (pa.array(["x"]), pa.array(["y"]).dictionary_encode()),
        (pa.array([1]), pa.nulls(1)),
        (pa.array([NOON], pa.timestamp("ns", "UTC")), pa.array([NOON], pa.timestamp("ms", "Europe/Berlin"))),
        (pa.array([[1]], pa.list_(pa.int8())), pa.array([[5, None]], pa.large_list(pa.int64()))),
    ],
)
def test_values_that_stay_what_they_are_come_in_the_type_of_the_first_file(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    pq.write_table(pa.table({"a": first}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": second}), tmp_path / "1.parquet")
    found = Pipeline().table(FilesSource.parquet(str(tmp_path))).to_arrow()
    assert found["a"].to_pylist() == [first[0].as_py(), second.cast(first.type)[0].as_py()]


def test_columns_that_are_not_there_are_told_before_the_run(files: Path) -> None:
    with pytest.raises(ConnectorError, match="no column 'm'; it has 'n', 'user', 'price'"):
        Pipeline().table(FilesSource.parquet(str(files), columns=["m"]))


def test_rows_of_columns_fit_any_format(files: Path, tmp_path: Path) -> None:
    flow = Pipeline()
    flow.table(FilesSource.parquet(str(files))).filter(col("n") < 3).sink(
        FilesSink.json_lines(str(tmp_path / "out"))
    )
    flow.run()
    (part,) = (tmp_path / "out").iterdir()
    assert part.read_text().splitlines()[1] == '{"n":1,"user":"u1","price":0.125}'


def test_files_that_come_while_the_job_runs_are_read_once_in_columns(tmp_path: Path) -> None:
    arriving, out, kept, failed = (tmp_path / name for name in ("in", "out", "kept", "failed"))
    arriving.mkdir()

    def arrive(part: int) -> None:
        table = pa.table({"n": range(part * 1_000, (part + 1) * 1_000)})
        pq.write_table(table, arriving / ".hidden", row_group_size=300)
        (arriving / ".hidden").rename(arriving / f"{part}.parquet")

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 3_000 and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    async def run(parts: range) -> None:
        flow = Pipeline("watching", parallelism=2)
        files = FilesSource.parquet(str(arriving), watch="20ms", filters=[("n", ">=", 500)])
        rows = flow.table(files).map_batches(fail_once)
        rows.sink(FilesSink.parquet(str(out)))
        options: dict[str, Any] = {"checkpoints": str(kept), "checkpoint_interval": "20ms", "resume": True}
        async with await flow.start(restart="fixed-delay:3:10ms", **options) as job:
            for part in parts:
                arrive(part)
            end = parts.stop * 1_000
            async with asyncio.timeout(PATIENT_S):
                while not list(out.glob("part-*")) or _total(out)[0] < end - 500:
                    await asyncio.sleep(0.02)
            await job.stop(savepoint=kept)
            assert (await job.result()).status is JobStatus.FINISHED
            assert _total(out) == (end - 500, sum(range(500, end)), end - 500)

    arrive(0)
    asyncio.run(run(range(1, 5)))
    assert failed.exists()
    arrive(5)  # while nobody looks
    asyncio.run(run(range(6, 8)))


@pytest.mark.parametrize("backend", [pytest.param("memory", marks=pytest.mark.slow), "rocksdb"])
@pytest.mark.parametrize("unaligned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_windows_in_columns_survive_a_failure(files: Path, tmp_path: Path, backend: str, unaligned: bool) -> None:
    failed = tmp_path / "failed"

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 2 * ROWS and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    flow = Pipeline(parallelism=2)
    # Each reader takes row groups of any file, so rows may be late by all of them.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(3 * ROWS).with_timestamp_column("n")
    rows = flow.table(FilesSource.parquet(str(files)), watermark_strategy=strategy).map_batches(fail_once)
    windows = rows.key_by("user").window(TumblingEventTimeWindows(5_000))
    windows.aggregate(n=agg.count(), total=agg.sum("n")).sink(FilesSink.parquet(str(tmp_path / "out")))
    flow.run(
        workers=2,
        batch_size=4,
        state_backend=backend,
        checkpoints=str(tmp_path / "checkpoints"),
        checkpoint_interval="20ms",
        checkpoint_unaligned=unaligned,
        restart="fixed-delay:3:10ms",
    )
    assert failed.exists()
    query = "select user, n // 5000, count(*), sum(n) from '{}/*.parquet' group by all order by all"
    found = "select \"user\", epoch_ms(window_start) // 5000, n, total from '{}/*.parquet' order by all"
    assert duckdb.sql(found.format(tmp_path / "out")).fetchall() == duckdb.sql(query.format(files)).fetchall()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_views_in_parquet_are_read_as_plain_texts(tmp_path: Path, parallelism: int) -> None:
    schema = pa.schema(
        [("user", pa.string_view()), ("raw", pa.binary_view()), ("tags", pa.list_(pa.string_view()))]
    )
    rows = [{"user": f"u{n % 3}", "raw": b"r%d" % n, "tags": [f"t{n}"] * (n % 3)} for n in range(30)]
    for name in "ab":
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / f"{name}.parquet", row_group_size=10)
    flow = Pipeline()
    files = FilesSource.parquet(str(tmp_path), filters=[("user", "!=", "u2")])
    table = flow.table(files)
    assert table.schema.types == [pa.string(), pa.binary(), pa.list_(pa.string())]
    wanted = [row for row in rows * 2 if row["user"] == "u1"]
    seen = table.filter(col("user") == "u1").explode("tags").to_arrow(parallelism=parallelism).to_pylist()
    by_tag = {(row["user"], row["raw"], tag) for row in wanted for tag in row["tags"]}
    assert {(row["user"], row["raw"], row["tags"]) for row in seen if row["tags"] is not None} == by_tag
    counts = table.key_by("user").aggregate(n=agg.count(), last=agg.max("raw")).to_arrow(parallelism=parallelism)
    assert sorted((r["user"], r["n"]) for r in counts.to_pylist()) == [("u0", 20), ("u1", 20)]
    records = flow.source(files).execute_and_collect(parallelism=parallelism)
    key = lambda row: row["raw"]  # noqa: E731 (short)
    assert sorted(records, key=key) == sorted((r for r in rows * 2 if r["user"] != "u2"), key=key)


def test_texts_with_a_dictionary_in_the_file_are_read_as_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = _decoded_columns(monkeypatch)
    numbers = range(2_000)
    few = [None if n % 7 == 0 else f"u{n % 50}" for n in numbers]
    table = pa.table(
        {
            "few": few,
            "none": pa.nulls(len(few), pa.string()),
            "many": [f"a text of its own {n}" * 8 for n in numbers],
            "plain": few,
            "a.b": few,
            "a": [{"b": text} for text in few],
            "coded": pa.array(few).dictionary_encode(),
            "large": pa.array(few, pa.large_string()),
            "n": list(numbers),
        }
    )
    dictionaries: Any = ["few", "none", "many", "a.b", "a.b", "coded", "large"]
    for name in "xy":
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=700, use_dictionary=dictionaries)
    monkeypatch.setattr(_parquet, "_SMALL_DICTIONARY", 1 << 12)
    read = Pipeline().table(FilesSource.parquet(str(tmp_path))).to_arrow(parallelism=1)
    assert read.schema.types == table.schema.types
    assert read.to_pylist() == table.to_pylist() * 2
    assert decoded == {"few", "none"}
    some = FilesSource.parquet(str(tmp_path), columns=["n", "few"], filters=[("few", "==", "u3")])
    wanted = [{"n": n, "few": text} for n, text in zip(numbers, few, strict=True) if text == "u3"] * 2
    assert Pipeline().table(some).to_arrow(parallelism=1).to_pylist() == wanted
    without = FilesSource.parquet(str(tmp_path), columns=["n"])
    assert Pipeline().table(without).to_arrow(parallelism=1).to_pylist() == [{"n": n} for n in numbers] * 2


def _decoded_columns(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Columns that are read with a dictionary from now on."""
    decoded: set[str] = set()
    reader = _parquet._with_texts

    def seen(batch: Any, names: list[str]) -> Any:
        decoded.update(names)
        return reader(batch, names)

    monkeypatch.setattr(_parquet, "_with_texts", seen)
    monkeypatch.setattr(_parquet, "_ROWS_FOR_DICTIONARY", 1)
    return decoded


def test_texts_behind_a_full_dictionary_are_read_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = _decoded_columns(monkeypatch)
    table = pa.table(
        {
            "serial": [f"user-{n:09d}" for n in range(50_000)],  # the dictionary is small, and ends early
            "few": [f"user-{n % 100}" for n in range(50_000)],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", dictionary_pagesize_limit=1 << 14)
    column = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(0)
    assert 0 < column.data_page_offset - column.dictionary_page_offset < _parquet._SMALL_DICTIONARY
    assert Pipeline().table(FilesSource.parquet(str(tmp_path))).to_arrow().equals(table)
    assert decoded == {"few"}
    monkeypatch.setattr(_parquet, "_ROWS_FOR_DICTIONARY", len(table) + 1)
    decoded.clear()
    assert Pipeline().table(FilesSource.parquet(str(tmp_path))).to_arrow().equals(table)
    assert decoded == set()


def test_only_columns_that_are_read_are_looked_at_in_each_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    is_small = _parquet._is_small

    def seen(column: Any) -> bool:
        looked.append(column.path_in_schema)
        return is_small(column)

    monkeypatch.setattr(_parquet, "_is_small", seen)
    monkeypatch.setattr(_parquet, "_ROWS_FOR_DICTIONARY", 1)
    table = pa.table({f"c{n}": [f"x{n}"] * 30 for n in range(20)} | {"n": range(30)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    read = Pipeline().table(FilesSource.parquet(str(tmp_path))).filter(col("c3") == "x3").select("c7", "n")
    assert read.to_arrow(parallelism=1).equals(table.select(["c7", "n"]))
    assert sorted(looked) == ["c3"] * 3 + ["c7"] * 3


def test_more_text_than_an_array_can_have_comes_in_several_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = _decoded_columns(monkeypatch)
    monkeypatch.setattr(_parquet, "_MOST_BYTES", 4_000)
    long = [None if n % 5 == 0 else "abcd"[n % 4] * (n % 4 * 1_000) for n in range(100)]
    table = pa.table({"long": long, "short": ["x", None] * 50, "n": range(100)})
    pq.write_table(table, tmp_path / "x.parquet")
    flow = Pipeline()
    sizes = flow.table(FilesSource.parquet(str(tmp_path))).map_batches(_with_bytes)
    read = sizes.to_arrow()
    assert read.drop_columns("bytes").to_pylist() == table.to_pylist()
    assert 0 < max(read["bytes"].to_pylist()) <= 4_000
    assert decoded == {"long", "short"}


def _with_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    size = sum(len(text or "") for text in batch["long"].to_pylist())
    return batch.append_column("bytes", pa.array([size] * batch.num_rows, pa.int64()))
