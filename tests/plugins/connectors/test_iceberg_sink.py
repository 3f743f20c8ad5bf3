"""The sink of Iceberg: its promises, its columns, and what others read of it."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyiceberg", reason='not installed: pip install "sluiceway[iceberg]"')
pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from tests.plugins.connectors.icebergtables import TABLE, Tables

import sluiceway as sw
from sluiceway.connector import Sink
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.table import col
from sluiceway.testing import BreakingSink
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.drivers import SinkDriver
from sluiceway_lakehouse import IcebergSink

pytestmark = pytest.mark.usefixtures("iceberg_runtime")

ROWS = [{"id": n, "text": f"text {n}", "part": "ab c%/"[n % 6]} for n in range(40)]
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("part", pa.string())])
NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


class _Conformance(CommittingSinkConformance):
    ordered = False
    visible_after_failure = False
    options: ClassVar[dict[str, Any]] = {"schema": SCHEMA}

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tables, self.numbers = Tables(tmp_path), itertools.count()

    def records(self) -> list[Any]:
        return ROWS

    def make_sink(self) -> Sink[Any]:
        self.current = f"shop.sales{next(self.numbers)}"
        return self.tables.sink(self.current, **self.options)

    def written(self) -> list[Any]:
        return self.tables.rows(self.current)

    def identity(self, record: Any) -> Any:
        return repr(sorted(record.items()))


class TestRows(_Conformance):
    pass


class TestPartitions(_Conformance):
    options: ClassVar[dict[str, Any]] = {
        "schema": SCHEMA,
        "partition_by": ["part", "bucket(3, id)"],
        "max_open_files": 2,
        "row_group_size": 3,
    }


class TestSmallFiles(_Conformance):
    options: ClassVar[dict[str, Any]] = {"schema": SCHEMA, "row_group_size": 2, "target_file_size": 1}


# ---- what others read ----------------------------------------------------------------------------------------

TYPES: dict[str, Any] = {
    "text": pa.array(["a", "", None, "ü" * 100]),
    "large": pa.array(["a", "", None, "x"], pa.large_string()),
    "kind": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "long": pa.array([1, None, -(2**63), 2**63 - 1]),
    "small": pa.array([1, None, -128, 127], pa.int8()),
    "unsigned": pa.array([1, None, 0, 2**32 - 1], pa.uint32()),
    "double": pa.array([0.5, None, float("nan"), float("-inf")]),
    "single": pa.array([0.5, None, -0.0, 1], pa.float32()),
    "flag": pa.array([True, False, None, True]),
    "day": pa.array([date(2026, 2, 28), None, date(1, 1, 1), date(9999, 12, 31)]),
    "clock": pa.array([time(1, 2, 3, 4), None, time(0), time(23, 59, 59, 999999)], pa.time64("us")),
    "at": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4, UTC), None] * 2, pa.timestamp("us", "Asia/Tokyo")),
    "local": pa.array([datetime(2026, 1, 1, 1, 2, 3), None] * 2, pa.timestamp("ms")),
    "money": pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal("12345678.90")], pa.decimal128(12, 2)),
    "much": pa.array([Decimal(10) ** 37, None, Decimal(-1), Decimal(0)], pa.decimal128(38, 0)),
    "raw": pa.array([b"\x00\xff", None, b"", b"x"]),
    "tags": pa.array([["x", None], [], None, ["y"]]),
    "of": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": ""}]),
    "by_name": pa.array([[("k", 1)], [], None, [("x", None)]], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array([[{"a": [1, None]}, None], [], None, [{"a": None}]]),
}


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_values_are_read_as_they_were_written(batch: int, tables: Tables) -> None:
    data = pa.table({"at_row": pa.array(range(4), pa.int64()), **TYPES})
    flow = sw.Pipeline("types")
    flow.table(data).sink(tables.sink())
    flow.run(batch_size=batch, checkpoint_interval="1h")
    expected = [{**row, "at": row["at"] and row["at"].astimezone(UTC)} for row in data.to_pylist()]

    def said(rows: Any) -> str:
        return repr(rows).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")

    # pyiceberg 0.12 reads a list of structs that is null as an empty one, of files of its own as well.
    others = [{name: value for name, value in row.items() if name != "deep"} for row in expected]
    assert said(tables.read().drop_columns("deep").sort_by("at_row").to_pylist()) == said(others)
    read = sw.Pipeline("read").table(tables.source()).to_arrow(batch_size=batch)
    assert said(read.sort_by("at_row").to_pylist()) == said(expected)


def test_partitions_are_those_of_the_spec(tables: Tables) -> None:
    before, after = datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 3, 4, 5, 6)
    data = pa.table(
        {
            "n": range(8),
            "text": ["a b%/ü", None, "a=b", "x", "x", "a b%/ü", "", "x" * 300],
            "number": [1, 1, None, 2, 2, 1, 1, -5],
            "day": [date(2026, 1, 1)] * 7 + [None],
            "at": [before, after, None, after, before, datetime(1970, 1, 1), after, before],
            "money": pa.array(
                [Decimal("1.50"), Decimal("-1.50"), None] * 2 + [Decimal(0)] * 2, pa.decimal128(9, 2)
            ),
        }
    )
    by = ["text", "day", "hour(at)", "truncate(2, number)", "bucket(4, money)", "truncate(1, text)"]
    flow = sw.Pipeline("partitions")
    flow.table(data).sink(tables.sink(partition_by=by, max_open_files=2))
    flow.run(checkpoint_interval="1h")
    assert sorted(tables.rows(), key=lambda row: row["n"]) == data.to_pylist()
    with tables.opened() as table:
        spec = table.spec()
        names = ["text", "day", "at", "number", "money", "text"]
        transforms = [
            field.transform.transform(table.schema().find_field(name).field_type)
            for name, field in zip(names, spec.fields, strict=True)
        ]
        for task in table.scan().plan_files():  # each value is what pyiceberg says of its rows
            for row in pq.read_table(task.file.file_path.removeprefix("file://")).to_pylist():
                expected = [
                    transform(_stored(row[name])) for name, transform in zip(names, transforms, strict=True)
                ]
                assert list(task.file.partition) == expected
        kept = table.scan(row_filter="text = 'x' and number = 2").to_arrow()
        assert sorted(kept["n"].to_pylist()) == [3, 4]


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1)) // (datetime(1970, 1, 1, 0, 0, 0, 1) - datetime(1970, 1, 1))
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


@pytest.mark.parametrize("unit", ["year", "month", "day", "hour"])
def test_times_before_and_after_1970_are_in_the_partitions_of_pyiceberg(unit: str) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import DateType, NestedField, TimestampType

    from sluiceway_lakehouse._iceberg_partitions import Partitioning

    hours = [*range(-30_000, 30_000, 7), -1, 0, 1, 23, 24, -24, -25, 17_520_000]
    us = [hour * 3_600_000_000 + extra for hour in hours for extra in (0, 1, 3_599_999_999)]
    cases: list[tuple[Any, Any]] = [(TimestampType(), pa.array(us).cast(pa.timestamp("us")))]
    if unit != "hour":
        cases.append((DateType(), pa.array([hour // 24 for hour in hours], pa.int32()).cast(pa.date32())))
    for kind, column in cases:
        transform = parse_transform(unit)
        spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=transform, name="p"))
        partitioning = Partitioning(Schema(NestedField(1, "at", kind)), spec, "t")
        found = partitioning.with_values(pa.RecordBatch.from_arrays([column], ["at"]))[1].to_pylist()
        stored = column.cast(pa.int32() if isinstance(kind, DateType) else pa.int64()).to_pylist()
        assert found == list(map(transform.transform(kind), stored))


def test_statistics_leave_out_no_row(tables: Tables) -> None:
    data = {
        "n": range(100),
        "text": ["ü" * 200, *["b"] * 99],
        "nan": [float("nan"), 5.0, *[1.0] * 98],
        "infinite": [float("inf"), *[1.0] * 99],
        "money": pa.array([Decimal("7.00")] * 99 + [Decimal("-7.25")], pa.decimal128(20, 2)),
        "none": pa.nulls(100, pa.int64()),
    }
    flow = sw.Pipeline("statistics")
    flow.table(pa.table(data)).sink(tables.sink(row_group_size=7))
    flow.run(batch_size=3)
    filters = {
        "n > 97": 2,
        "text > 'c'": 1,
        "nan > 4": 1,
        "infinite > 1000000": 1,
        "money < 0": 1,
        "none is null": 100,
        "n > 99": 0,
    }
    with tables.opened() as table:
        assert {of: table.scan(row_filter=of).to_arrow().num_rows for of in filters} == filters
        (task,) = table.scan().plan_files()
        assert task.file.record_count == 100
        assert task.file.file_size_in_bytes == Path(task.file.file_path.removeprefix("file://")).stat().st_size
        assert not list(table.scan(row_filter="n > 99").plan_files())


def test_duckdb_reads_the_files(tables: Tables) -> None:
    import duckdb

    flow = sw.Pipeline("duckdb")
    flow.table(pa.table({"n": range(5), "p": list("aabbc")})).sink(tables.sink(partition_by="p"))
    flow.run()
    files = [str(path) for path in (tables.place / "warehouse").rglob("*.parquet")]
    assert len(files) == 3
    assert duckdb.read_parquet(files).sum("n").fetchall() == [(10,)]


def test_records_are_dicts_and_objects(tables: Tables) -> None:
    @dataclass
    class Sale:
        user: str
        amount: int | None = None

    for at, records in enumerate([[Sale("ann", 5), Sale("bob")], [{"user": "ann", "amount": 5}, {"user": "bob"}]]):
        table = f"shop.sales{at}"
        flow = sw.Pipeline("records")
        flow.from_collection(records).sink("iceberg", table=table, schema=Sale, **tables.options)
        flow.run(parallelism=2)
        assert sorted(tables.rows(table), key=str) == [
            {"user": "ann", "amount": 5},
            {"user": "bob", "amount": None},
        ]
        flow = sw.Pipeline("more")
        flow.from_collection(records).sink(tables.sink(table))  # the columns are those of the table
        flow.run()
        assert len(tables.rows(table)) == 4


def test_the_table_says_how_files_are_written(tables: Tables) -> None:
    tables.create(NUMBERS, **{"write.parquet.compression-codec": "gzip", "write.target-file-size-bytes": "1"})
    with SinkDriver(tables.sink(row_group_size=2)) as driver:
        for _ in range(3):
            driver.write([{"n": 1}, {"n": 2}])
        driver.finish()
    files = [pq.ParquetFile(path) for path in (tables.place / "warehouse").rglob("*.parquet")]
    assert sorted(file.metadata.num_rows for file in files) == [2, 2, 2]
    assert {file.metadata.row_group(0).column(0).compression for file in files} == {"GZIP"}
    for file in files:
        file.close()


def test_secrets_are_not_shown(tables: Tables) -> None:
    secret = "hush-hush-9"
    place = {
        "type": "rest",
        "uri": f"http://ann:{secret}@127.0.0.1:1/",
        "s3.secret-access-key": secret,
        "token": secret,
    }
    sink = IcebergSink(TABLE, catalog="far", properties=place, schema=NUMBERS)
    flow = sw.Pipeline("secrets")
    flow.from_collection([{"n": 1}]).sink(sink)
    told = [repr(sink), sink.name, flow.explain() if hasattr(flow, "explain") else "", repr(sink._target)]
    with pytest.raises(ConnectorError, match="cannot open the catalog of Iceberg table far") as raised:
        flow.run()
    with pytest.raises(ConnectorError) as unknown:
        sw.Pipeline("secrets").table(pa.table({"n": [1]})).sink(
            IcebergSink(TABLE, properties={"token": secret, "kind": "none"})
        )
    for text in (*told, str(raised.value), str(unknown.value)):
        assert secret not in text
    assert pickle.loads(pickle.dumps(sink))._target == sink._target


# ---- columns that do not fit -----------------------------------------------------------------------------------


@pytest.fixture
def there(tables: Tables) -> Tables:
    schema = pa.schema([pa.field("user", pa.string(), False), ("amount", pa.int32()), ("day", pa.date32())])
    flow = sw.Pipeline("there")
    flow.table(pa.Table.from_pylist([], schema)).sink(tables.sink(partition_by="day"))
    flow.run()
    assert tables.exists()
    return tables


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            {"user": ["a"], "amuont": [1]},
            {},
            "has no column 'amuont'; did you mean 'amount'? Its columns are user: string",
        ),
        ({"user": ["a"], "amount": [2**40]}, {}, "column 'amount' has int32, in the rows int64: cast it before"),
        ({"amount": pa.array([1], pa.int32())}, {}, "column 'user' may not be null, and the rows do not have it"),
        ({"user": ["a"]}, {"partition_by": ["user"]}, "is partitioned by day; partition_by= says user"),
        ({"user": ["a"]}, {"partition_by": "month(day)"}, "by day; partition_by= says month of day"),
        ({"user": ["a"], "User": [1]}, {"merge_schema": True}, "differs in capital letters alone"),
    ],
)
def test_columns_are_compared_before_anything_runs(rows: Any, options: Any, message: str, there: Tables) -> None:
    with pytest.raises(ConnectorError) as raised:
        sw.Pipeline("misfit").table(pa.table(rows)).sink(there.sink(**options))
    assert message in str(raised.value)
    assert "Iceberg table tests.shop.sales" in str(raised.value)


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.uint64(), pa.decimal256(50, 2)])
def test_types_that_iceberg_does_not_have_are_refused(kind: Any, tables: Tables) -> None:
    rows = pa.table({"x": pa.array([None], kind)})
    with pytest.raises(ConnectorError, match=r"column 'x' has .*, which such a table has no type for: cast it"):
        sw.Pipeline("misfit").table(rows).sink(tables.sink())
    assert not tables.exists()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"user": None}, "column 'user' may not be null, and is in {'user': None}"),
        ({"user": "a", "amount": "x"}, "does not fit into column 'amount' of type int32"),
        ({"user": "a", "amuont": 1}, "has no column 'amuont'; did you mean 'amount'?"),
        ("ann", "'ann' (str) is no row: a dict, a dataclass or a named tuple with user, amount, day is"),
    ],
)
def test_a_record_that_does_not_fit_is_shown(record: Any, message: str, there: Tables) -> None:
    flow = sw.Pipeline("misfit")
    flow.from_collection([{"user": "ann"}, record]).sink(there.sink())
    with pytest.raises(ConnectorError) as raised:
        flow.run()
    assert message in str(raised.value)
    assert not there.rows()


def test_values_that_do_not_fit_are_refused(tables: Tables) -> None:
    flow = sw.Pipeline("misfit")
    flow.table(pa.table({"at": pa.array([1], pa.timestamp("ns"))})).sink(tables.sink())
    with pytest.raises(ConnectorError, match="The table has microseconds: truncate it before"):
        flow.run()


def test_new_columns_are_added_on_request(there: Tables) -> None:
    rows = pa.table({"user": ["a"], "more": [1.5], "new": pa.array([["x"]])})
    with pytest.raises(ConnectorError, match="merge_schema=True adds new columns"):
        sw.Pipeline("new").table(rows).sink(there.sink())
    flow = sw.Pipeline("before")
    flow.table(pa.table({"user": ["b"], "day": [date(2026, 1, 1)]})).sink(there.sink())
    flow.run()
    flow = sw.Pipeline("new")
    flow.table(rows).rebalance().sink(there.sink(merge_schema=True))
    flow.run(parallelism=3)
    assert sorted(there.rows(), key=lambda row: row["user"]) == [
        {"user": "a", "amount": None, "day": None, "more": 1.5, "new": ["x"]},
        {"user": "b", "amount": None, "day": date(2026, 1, 1), "more": None, "new": None},
    ]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"write.format.default": "avro"}, "has write.format.default=avro; Parquet alone is written"),
        (
            {"write.parquet.compression-codec": "lzo"},
            "has write.parquet.compression-codec=lzo, which is not one of",
        ),
        (
            {"format-version": "1"},
            "has format version 1; version 2 alone can be written to. upgrade_table_version(2)",
        ),
    ],
)
def test_a_table_that_asks_for_more_is_refused(properties: Any, message: str, tables: Tables) -> None:
    tables.create(NUMBERS, **properties)
    with pytest.raises(ConnectorError) as raised:
        sw.Pipeline("more").table(pa.table({"n": [1]})).sink(tables.sink())
    assert message in str(raised.value)


def test_a_column_of_uuids_is_refused(tables: Tables) -> None:
    tables.create(pa.schema([("n", pa.int64()), ("of", pa.struct([("id", pa.uuid())]))]))
    with pytest.raises(ConnectorError, match=r"column 'of\.id' has uuid, so the table cannot be written to"):
        sw.Pipeline("uuid").table(pa.table({"n": [1]})).sink(tables.sink())


def test_a_table_that_is_not_there_needs_columns(tables: Tables) -> None:
    flow = sw.Pipeline("records")
    flow.from_collection([{"n": 1}]).sink(tables.sink())
    with pytest.raises(
        ConnectorError, match="does not exist, and what columns it is to have is not known: give schema="
    ):
        flow.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "sales"}, "an Iceberg table is named by its namespace and name, such as 'shop.sales'"),
        ({"row_group_size": 0}, "row_group_size=0 must be a whole number, at least 1"),
        ({"partition_by": ["n", "n"]}, "or several different ones"),
        ({"partition_by": "x", "schema": SCHEMA}, "partition_by='x': schema= has no such column"),
        ({"partition_by": "week(at)"}, "partition_by='week(at)' is no column and no transform: year(c)"),
        ({"partition_by": "bucket(at)"}, "partition_by='bucket(at)' is no column and no transform"),
        ({"schema": int}, "schema=: int has no named and typed fields"),
        ({"merge_schema": "yes"}, "merge_schema='yes' must be True or False"),
        ({"properties": {"a": 1}}, "properties= must have texts as names and values"),
        ({"table_properties": {"a": 1}}, "table_properties= must have texts as names and values"),
    ],
)
def test_arguments_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        IcebergSink(**{"table": TABLE, **options})
    assert message in str(raised.value)


def test_a_transform_that_a_column_does_not_have(tables: Tables) -> None:
    flow = sw.Pipeline("hours")
    flow.table(pa.table({"n": [1]})).sink(tables.sink(partition_by="hour(n)"))
    with pytest.raises(ConnectorError, match=r"cannot create Iceberg table tests\.shop\.sales"):
        flow.run()


# ---- exactly once ----------------------------------------------------------------------------------------------


def kept_and_committed(sink: Sink[Any], rows: Sequence[Any], parallelism: int = 1, *, commit: bool = True) -> Any:
    with SinkDriver(sink, parallelism, checkpoints=True) as driver:
        for subtask in range(parallelism):
            driver.write(list(rows), subtask=subtask)
        kept = driver.checkpoint()
        if commit:
            driver.complete()
        return kept


def restore(sink: Sink[Any], kept: Any) -> None:
    with SinkDriver(sink, checkpoints=True, restored=kept):
        pass


def expire_all_but_the_current_one(tables: Tables) -> None:
    with tables.opened() as table:
        current = table.metadata.current_snapshot_id
        others = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(others).commit()


def test_a_snapshot_per_writer_and_checkpoint(tables: Tables) -> None:
    with SinkDriver(tables.sink(schema=NUMBERS), 2, checkpoints=True) as driver:
        for _ in range(3):
            for subtask in range(2):
                for n in range(5):
                    driver.write([{"n": n}], subtask=subtask)
            driver.checkpoint()
            driver.complete()
        driver.checkpoint()
        driver.complete()
    assert tables.snapshots() == 6  # none without rows
    assert len(tables.rows()) == 30
    assert len(list(tables.place.rglob("*.parquet"))) == 6


def test_what_several_writers_have_left_becomes_one_snapshot(tables: Tables) -> None:
    sink = tables.sink(schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], 3, commit=False)
    for _ in range(2):
        restore(sink, kept)
    assert tables.snapshots() == 1
    assert [row["n"] for row in tables.rows()] == [1, 1, 1]


@pytest.mark.parametrize("error", [OSError("connection reset"), CommitFailedException("409: it was retried")])
def test_a_commit_whose_answer_is_lost(error: Exception, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create(NUMBERS)
    sink = tables.sink()
    commit = SqlCatalog.commit_table

    def losing(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        commit(*args, **options)
        raise error

    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([{"n": 1}])
        kept = driver.checkpoint()
        monkeypatch.setattr(SqlCatalog, "commit_table", losing)
        if isinstance(error, OSError):
            with pytest.raises(ConnectorError, match=r"cannot commit to Iceberg table .*: connection reset"):
                driver.complete()
        else:
            driver.complete()  # it looks for its mark before it tries again
    restore(sink, kept)
    assert [row["n"] for row in tables.rows()] == [1]
    assert tables.snapshots() == 1


def test_an_attempt_that_is_thought_to_be_dead_commits_at_the_same_time(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new attempt has looked before the old one commits: the catalog refuses the second commit."""
    sink = tables.sink(schema=NUMBERS)
    with SinkDriver(sink, checkpoints=True) as zombie:
        zombie.write([{"n": 1}])
        kept = zombie.checkpoint()
        commit = SqlCatalog.commit_table

        def slow(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            zombie.complete()
            return commit(*args, **options)

        monkeypatch.setattr(SqlCatalog, "commit_table", slow)
        restore(sink, kept)
    assert [row["n"] for row in tables.rows()] == [1]


def test_other_writers_commit_in_between(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.append(n=[0])
    commit = SqlCatalog.commit_table
    others = iter(range(2, 7))

    def slow(*args: Any, **options: Any) -> Any:
        with monkeypatch.context() as unpatched:
            unpatched.setattr(SqlCatalog, "commit_table", commit)
            for n in itertools.islice(others, 1):
                tables.append(n=[n])
        return commit(*args, **options)

    with SinkDriver(tables.sink(), checkpoints=True) as driver:
        driver.write([{"n": 1}])
        driver.checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", slow)
            driver.complete()
    assert sorted(row["n"] for row in tables.rows()) == list(range(7))
    with tables.opened() as table:  # manifests of refused commits are gone
        used = {m.manifest_path for one in table.snapshots() for m in one.manifests(table.io)}
        used |= {one.manifest_list for one in table.snapshots()}
    there = {f"file://{path}" for path in tables.place.rglob("*.avro")}
    assert there == used


def test_others_that_commit_without_end(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise CommitFailedException("branch main has changed")

    with SinkDriver(tables.sink(schema=NUMBERS), checkpoints=True) as driver:
        driver.write([{"n": 1}])
        kept = driver.checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", refused)
            with pytest.raises(ConnectorError, match="others have changed it 11 times meanwhile: branch main"):
                driver.complete()
    restore(tables.sink(schema=NUMBERS), kept)
    assert tables.snapshots() == 1


@pytest.mark.parametrize("change", ["rewrite", "delete", "roll back", "expire", "rewrite and expire"])
def test_a_commit_that_is_repeated_after_others(change: str, tables: Tables) -> None:
    tables.create(NUMBERS)
    tables.append(n=[1])
    sink = tables.sink()
    with tables.opened() as table:
        before = table.metadata.current_snapshot_id
    kept = kept_and_committed(sink, [{"n": 2}])
    with tables.opened() as table:
        if "rewrite" in change:
            table.overwrite(pa.table({"n": [1, 2]}))
        elif change == "delete":
            table.delete("n = 2")
        elif change == "roll back":
            table.manage_snapshots().rollback_to_snapshot(before).commit()
        else:
            table.append(pa.table({"n": [3]}))
    if "expire" in change:
        expire_all_but_the_current_one(tables)
    rows = sorted(row["n"] for row in tables.rows())
    if change == "rewrite and expire":
        with pytest.raises(ConnectorError, match=r"it is not known whether rows .* were committed: snapshots"):
            restore(sink, kept)
    else:
        restore(sink, kept)
    assert sorted(row["n"] for row in tables.rows()) == rows


def test_what_is_known_to_be_uncommitted_is_committed(tables: Tables) -> None:
    """Others have changed the table since, and snapshots from before have expired."""
    tables.create(NUMBERS)
    tables.append(n=[1])
    tables.append(n=[2])
    sink = tables.sink()
    kept = kept_and_committed(sink, [{"n": 3}], commit=False)
    with tables.opened() as table:
        current = table.metadata.current_snapshot_id
        older = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(older).commit()
    tables.append(n=[4])
    for _ in range(2):
        restore(sink, kept)
    assert sorted(row["n"] for row in tables.rows()) == [1, 2, 3, 4]


def test_what_may_have_been_committed_is_not_committed_again(tables: Tables) -> None:
    sink = tables.sink(schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    tables.append(n=[2])
    tables.append(n=[3])
    expire_all_but_the_current_one(tables)
    with pytest.raises(
        ConnectorError, match="Keep snapshots for longer than a job may take to continue"
    ) as raised:
        restore(sink, kept)
    assert ".parquet is not in the current one" in str(raised.value)
    assert sorted(row["n"] for row in tables.rows()) == [2, 3]


def test_a_new_run_of_the_job_is_not_taken_for_an_earlier_one(tables: Tables) -> None:
    for n in range(3):
        kept_and_committed(tables.sink(schema=NUMBERS), [{"n": n}])
    assert sorted(row["n"] for row in tables.rows()) == [0, 1, 2]


def test_files_that_were_removed_before_they_are_committed(tables: Tables) -> None:
    sink = tables.sink(schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    next(tables.place.rglob("*.parquet")).unlink()
    with pytest.raises(ConnectorError, match=r"is not there any more\. Was it removed as an orphan file"):
        restore(sink, kept)
    assert tables.snapshots() == 0


def test_a_table_that_was_replaced(tables: Tables) -> None:
    sink = tables.sink(schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    with tables.catalog() as catalog:
        catalog.drop_table(TABLE)
    tables.create(NUMBERS)
    with pytest.raises(ConnectorError, match="was replaced by another table"):
        restore(sink, kept)


def test_a_partition_spec_that_is_changed_meanwhile(tables: Tables) -> None:
    sink = tables.sink(schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    with tables.opened() as table, table.update_spec() as update:
        update.add_field("n", "bucket[2]")
    with pytest.raises(ConnectorError, match="the partition spec was changed while the job was running"):
        restore(sink, kept)


def test_columns_that_are_renamed_and_added_meanwhile(tables: Tables) -> None:
    """Columns are known by their ids."""
    with SinkDriver(tables.sink(schema=NUMBERS), checkpoints=True) as driver:
        driver.write([{"n": 1}])
        driver.checkpoint()
        with tables.opened() as table, table.update_schema() as update:
            update.rename_column("n", "number")
        with tables.opened() as table, table.update_schema() as update:
            update.union_by_name(pa.schema([("n", pa.string())]))
        driver.complete()
        driver.write([{"n": 2}])
        driver.checkpoint()
        driver.complete()
    assert sorted(tables.rows(), key=str) == [{"number": 1, "n": None}, {"number": 2, "n": None}]


def test_a_failed_attempt_leaves_no_file_of_its_own(tables: Tables) -> None:
    with SinkDriver(tables.sink(schema=NUMBERS, row_group_size=1, target_file_size=1), checkpoints=True) as driver:
        driver.write([{"n": 1}, {"n": 2}])
        driver.write([{"n": 3}])
    assert not list(tables.place.rglob("*.parquet"))


COUNT = 4_000


def numbers(tables: Tables, rate: int | None = None, sink: Any = None) -> sw.Pipeline:
    flow = sw.Pipeline("numbers")
    rows = flow.source(GeneratorSource(count=COUNT, rate=rate)).uid("source").rebalance()
    rows = rows.map(lambda n: {"n": n, "p": n % 3}).uid("rows")
    of = pa.schema([("n", pa.int64()), ("p", pa.int64())])
    sink = sink or tables.sink(partition_by="p")
    rows.to_columns(of).with_columns(m=col("n") * 2).sink(sink).uid("sink")
    return flow


def check_numbers(tables: Tables) -> None:
    read = tables.read().sort_by("n")
    assert read["n"].to_pylist() == list(range(COUNT))
    assert read["m"].to_pylist() == [n * 2 for n in range(COUNT)]
    assert read["p"].to_pylist() == [n % 3 for n in range(COUNT)]


@pytest.mark.parametrize(
    "moment",
    [
        "after write",
        "after pre-commit",
        "before commit",
        "during commit",
        "after commit",
        "before recovery",
        "after recovery",
    ],
)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failure_at_any_moment(moment: str, workers: int, tables: Tables) -> None:
    marks = tables.place / "marks"
    marks.mkdir()
    moments = [moment, "before commit"] if "recovery" in moment else [moment]
    with tables.catalog():
        pass  # makes the tables of the catalog, which several processes cannot at a time
    sink = BreakingSink(tables.sink(partition_by="p"), marks, *moments, kill=workers > 0)
    result = numbers(tables, 8_000, sink).run(
        parallelism=2,
        workers=workers,
        batch_size=16,
        checkpoint_interval="100ms",
        checkpoints=tables.place / "kept",
        restart="fixed-delay:50:10ms",
    )
    assert result.metrics.restarts >= 1
    assert sorted(mark.name for mark in marks.iterdir()) == sorted(one.replace(" ", "-") for one in moments)
    check_numbers(tables)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_savepoint_goes_on_at_another_parallelism(workers: int, tables: Tables) -> None:
    import asyncio

    async def go(parallelism: int, before: str | None) -> str:
        flow = numbers(tables, 100)  # it would take most of a minute
        async with await flow.start(
            parallelism=parallelism,
            workers=workers,
            checkpoint_interval="50ms",
            batch_size=1,
            from_checkpoint=before,
        ) as job:
            first = 0 if before is None else tables.snapshots()
            while tables.snapshots() < first + 2:
                await asyncio.sleep(0.005)
            return await job.stop(savepoint=tables.place / "kept")

    location = asyncio.run(go(3, None))
    location = asyncio.run(go(1, location))
    numbers(tables).run(parallelism=2, workers=workers, checkpoint_interval="1h", from_checkpoint=location)
    check_numbers(tables)
