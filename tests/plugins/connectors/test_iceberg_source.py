"""The source of Iceberg: a snapshot, what follows it, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyiceberg", reason='not installed: pip install "sluiceway[iceberg]"')
pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from tests.plugins.connectors.icebergtables import TABLE, Tables

import sluiceway as sw
from sluiceway.connector import Source
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.table import col, lit
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver
from sluiceway_lakehouse import IcebergSource

pytestmark = pytest.mark.usefixtures("iceberg_runtime")

DAY = date(2026, 1, 1)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def write(tables: Tables, rows: pa.Table, table: str = TABLE, **options: Any) -> None:
    flow = sw.Pipeline("write")
    flow.table(rows).sink(tables.sink(table, **options))
    flow.run()


def read(tables: Tables, **options: Any) -> pa.Table:
    return sw.Pipeline("read").table(tables.source(**options)).to_arrow()


class _Conformance(SourceConformance):
    ordered = False
    filters: Any = None

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.tables = Tables(tmp_path)
        for first in range(0, 40, 20):
            write(self.tables, pa.table({"n": range(first, first + 20), "p": ["a", "b"] * 10}), partition_by="p")

    def make_source(self) -> Source[Any]:
        return self.tables.source(filters=self.filters)

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
def sales(tables: Tables) -> Tables:
    """Three snapshots with rows; a column was added in the last one."""
    by = ["day", "flag"]
    columns = {"n": [1, 2], "day": [DAY, None], "of": [{"a": 1}, None], "flag": [True, False]}
    write(tables, pa.table(columns), partition_by=by)
    write(tables, pa.table({"n": [3], "day": [DAY], "of": [{"a": 3}], "flag": [True]}))
    more = pa.table({"n": [4], "day": [date(2026, 1, 2)], "flag": [True], "more": ["x"]})
    write(tables, more, merge_schema=True)
    return tables


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_in_columns_are_those_of_the_table(batch: int, parallelism: int, sales: Tables) -> None:
    flow = sw.Pipeline("read")
    found = flow.table(sales.source()).to_arrow(parallelism=parallelism, batch_size=batch)
    expected = sales.read()
    assert found.schema.names == expected.schema.names
    assert found.sort_by("n").to_pylist() == expected.sort_by("n").to_pylist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": ["n"]}, [(1,), (2,), (3,), (4,)]),
        ({"columns": ["day", "n"]}, [(None, 2), (DAY, 1), (DAY, 3), (date(2026, 1, 2), 4)]),
        ({"columns": ["day"]}, [(None,), (DAY,), (DAY,), (date(2026, 1, 2),)]),
        ({"columns": ["more"]}, [(None,), (None,), (None,), ("x",)]),
        ({"columns": ["n"], "filters": [("day", "=", DAY)]}, [(1,), (3,)]),
        ({"columns": ["n"], "filters": [("day", "=", DAY), ("n", ">", 1)]}, [(3,)]),
        ({"columns": ["n"], "filters": [[("flag", "=", False)], [("n", "=", 4)]]}, [(2,), (4,)]),
        ({"columns": ["day"], "filters": [("more", "=", "x")]}, [(date(2026, 1, 2),)]),
        ({"columns": ["n"], "filters": [("n", "in", [1, 4])]}, [(1,), (4,)]),
        ({"columns": ["n"], "filters": [("n", ">", 9)]}, []),
    ],
)
def test_columns_and_filters(options: Any, expected: Any, sales: Tables) -> None:
    found = [tuple(row.values()) for row in read(sales, **options).to_pylist()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_an_earlier_snapshot_has_its_own_columns(sales: Tables) -> None:
    with sales.opened() as table:
        first, second, _ = [one.snapshot_id for one in table.snapshots()]
    assert sorted(read(sales, snapshot_id=first)["n"].to_pylist()) == [1, 2]
    found = read(sales, snapshot_id=second)
    assert sorted(found["n"].to_pylist()) == [1, 2, 3]
    assert "more" not in found.schema.names
    with pytest.raises(ConnectorError, match="has no snapshot 7 for snapshot_id=; has it expired"):
        read(sales, snapshot_id=7)


def break_files(tables: Tables, containing: str) -> None:
    for path in tables.place.rglob("*.parquet"):
        if containing in str(path):
            path.write_bytes(b"")


def test_files_that_are_not_needed_are_not_opened(sales: Tables) -> None:
    ones = sw.Pipeline("count").table(sales.source()).with_columns(one=lit(1)).select("one")
    assert ones.to_arrow().num_rows == 4
    break_files(sales, "day=2026-01-02")
    assert read(sales, filters=[("day", "=", DAY)]).num_rows == 2  # by the partition
    assert read(sales, filters=[("n", "<", 4)]).num_rows == 3  # by statistics
    rows = sw.Pipeline("read").table(sales.source()).filter((col("day") == lit(DAY)) & (col("n") < 9))
    assert sorted(rows.select("n").to_arrow()["n"].to_pylist()) == [1, 3]
    with pytest.raises(ConnectorError, match=r"cannot read Iceberg table .*, file .*day=2026-01-02"):
        read(sales)


def test_columns_that_were_renamed_dropped_and_changed(tables: Tables) -> None:
    of = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.struct([("x", pa.int32())])))])
    value = {"a": 1, "b": "x", "c": [{"x": 1}, None]}
    first = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int32()),
            "text": ["a", None, "c"],
            "of": pa.array([value, None, {"a": None, "b": None, "c": None}], of),
        }
    )
    write(tables, first)
    with tables.opened() as table, table.update_schema() as update:
        update.rename_column("n", "number")
        update.delete_column("text")
    with tables.opened() as table, table.update_schema() as update:
        from pyiceberg.types import LongType, StringType

        update.add_column("text", LongType())  # another one of this name
        update.add_column("n", StringType())
        update.update_column("number", LongType())
        update.rename_column("of.b", "renamed")
        update.delete_column("of.a")
        update.add_column(("of", "a"), StringType())
        update.add_column(("of", "c", "y"), LongType())
        update.update_column(("of", "c", "x"), LongType())
    expected = [
        {
            "number": 1,
            "of": {"renamed": "x", "c": [{"x": 1, "y": None}, None], "a": None},
            "text": None,
            "n": None,
        },
        {"number": 2, "of": None, "text": None, "n": None},
        {"number": 3, "of": {"renamed": None, "c": None, "a": None}, "text": None, "n": None},
    ]
    found = read(tables)
    assert found.to_pylist() == expected
    assert found.schema.field("number").type == pa.int64()
    for filters in ([("number", ">", 1)], [("number", "in", [2, 3])]):
        assert read(tables, filters=filters)["number"].to_pylist() == [2, 3]
    assert read(tables, filters=[("text", ">", 0)]).num_rows == 0
    rows = sw.Pipeline("read").table(tables.source()).filter(col("number") > 2).select("number", "n")
    assert rows.to_arrow().to_pylist() == [{"number": 3, "n": None}]
    new = pa.table({"number": [4], "text": [7], "n": ["new"]})
    write(tables, new)
    assert read(tables, filters=[("n", "=", "new")]).to_pylist() == [
        {"number": 4, "of": None, "text": 7, "n": "new"}
    ]
    flow = sw.Pipeline("read")
    records = flow.source(tables.source()).collect()
    flow.run(parallelism=2)
    assert sorted(records, key=lambda row: row["number"])[:3] == expected


def test_files_without_ids_of_fields(tables: Tables) -> None:
    """As add_files() takes them from elsewhere: their columns are found by the mapping of names."""
    write(tables, pa.table({"n": [1], "text": ["a"]}))
    path = tables.place / "other.parquet"
    pq.write_table(pa.table({"n": [2], "text": ["b"]}), path)
    with tables.opened() as table:
        table.add_files([f"file://{path}"])
        with table.update_schema() as update:
            update.rename_column("text", "word")
    assert sorted(map(str, read(tables).to_pylist())) == ["{'n': 1, 'word': 'a'}", "{'n': 2, 'word': 'b'}"]
    with tables.opened() as table, table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(ConnectorError, match=r"has no ids of fields, and the table no schema\.name-mapping"):
        read(tables)


def test_records_are_those_of_a_stream_in_columns(tables: Tables) -> None:
    tables.append(m=pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())))
    flow = sw.Pipeline("read")
    found = flow.source("iceberg", table=TABLE, **tables.options).collect()
    flow.run()
    assert list(found) == [{"m": {"a": 1}}, {"m": None}]
    flow = sw.Pipeline("read")
    from_columns = flow.table(tables.source()).to_records().collect()
    flow.run()
    assert list(from_columns) == list(found)


def test_records_are_of_a_class(tables: Tables) -> None:
    @dataclass
    class Sale:
        n: int
        at: datetime

    tables.append(n=[1], at=pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")))
    flow = sw.Pipeline("read")
    found = flow.source("iceberg", table=TABLE, type=Sale, **tables.options).collect()
    flow.run()
    assert found == [Sale(1, datetime(2026, 1, 1, tzinfo=UTC))]
    tables.append(n=pa.array([None], pa.int64()), at=pa.array([None], pa.timestamp("us", "UTC")))
    with pytest.raises(ConnectorError, match=r"a row is no Sale: Expected `int`, got `null`"):
        flow.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["m"]}, "has no column 'm' for columns=; it has 'n'"),
        ({"filters": [("m", "=", 1)]}, "has no column 'm' for filters="),
        ({"filters": [("n", "=", "x")]}, "has 'x' for column 'n', which is no value of its type int64"),
    ],
)
def test_what_a_table_does_not_have(options: Any, message: str, sales: Tables) -> None:
    with pytest.raises(ConnectorError) as raised:
        read(sales, **options)
    assert message in str(raised.value)
    flow = sw.Pipeline("read")
    flow.source(sales.source(**options)).collect()
    with pytest.raises(ConnectorError):
        flow.run()


def test_a_table_that_is_not_there(tables: Tables) -> None:
    with pytest.raises(ConnectorError, match=r"Iceberg table tests.shop.sales does not exist"):
        read(tables)


def test_a_table_without_rows(tables: Tables) -> None:
    tables.create(pa.schema([("n", pa.int64())]))
    assert read(tables).num_rows == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot_id": "x"}, "snapshot_id='x' must be the id of a snapshot, or None"),
        ({"watch": "soon"}, "watch='soon'"),
        ({"columns": "n"}, "columns='n' must be a list of names"),
        ({"columns": []}, "columns=[] leaves no column"),
        ({"filters": [("n", "~", 1)]}, "has operator '~'"),
        ({"table": "t"}, "an Iceberg table is named by its namespace and name"),
        ({"catalog": 7}, "catalog=int must be the name of a catalog"),
    ],
)
def test_arguments_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        IcebergSource(**{"table": TABLE, **options})
    assert message in str(raised.value)


# ---- snapshots that come ----------------------------------------------------------------------------------------


def test_snapshots_are_read_in_their_order(tables: Tables) -> None:
    tables.create(pa.schema([("n", pa.int64())]))
    with SourceDriver(tables.source(watch=10)) as driver:
        for n in range(5):
            tables.append(n=[n, n])
        assert [row["n"] for row in driver.run(most=10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        with tables.opened() as table, table.update_schema() as update:
            from pyiceberg.types import LongType

            update.add_column("more", LongType())
        tables.append(n=[5], more=[1])
        assert [row["n"] for row in driver.run(most=11)][10:] == [5]


def test_what_follows_is_filtered_by_partition(tables: Tables) -> None:
    write(tables, pa.table({"n": [1, 2], "p": ["a", "b"]}), partition_by="p")
    with SourceDriver(tables.source(watch=10, filters=[("p", "=", "a")])) as driver:
        assert [row["n"] for row in driver.run(most=1)] == [1]
        write(tables, pa.table({"n": [3, 4], "p": ["b", "a"]}))
        break_files(tables, "p=b")
        assert [row["n"] for row in driver.run(most=2)] == [1, 4]


def test_a_snapshot_that_moves_no_row_is_passed_over(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg 0.12 writes no such snapshot: it is one that overwrites, with the other name."""
    from pyiceberg.table.snapshots import Operation

    tables.append(n=[1])
    tables.append(n=[2])
    with SourceDriver(tables.source(watch=10)) as driver:
        assert sorted(row["n"] for row in driver.run(most=2)) == [1, 2]
        with monkeypatch.context() as patched:
            from pyiceberg.table.update.snapshot import _SnapshotProducer

            summary = _SnapshotProducer._summary
            patched.setattr(
                _SnapshotProducer,
                "_summary",
                lambda self, *a: summary(self, *a).model_copy(update={"operation": Operation.REPLACE}),
            )
            with tables.opened() as table:
                table.overwrite(pa.table({"n": [1, 2]}))
        tables.append(n=[3])
        assert sorted(row["n"] for row in driver.run(most=3)) == [1, 2, 3]


@pytest.mark.parametrize("change", ["delete", "overwrite", "replace", "roll back"])
def test_a_change_of_rows_is_refused(change: str, tables: Tables) -> None:
    tables.append(n=[0])
    tables.append(n=[1, 2])

    async def go() -> None:
        flow = sw.Pipeline("changes")
        seen = flow.source(tables.source(watch="20ms")).collect()
        async with await flow.start() as job:
            while len(seen) < 3:
                await asyncio.sleep(0.005)
            with tables.catalog() as catalog:
                table = catalog.load_table(TABLE)
                if change == "delete":
                    table.delete("n = 1")
                elif change == "overwrite":
                    table.overwrite(pa.table({"n": [3]}))
                elif change == "roll back":
                    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
                else:
                    catalog.drop_table(TABLE)
                    catalog.create_table(TABLE, pa.schema([("n", pa.int64())]))
            await job.result()

    told = {"replace": "was replaced by another table", "roll back": "was rolled back, or changed"}
    with pytest.raises(ConnectorError) as raised:
        asyncio.run(go())
    assert told.get(change, "rows were deleted or updated") in str(raised.value)
    assert "tests.shop.sales" in str(raised.value)


def test_snapshots_that_have_expired(tables: Tables) -> None:
    tables.append(n=[0])
    with SourceDriver(tables.source(watch=10)) as driver:
        driver.run(most=1)
        kept = driver.snapshot()
    tables.append(n=[1])
    with SourceDriver(tables.source(watch=10), restored=kept) as driver:
        assert [row["n"] for row in driver.run(most=1)] == [1]
    tables.append(n=[2])
    with tables.opened() as table:
        first, second, _ = [one.snapshot_id for one in table.snapshots()]
        table.maintenance.expire_snapshots().by_ids([first]).commit()
    with SourceDriver(tables.source(watch=10), restored=kept) as driver:  # nothing after it has expired
        assert [row["n"] for row in driver.run(most=2)] == [1, 2]
    with tables.opened() as table:
        table.maintenance.expire_snapshots().by_ids([second]).commit()
    with pytest.raises(ConnectorError, match="has expired, so what it has added is not known"):
        SourceDriver(tables.source(watch=10), restored=kept).__enter__()


def test_snapshots_of_an_empty_table_that_have_expired(tables: Tables) -> None:
    """The next snapshot looks like the first one of the table then."""
    tables.create(pa.schema([("n", pa.int64())]))
    with SourceDriver(tables.source(watch=10)) as driver:
        kept = driver.snapshot()
    tables.append(n=[1])
    tables.append(n=[2])
    with tables.opened() as table:
        table.maintenance.expire_snapshots().by_ids([table.snapshots()[0].snapshot_id]).commit()
    with pytest.raises(ConnectorError, match="a snapshot after the first look at the empty table has expired"):
        SourceDriver(tables.source(watch=10), restored=kept).__enter__()


def test_a_table_of_format_version_1_is_read_but_not_followed(tables: Tables) -> None:
    tables.create(pa.schema([("n", pa.int64())]), **{"format-version": "1"})
    tables.append(n=[1])
    assert read(tables)["n"].to_pylist() == [1]
    with pytest.raises(ConnectorError, match="has format version 1, whose snapshots have no numbers"):
        read(tables, watch="1s")


def test_delete_files_are_refused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg 0.12 writes none: a scan says that there is one."""
    from pyiceberg.table import DataScan

    tables.append(n=[1, 2])
    plan = DataScan.plan_files

    def with_deletes(scan: Any) -> Any:
        for task in plan(scan):
            task.delete_files.add(task.file)
            yield task

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(ConnectorError, match="are deleted by delete files, which are not read"):
        read(tables)


def test_a_file_that_is_removed_before_it_is_read(tables: Tables) -> None:
    tables.append(n=[1])
    with SourceDriver(tables.source()) as driver:
        next(tables.place.rglob("*.parquet")).unlink()
        with pytest.raises(ConnectorError, match="is not there any more: it was removed by the expiration"):
            driver.run()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_appended_is_read_once_over_failures_and_savepoints(workers: int, tables: Tables) -> None:
    """From table to table; the second is read back by pyiceberg."""
    written: list[int] = []

    def more() -> None:
        rows = list(range(len(written), len(written) + 50))
        written.extend(rows)
        tables.append(pa.table({"n": rows, "p": [n % 2 for n in rows]}), "shop.from")

    def found() -> list[int]:
        return sorted(row["n"] for row in tables.rows("shop.to"))

    async def go(parallelism: int, before: str | None, until: int, *, all_of_them: bool = False) -> str:
        flow = sw.Pipeline("from table to table")
        rows = flow.table(tables.source("shop.from", watch="50ms")).uid("source").with_columns(m=col("n") * 2)
        rows.sink(tables.sink("shop.to")).uid("sink")
        async with await flow.start(
            parallelism=parallelism,
            workers=workers,
            checkpoint_interval="100ms",
            batch_size=7,
            from_checkpoint=before,
        ) as job:
            while len(found()) < until:
                more()
                await asyncio.sleep(0.02)
            # Else the savepoint may have a file of an appended snapshot, and another file of it was read.
            while all_of_them and len(found()) < len(written):
                await asyncio.sleep(0.02)  # polls
            return await job.stop(savepoint=tables.place / "kept")

    more()
    location = asyncio.run(go(2, None, 150))
    more()
    location = asyncio.run(go(3, location, len(found()) + 150))
    asyncio.run(go(1, location, len(found()) + 100, all_of_them=True))
    assert found() == written
