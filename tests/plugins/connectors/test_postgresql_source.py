"""Tables of PostgreSQL, read in bulk: values of all types, ranges of keys, restarts, and refusals."""

from __future__ import annotations

import os
import signal
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_files import FilesSink
from sluiceway_sql import PostgreSqlSource

pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')

import arrowpipe
import pyarrow as pa
import pyarrow.parquet as pq

from sluiceway.table import agg, col

assert arrowpipe.OPEN

VALUES: dict[str, tuple[str, Any, list[tuple[str, Any]]]] = {
    "s": ("smallint", pa.int16(), [("-32768", -(2**15)), ("null", None)]),
    "i": ("bigint", pa.int64(), [("9223372036854775807", 2**63 - 1), ("null", None)]),
    "f": ("double precision", pa.float64(), [("'-Infinity'", float("-inf")), ("0.1", 0.1), ("null", None)]),
    "r": ("real", pa.float32(), [("1.5", 1.5), ("'Infinity'", float("inf")), ("null", None)]),
    "b": ("boolean", pa.bool_(), [("true", True), ("false", False), ("null", None)]),
    "t": (
        "text",
        pa.string(),
        [("''", ""), (r"E'q\"x\n,\\.'", 'q"x\n,\\.'), ("null", None), ("'ü'", "ü"), ("'null'", "null")],
    ),
    "c": ("char(3)", pa.string(), [("'ab'", "ab "), ("null", None)]),
    "m": ("numeric(20,4)", pa.decimal128(20, 4), [("-0.0001", Decimal("-0.0001")), ("null", None)]),
    "d": ("date", pa.date32(), [("'1600-02-29'", date(1600, 2, 29)), ("null", None)]),
    "h": ("time", pa.time64("us"), [("'01:02:03.000004'", time(1, 2, 3, 4)), ("null", None)]),
    "n": (
        "timestamp",
        pa.timestamp("us"),
        [("'1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999)), ("null", None)],
    ),
    "z": (
        "timestamptz",
        pa.timestamp("us", "UTC"),
        [("'2026-01-01 09:00:00.000001+09'", datetime(2026, 1, 1, 0, 0, 0, 1, UTC)), ("null", None)],
    ),
    "raw": ("bytea", pa.binary(), [(r"'\x00ff'", b"\x00\xff"), ("null", None), ("''", b""), (r"'\x01'", b"\x01")]),
    "j": ("jsonb", pa.string(), [("""'{"a": [1]}'""", '{"a": [1]}'), ("null", None)]),
    "u": (
        "uuid",
        pa.string(),
        [("'5b0b4c5e-0000-4000-8000-000000000001'", "5b0b4c5e-0000-4000-8000-000000000001"), ("null", None)],
    ),
    "li": (
        "bigint[]",
        pa.list_(pa.int64()),
        [("'{1,null}'", [1, None]), ("null", None), ("'{}'", []), ("'{9223372036854775807}'", [2**63 - 1])],
    ),
    "lt": (
        "text[]",
        pa.list_(pa.string()),
        [("""array['a"', E'\\n', null]""", ['a"', "\n", None]), ("null", None)],
    ),
    "e": ("mood", pa.string(), [("'ok'", "ok"), ("null", None)]),
}
"""By column its type, that in Arrow, and pairs of an expression and its value."""


def execute(url: str, *statements: str) -> None:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def values(postgresql: str) -> str:
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in VALUES.items())
    rows = []
    for number in range(5):
        given = [str(number), *(pairs[number % len(pairs)][0] for _, _, pairs in VALUES.values())]
        rows.append(f"({', '.join(given)})")
    execute(
        postgresql,
        "CREATE TYPE mood AS ENUM ('ok')",
        f"CREATE TABLE values_ (id integer PRIMARY KEY, {columns})",
        f"INSERT INTO values_ VALUES {', '.join(rows)}",
    )
    return postgresql


@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "parallelism": 2}])
def test_values_are_those_of_the_table(values: str, options: dict[str, Any]) -> None:
    rows = sw.Pipeline().table(PostgreSqlSource(values, "values_", key="id"))
    wanted = pa.schema(
        [pa.field("id", pa.int32(), False), *((name, kind) for name, (_, kind, _) in VALUES.items())]
    )
    assert rows.schema == wanted
    found = sorted(rows.to_arrow(**options).to_pylist(), key=lambda row: row["id"])
    for number, row in enumerate(found):
        assert row == {"id": number} | {
            name: pairs[number % len(pairs)][1] for name, (_, _, pairs) in VALUES.items()
        }
    assert len(found) == 5


def test_records_are_dicts(values: str) -> None:
    flow = sw.Pipeline()
    found = flow.source("postgresql", database=values, table="values_", key="id", columns=["t", "z"]).collect()
    flow.run()
    assert [set(row) for row in found] == [{"t", "z"}] * 5
    assert {row["t"] for row in found} == {value for _, value in VALUES["t"][2]}


def test_a_time_that_python_has_none_for_fails_records_with_the_column(postgresql: str) -> None:
    execute(
        postgresql,
        "CREATE TABLE far (id int PRIMARY KEY, v timestamp)",
        "INSERT INTO far VALUES (1, '12000-01-01')",
    )
    source = PostgreSqlSource(postgresql, "far", key="id")
    assert sw.Pipeline().table(source).to_arrow().num_rows == 1
    flow = sw.Pipeline()
    flow.source(source).collect()
    with pytest.raises(ConnectorError, match=r"table 'far' of postgresql.*column 'v' has timestamp\[us\].*9999"):
        flow.run()


@pytest.fixture
def numbers(postgresql: str) -> str:
    execute(
        postgresql,
        'CREATE TABLE "num%s" ("order id" bigint PRIMARY KEY, "a%s" int, note text)',
        """INSERT INTO "num%s" SELECT n * n - 50000, n, 'note ' || n FROM generate_series(1, 20000) n""",
    )
    return postgresql


@pytest.mark.parametrize("splits", [None, 1, 7, 1000])
def test_each_row_is_read_once_by_ranges_of_a_sparse_key(numbers: str, splits: int | None) -> None:
    source = PostgreSqlSource(numbers, "num%s", key="order id", splits=splits)
    found = sw.Pipeline().table(source).filter(col("a%s") > 0).select("a%s").to_arrow(parallelism=3, batch_size=2)
    assert sorted(found["a%s"].to_pylist()) == list(range(1, 20_001))


def test_columns_that_no_step_needs_are_not_read(numbers: str) -> None:
    flow = sw.Pipeline()
    sums = flow.table(PostgreSqlSource(numbers, "num%s", key="order id")).key_by("note").aggregate(n=agg.count())
    sums.collect()
    assert "pushed down columns note" in flow.explain()


def test_a_table_without_rows_gives_none(postgresql: str) -> None:
    execute(postgresql, "CREATE TABLE empty_ (id int PRIMARY KEY, t text)")
    assert sw.Pipeline().table(PostgreSqlSource(postgresql, "empty_", key="id")).to_arrow().num_rows == 0


def test_rows_are_counted_once_when_a_job_begins_anew_in_the_middle_of_a_range(
    numbers: str, tmp_path: Path
) -> None:
    kept, failed = tmp_path / "kept", tmp_path / "failed"
    more = "SELECT n * n - 50000, n, 'note ' || n FROM generate_series(20001::bigint, 100000) n"
    execute(numbers, f'INSERT INTO "num%s" {more}')

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        # The first checkpoint may be of a time before any row.
        if rows.num_rows and not failed.exists() and any(kept.glob("*/chk-[3-9]/*")):
            failed.touch()
            raise OSError("once")
        return rows

    flow = sw.Pipeline("numbers")
    rows = flow.table(PostgreSqlSource(numbers, "num%s", key="order id", splits=2)).map_batches(fail_once)
    rows.sink(FilesSink.parquet(str(tmp_path / "out")))
    flow.run(
        batch_size=1, checkpoints=str(kept), checkpoint_interval="10ms", restart="fixed-delay:2:1ms", parallelism=2
    )
    assert failed.exists()
    found = pa.concat_tables([pq.read_table(part) for part in sorted((tmp_path / "out").glob("part-*"))])
    assert sorted(found["a%s"].to_pylist()) == list(range(1, 100_001))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "nowhere"}, "table 'nowhere' of postgresql.* it does not exist"),
        ({"key": "notes"}, r"key=: there is no column 'notes'; did you mean 'note'\?"),
        ({"columns": ["nte"]}, r"columns=: there is no column 'nte'; did you mean 'note'\?"),
        (
            {"key": "note"},
            "key='note' is text, may be null; it must be an integer column, NOT NULL, with a unique",
        ),
        ({"key": "other"}, "key='other' is integer; it must be"),
        ({"key": "part"}, "key='part' is integer; it must be"),
        ({"columns": ["gap"]}, "column 'gap' has type interval, which has no type in columns: leave it out"),
        ({"columns": ["free"]}, "column 'free' has type numeric, which"),
        ({"columns": ["moneys"]}, r"column 'moneys' has type money\[\], which"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_job_runs(
    postgresql: str, given: dict[str, Any], message: str
) -> None:
    execute(
        postgresql,
        "CREATE TABLE odd (id int PRIMARY KEY, note text, other int NOT NULL, part int NOT NULL, gap interval, "
        "free numeric, moneys money[], UNIQUE (part, id))",
        "CREATE UNIQUE INDEX ON odd (other) WHERE other > 5",
    )
    arguments: Any = {"table": "odd", "key": "id"} | given
    with pytest.raises(ConnectorError, match=message):
        sw.Pipeline().table(PostgreSqlSource(postgresql, **arguments))


def test_a_table_that_is_locked_does_not_hold_up_a_job_for_ever(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ends are looked up in a thread that other jobs share."""
    import psycopg

    monkeypatch.setattr("sluiceway_sql._postgresql_source._LOCKED_MS", 50)
    execute(postgresql, "CREATE TABLE held (id int PRIMARY KEY)", "INSERT INTO held VALUES (1)")
    flow = sw.Pipeline("held")
    flow.table(PostgreSqlSource(postgresql, "held", key="id")).collect()
    with psycopg.connect(postgresql.replace("+psycopg", "")) as other:
        other.execute("LOCK TABLE held")
        with pytest.raises(ConnectorError, match=r"cannot read table 'held' of .*lock timeout"):
            flow.run()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("numeric(6,2)", "'NaN'", r"a value of column 'v' is no decimal128\(6, 2\)"),
        ("time", "'24:00:00'", "a value of column 'v' is no time64.*24:00:00 is no time of a day"),
        ("int[]", "'{{1,2},{3,4}}'", "a value of column 'v' is no list<.*"),
        ("float8[]", "'{NaN}'", "a value of column 'v' is no list<.*"),
        ("timestamp", "'infinity'", "cannot read table 'bad' of postgresql.*infinity"),
    ],
)
def test_values_without_a_place_in_arrow_fail_the_job_with_the_column(
    postgresql: str, kind: str, value: str, message: str
) -> None:
    execute(postgresql, f"CREATE TABLE bad (id int PRIMARY KEY, v {kind})", f"INSERT INTO bad VALUES (1, {value})")
    with pytest.raises(ConnectorError, match=message):
        sw.Pipeline().table(PostgreSqlSource(postgresql, "bad", key="id")).to_arrow()


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    source = PostgreSqlSource(f"postgresql+psycopg://me:secret@/shop?host={tmp_path}", "t", key="id")
    with pytest.raises(ConnectorError, match="cannot read table 't' of postgresql") as raised:
        sw.Pipeline().table(source)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"database": "shop.db"}, r"must be a URL that begins with postgresql\+psycopg://"),
        ({"table": ""}, "table='' must be the name of a table"),
        ({"key": 5}, "key=5 must be the name of a column"),
        ({"columns": []}, "columns=.* must be a list of names"),
        ({"columns": "note"}, "columns='note' must be a list of names"),
        ({"splits": 0}, "splits=0 must be a whole number from 1 to 1000"),
    ],
)
def test_arguments_are_checked(given: dict[str, Any], message: str) -> None:
    pytest.importorskip("psycopg")
    pytest.importorskip("sqlalchemy")
    arguments: Any = {"database": "postgresql+psycopg://me@h/shop", "table": "t", "key": "id"} | given
    with pytest.raises(ConfigurationError, match=message):
        PostgreSqlSource(**arguments)


@pytest.mark.slow
def test_killed_workers_lose_and_double_no_row(postgresql: str, tmp_path: Path) -> None:
    count = 60_000
    execute(
        postgresql,
        "CREATE TABLE numbers (id bigint PRIMARY KEY, text text)",
        f"INSERT INTO numbers SELECT n * 3, 'row ' || n FROM generate_series(0, {count - 1}) n",
    )

    def kill(rows: pa.RecordBatch) -> pa.RecordBatch:
        # In the middle of the second and of the third of four ranges.
        for at in (3, 5):
            mark = tmp_path / f"killed at {at}"
            reached = rows.num_rows and at * count * 3 // 8 <= rows["id"][-1].as_py() < (at + 1) * count * 3 // 8
            if reached and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return rows

    flow = sw.Pipeline("killed", parallelism=2)
    rows = flow.table(PostgreSqlSource(postgresql, "numbers", key="id", splits=4)).map_batches(kill)
    rows.rebalance().sink(FilesSink.parquet(tmp_path / "out"))
    flow.run(
        workers=2,
        batch_size=4,
        checkpoint_interval="20ms",
        checkpoints=tmp_path / "kept",
        restart="fixed-delay:5:10ms",
    )
    assert len(list(tmp_path.glob("killed at *"))) == 2
    read = pq.read_table(tmp_path / "out").sort_by("id").to_pylist()
    assert read == [{"id": n * 3, "text": f"row {n}"} for n in range(count)]
