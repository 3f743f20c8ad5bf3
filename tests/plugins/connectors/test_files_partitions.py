"""Parquet in Hive's partitions: read back by others, exactly once, with few files open."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.drivers import SinkDriver
from sluiceway_files import FilesSink, FilesSource

pytest.importorskip("duckdb", reason="DuckDB is not installed")
pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

ODD = ["plain", "a b", "x/y", "a=b", "ü", "%25", ".", "..", None, "a:b", "a+b&c'\"\\*?<>|#\x01\n", "A", "a"]
ODD += ["_HIVE_DEFAULT_PARTITION__", "null", "0012"]

TABLE = pa.table(
    {
        "text": pa.array([ODD[n % len(ODD)] for n in range(4_000)]),
        "n": pa.array(range(4_000), pa.int32()),
        "day": pa.array([date(2026, 1, 1 + n % 3) if n % 7 else None for n in range(4_000)]),
        "even": [n % 2 == 0 for n in range(4_000)],
    }
)


def hive(*fields: tuple[str, Any]) -> Any:
    return ds.partitioning(pa.schema(fields), flavor="hive", dictionaries=None)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def wanted(table: Any = TABLE) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in table.to_pylist())


@pytest.mark.parametrize("form", ["columns", "records"])
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"checkpoint_interval": "20ms", "parallelism": 2}])
def test_pyarrow_and_duckdb_read_every_value_back(tmp_path: Path, options: dict[str, Any], form: str) -> None:
    flow = sw.Pipeline()
    rows: Any = flow.table(TABLE).rebalance()
    if form == "records":
        rows = rows.to_records()
    rows.sink(FilesSink.parquet(tmp_path / "out", partition_by=["day", "text"]))
    flow.run(**options)
    out = str(tmp_path / "out")
    read = ds.dataset(out, partitioning=hive(("day", pa.date32()), ("text", pa.string()))).to_table()
    assert wanted(read) == wanted()
    found = duckdb.sql(
        "select n, day, text, even from read_parquet"
        f"('{out}/**/*.parquet', hive_partitioning=true, hive_types={{day: date, text: varchar}})"
    ).fetchall()
    assert Counter(map(tuple, found)) == Counter(
        (row["n"], row["day"], row["text"], row["even"]) for row in TABLE.to_pylist()
    )
    names = {path.parent.name for path in files(tmp_path / "out")}
    assert {"text=x%2Fy", "text=a%3Db", "text=%2525", "text=__HIVE_DEFAULT_PARTITION__"} < names
    assert pq.read_schema(files(tmp_path / "out")[0]).names == ["n", "even"]


def test_directories_are_named_as_pyarrow_names_them(tmp_path: Path) -> None:
    for at, names in enumerate((["text"], ["n"], ["even", "day"])):
        some = TABLE.slice(0, 100)
        flow = sw.Pipeline()
        flow.table(some).sink(FilesSink.parquet(tmp_path / f"a{at}", partition_by=names))
        flow.run()
        pq.write_to_dataset(some, tmp_path / f"b{at}", partition_cols=names)
        ours, theirs = (
            {str(path.parent.relative_to(tmp_path / f"{of}{at}")) for path in files(tmp_path / f"{of}{at}")}
            for of in "ab"
        )
        assert ours == theirs


def test_few_files_are_open_and_few_rows_in_memory(tmp_path: Path) -> None:
    sink = FilesSink.parquet(tmp_path / "out", partition_by="n", max_open_files=5, row_group_size=10)
    with SinkDriver(sink, checkpoints=True) as driver:
        writer: Any = driver.writer()
        for start in range(0, 200, 4):
            numbers = [n % 12 for n in range(start, start + 4) for _ in range(9)]
            writer.write(Columns(pa.record_batch({"n": numbers, "m": numbers})), None)
            opened = [path for path in files(tmp_path / "out") if path.name.endswith("in-progress")]
            assert len(opened) <= 5
            assert sum(file.encoder.held for file in writer._open.values()) <= 100
        driver.finish()
    read = ds.dataset(tmp_path / "out", partitioning=hive(("n", pa.int64()))).to_table()
    assert Counter(zip(read["n"].to_pylist(), read["m"].to_pylist(), strict=True)) == Counter(
        (n % 12, n % 12) for n in range(200) for _ in range(9)
    )


@pytest.mark.parametrize("checkpoints", [True, False])
def test_directories_that_readers_take_away_are_made_again(tmp_path: Path, checkpoints: bool) -> None:
    taken = tmp_path / "taken"
    sink = FilesSink.parquet(tmp_path / "out", partition_by="n", roll_size=1, row_group_size=1)
    with SinkDriver(sink, checkpoints=checkpoints) as driver:
        driver.write([{"n": 1, "m": 1}])
        if checkpoints:
            driver.checkpoint()
            driver.complete()
        (tmp_path / "out/n=1").rename(taken)
        driver.write([{"n": 1, "m": 2}, {"n": 2, "m": 3}])
        driver.finish()
    assert [path.parent.name for path in files(tmp_path / "out")] == ["n=1", "n=2"]
    assert len(files(taken)) == 1


def test_what_no_checkpoint_knows_of_is_removed_from_partitions(tmp_path: Path) -> None:
    sink = FilesSink.parquet(tmp_path / "out", partition_by="n", max_open_files=2)

    def rows(*numbers: int) -> Any:
        return Columns(pa.record_batch({"n": list(numbers), "m": list(numbers)}))

    with SinkDriver(sink, checkpoints=True) as driver:
        driver.writer().write(rows(1, 2, 3), None)
        kept = driver.checkpoint()  # never complete, as far as this attempt knows
        driver.writer().write(rows(4, 5, 6), None)
        (tmp_path / "left").mkdir()
        for path in files(tmp_path / "out"):  # as of a process that was killed
            (tmp_path / "left" / path.name).write_bytes(path.read_bytes())
        there = {path.name: path for path in files(tmp_path / "out")}
    for name, path in there.items():
        path.write_bytes((tmp_path / "left" / name).read_bytes())
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        assert len(files(tmp_path / "out")) == 3
        driver.writer().write(rows(7), None)
        driver.finish()
    read = ds.dataset(tmp_path / "out", partitioning=hive(("n", pa.int64()))).to_table()
    assert sorted(read["n"].to_pylist()) == [1, 2, 3, 7]
    with pytest.raises(ConnectorError, match=r"already holds n=1/part-0-0-\w+\.parquet from an earlier run"):
        SinkDriver(sink, checkpoints=True)
    with SinkDriver(FilesSink.parquet(tmp_path / "out", partition_by="n", append=True)) as driver:
        driver.writer().write(rows(1), None)
        driver.finish()
    assert len(files(tmp_path / "out" / "n=1")) == 2


def test_a_killed_worker_loses_and_doubles_no_row(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    source = tmp_path / "in.parquet"
    numbers = range(60_000)
    pq.write_table(pa.table({"n": numbers, "day": [n // 997 % 9 for n in numbers]}), source, row_group_size=3_000)

    def kill_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows["n"][-1].as_py() > 30_000 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    flow = sw.Pipeline("killed", parallelism=2)
    rows = flow.table(FilesSource.parquet(str(source))).map_batches(kill_once).rebalance()
    rows.sink(FilesSink.parquet(tmp_path / "out", partition_by="day", max_open_files=4))
    flow.run(
        workers=2,
        batch_size=8,
        checkpoint_interval="20ms",
        checkpoints=tmp_path / "kept",
        restart="fixed-delay:5:10ms",
    )
    assert killed.exists()
    assert all(path.suffix == ".parquet" and path.name.startswith("part-") for path in files(tmp_path / "out"))
    read = ds.dataset(tmp_path / "out", partitioning=hive(("day", pa.int64()))).to_table()
    found = Counter(zip(read["n"].to_pylist(), read["day"].to_pylist(), strict=True))
    assert found == Counter((n, n // 997 % 9) for n in numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_by": ["a", "a"]}, "several different ones"),
        ({"partition_by": [1]}, "must be the name of a column"),
        ({"partition_by": "a", "max_open_files": 0}, "max_open_files=0 must be"),
        ({"partition_by": "b", "schema": pa.schema([("a", pa.int64())])}, "schema= has no such column"),
        ({"partition_by": "a", "schema": pa.schema([("a", pa.int64())])}, "leaves no column of schema="),
        (
            {"partition_by": "a", "schema": pa.schema([("a", pa.float64()), ("b", pa.int64())])},
            "the column has double",
        ),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FilesSink.parquet(tmp_path, **arguments)


def _unfit() -> Iterator[tuple[Any, str]]:
    yield Columns(pa.record_batch({"n": [1]})), "leaves no column to write"
    yield Columns(pa.record_batch({"m": [1]})), "there is no column 'n'; the columns are m"
    yield Columns(pa.record_batch({"n": [1.5], "m": [1]})), "has double; partitions are named after text"
    yield [{"m": 1}], "has no 'n', which partition_by= names"
    yield [7], r"7 \(int\) has no 'n'"
    yield [{"n": "__HIVE_DEFAULT_PARTITION__", "m": 1}], "'n' is .*, the name that stands for null"
    yield [{"n": 1}], "leaves nothing of"
    yield [{"n": "\ud800", "m": 1}], r"partition_by='n' is '\\ud800', which is no text: surrogates not allowed"
    yield [{"n": datetime(2026, 1, 1), "m": 1}], r"\(datetime\); partitions are named after text"


@pytest.mark.parametrize(("values", "message"), list(_unfit()))
def test_rows_without_a_partition_are_an_error(tmp_path: Path, values: Any, message: str) -> None:
    with (
        SinkDriver(FilesSink.parquet(tmp_path / "out", partition_by="n")) as driver,
        pytest.raises(ConnectorError, match=message),
    ):
        driver.writer().write(values, None)
