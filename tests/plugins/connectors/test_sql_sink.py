"""The SQL sink: on SQLite, on PostgreSQL where it is installed, and over drivers with other parameters."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pytest

import sluiceway as sw
from sluiceway.connector import DeliveryGuarantee, Sink
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError, RejectedRecordError
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.drivers import SinkDriver, drive_sink
from sluiceway_sql import SqlSink

COLUMNS = ("word", "n")


def rows(database: str | Path, statement: str = "SELECT * FROM words") -> list[Any]:
    """What a statement finds; nothing where there is no table."""
    if "://" in str(database):
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import ProgrammingError
        from sqlalchemy.pool import NullPool

        with (
            create_engine(str(database), poolclass=NullPool).connect() as connection,
            suppress(ProgrammingError),
        ):
            return [tuple(row) for row in connection.execute(text(statement))]
        return []
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
        return connection.execute(statement).fetchall()
    return []


def connect(path: Path) -> sqlite3.Connection:
    """Sooner done than what outlives a loss of power."""
    connection = sqlite3.connect(path, timeout=60)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


# ---- the conformance suites ------------------------------------------------------------------------------------


class _InSqlite:
    key: tuple[str, ...] = ()
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place, self.made = tmp_path, 0

    def new_database(self) -> Any:
        self.made += 1
        self.current: Any = self.place / f"{self.made}.db"
        return self.current

    def make_sink(self) -> Sink[Any]:
        connecting = partial(connect, self.new_database())
        return SqlSink(connecting, "words", COLUMNS, key=self.key, **self.options)

    def records(self) -> list[Any]:
        return [(f"word {i}", i) for i in range(24)]

    def written(self) -> list[Any]:
        return rows(self.current)


class TestAddingRows(_InSqlite, SinkConformance):
    options: ClassVar[dict[str, Any]] = {"guarantee": "at-least-once"}


class TestIdempotent(_InSqlite, SinkConformance):
    key = ("word",)


class TestExactlyOnce(_InSqlite, CommittingSinkConformance):
    def make_sink(self) -> Sink[Any]:
        return SqlSink(self.new_database(), "words", COLUMNS)


class TestExactlyOnceWithAKey(_InSqlite, CommittingSinkConformance):
    key = ("word",)
    options: ClassVar[dict[str, Any]] = {"guarantee": "exactly-once"}


class _InPostgresql(_InSqlite):
    @pytest.fixture(autouse=True)
    def _server(self, postgresql: str) -> None:
        self.current = postgresql

    def make_sink(self) -> Sink[Any]:
        self.made += 1
        create = f"CREATE TABLE words{self.made} (word VARCHAR(50){' PRIMARY KEY' if self.key else ''}, n INTEGER)"
        return SqlSink(self.current, f"words{self.made}", COLUMNS, key=self.key, create=create, **self.options)

    def written(self) -> list[Any]:
        return rows(self.current, f"SELECT * FROM words{self.made}")


class TestExactlyOnceInPostgresql(_InPostgresql, CommittingSinkConformance):
    pass


def test_idempotent_in_postgresql(postgresql: str) -> None:
    create = "CREATE TABLE words (word VARCHAR(50) PRIMARY KEY, n INTEGER)"
    sink = SqlSink(postgresql, "words", COLUMNS, key=["word"], create=create)
    for _ in range(2):
        drive_sink(sink, [("to", 1), ("be", 1), ("to", 2)], 2, batch_size=1)
        drive_sink(sink, [("to", 3)])
    assert sorted(rows(postgresql)) == [("be", 1), ("to", 3)]


def test_any_url_of_sqlalchemy(tmp_path: Path) -> None:
    sink = SqlSink(f"sqlite+pysqlite:///{tmp_path}/a.db", "words", COLUMNS)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("to", 1)])
        kept = driver.checkpoint()
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.write([("be", 2)])
        driver.finish()
    assert rows(tmp_path / "a.db") == [("to", 1), ("be", 2)]


# ---- records ---------------------------------------------------------------------------------------------------


@dataclass
class Count:
    word: str
    n: int
    more: bool = True


class Pair(NamedTuple):
    n: int
    word: str


class Word(msgspec.Struct):
    word: str
    n: int


@pytest.mark.parametrize(
    "record",
    [{"n": 1, "word": "to", "more": 2}, Count("to", 1), Pair(1, "to"), Word("to", 1), ("to", 1), ["to", 1]],
)
def test_what_is_a_row(tmp_path: Path, record: Any) -> None:
    drive_sink(SqlSink(tmp_path / "a.db", "words", COLUMNS), [record, ("be", 2)])
    assert rows(tmp_path / "a.db") == [("to", 1), ("be", 2)]


def test_rows_of_one_column(tmp_path: Path) -> None:
    drive_sink(SqlSink(tmp_path / "a.db", "words", ["word"], key=["word"]), [{"word": "to"}, ("be",), ("be",)])
    assert rows(tmp_path / "a.db") == [("to",), ("be",)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"word": "to"}, "the record {'word': 'to'} has no 'n'; the columns are word, n"),
        (
            5,
            "the record 5 (int) is no row: a dict, a dataclass, a named "
            "tuple, or a tuple or list of 2 values (word, n) is",
        ),
        (("to",), "the record ('to',) has 1 values; the columns are word, n"),
        (
            "to",
            "the record 'to' (str) is no row: a dict, a dataclass, a named tuple, or a tuple or list of 2 values "
            "(word, n) is",
        ),
    ],
)
def test_what_is_no_row(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(SqlSink(tmp_path / "a.db", "words", COLUMNS), [record])
    assert str(caught.value) == f"table 'words' of {tmp_path}/a.db: {message}"


# ---- writing ---------------------------------------------------------------------------------------------------


def test_of_rows_with_one_key_the_last_is_left(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, key=["word"])
    assert sink.guarantee is DeliveryGuarantee.IDEMPOTENT
    for _ in range(2):
        drive_sink(sink, [("to", 1), ("be", 1), ("to", 2)])
        drive_sink(sink, [("to", 3)])
    assert rows(tmp_path / "a.db") == [("to", 3), ("be", 1)]


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
@pytest.mark.parametrize("key", [["word"], ["n", "word"]])
@pytest.mark.parametrize("in_columns", [False, True])
def test_a_null_in_a_key_is_refused(tmp_path: Path, guarantee: Any, key: list[str], in_columns: bool) -> None:
    """SQLite takes any number of them: how many rows there were depended on what was written together."""
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, key=key, guarantee=guarantee)
    values = [("to", 1), (None, 2)]
    records: Any = Columns(
        pa.RecordBatch.from_pylist([dict(zip(COLUMNS, value, strict=True)) for value in values])
    )
    refused = pytest.raises(RejectedRecordError, match=r"column 'word' is null in a record, and of the key")
    with SinkDriver(sink, checkpoints=True) as driver, refused:
        driver.write(records if in_columns else values)


@pytest.mark.parametrize("create", [None, "CREATE TABLE words (word, n, PRIMARY KEY (word))"])
@pytest.mark.parametrize("in_columns", [False, True])
def test_nan_in_a_key_of_sqlite_is_refused(tmp_path: Path, create: str | None, in_columns: bool) -> None:
    """SQLite makes null of it, of which a primary key may have any number."""
    values: Any = [(1.0, 1), (float("nan"), 1)]
    records = Columns(pa.RecordBatch.from_pydict(dict(zip(COLUMNS, zip(*values, strict=True), strict=True))))
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, key=["word"], create=create)
    refused = pytest.raises(RejectedRecordError, match="column 'word' is NaN, which SQLite stores as null, in a")
    with SinkDriver(sink) as driver, refused:
        driver.write(records if in_columns else values)


_CHECKED = "CREATE TABLE words (word VARCHAR(9) PRIMARY KEY, n INTEGER NOT NULL CHECK (n < 900))"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize(
    ("bad", "why"),
    [((700, "w700", None), "(?i)not.null"), ((600, "w600", 999), "(?i)check"), ((500, "w17", 5), "(?i)unique")],
    ids=["null", "check", "twice"],
)
@pytest.mark.parametrize("place", ["sqlite", "postgresql"])
def test_a_record_that_the_database_refuses_is_named(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    place: str,
    bad: Any,
    why: str,
    in_columns: bool,
    guarantee: Any,
) -> None:
    database = tmp_path / "a.db" if place == "sqlite" else request.getfixturevalue(place)
    index, *row = bad
    values: Any = [(f"w{i}", i) for i in range(800)]
    values[index] = tuple(row)
    columns = dict(zip(COLUMNS, zip(*values, strict=True), strict=True))
    sink = SqlSink(database, "words", COLUMNS, create=_CHECKED, guarantee=guarantee)
    data: Any = Columns(pa.RecordBatch.from_pydict(columns)) if in_columns else values
    with pytest.raises(RejectedRecordError, match=why) as caught:
        _write_and_commit(sink, data)
    assert caught.value.__notes__[0] == f"record: {dict(zip(COLUMNS, row, strict=True))!r}"
    assert rows(database) == []


def _write_and_commit(sink: SqlSink, values: Any) -> None:
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(values)
        driver.checkpoint()
        driver.complete()


def test_a_list_in_a_key_is_refused(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, key=["word"])
    refused = pytest.raises(
        RejectedRecordError, match=r"unhashable type: 'list'. Have the columns word hold texts"
    )
    with refused, SinkDriver(sink) as driver:
        driver.write([("to", 1), (["be"], 2)])


def test_columns_that_are_not_written_are_left_alone(tmp_path: Path) -> None:
    rows(tmp_path / "a.db", "CREATE TABLE words (word PRIMARY KEY, n, seen DEFAULT 'no')")
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, key=["word"])
    drive_sink(sink, [("to", 1)])
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("UPDATE words SET seen = 'yes'")
    drive_sink(sink, [("to", 2), ("be", 1)])
    assert rows(tmp_path / "a.db") == [("to", 2, "yes"), ("be", 1, "no")]


def test_rows_do_not_pile_up_without_a_flush(tmp_path: Path) -> None:
    with SinkDriver(SqlSink(tmp_path / "a.db", "n", ["n"], guarantee="at-least-once")) as driver:
        for _ in range(20):
            driver.write([(1,)] * 1000)
        assert rows(tmp_path / "a.db", "SELECT count(*) FROM n") == [(20_000,)]


def test_without_checkpoints_rows_are_written_as_they_come(tmp_path: Path) -> None:
    with SinkDriver(SqlSink(tmp_path / "a.db", "words", COLUMNS)) as driver:
        driver.write([("to", 1)])
        assert rows(tmp_path / "a.db") == []
        driver.flush()
        assert rows(tmp_path / "a.db") == [("to", 1)]
    assert rows(tmp_path / "a.db", "SELECT * FROM sluiceway_commits") == []


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    rows(tmp_path / "a.db", "CREATE TABLE words (word CHECK (word <> 'bad'))")
    message = rf"^cannot write table 'words' of {tmp_path}/a.db: CHECK constraint failed: word <> 'bad'\nrecord: "
    with pytest.raises(ConnectorError, match=message):
        drive_sink(SqlSink(tmp_path / "a.db", "words", ["word"]), [("good",), ("bad",)])
    assert rows(tmp_path / "a.db") == []


def test_names_that_need_quotes(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", 'main.order "2%"', ["select", "a`b", "100%"], key=["100%"])
    drive_sink(sink, [(1, 2, 3), (4, 5, 3)])
    assert rows(tmp_path / "a.db", 'SELECT * FROM "order ""2%"""') == [(4, 5, 3)]


def test_names_that_need_quotes_in_postgresql(postgresql: str) -> None:
    create = 'CREATE TABLE "order ""2%" ("select" INTEGER, "A%s" INTEGER PRIMARY KEY)'
    sink = SqlSink(postgresql, 'order "2%', ["select", "A%s"], key=["A%s"], create=create)
    drive_sink(sink, [(1, 3), (2, 4)])
    drive_sink(sink, [(5, 3)])
    assert rows(postgresql, 'SELECT * FROM "order ""2%" ORDER BY 1') == [(2, 4), (5, 3)]


class OtherCursor:
    """Its results have to be read before anything else, as those of some drivers of MySQL."""

    def __init__(self, cursor: sqlite3.Cursor, rowcount: int | None) -> None:
        self._cursor, self._rowcount = cursor, rowcount
        self._unread = False

    def execute(self, statement: str, parameters: Any = ()) -> None:
        assert not self._unread, "unread result found"
        self._cursor.execute(statement, parameters)
        self._unread = statement.startswith("SELECT")

    def fetchall(self) -> list[Any]:
        self._unread = False
        return self._cursor.fetchall()

    def close(self) -> None:
        assert not self._unread, "unread result found"
        self._cursor.close()

    def executemany(self, statement: str, rows: Any) -> None:
        assert "CONFLICT" not in statement
        self._cursor.executemany(statement, rows)

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount if self._rowcount is None else self._rowcount


class OtherConnection:
    """Of a database that nothing is known of."""

    def __init__(self, path: Path, rowcount: int | None = None) -> None:
        self._connection, self._rowcount = sqlite3.connect(path), rowcount
        self.commit, self.rollback = self._connection.commit, self._connection.rollback
        self.close = self._connection.close

    def cursor(self) -> OtherCursor:
        return OtherCursor(self._connection.cursor(), self._rowcount)


@pytest.mark.parametrize("paramstyle", ["qmark", "numeric", "named"])
@pytest.mark.parametrize("key", [(), ("word",), ("n", "word")])
def test_other_databases_and_parameters(tmp_path: Path, paramstyle: str, key: tuple[str, ...]) -> None:
    sink = SqlSink(
        partial(OtherConnection, tmp_path / "a.db"),
        "words",
        COLUMNS,
        key=key,
        guarantee="exactly-once",
        create="CREATE TABLE words (word, n)",
        paramstyle=paramstyle,
    )
    with SinkDriver(sink, checkpoints=True) as driver:
        for row in [("to", 1), ("be", 2), ("to", 3), ("to", 3)]:
            driver.write([row])
            kept = driver.checkpoint()
            driver.complete()
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.finish()
    found = {(): 4, ("word",): 2, ("n", "word"): 3}[key]
    assert len(rows(tmp_path / "a.db")) == found
    assert ("to", 3) in rows(tmp_path / "a.db")


@pytest.mark.parametrize("rowcount", [-1, 0])
@pytest.mark.parametrize("key", [(), ("word",)])
def test_drivers_that_do_not_count_the_rows_of_an_update(
    tmp_path: Path, rowcount: int, key: tuple[str, ...]
) -> None:
    """-1 is what DB-API allows; MySQL counts no rows that were the same before."""
    sink = SqlSink(
        partial(OtherConnection, tmp_path / "a.db", rowcount),
        "words",
        COLUMNS,
        key=key,
        guarantee="exactly-once",
        create=f"CREATE TABLE words (word{' PRIMARY KEY' if key else ''}, n)",
        paramstyle="qmark",
    )
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("to", 1), ("be", 2)])
        kept = driver.checkpoint()
        driver.complete()
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.write([("to", 1), ("or", 3)])
        driver.finish()
    again = [] if key else [("to", 1)]
    assert sorted(rows(tmp_path / "a.db")) == sorted([("to", 1), ("be", 2), ("or", 3), *again])


# ---- commits ---------------------------------------------------------------------------------------------------


def test_the_table_of_commits_has_a_row_for_each_writer_that_wrote(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS, commit_table="done")
    with SinkDriver(sink, 3, checkpoints=True) as driver:
        for _ in range(2):
            driver.write([("to", 1)], subtask=0)
            driver.write([("be", 1)], subtask=2)
            driver.checkpoint()
            driver.complete()
    found = rows(tmp_path / "a.db", "SELECT writer, last FROM done ORDER BY writer")
    assert [last for _, last in found] == [2, 2]
    assert [writer.rpartition("/")[0] for writer, _ in found] == ["driven/sink/0", "driven/sink/2"]


def test_of_two_who_commit_the_same_one_does(postgresql: str) -> None:
    """The second waits for the first, which holds the row, and then finds that it is done."""
    import threading

    create = "CREATE TABLE words (word VARCHAR(50), n INTEGER)"
    sink = SqlSink(postgresql, "words", COLUMNS, create=create)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("to", 1)])
        kept = driver.checkpoint()
    drivers = []
    threads = [
        threading.Thread(target=lambda: drivers.append(SinkDriver(sink, checkpoints=True, restored=kept)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drivers) == 4
    for each in drivers:
        each.close()
    assert rows(postgresql) == [("to", 1)]


def test_a_job_that_goes_on_without_checkpoints_commits_what_was_ready(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("to", 1)])
        kept = driver.checkpoint()
    with SinkDriver(sink, restored=kept) as driver:
        driver.write([("be", 2)])
        driver.finish()
    assert rows(tmp_path / "a.db") == [("to", 1), ("be", 2)]


def test_rows_of_a_job_that_goes_on_without_checkpoints_are_written_as_they_come(tmp_path: Path) -> None:
    with SinkDriver(SqlSink(tmp_path / "a.db", "words", COLUMNS), restored=[]) as driver:
        driver.write([("to", 1)])
        driver.flush()
        assert rows(tmp_path / "a.db") == [("to", 1)]
        driver.write([("be", 2)] * 10_000)
    assert len(rows(tmp_path / "a.db")) == 10_001


def test_a_table_of_commits_that_was_emptied_is_an_error(tmp_path: Path) -> None:
    sink = SqlSink(tmp_path / "a.db", "words", COLUMNS)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("to", 1)])
        kept = driver.checkpoint()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("DELETE FROM sluiceway_commits")
    with pytest.raises(
        ConnectorError,
        match=r"^table 'sluiceway_commits' of .*a\.db knows nothing of 'driven/sink/0/\w{32}', so that it cannot "
        r"be told whether its rows are in 'words'\. Was a row removed\?$",
    ):
        SinkDriver(sink, checkpoints=True, restored=kept)
    assert rows(tmp_path / "a.db") == []


def test_a_commit_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    rows(tmp_path / "a.db", "CREATE TABLE words (word CHECK (word <> 'bad'))")
    sink = SqlSink(tmp_path / "a.db", "words", ["word"])
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([("good",)])
        driver.checkpoint()
        driver.write([("bad",)])
        kept = driver.checkpoint()
        with pytest.raises(ConnectorError, match="CHECK constraint failed"):
            driver.complete()
    assert rows(tmp_path / "a.db") == []
    assert rows(tmp_path / "a.db", "SELECT last FROM sluiceway_commits") == [(0,)]
    rows(tmp_path / "a.db", "DROP TABLE words")
    with SinkDriver(sink, checkpoints=True, restored=kept):
        assert rows(tmp_path / "a.db") == [("good",), ("bad",)]


# ---- tables and databases --------------------------------------------------------------------------------------


def test_a_table_that_is_not_there(postgresql: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(SqlSink(postgresql, "words", COLUMNS), [("to", 1)])
    assert re.fullmatch(
        r"cannot write table 'words' of postgresql\+psycopg://tests@/postgres\?.*: relation \"words\" does not "
        r"exist LINE 1: .*; make the table, or have create= do it",
        str(caught.value),
    )


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    rows(tmp_path / "a.db", "CREATE TABLE words (word)")
    with pytest.raises(
        ConnectorError, match=r"table 'words' of .*a\.db: (no such column: n|table words has no col)"
    ):
        drive_sink(SqlSink(tmp_path / "a.db", "words", COLUMNS), [("to", 1)])


def test_a_statement_that_makes_no_table(tmp_path: Path) -> None:
    with pytest.raises(
        ConnectorError, match=r"^cannot make table 'words' of .*a\.db: near \"TABEL\": syntax error$"
    ):
        drive_sink(SqlSink(tmp_path / "a.db", "words", COLUMNS, create="CREATE TABEL words"), [("to", 1)])
    with pytest.raises(
        ConnectorError, match=r"^cannot make table 'words' of .*a\.db: table wards already exists$"
    ):
        drive_sink(SqlSink(tmp_path / "a.db", "words", COLUMNS, create="CREATE TABLE wards (n)"), [("to", 1)])


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(SqlSink(tmp_path / "none" / "a.db", "words", COLUMNS), [("to", 1)])
    assert str(caught.value) == (
        f"cannot connect to write table 'words' of {tmp_path}/none/a.db: unable to open database file"
    )


def test_passwords_are_not_shown() -> None:
    sink = SqlSink("nosuch+thing://ann:secret@here/shop", "words", COLUMNS)
    assert repr(sink) == "SqlSink('nosuch+thing://ann:***@here/shop', 'words')"
    with pytest.raises(
        ConfigurationError, match=r"^nosuch\+thing://ann:\*\*\*@here/shop: SQLAlchemy knows no data"
    ):
        drive_sink(sink, [("to", 1)])
    with pytest.raises(ConfigurationError) as caught:
        SqlSink("postgresql://ann:secret@here:port/shop", "words", COLUMNS)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind", "why"),
    [
        (
            "postgres://here/shop",
            ConfigurationError,
            r"knows no database 'postgres'.* Begin it with postgresql\+psycopg",
        ),
        (
            "nosuch://here/shop",
            ConfigurationError,
            r"knows no database 'nosuch'.* Begin it with DATABASE\+DRIVER://",
        ),
        ("postgresql+asyncpg://here/shop", MissingExtraError, r"its driver is not installed \(.*asyncpg"),
    ],
)
def test_a_database_that_cannot_be_reached_so_ends_the_job_whatever_the_restart_strategy(
    url: str, kind: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "asyncpg", None)
    flow = sw.Pipeline("shop")
    flow.from_collection([("to", 1)]).sink(SqlSink(url, "words", COLUMNS))
    with pytest.raises(kind, match=why):
        flow.run(restart="exponential:1h:1h:6")


def test_urls_of_sqlite_need_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    monkeypatch.chdir(tmp_path)
    drive_sink(SqlSink("sqlite:///a.db", "words", COLUMNS), [("to", 1)])
    drive_sink(SqlSink(f"sqlite:///{tmp_path}/a.db", "words", COLUMNS), [("be", 2)])
    assert rows(tmp_path / "a.db") == [("to", 1), ("be", 2)]
    with pytest.raises(MissingExtraError, match=r"databases by URL need SQLAlchemy: pip install .*\[sql\].$"):
        SqlSink("postgresql://here/shop", "words", COLUMNS)


def test_a_connection_of_an_unknown_driver(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        drive_sink(SqlSink(partial(OtherConnection, tmp_path / "a.db"), "words", COLUMNS), [("to", 1)])
    assert re.search(
        r"returned a .*OtherConnection, and it cannot be told which DB-API driver that is from\. Set paramstyle=",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": []}, "columns= must name at least one column to write"),
        ({"columns": "word"}, "columns='word' must be names of columns, in a list or tuple"),
        ({"columns": ["n", "n"]}, "columns=['n', 'n'] names a column twice"),
        ({"key": ["id"]}, "key=: 'id' is not one of the columns word, n"),
        ({"table": ""}, "table='' must be the name of a table"),
        ({"commit_table": "a..b"}, "commit_table='a..b' must be the name of a table"),
        (
            {"guarantee": "maybe"},
            "guarantee='maybe' must be one of 'at-least-once', 'idempotent', 'exactly-once', ",
        ),
        (
            {"guarantee": "idempotent"},
            "guarantee='idempotent' takes key=: rows without a key cannot be written again",
        ),
        (
            {"guarantee": "at-least-once", "key": ["n"]},
            "guarantee='at-least-once' is for rows without key=; with it, they are idempotent",
        ),
        ({"database": ":memory:"}, "database=':memory:': a database in memory is gone when its writer is; name a"),
        ({"database": "sqlite://"}, "database='sqlite://': a database in memory is gone when"),
        (
            {"database": 5},
            "database=5 must be the path of a SQLite file, a URL, or a function that returns a conn",
        ),
        ({"paramstyle": "qmark"}, "paramstyle= goes with a function that connects; else the driver is known"),
        (
            {"paramstyle": "x", "database": dict},
            "paramstyle='x' must be one of 'qmark', 'numeric', 'named', 'format'",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqlSink(**{"database": "a.db", "table": "words", "columns": COLUMNS, **options})
    assert str(caught.value).startswith(message)


def test_by_name(tmp_path: Path) -> None:
    flow = sw.Pipeline("by name")
    flow.from_collection([("to", 1)]).sink("sql", database=tmp_path / "a.db", table="words", columns=COLUMNS)
    flow.run()
    assert rows(tmp_path / "a.db") == [("to", 1)]
