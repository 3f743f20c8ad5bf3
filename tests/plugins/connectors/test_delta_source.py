"""The source of Delta Lake: a version, what follows it, and what is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("deltalake", reason='not installed: pip install "sluiceway[delta]"')

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import StructType

import sluiceway as sw
from sluiceway.connector import Source
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.table import col, lit
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver
from sluiceway_lakehouse import DeltaSink, DeltaSource

pytestmark = pytest.mark.usefixtures("delta_runtime")

DAY = date(2026, 1, 1)


def append(table: Path, **columns: Any) -> None:
    write_deltalake(table, pa.table(columns), mode="append")


class _Conformance(SourceConformance):
    ordered = False
    filters: Any = None

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.table = tmp_path / "t"
        for first in range(0, 40, 8):
            rows = pa.table({"n": range(first, first + 8), "p": ["a", "b"] * 4})
            write_deltalake(self.table, rows, mode="append", partition_by=["p"])

    def make_source(self) -> Source[Any]:
        return DeltaSource(self.table, filters=self.filters)

    def expected(self) -> list[Any]:
        return [{"n": n, "p": "ab"[n % 2]} for n in range(40)]

    def identity(self, record: Any) -> Any:
        return repr(sorted(record.items()))


class TestRecords(_Conformance):
    pass


class TestFiltered(_Conformance):
    filters: ClassVar[Any] = [[("n", ">", 5), ("n", "not in", [8, 9])], [("p", "=", "a")]]

    def expected(self) -> list[Any]:
        kept = [n for n in range(40) if (n > 5 and n not in (8, 9)) or n % 2 == 0]
        return [{"n": n, "p": "ab"[n % 2]} for n in kept]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions with rows; a column was added in the last one."""
    where = tmp_path / "t"
    columns = {"n": [1, 2], "day": [DAY, None], "of": [{"a": 1}, None], "flag": [True, False]}
    write_deltalake(where, pa.table(columns), partition_by=["day", "flag"])
    append(where, n=[3], day=[DAY], of=[{"a": 3}], flag=[True])
    more = pa.table({"n": [4], "day": [date(2026, 1, 2)], "flag": [True], "more": ["x"]})
    write_deltalake(where, more, mode="append", schema_mode="merge")
    return where


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_in_columns_are_those_of_the_table(batch: int, parallelism: int, table: Path) -> None:
    flow = sw.Pipeline("read")
    read = flow.table(DeltaSource(table)).to_arrow(parallelism=parallelism, batch_size=batch)
    expected = DeltaTable(table).to_pyarrow_table()
    assert read.schema.names == expected.schema.names
    assert read.sort_by("n").to_pylist() == expected.sort_by("n").to_pylist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": ["n"]}, [(1,), (2,), (3,), (4,)]),
        ({"columns": ["day", "n"]}, [(None, 2), (DAY, 1), (DAY, 3), (date(2026, 1, 2), 4)]),
        ({"columns": ["day"]}, [(None,), (DAY,), (DAY,), (date(2026, 1, 2),)]),
        ({"columns": ["more"]}, [(None,), (None,), (None,), ("x",)]),
        ({"columns": ["n"], "version": 1}, [(1,), (2,), (3,)]),
        ({"columns": ["n"], "filters": [("day", "=", DAY)]}, [(1,), (3,)]),
        ({"columns": ["n"], "filters": [("day", "=", DAY), ("n", ">", 1)]}, [(3,)]),
        ({"columns": ["n"], "filters": [[("flag", "=", False)], [("n", "=", 4)]]}, [(2,), (4,)]),
        ({"columns": ["day"], "filters": [("more", "=", "x")]}, [(date(2026, 1, 2),)]),
        ({"columns": ["n"], "filters": [("n", ">", 9)]}, []),
    ],
)
def test_columns_filters_and_versions(options: Any, expected: Any, table: Path) -> None:
    read = sw.Pipeline("read").table(DeltaSource(table, **options)).to_arrow()
    assert sorted((tuple(row.values()) for row in read.to_pylist()), key=str) == sorted(expected, key=str)


def test_steps_behind_the_source_are_pushed_into_it(table: Path) -> None:
    ones = sw.Pipeline("count").table(DeltaSource(table)).with_columns(one=lit(1)).select("one")
    assert ones.to_arrow().num_rows == 4
    for path in table.glob("day=2026-01-02/**/*.parquet"):
        content = path.read_bytes()
        path.write_bytes(content[:4] + b"x" * 8 + content[12:])  # its values, not its statistics
    flow = sw.Pipeline("read")
    rows = flow.table(DeltaSource(table)).filter((col("day") == lit(DAY)) & (col("n") < 4)).select("n", "flag")
    assert sorted(row["n"] for row in rows.to_arrow().to_pylist()) == [1, 3]


def test_files_of_other_partitions_are_not_opened(table: Path) -> None:
    for path in table.glob("day=2026-01-02/**/*.parquet"):
        path.write_bytes(b"")
    filters = [("day", "=", DAY)]
    assert sw.Pipeline("read").table(DeltaSource(table, filters=filters)).to_arrow().num_rows == 2
    with pytest.raises(ConnectorError, match=r"cannot read Delta table .*, file .*day=2026-01-02"):
        sw.Pipeline("read").table(DeltaSource(table)).to_arrow()


def test_records_are_those_of_a_stream_in_columns(tmp_path: Path) -> None:
    append(tmp_path, m=pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())))
    records = sw.Pipeline("records")
    found = records.source(DeltaSource(tmp_path)).collect()
    records.run()
    assert list(found) == [{"m": {"a": 1}}, {"m": None}]
    columns = sw.Pipeline("columns")
    converted = columns.table(DeltaSource(tmp_path)).to_records().collect()
    columns.run()
    assert list(converted) == list(found)


def test_a_struct_with_a_field_that_is_not_null_is_null_in_earlier_files(tmp_path: Path) -> None:
    append(tmp_path, k=[1, 2])
    struct = StructType([Field("a", "long", nullable=False)])
    DeltaTable(tmp_path).alter.add_columns([Field("of", struct, nullable=True)])
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    append(tmp_path, k=[3, 4], of=pa.array([{"a": 1}, None], kind))
    found = sw.Pipeline().table(DeltaSource(tmp_path)).to_arrow().sort_by("k")
    assert found.column("of").to_pylist() == [None, None, {"a": 1}, None]


def test_a_time_that_python_has_none_for_fails_records_with_the_column(tmp_path: Path) -> None:
    append(tmp_path, at=pa.array([10**18], pa.timestamp("us", "UTC")))
    flow = sw.Pipeline("read")
    flow.source(DeltaSource(tmp_path)).collect()
    with pytest.raises(ConnectorError, match=r"file .*parquet: column 'at' has timestamp.*years are 1 to 9999"):
        flow.run()


def test_times_of_int96_are_read_whatever_their_year(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "t", rows)
    (path,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)  # as Spark writes it
    assert sw.Pipeline().table(DeltaSource(tmp_path / "t")).to_arrow().to_pylist() == rows.to_pylist()


def test_records_are_of_a_class(tmp_path: Path) -> None:
    @dataclass
    class Sale:
        n: int
        at: datetime

    append(tmp_path, n=[1], at=pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")))
    flow = sw.Pipeline("read")
    read = flow.source("delta", table=str(tmp_path), type=Sale).collect()
    flow.run()
    assert read == [Sale(1, datetime(2026, 1, 1, tzinfo=UTC))]
    append(tmp_path, n=pa.array([None], pa.int64()), at=pa.array([None], pa.timestamp("us", "UTC")))
    with pytest.raises(ConnectorError, match=r"a row is no Sale: Expected `int`, got `null`"):
        flow.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["m"]}, "has no column 'm' for columns=; it has '"),
        ({"filters": [("m", "=", 1)]}, "has no column 'm' for filters="),
        ({"filters": [("n", "=", "x")]}, "has 'x' for column 'n', which is no value of its type int64"),
        ({"version": 99}, "cannot open Delta table"),
    ],
)
def test_what_a_table_does_not_have(options: Any, message: str, table: Path) -> None:
    with pytest.raises(ConnectorError) as raised:
        sw.Pipeline("read").table(DeltaSource(table, **options))
    assert message in str(raised.value)
    flow = sw.Pipeline("read")
    flow.source(DeltaSource(table, **options)).collect()
    with pytest.raises(ConnectorError):
        flow.run()


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="does not exist"):
        sw.Pipeline("read").table(DeltaSource(tmp_path / "none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": -1}, "version=-1 must be a whole number, at least 0"),
        ({"watch": "soon"}, "watch='soon'"),
        ({"watch": 0}, "watch=0 must be at least 1 ms"),
        ({"columns": "n"}, "columns='n' must be a list of names"),
        ({"columns": []}, "columns=[] leaves no column"),
        ({"filters": [("n", "~", 1)]}, "has operator '~'"),
    ],
)
def test_arguments_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        DeltaSource("t", **options)
    assert message in str(raised.value)


# ---- versions that come -----------------------------------------------------------------------------------------


def test_a_change_that_moves_no_row_is_passed_over(tmp_path: Path) -> None:
    append(tmp_path, n=[1])
    append(tmp_path, n=[2])
    with SourceDriver(DeltaSource(tmp_path, watch=10)) as driver:
        assert sorted(row["n"] for row in driver.run(most=2)) == [1, 2]
        DeltaTable(tmp_path).optimize.compact()
        write_deltalake(tmp_path, pa.table({"n": [3], "more": [1]}), mode="append", schema_mode="merge")
        assert sorted(row["n"] for row in driver.run(most=3)) == [1, 2, 3]


@pytest.mark.parametrize("change", ["delete", "update", "overwrite", "replace"])
def test_a_change_of_rows_is_refused(change: str, tmp_path: Path) -> None:
    append(tmp_path, n=[1, 2])

    async def go() -> None:
        flow = sw.Pipeline("changes")
        seen = flow.source(DeltaSource(tmp_path, watch="20ms")).collect()
        async with await flow.start() as job:
            while len(seen) < 2:
                await asyncio.sleep(0.005)
            table = DeltaTable(tmp_path)
            if change == "delete":
                table.delete("n = 1")
            elif change == "update":
                table.update(updates={"n": "7"}, predicate="n = 1")
            elif change == "overwrite":
                write_deltalake(tmp_path, pa.table({"n": [3]}), mode="overwrite")
            else:
                DeltaTable.create(tmp_path, pa.schema([("n", pa.int64())]), mode="overwrite")
            await job.result()

    with pytest.raises(ConnectorError) as raised:
        asyncio.run(go())
    told = "was replaced by another table" if change == "replace" else "rows were deleted or updated"
    assert told in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_version_that_is_not_in_the_log_any_more(tmp_path: Path) -> None:
    for n in range(3):
        append(tmp_path, n=[n])
    with SourceDriver(DeltaSource(tmp_path, watch=10)) as driver:
        driver.run(most=3)
        kept = driver.snapshot()
    append(tmp_path, n=[3])
    append(tmp_path, n=[4])
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{3:020d}.json").unlink()
    with pytest.raises(ConnectorError, match="version 3 is not in the log any more"):
        SourceDriver(DeltaSource(tmp_path, watch=10), restored=kept).__enter__()


@pytest.mark.parametrize(
    "line",
    [
        b'{"add": {"path',
        b"\xff",
        b"[" * 100_000,
        b"[1]",
        b'{"add": 1}',
        b'{"add": {"path": "a"}}',
        b'{"add": {"path": 1, "partitionValues": {}}}',
    ],
    ids=["cut", "no text", "deep", "list", "number", "field missing", "field of another type"],
)
def test_a_damaged_line_of_the_log_is_named(tmp_path: Path, line: bytes) -> None:
    append(tmp_path, n=[0])
    with SourceDriver(DeltaSource(tmp_path, watch=10)) as driver:
        driver.run(most=1)
        kept = driver.snapshot()
    append(tmp_path, n=[1])
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_bytes(b'{"commitInfo": {}}\n' + line)
    with pytest.raises(ConnectorError, match=r"line 2 of _delta_log/0*1\.json cannot be read") as raised:
        SourceDriver(DeltaSource(tmp_path, watch=10), restored=kept).__enter__()
    assert str(tmp_path) in str(raised.value)


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    """The vector is the one that the protocol of Delta Lake shows."""
    append(tmp_path, n=range(40))
    DeltaTable(tmp_path).alter.set_table_properties(
        {"delta.enableDeletionVectors": "true"}, raise_if_not_exists=False
    )
    source = DeltaSource(tmp_path)
    assert sw.Pipeline("read").table(source).to_arrow().num_rows == 40
    with SourceDriver(DeltaSource(tmp_path, watch=10)) as driver:
        driver.run(most=40)
        kept = driver.snapshot()
    log = tmp_path / "_delta_log"
    actions = map(json.loads, (log / f"{0:020d}.json").read_text().splitlines())
    (add,) = [action["add"] for action in actions if "add" in action]
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    removed = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    lines = [{"remove": removed}, {"add": {**add, "deletionVector": vector}}]
    (log / f"{DeltaTable(tmp_path).version() + 1:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    flow = sw.Pipeline("read")
    flow.table(source).collect()
    with pytest.raises(ConnectorError, match=r"(?i)deletion vector"):
        flow.run()
    with pytest.raises(ConnectorError, match="rows were deleted or updated"):
        SourceDriver(DeltaSource(tmp_path, watch=10), restored=kept).__enter__()


def test_a_file_that_is_vacuumed_before_it_is_read(tmp_path: Path) -> None:
    append(tmp_path, n=[1])
    with SourceDriver(DeltaSource(tmp_path)) as driver:
        next(tmp_path.glob("*.parquet")).unlink()
        with pytest.raises(ConnectorError, match="is not there any more: it was removed by VACUUM"):
            driver.run()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_appended_is_read_once_over_failures_and_savepoints(workers: int, tmp_path: Path) -> None:
    """From table to table; the second is read back by delta-rs."""
    source, target = tmp_path / "source", tmp_path / "target"
    written: list[int] = []

    def more() -> None:
        rows = list(range(len(written), len(written) + 50))
        written.extend(rows)
        write_deltalake(
            source, pa.table({"n": rows, "p": [n % 2 for n in rows]}), mode="append", partition_by=["p"]
        )

    def read() -> list[int]:
        if not DeltaTable.is_deltatable(str(target)):
            return []
        return sorted(DeltaTable(target).to_pyarrow_table().column("n").to_pylist())

    async def go(parallelism: int, before: str | None, until: int, *, all_of_them: bool = False) -> str:
        flow = sw.Pipeline("from table to table")
        rows = flow.table(DeltaSource(source, watch="20ms")).uid("source").with_columns(m=col("n") * 2)
        rows.sink(DeltaSink(target)).uid("sink")
        async with await flow.start(
            parallelism=parallelism,
            workers=workers,
            checkpoint_interval="50ms",
            batch_size=7,
            from_checkpoint=before,
        ) as job:
            while len(read()) < until:
                more()
                await asyncio.sleep(0.02)
            # Else the savepoint may have a file of an appended version, and another file of it was read.
            while all_of_them and len(read()) < len(written):
                await asyncio.sleep(0.02)  # polls
            return await job.stop(savepoint=tmp_path / "kept")

    more()
    location = asyncio.run(go(2, None, 200))
    more()
    location = asyncio.run(go(3, location, len(read()) + 200))
    asyncio.run(go(1, location, len(read()) + 100, all_of_them=True))
    assert read() == written
