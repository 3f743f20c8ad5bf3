"""The sink: the conformance suite, and what is its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sluiceway.connector import DeliveryGuarantee
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.drivers import SinkDriver, drive_sink

from sluiceway_sqlite import SqliteSink


def rows(database: Path, table: str = "words") -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)
            return []


class TestAppending(SinkConformance):
    key: tuple[str, ...] = ()

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.made = 0

    def make_sink(self) -> SqliteSink:
        self.made += 1
        return SqliteSink(self.directory / f"{self.made}.db", "words", ["word", "n"], key=self.key)

    def records(self) -> list[Any]:
        return [(f"word {i}", i) for i in range(250)]

    def written(self) -> list[Any]:
        return rows(self.directory / f"{self.made}.db")


class TestReplacing(TestAppending):
    key = ("word",)


def test_a_key_makes_it_idempotent(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "a.db", "words", ["word", "n"], key=["word"])
    assert sink.guarantee is DeliveryGuarantee.IDEMPOTENT
    drive_sink(sink, [("to", 1), ("be", 1), ("to", 2)])
    drive_sink(sink, [("to", 2)])
    assert rows(tmp_path / "a.db") == [("to", 2), ("be", 1)]


def test_without_one_rows_are_appended(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "a.db", "words", ["word", "n"])
    assert sink.guarantee is DeliveryGuarantee.AT_LEAST_ONCE
    drive_sink(sink, [("to", 1)])
    drive_sink(sink, [("to", 1)])
    assert rows(tmp_path / "a.db") == [("to", 1), ("to", 1)]


def test_a_row_that_is_all_key(tmp_path: Path) -> None:
    drive_sink(SqliteSink(tmp_path / "a.db", "words", ["word"], key=["word"]), [("to",), ("to",)])
    assert rows(tmp_path / "a.db") == [("to",)]


def test_mappings_go_by_name(tmp_path: Path) -> None:
    drive_sink(SqliteSink(tmp_path / "a.db", "words", ["n", "word"]), [{"word": "to", "n": 1, "more": True}])
    assert rows(tmp_path / "a.db") == [(1, "to")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"word": "to"}, r"sqlite words: the record \{'word': 'to'\} has no 'n'; columns: word, n"),
        (("to",), r"the record \('to',\) is neither a mapping nor a sequence of 2 values \(word, n\)"),
        ("to", "the record 'to' is neither a mapping nor a sequence of 2 values"),
        (3, "the record 3 is neither"),
    ],
)
def test_a_record_that_does_not_fit(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        drive_sink(SqliteSink(tmp_path / "a.db", "words", ["word", "n"]), [record])


def test_a_value_that_sqlite_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"cannot write table 'words' of .*: Error binding parameter 1"):
        drive_sink(SqliteSink(tmp_path / "a.db", "words", ["word"]), [([],)])


def test_a_table_without_the_index_for_its_key(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE words (word, n)")
        connection.commit()
    with pytest.raises(ConnectorError, match=r"ON CONFLICT clause does not match any PRIMARY KEY or UNIQUE"):
        drive_sink(SqliteSink(tmp_path / "a.db", "words", ["word", "n"], key=["word"]), [("to", 1)])


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE words (word CHECK (word <> 'bad'))")
        connection.commit()
    with pytest.raises(ConnectorError, match="CHECK constraint failed"):
        drive_sink(SqliteSink(tmp_path / "a.db", "words", ["word"]), [("good",), ("bad",)])
    assert rows(tmp_path / "a.db") == []


def test_it_waits_for_a_locked_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with SinkDriver(SqliteSink(tmp_path / "a.db", "words", ["word"])) as driver:
            driver.write([("to",)])
            driver.writer().flush()
            assert driver.writer().blocked() is not None
            other.execute("COMMIT")
            driver.finish()
    assert rows(tmp_path / "a.db") == [("to",)]


def test_rows_do_not_pile_up_without_a_flush(tmp_path: Path) -> None:
    with SinkDriver(SqliteSink(tmp_path / "a.db", "words", ["n"])) as driver:
        for n in range(20):
            driver.write([(n,)] * 1000)
        assert len(rows(tmp_path / "a.db")) >= 10_000
        driver.finish()
    assert len(rows(tmp_path / "a.db")) == 20_000


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"cannot write .*none/a\.db: unable to open database file"):
        drive_sink(SqliteSink(tmp_path / "none" / "a.db", "words", ["word"]), [("to",)])


def test_impossible_arguments() -> None:
    with pytest.raises(ConfigurationError, match="needs columns="):
        SqliteSink("a.db", "t", [])
    with pytest.raises(ConfigurationError, match="'id' is not one of the columns word, n"):
        SqliteSink("a.db", "t", ["word", "n"], key=["id"])
