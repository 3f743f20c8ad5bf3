"""The SQL sink with rows in columns: as those of records, copied in bulk into PostgreSQL, exactly once."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.elements import Columns
from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway.testing.drivers import SinkDriver
from sluiceway_sql import SqlSink

pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')

import pyarrow as pa

from sluiceway.table import col

TYPES = {
    "t": ("text", pa.array(["a", "", None, 'q"x\n,\\.', "\\N", "ü"])),
    "i": ("bigint", pa.array([1, None, -(2**63), 2**63 - 1, 0, 5])),
    "f": ("double precision", pa.array([0.1, None, float("nan"), float("-inf"), 1e300, 3.0])),
    "s": ("double precision", pa.array([0.1, None, 1.5, 2, 1e-20, 7], pa.float32())),
    "b": ("boolean", pa.array([True, False, None, True, True, True])),
    "d": ("date", pa.array([date(2026, 2, 28), None, *[date(1600, 1, 1)] * 4])),
    "z": ("timestamptz", pa.array([datetime(2026, 1, 1, 1, 2, 3, 4, UTC)] * 6, pa.timestamp("us", "Asia/Tokyo"))),
    "n": ("timestamp", pa.array([datetime(2026, 1, 1, 1, 2, 3, 4), *[None] * 5], pa.timestamp("us"))),
    "h": ("time", pa.array([time(1, 2, 3), None, *[time(0)] * 4], pa.time64("us"))),
    "m": ("numeric(20, 4)", pa.array([Decimal("1.5000"), None, *[Decimal("-0.0001")] * 4], pa.decimal128(20, 4))),
    "k": ("text", pa.array(["x", "x", None, "y", "x", "y"]).dictionary_encode()),
    "o": ("text", pa.nulls(6)),
}  # fmt: skip
BY_ROWS = {
    "raw": ("bytea", pa.array([b"\x00\xff", None])),
    "of": ("bigint[]", pa.array([[1, 2], None])),
    "gap": ("interval", pa.array([timedelta(hours=1), None], pa.duration("us"))),
}


def found(url: str, statement: str) -> list[Any]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(url, poolclass=NullPool).connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def write(sink: SqlSink, *batches: Any) -> None:
    with SinkDriver(sink, checkpoints=True) as driver:
        for batch in batches:
            driver.writer().write(Columns(batch) if isinstance(batch, pa.RecordBatch) else batch, None)
        driver.finish()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the rows that are copied."""
    from sluiceway_sql import _copying

    counts: list[int] = []
    copy = _copying.copy

    def counting(cursor: Any, table: str, columns: str, batches: Any) -> None:
        counts.append(sum(batch.num_rows for batch in batches))
        copy(cursor, table, columns, batches)

    monkeypatch.setattr(_copying, "copy", counting)
    return counts


def test_values_are_those_of_records(postgresql: str, copied: list[int]) -> None:
    for of, is_copied in ((TYPES, True), (BY_ROWS, False)):
        rows = pa.RecordBatch.from_arrays([array for _, array in of.values()], names=list(of))
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in of.items())
        for at, given in enumerate((rows, rows.to_pylist())):
            name = f"a{at}{is_copied}"
            write(SqlSink(postgresql, name, list(of), create=f'CREATE TABLE "{name}" ({columns})'), given)
        read = [found(postgresql, f'SELECT * FROM "a{at}{is_copied}"') for at in range(2)]
        assert repr(read[0]) == repr(read[1])  # nan is not equal to itself
        assert len(read[0]) == rows.num_rows
        assert copied == [6]


def test_a_null_in_a_table_of_one_column_is_a_row(postgresql: str, copied: list[int]) -> None:
    rows = pa.record_batch({"word": ["a", None, "", None]})
    write(SqlSink(postgresql, "words", ["word"], create="CREATE TABLE words (word text)"), rows)
    assert found(postgresql, "SELECT word FROM words") == [("a",), (None,), ("",), (None,)]
    assert copied == [4]


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_of_rows_with_one_key_the_last_is_left(postgresql: str, guarantee: Any, copied: list[int]) -> None:
    create = 'CREATE TABLE "order ""2%" ("select" INTEGER, "A%s" INTEGER, UNIQUE ("A%s"))'
    names = ["select", "A%s"]
    sink = SqlSink(postgresql, 'order "2%', names, key=["A%s"], create=create, guarantee=guarantee)
    first = pa.record_batch({"A%s": range(400), "select": range(400), "more": range(400)})
    second = pa.record_batch({"A%s": [5, 6, 7, 7, 7], "select": [1000, 1001, 1004, 1002, 1003]})
    write(sink, first, second, [(2000, 6)], second.slice(0, 1))
    write(sink, second.slice(1, 1))
    got = dict(found(postgresql, 'SELECT "A%s", "select" FROM "order ""2%"'))
    assert got == {**{n: n for n in range(400)}, 5: 1000, 6: 1001, 7: 1003}
    assert sum(copied) == 407


def test_rows_of_any_batches_are_kept_until_the_checkpoint(postgresql: str, copied: list[int]) -> None:
    sink = SqlSink(postgresql, "words", ["n"], create="CREATE TABLE words (n bigint)")
    with SinkDriver(sink, checkpoints=True) as driver:
        for n in range(600):
            driver.writer().write(Columns(pa.record_batch({"n": [n]})), None)
        kept = driver.checkpoint()
        assert not found(postgresql, "SELECT n FROM words")
        driver.complete()
        driver.writer().write(Columns(pa.record_batch({"n": [-1]})), None)
        driver.checkpoint()
    for _ in range(2):  # a commit that comes again does nothing
        with SinkDriver(sink, checkpoints=True, restored=kept):
            pass
    assert sorted(found(postgresql, "SELECT n FROM words")) == [(n,) for n in range(600)]
    assert copied == [256, 256, 88]


def test_a_value_that_the_table_does_not_take_is_an_error(postgresql: str) -> None:
    sink = SqlSink(postgresql, "words", ["n"], create="CREATE TABLE words (n integer)")
    with pytest.raises(
        ConnectorError, match=r"cannot write table 'words'.*invalid input syntax.*\"1.5\".*column n"
    ):
        write(sink, pa.record_batch({"n": [1.0, 1.5]}))
    assert not found(postgresql, "SELECT n FROM words")
    with pytest.raises(ConnectorError, match="the rows have no column 'n'; their columns are m"):
        write(sink, pa.record_batch({"m": [1]}))
    fine = pa.record_batch({"n": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(ConnectorError, match=r"column 'n' has timestamp\[ns\], finer than the microseconds"):
        write(sink, fine)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamptz", pa.array([2_070_093_456_000_000_000], pa.timestamp("us", "UTC"))),
        ("timestamptz", pa.array([2**62], pa.timestamp("s", "UTC"))),
        ("timestamp", pa.array([0, -62_135_596_800_000_001, None], pa.timestamp("us"))),
        ("date", pa.array([-719_163], pa.int32()).cast(pa.date32())),
        ("date", pa.array([11_248_738, 0], pa.int32()).cast(pa.date32())),
    ],
)
def test_times_that_arrow_has_no_text_for_are_refused(postgresql: str, kind: str, values: Any) -> None:
    """Arrow writes the year 67568 as 2032."""
    sink = SqlSink(postgresql, "times", ["v"], create=f"CREATE TABLE times (v {kind})")
    with pytest.raises(
        RejectedRecordError, match=r"column 'v' has .*, and a time outside of the years 1 to 32767"
    ):
        write(sink, pa.RecordBatch.from_arrays([values], ["v"]))
    assert not found(postgresql, "SELECT v FROM times")


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("date", pa.array([-719_162, None, 11_248_737], pa.date32()), ["0001-01-01", None, "32767-12-31"]),
        (
            "timestamp",
            pa.array([-62_135_596_800, 971_890_963_199], pa.timestamp("s")),
            ["0001-01-01 00:00:00", "32767-12-31 23:59:59"],
        ),
        ("timestamptz", pa.array([None, None], pa.timestamp("us", "UTC")), [None, None]),
    ],
)
def test_times_at_the_ends_are_copied(postgresql: str, kind: str, values: Any, texts: list[str | None]) -> None:
    sink = SqlSink(postgresql, "times", ["n", "v"], create=f"CREATE TABLE times (n int, v {kind})")
    write(sink, pa.RecordBatch.from_arrays([pa.array(range(len(values))), values], ["n", "v"]))
    assert found(postgresql, "SELECT v::text FROM times ORDER BY n") == [(text,) for text in texts]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1_001], pa.timestamp("ns")), r"column 'v' has timestamp\[ns\], finer than microseconds"),
        (pa.array([1_001], pa.time64("ns")), r"column 'v' has time64\[ns\], finer than microseconds"),
        (
            pa.array([2_932_897], pa.date32()),
            r"column 'v' has date32\[day\], and a value that Python has none for",
        ),
    ],
)
def test_values_that_python_has_none_for_are_refused_by_other_databases(
    tmp_path: Path, values: Any, message: str
) -> None:
    with pytest.raises(RejectedRecordError, match=rf"^table 'times' of .*a\.db: {message}"):
        write(SqlSink(tmp_path / "a.db", "times", ["v"]), pa.RecordBatch.from_arrays([values], ["v"]))


def test_other_databases_take_rows_in_columns_too(tmp_path: Path) -> None:
    flow = sw.Pipeline()
    rows = flow.table(pa.table({"n": range(5), "word": list("abcde"), "more": [0.5] * 5})).filter(col("n") > 2)
    rows.sink(SqlSink(tmp_path / "a.db", "words", ["word", "n"]))
    flow.run(checkpoint_interval="1s")
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        assert sorted(database.execute("SELECT * FROM words")) == [("d", 3), ("e", 4)]


@pytest.mark.parametrize("key", [(), ("n",)])
def test_a_killed_worker_loses_and_doubles_no_row(postgresql: str, tmp_path: Path, key: tuple[str, ...]) -> None:
    killed = tmp_path / "killed"

    def kill_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows["n"][-1].as_py() > 30_000 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    flow = sw.Pipeline("killed")
    rows = flow.table(pa.table({"n": range(60_000), "half": [n / 2 for n in range(60_000)]}))
    unique = ", UNIQUE (n)" if key else ""
    create = f"CREATE TABLE halves (n bigint, half double precision{unique})"
    sink = SqlSink(
        postgresql, "halves", ["n", "half"], key=key, create=create, guarantee="exactly-once"
    )  # fmt: skip
    rows.map_batches(kill_once).rebalance().filter(col("n") >= 0).sink(sink).set_parallelism(2)
    flow.run(
        workers=2, batch_size=8, checkpoint_interval="50ms", checkpoints=tmp_path / "kept",
        restart="fixed-delay:5:10ms",
    )  # fmt: skip
    assert killed.exists()
    (total,) = found(postgresql, "SELECT count(*), count(DISTINCT n), sum(half) FROM halves")
    assert total == (60_000, 60_000, sum(range(60_000)) / 2)
