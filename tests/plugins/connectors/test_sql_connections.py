"""Connections that are lost and transactions that conflict, under the SQL sink and the source of PostgreSQL."""

from __future__ import annotations

import sqlite3
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from sluiceway.elements import Columns
from sluiceway.errors import ConnectorError
from sluiceway.testing.drivers import SinkDriver, drive_sink
from sluiceway_sql import PostgreSqlSource, SqlSink

pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')
pytest.importorskip("sqlalchemy", reason='not installed: pip install "sluiceway[sql]"')

import pyarrow as pa
from tests.patience import until

import sluiceway as sw

COLUMNS = ("word", "n")
CREATE = "CREATE TABLE words (word text PRIMARY KEY, n int)"


def execute(url: str, *statements: str) -> list[Any]:
    """Execute statements, and return the rows of the last one."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
        for statement in statements:
            result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


class Named:
    """URL of connections that the server can tell from others."""

    def __init__(self, url: str) -> None:
        self._server = url
        self._name = url.rpartition("%3D")[2]
        self.url = f"{url}&application_name={self._name}"

    def close_connections(self) -> int:
        """Close the connections at the server; returns how many it closed."""
        closed = self._of_each("pg_terminate_backend(pid, 600000)")
        assert all(closed)
        return len(closed)

    def is_connected(self) -> bool:
        return bool(self._of_each("pid"))

    def _of_each(self, expression: str) -> list[Any]:
        statement = f"SELECT {expression} FROM pg_stat_activity WHERE application_name = '{self._name}'"
        return [value for (value,) in execute(self._server, statement)]


@pytest.fixture
def named(postgresql: str) -> Named:
    return Named(postgresql)


# ---- connections that are lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize(
    ("key", "guarantee"), [((), None), (("word",), None), (("word",), "exactly-once"), ((), "at-least-once")]
)
def test_a_connection_that_was_closed_while_it_was_idle_is_opened_anew(
    named: Named, key: Any, guarantee: Any, in_columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sink = SqlSink(named.url, "words", COLUMNS, key=key, guarantee=guarantee, create=CREATE)
    closed = 0
    with SinkDriver(sink, checkpoints=True) as driver:
        for n in range(3):
            rows = [(f"w{n}", n), (f"x{n}", n)]
            data = pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])
            closed += named.close_connections()
            driver.writer().write(Columns(data) if in_columns else rows, None)
            driver.checkpoint()
            closed += named.close_connections()
            driver.complete()
        driver.finish()
    written = execute(named.url, "SELECT word, n FROM words ORDER BY n, word")
    assert written == [(f"{letter}{n}", n) for n in range(3) for letter in "wx"]
    assert closed >= 3
    until(lambda: not named.is_connected())
    assert not [record for record in caplog.records if record.name.startswith("sqlalchemy")]


class Unreliable:
    """A connection to SQLite that is lost in some of its calls.

    Args:
        path: the file.
        lost: names of the calls: ``executemany`` or ``commit``; each is taken out when it comes. ``conflict``
            fails ``executemany`` without a loss.
    """

    def __init__(self, path: Path, lost: list[str]) -> None:
        self._connection = sqlite3.connect(path)
        self._lost = lost
        self._is_lost = False

    def _call(self, name: str) -> None:
        if name == "executemany" and "conflict" in self._lost:
            self._lost.remove("conflict")
            raise _ConflictError
        if name in self._lost:
            self._lost.remove(name)
            self._is_lost = True
            self._connection.rollback()
        if self._is_lost:
            raise sqlite3.OperationalError(f"gone in {name}")

    def cursor(self) -> Any:
        return _Cursor(self._connection.cursor(), self._call)

    def commit(self) -> None:
        self._call("commit")
        self._connection.commit()

    def rollback(self) -> None:
        self._call("rollback")
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


class _ConflictError(Exception):
    sqlstate = "40001"


class _Cursor:
    def __init__(self, cursor: sqlite3.Cursor, call: Any) -> None:
        self._cursor, self._call = cursor, call
        self.execute, self.fetchall, self.close = cursor.execute, cursor.fetchall, cursor.close

    def executemany(self, statement: str, rows: Any) -> None:
        self._cursor.executemany(statement, rows)
        self._call("executemany")


def _unreliable(path: Path, lost: list[str]) -> SqlSink:
    return SqlSink(lambda: Unreliable(path, lost), "words", COLUMNS, paramstyle="qmark")


def test_a_transaction_whose_connection_is_lost_before_the_commit_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    execute(f"sqlite:///{path}", "CREATE TABLE words (word, n)")
    drive_sink(_unreliable(path, ["executemany"]), [("to", 1), ("be", 2)])
    assert execute(f"sqlite:///{path}", "SELECT * FROM words") == [("to", 1), ("be", 2)]


def test_a_transaction_that_loses_each_connection_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    execute(f"sqlite:///{path}", "CREATE TABLE words (word, n)")
    with pytest.raises(ConnectorError, match=r"^cannot write table 'words' of .*: gone in executemany$"):
        drive_sink(_unreliable(path, ["executemany"] * 2), [("to", 1)])


def test_a_connection_that_is_lost_in_the_last_attempt_fails(tmp_path: Path) -> None:
    """After as many conflicts as are borne; a lost connection must not end the attempts without the rows."""
    path, lost = tmp_path / "a.db", ["conflict"] * 9 + ["executemany"]
    execute(f"sqlite:///{path}", "CREATE TABLE words (word, n)")
    with pytest.raises(ConnectorError, match=r"^cannot write table 'words' of .*: gone in executemany$"):
        drive_sink(_unreliable(path, lost), [("to", 1)])
    assert lost == []


def test_a_connection_that_is_lost_in_a_commit_is_an_error(tmp_path: Path) -> None:
    """The rows may be there: another transaction might add them twice."""
    path, lost = tmp_path / "a.db", list[str]()
    execute(f"sqlite:///{path}", "CREATE TABLE words (word, n)")
    with SinkDriver(_unreliable(path, lost)) as driver:
        driver.write([("to", 1)])
        lost.append("commit")
        with pytest.raises(
            ConnectorError,
            match=r"^the connection was lost in a commit to table 'words' of .*, whose rows may be there or not: "
            r"gone in commit$",
        ):
            driver.flush()
    assert execute(f"sqlite:///{path}", "SELECT * FROM words") == []


def test_a_database_that_stays_away_is_an_error(tmp_path: Path) -> None:
    path, lost, is_there = tmp_path / "a.db", list[str](), [True]

    def connect() -> Unreliable:
        if not is_there:
            raise sqlite3.OperationalError("connection refused")
        return Unreliable(path, lost)

    execute(f"sqlite:///{path}", "CREATE TABLE words (word, n)")
    with SinkDriver(SqlSink(connect, "words", COLUMNS, paramstyle="qmark")) as driver:
        driver.write([("to", 1)])
        lost.append("executemany")
        is_there.clear()
        with pytest.raises(ConnectorError, match=r"^cannot write table 'words' of .*: connection refused$"):
            driver.flush()


# ---- transactions that conflict --------------------------------------------------------------------------------


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("when", ["IMMEDIATE", "DEFERRED"])
def test_a_transaction_that_conflicts_with_another_one_is_repeated(
    postgresql: str, state: str, when: str, in_columns: bool
) -> None:
    """A sequence counts on in transactions that are rolled back; what is deferred fails the commit."""
    execute(
        postgresql,
        CREATE,
        "CREATE SEQUENCE attempts",
        f"""CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('attempts') < 5 THEN RAISE 'conflict' USING ERRCODE = '{state}'; END IF; RETURN NULL; END $$""",
        "CREATE CONSTRAINT TRIGGER conflicting AFTER INSERT OR UPDATE ON words DEFERRABLE "
        f"INITIALLY {when} FOR EACH ROW EXECUTE FUNCTION conflict()",
    )
    sink = SqlSink(postgresql, "words", COLUMNS, guarantee="exactly-once")
    rows = [("to", 1), ("be", 2)]
    with SinkDriver(sink, checkpoints=True) as driver:
        data = pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])
        driver.writer().write(Columns(data) if in_columns else rows, None)
        driver.finish()
    assert execute(postgresql, "SELECT * FROM words") == rows


def test_a_transaction_that_conflicts_each_time_fails(postgresql: str) -> None:
    execute(
        postgresql,
        CREATE,
        """CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'conflict' USING ERRCODE = '40P01'; END $$""",
        "CREATE TRIGGER conflicting AFTER INSERT ON words FOR EACH ROW EXECUTE FUNCTION conflict()",
    )
    with pytest.raises(ConnectorError, match=r"^cannot write table 'words' of .*: conflict CONTEXT"):
        drive_sink(SqlSink(postgresql, "words", COLUMNS, key=["word"]), [("to", 1)])


@pytest.mark.parametrize("refers", [False, True])
@pytest.mark.parametrize("key", [["a"], ["b", "a"]])
def test_rows_are_written_in_the_order_of_their_keys_unless_they_refer_to_each_other(
    postgresql: str, key: list[str], refers: bool
) -> None:
    """In one order, two subtasks do not lock rows so that each waits for the other's."""
    reference = ", FOREIGN KEY (up) REFERENCES words (a)" if refers else ""
    execute(
        postgresql,
        f"CREATE TABLE words (a int UNIQUE, b text, up int, at serial, PRIMARY KEY (b, a){reference})",
    )
    rows = [(9, "x", None), (5, "y", 9), (7, "x", 9)]
    drive_sink(SqlSink(postgresql, "words", ["a", "b", "up"], key=key), rows)
    found = execute(postgresql, "SELECT a, b, up FROM words ORDER BY at")
    order = {"a": 0, "b": 1}
    assert found == (rows if refers else sorted(rows, key=lambda row: [row[order[name]] for name in key]))


def test_keys_without_an_order_are_written_as_they_come(postgresql: str) -> None:
    execute(postgresql, "CREATE TABLE words (address inet PRIMARY KEY, n int, at serial)")
    rows = [(ip_address("::1"), 1), (ip_address("127.0.0.1"), 2)]
    drive_sink(SqlSink(postgresql, "words", ["address", "n"], key=["address"]), rows)
    assert execute(postgresql, "SELECT n FROM words ORDER BY at") == [(1,), (2,)]


# ---- the source ------------------------------------------------------------------------------------------------


def test_rows_behind_a_lost_connection_are_read_over_another_one(named: Named) -> None:
    execute(
        named.url,
        "CREATE TABLE numbers AS SELECT n::int AS n, repeat('x', 200) AS note FROM generate_series(1, 150000) n",
        "ALTER TABLE numbers ADD PRIMARY KEY (n)",
    )
    closed = []

    def close(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            closed.append(named.close_connections())
        return rows

    # More rows than come in one call.
    source = PostgreSqlSource(named.url, "numbers", key="n", splits=1)
    found = sw.Pipeline().table(source).map_batches(close).to_arrow()
    assert sorted(found["n"].to_pylist()) == list(range(1, 150_001))
    assert sum(closed) >= 2
