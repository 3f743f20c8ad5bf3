"""The sink of Delta Lake: its promises, its columns, and what others read of it."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("deltalake", reason='not installed: pip install "sluiceway[delta]"')

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import sluiceway as sw
from sluiceway.connector import Sink
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.table import col
from sluiceway.testing import BreakingSink, InjectedError
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.drivers import SinkDriver
from sluiceway_lakehouse import DeltaSink
from sluiceway_lakehouse._parquet_files import FileStore, ParquetFiles

pytestmark = pytest.mark.usefixtures("delta_runtime")

ROWS = [{"id": n, "text": f"text {n}", "part": "ab c%/"[n % 6]} for n in range(40)]
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("part", pa.string())])
NUMBERS = pa.schema([("n", pa.int64())])


def rows_of(table: Path) -> list[dict[str, Any]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist()


class _Conformance(CommittingSinkConformance):
    ordered = False
    visible_after_failure = False
    options: ClassVar[dict[str, Any]] = {"schema": SCHEMA}

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.place, self.numbers = tmp_path, itertools.count()

    def records(self) -> list[Any]:
        return ROWS

    def make_sink(self) -> Sink[Any]:
        self.current = self.place / str(next(self.numbers))
        return DeltaSink(self.current, **self.options)

    def written(self) -> list[Any]:
        return rows_of(self.current)

    def identity(self, record: Any) -> Any:
        return repr(sorted(record.items()))


class TestRows(_Conformance):
    pass


class TestPartitions(_Conformance):
    options: ClassVar[dict[str, Any]] = {
        "schema": SCHEMA,
        "partition_by": "part",
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
    "at": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4, UTC), None] * 2, pa.timestamp("us", "Asia/Tokyo")),
    "local": pa.array([datetime(2026, 1, 1, 1, 2, 3), None] * 2, pa.timestamp("ms")),
    "money": pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal("12345678.90")], pa.decimal128(12, 2)),
    "raw": pa.array([b"\x00\xff", None, b"", b"x"]),
    "tags": pa.array([["x", None], [], None, ["y"]]),
    "of": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": ""}]),
    "by_name": pa.array([[("k", 1)], [], None, [("x", None)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_values_are_read_as_they_were_written(batch: int, tmp_path: Path) -> None:
    data = pa.table({"at_row": pa.array(range(4), pa.int64()), **TYPES})
    flow = sw.Pipeline("types")
    flow.table(data).sink(DeltaSink(tmp_path / "t"))
    flow.run(batch_size=batch, checkpoint_interval="1h")
    expected = [{**row, "at": row["at"] and row["at"].astimezone(UTC)} for row in data.to_pylist()]
    read = DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("at_row")
    assert repr(read.to_pylist()).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") == repr(
        expected
    )
    frame = pl.read_delta(str(tmp_path / "t")).sort("at_row").drop("by_name")
    assert frame.select("text", "long", "day", "money", "of").to_dicts() == [
        {
            name: row[name] if name != "of" or row[name] else frame["of"][at]
            for name in ("text", "long", "day", "money", "of")
        }
        for at, row in enumerate(expected)
    ]


def test_partitions_are_those_of_every_reader(tmp_path: Path) -> None:
    import duckdb

    table = tmp_path / "t"
    data = pa.table(
        {
            "n": range(8),
            "text": ["a b%/ü", None, "a=b", "x", "x", "a b%/ü", None, "__"],
            "number": [1, 1, None, 2, 2, 1, 1, -5],
            "day": [date(2026, 1, 1)] * 7 + [None],
            "flag": [True, False, None, True] * 2,
        }
    )
    flow = sw.Pipeline("partitions")
    by = ["text", "number", "day", "flag"]
    flow.table(data).sink(DeltaSink(table, partition_by=by, max_open_files=2))
    flow.run(checkpoint_interval="1h")
    assert DeltaTable(table).metadata().partition_columns == by
    assert sorted(rows_of(table), key=lambda row: row["n"]) == data.to_pylist()
    assert pl.read_delta(str(table)).sort("n").select(data.column_names).to_dicts() == data.to_pylist()
    kept = DeltaTable(table).to_pyarrow_table(filters=[("text", "=", "x"), ("number", "=", 2)])
    assert sorted(kept.column("n").to_pylist()) == [3, 4]
    relation = duckdb.from_arrow(DeltaTable(table).to_pyarrow_dataset())
    assert relation.filter("text IS NULL").sum("n").fetchall() == [(7,)]


@pytest.mark.parametrize("batch", [1, 100])
def test_statistics_leave_out_no_row(batch: int, tmp_path: Path) -> None:
    data = {
        "n": range(100),
        "text": ["ü" * 200, *["b"] * 99],
        "flag": [True] * 100,
        "raw": [b"x"] * 100,
        "none": pa.nulls(100, pa.int64()),
    }
    for name, column in {
        "plain": pa.array([1.0] * 99 + [2.0]),
        "nan": pa.array([float("nan"), 5.0, *[1.0] * 98]),
        "infinite": pa.array([float("inf"), *[1.0] * 99]),
        "money": pa.array([Decimal("7.00")] * 100, pa.decimal128(20, 2)),
        "of": pa.array([{"a": 1}] * 100),
    }.items():
        table = tmp_path / name
        flow = sw.Pipeline("statistics")
        flow.table(pa.table({**data, "x": column})).sink(DeltaSink(table, row_group_size=7))
        flow.run(batch_size=batch)
        write_deltalake(table, pa.table({"n": [-5], "text": ["a"]}), mode="append", schema_mode="merge")
        *_, action = sorted(
            pa.table(DeltaTable(table).get_add_actions()).to_pylist(), key=lambda a: a["num_records"]
        )
        assert action["num_records"] == 100
        assert action["size_bytes"] == (table / action["path"]).stat().st_size
        if name == "plain":
            assert (action["min"]["n"], action["max"]["n"], action["null_count"]["n"]) == (0, 99, 0)
            assert action["min"]["text"] == "b"
            assert action["max"]["text"] == "ü" * 64 + "\U0010ffff"
        else:
            assert not (action["min"] and action["min"]["n"])
        filters = {
            "n": [("n", ">", 97)],
            "text": [("text", ">", "c")],
            "flag": [("flag", "=", True)],
            "raw": [("raw", "=", b"x")],
        }
        if name != "of":
            filters["x"] = [("x", ">", Decimal("1.5") if name == "money" else 1.5)]
        counts = {of: DeltaTable(table).to_pyarrow_table(filters=kept).num_rows for of, kept in filters.items()}
        assert counts == {
            "n": 2,
            "text": 1,
            "flag": 100,
            "raw": 100,
            **({} if name == "of" else {"x": 100 if name == "money" else 1}),
        }
        assert pl.scan_delta(str(table)).filter(pl.col("text") > "c").collect().height == 1
    assert pl.scan_delta(str(tmp_path / "nan")).filter(pl.col("x").is_nan()).collect().height == 1


def test_records_are_dicts_and_objects(tmp_path: Path) -> None:
    @dataclass
    class Sale:
        user: str
        amount: int | None = None

    for at, records in enumerate([[Sale("ann", 5), Sale("bob")], [{"user": "ann", "amount": 5}, {"user": "bob"}]]):
        table = tmp_path / str(at)
        flow = sw.Pipeline("records")
        flow.from_collection(records).sink("delta", table=str(table), schema=Sale)
        flow.run(parallelism=2)
        assert sorted(rows_of(table), key=str) == [
            {"user": "ann", "amount": 5},
            {"user": "bob", "amount": None},
        ]
        flow = sw.Pipeline("more")
        flow.from_collection(records).sink(DeltaSink(table))  # the columns are those of the table
        flow.run()
        assert len(rows_of(table)) == 4


# ---- columns that do not fit -----------------------------------------------------------------------------------


@pytest.fixture
def there(tmp_path: Path) -> Path:
    table = tmp_path / "there"
    schema = pa.schema([pa.field("user", pa.string(), False), ("amount", pa.int32()), ("day", pa.date32())])
    DeltaTable.create(table, schema, partition_by=["day"])
    return table


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
        ({"user": ["a"], "User": [1]}, {"merge_schema": True}, "differs in capital letters alone"),
    ],
)
def test_columns_are_compared_before_anything_runs(rows: Any, options: Any, message: str, there: Path) -> None:
    with pytest.raises(ConnectorError) as raised:
        sw.Pipeline("misfit").table(pa.table(rows)).sink(DeltaSink(there, **options))
    assert message in str(raised.value)
    assert str(there) in str(raised.value)


def test_a_struct_with_a_field_that_is_not_null_may_be_null(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    DeltaTable.create(tmp_path, pa.schema([("n", pa.int64()), ("of", kind)]))
    for of in ({}, {"of": pa.nulls(1, kind)}):
        flow = sw.Pipeline("nulls")
        flow.table(pa.table({"n": [1], **of})).sink(DeltaSink(tmp_path))
        flow.run()
    assert pa.table(DeltaTable(tmp_path).to_pyarrow_table()).to_pylist() == [{"n": 1, "of": None}] * 2


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us"), pa.uint64(), pa.decimal256(50, 2)])
def test_types_that_delta_does_not_have_are_refused(kind: Any, tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array([None], kind)})
    with pytest.raises(ConnectorError, match=r"column 'x' has .*, which such a table has no type for: cast it"):
        sw.Pipeline("misfit").table(rows).sink(DeltaSink(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"user": None}, "column 'user' may not be null, and is in {'user': None}"),
        ({"user": "a", "amount": "x"}, "does not fit into column 'amount' of type int32"),
        ({"user": "a", "amuont": 1}, "has no column 'amuont'; did you mean 'amount'?"),
        ("ann", "'ann' (str) is no row: a dict, a dataclass or a named tuple with user, amount, day is"),
        (("ann", 1), "('ann', 1) (tuple) is no row"),
    ],
)
def test_a_record_that_does_not_fit_is_shown(record: Any, message: str, there: Path) -> None:
    flow = sw.Pipeline("misfit")
    flow.from_collection([{"user": "ann"}, record]).sink(DeltaSink(there))
    with pytest.raises(ConnectorError) as raised:
        flow.run()
    assert message in str(raised.value)
    assert not rows_of(there)


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
    flow = sw.Pipeline("misfit")
    flow.table(rows).sink(DeltaSink(tmp_path / "t"))
    with pytest.raises(ConnectorError, match="The table has microseconds: truncate it before"):
        flow.run()
    flow = sw.Pipeline("misfit")
    flow.table(pa.table({"n": [1], "text": [""]})).sink(DeltaSink(tmp_path / "u", partition_by="text"))
    with pytest.raises(ConnectorError, match="empty text, which Delta Lake cannot tell from null"):
        flow.run()


def test_new_columns_are_added_on_request(there: Path) -> None:
    rows = pa.table({"user": ["a"], "more": [1.5], "new": pa.array([["x"]])})
    with pytest.raises(ConnectorError, match="merge_schema=True adds new columns"):
        sw.Pipeline("new").table(rows).sink(DeltaSink(there))
    write_deltalake(
        there,
        pa.table({"user": ["b"], "amount": pa.array([1], pa.int32()), "day": [date(2026, 1, 1)]}),
        mode="append",
    )
    flow = sw.Pipeline("new")
    flow.table(rows).rebalance().sink(DeltaSink(there, merge_schema=True))
    flow.run(parallelism=3)
    assert sorted(rows_of(there), key=lambda row: row["user"]) == [
        {"user": "a", "amount": None, "day": None, "more": 1.5, "new": ["x"]},
        {"user": "b", "amount": 1, "day": date(2026, 1, 1), "more": None, "new": None},
    ]


def test_a_table_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"n": [1]}))
    DeltaTable(table).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(ConnectorError, match="has the constraint 'positive'"):
        sw.Pipeline("constraint").table(pa.table({"n": [-1]})).sink(DeltaSink(table))


def test_a_table_that_is_not_there_needs_columns(tmp_path: Path) -> None:
    flow = sw.Pipeline("records")
    flow.from_collection([{"n": 1}]).sink(DeltaSink(tmp_path / "t"))
    with pytest.raises(
        ConnectorError, match="does not exist, and what columns it is to have is not known: give schema="
    ):
        flow.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": ""}, "a Delta table is a path or a URL"),
        ({"table": "t", "row_group_size": 0}, "row_group_size=0 must be a whole number, at least 1"),
        ({"table": "t", "codec": "zip"}, "codec='zip' must be one of 'snappy'"),
        ({"table": "t", "partition_by": ["a", "a"]}, "or several different ones"),
        ({"table": "t", "partition_by": "x", "schema": SCHEMA}, "partition_by='x': schema= has no such column"),
        ({"table": "t", "schema": int}, "schema=: int has no named and typed fields"),
        ({"table": "t", "merge_schema": "yes"}, "merge_schema='yes' must be True or False"),
        ({"table": "t", "storage_options": {"a": 1}}, "must have texts as names and values"),
    ],
)
def test_arguments_that_cannot_be_used(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        DeltaSink(**options)
    assert message in str(raised.value)


# ---- exactly once ----------------------------------------------------------------------------------------------


def kept_and_committed(sink: Sink[Any], rows: Sequence[Any], parallelism: int = 1, *, commit: bool = True) -> Any:
    with SinkDriver(sink, parallelism, checkpoints=True) as driver:
        for subtask in range(parallelism):
            driver.write(list(rows), subtask=subtask)
        kept = driver.checkpoint()
        if commit:
            driver.complete()
        return kept


def test_a_version_per_writer_and_checkpoint(tmp_path: Path) -> None:
    with SinkDriver(DeltaSink(tmp_path, schema=NUMBERS), 2, checkpoints=True) as driver:
        for _ in range(3):
            for subtask in range(2):
                for n in range(5):
                    driver.write([{"n": n}], subtask=subtask)
            driver.checkpoint()
            driver.complete()
        driver.checkpoint()
        driver.complete()
    assert DeltaTable(tmp_path).version() == 6  # none without rows
    assert len(rows_of(tmp_path)) == 30
    assert len(list(tmp_path.glob("*.parquet"))) == 6


def test_a_relative_path_stays_what_it_was_when_a_function_changes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    failed: list[int] = []

    def leaving(n: int) -> dict[str, int]:
        os.chdir(tmp_path / "elsewhere")
        if n == 50 and not failed:
            failed.append(n)
            raise InjectedError
        return {"n": n}

    flow = sw.Pipeline("numbers")
    flow.source(GeneratorSource(count=100)).map(leaving).sink(DeltaSink("numbers", schema=NUMBERS))
    flow.run(checkpoint_interval="1h", restart="fixed-delay:1:1ms")
    assert len(rows_of(tmp_path / "numbers")) == 100
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_several_writers_have_left_becomes_one_version(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], 3, commit=False)
    for _ in range(2):
        with SinkDriver(sink, 1, checkpoints=True, restored=kept):
            pass
    assert DeltaTable(tmp_path).version() == 1
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 1, 1]


def test_a_commit_whose_acknowledgement_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    commit = DeltaTable.create_write_transaction

    def losing(*args: Any, **options: Any) -> None:
        commit(*args, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([{"n": 1}])
        kept = driver.checkpoint()
        with pytest.raises(ConnectorError, match=r"cannot commit to Delta table .*: connection reset"):
            driver.complete()
    with SinkDriver(sink, checkpoints=True, restored=kept):
        pass
    assert [row["n"] for row in rows_of(tmp_path)] == [1]


def test_an_attempt_that_is_thought_to_be_dead_commits_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new attempt has looked before the old one commits: the log of the table decides."""
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    with SinkDriver(sink, checkpoints=True) as zombie:
        zombie.write([{"n": 1}])
        kept = zombie.checkpoint()
        look = DeltaTable.transaction_version

        def slow(table: DeltaTable, application: str) -> int | None:
            found = look(table, application)
            monkeypatch.setattr(DeltaTable, "transaction_version", look)
            zombie.complete()
            DeltaTable(tmp_path).delete("n = 1")  # else the file, added twice, would be one file
            return found

        monkeypatch.setattr(DeltaTable, "transaction_version", slow)
        with SinkDriver(sink, checkpoints=True, restored=kept):
            pass
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize("change", ["optimize", "delete"])
def test_a_commit_that_is_repeated_when_its_files_were_replaced(change: str, tmp_path: Path) -> None:
    """A file that is added twice is one file, unless it was removed in between: then the transaction tells."""
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    kept = kept_and_committed(sink, [{"n": 2}])
    if change == "optimize":
        DeltaTable(tmp_path).optimize.compact()
    else:
        DeltaTable(tmp_path).delete("n = 2")
    with SinkDriver(sink, checkpoints=True, restored=kept):
        pass
    assert sorted(row["n"] for row in rows_of(tmp_path)) == ([1, 2] if change == "optimize" else [1])


def test_another_writer_commits_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = DeltaTable.transaction_version

    def slow(table: DeltaTable, application: str) -> int | None:
        found = look(table, application)
        write_deltalake(tmp_path, pa.table({"n": [2]}), mode="append")
        return found

    sink = DeltaSink(tmp_path, schema=NUMBERS)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([{"n": 1}])
        driver.checkpoint()
        monkeypatch.setattr(DeltaTable, "transaction_version", slow)
        driver.complete()
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [1, 2]


def test_a_new_run_of_the_job_is_not_taken_for_an_earlier_one(tmp_path: Path) -> None:
    for n in range(3):
        kept_and_committed(DeltaSink(tmp_path, schema=NUMBERS), [{"n": n}])
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [0, 1, 2]


def test_files_that_were_removed_before_they_are_committed(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(ConnectorError, match=r"is not there any more\. Was it removed by VACUUM"):
        SinkDriver(sink, checkpoints=True, restored=kept).__enter__()
    assert DeltaTable(tmp_path).version() == 0


def test_a_table_that_was_replaced(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, schema=NUMBERS)
    kept = kept_and_committed(sink, [{"n": 1}], commit=False)
    DeltaTable.create(tmp_path, NUMBERS, mode="overwrite")
    with pytest.raises(ConnectorError, match="was replaced by another table"):
        SinkDriver(sink, checkpoints=True, restored=kept).__enter__()


def test_a_column_that_is_changed_meanwhile(tmp_path: Path) -> None:
    with SinkDriver(DeltaSink(tmp_path, schema=NUMBERS), checkpoints=True) as driver:
        driver.write([{"n": 1}])
        driver.checkpoint()
        write_deltalake(tmp_path, pa.table({"n": ["x"]}), mode="overwrite", schema_mode="overwrite")
        with pytest.raises(ConnectorError, match="the column 'n' was changed while the job was running"):
            driver.complete()
        write_deltalake(tmp_path, pa.table({"n": [5], "m": [5]}), mode="overwrite", schema_mode="overwrite")
        driver.writer().commit(driver.checkpoint()[0])


def test_a_failed_attempt_leaves_no_file_of_its_own(tmp_path: Path) -> None:
    with SinkDriver(
        DeltaSink(tmp_path, schema=NUMBERS, row_group_size=1, target_file_size=1), checkpoints=True
    ) as driver:
        driver.write([{"n": 1}, {"n": 2}])
        driver.write([{"n": 3}])
    assert not list(tmp_path.glob("*.parquet"))


COUNT = 4_000


def numbers(table: Path, rate: int | None = None, sink: Any = None) -> sw.Pipeline:
    flow = sw.Pipeline("numbers")
    rows = flow.source(GeneratorSource(count=COUNT, rate=rate)).uid("source").rebalance()
    rows = rows.map(lambda n: {"n": n, "p": n % 3}).uid("rows")
    of = pa.schema([("n", pa.int64()), ("p", pa.int64())])
    sink = sink or DeltaSink(table, partition_by="p")
    rows.to_columns(of).with_columns(m=col("n") * 2).sink(sink).uid("sink")
    return flow


def check_numbers(table: Path) -> None:
    read = pl.read_delta(str(table)).sort("n")
    assert read["n"].to_list() == list(range(COUNT))
    assert (read["m"] == read["n"] * 2).all()
    assert (read["p"] == read["n"] % 3).all()


@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        ("after pre-commit", 0),
        ("before commit", 2),
        ("during commit", 0),
        ("after commit", 0),
        ("after recovery", 0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("after write", 0),
                ("before commit", 0),
                ("before recovery", 0),
                ("after write", 2),
                ("after pre-commit", 2),
                ("during commit", 2),
                ("after commit", 2),
                ("before recovery", 2),
                ("after recovery", 2),
            ]
        ),
    ],
)
def test_a_failure_at_any_moment(moment: str, workers: int, tmp_path: Path) -> None:
    table, marks = tmp_path / "t", tmp_path / "marks"
    marks.mkdir()
    moments = [moment, "before commit"] if "recovery" in moment else [moment]
    sink = BreakingSink(DeltaSink(table, partition_by="p"), marks, *moments, kill=workers > 0)
    result = numbers(table, 8_000, sink).run(
        parallelism=2,
        workers=workers,
        batch_size=16,
        checkpoint_interval="30ms",
        checkpoints=tmp_path / "kept",
        restart="fixed-delay:50:10ms",
    )
    assert result.metrics.restarts >= 1
    assert sorted(mark.name for mark in marks.iterdir()) == sorted(one.replace(" ", "-") for one in moments)
    check_numbers(table)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_savepoint_goes_on_at_another_parallelism(workers: int, tmp_path: Path) -> None:
    import asyncio

    table = tmp_path / "t"

    async def go(parallelism: int, before: str | None) -> str:
        flow = numbers(table, 100)  # it would take most of a minute
        async with await flow.start(
            parallelism=parallelism,
            workers=workers,
            checkpoint_interval="30ms",
            batch_size=1,
            from_checkpoint=before,
        ) as job:
            first = 0 if before is None else DeltaTable(table).version()
            while not DeltaTable.is_deltatable(str(table)) or DeltaTable(table).version() < first + 2:
                await asyncio.sleep(0.005)
            return await job.stop(savepoint=tmp_path / "kept")

    location = asyncio.run(go(3, None))
    location = asyncio.run(go(1, location))
    numbers(table).run(parallelism=2, workers=workers, checkpoint_interval="1h", from_checkpoint=location)
    check_numbers(table)


class _InMemory(FileStore):
    def create(self, path: str) -> Any:
        return io.BytesIO()

    def close(self, file: Any) -> None:
        file.close()


def test_small_batches_that_do_not_fit_into_one_are_a_row_group() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())  # a small example: lists of texts need 2 GiB for it
    schema = pa.schema([("word", kind)])
    limits = {"row_group_size": 10_000, "file_size": 10_000_000, "max_open": 1}
    files = ParquetFiles(_InMemory(), schema, (), lambda partition, name: name, options={}, **limits)
    for n in range(1030):
        files.write(pa.record_batch([pa.array([f"word {n}"]).cast(kind)], schema=schema))
    (file,) = files.take()
    assert [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)] == [1024, 6]
