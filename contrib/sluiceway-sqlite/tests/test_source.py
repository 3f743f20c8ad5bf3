"""The source: the conformance suite, and what is its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver, drive_source

from sluiceway_sqlite import SqliteSource


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Words by rowid, with gaps where rows were deleted."""
    path = tmp_path / "words.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE words (word TEXT, "how many" INTEGER)')
        connection.executemany("INSERT INTO words VALUES (?, ?)", [(f"word {i}", i) for i in range(30)])
        connection.execute('DELETE FROM words WHERE "how many" BETWEEN 10 AND 17')
        connection.commit()
    return path


ROWS = [{"word": f"word {i}", "how many": i} for i in range(30) if not 10 <= i <= 17]


class TestOneSplit(SourceConformance):
    splits = 1

    @pytest.fixture(autouse=True)
    def _database(self, database: Path) -> None:
        self.database = database

    def make_source(self) -> SqliteSource:
        return SqliteSource(self.database, "words", splits=self.splits)

    def expected(self) -> list[Any]:
        return ROWS


class TestManySplits(TestOneSplit):
    splits = 7


def test_columns_are_chosen(database: Path) -> None:
    rows = drive_source(SqliteSource(database, "words", columns=["how many"]))
    assert rows == [{"how many": row["how many"]} for row in ROWS]


def test_more_splits_than_rows(database: Path) -> None:
    assert drive_source(SqliteSource(database, "words", splits=100)) == ROWS


def test_an_empty_table(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.db")) as connection:
        connection.execute("CREATE TABLE bare (a)")
        connection.commit()
    assert drive_source(SqliteSource(tmp_path / "empty.db", "bare")) == []


def test_rows_that_come_later_are_not_read(database: Path) -> None:
    """Splits are cut once, so a job that is restored does not see other rows than before."""
    with SourceDriver(SqliteSource(database, "words"), limit=5) as driver:
        driver.poll()
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("INSERT INTO words VALUES ('late', 99)")
            connection.commit()
        assert driver.run() == ROWS


def test_names_that_need_quoting(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.execute('CREATE TABLE "drop `me`; --" ("a b")')
        connection.execute('INSERT INTO "drop `me`; --" VALUES (1)')
        connection.commit()
    source = SqliteSource(tmp_path / "odd.db", "drop `me`; --", columns=["a b"])
    assert drive_source(source) == [{"a b": 1}]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"cannot read .*none\.db: there is no such file"):
        drive_source(SqliteSource(tmp_path / "none.db", "words"))
    assert not (tmp_path / "none.db").exists()


def test_a_mistyped_table(database: Path) -> None:
    message = r"table 'wrods' of .*words\.db: no such table: wrods\. Did you mean 'words'\? There are: words"
    with pytest.raises(ConnectorError, match=message):
        drive_source(SqliteSource(database, "wrods"))


def test_a_column_that_is_not_there(database: Path) -> None:
    with pytest.raises(ConnectorError, match=r"table 'words' of .*: no such column: wort"):
        drive_source(SqliteSource(database, "words", columns=["wort"]))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(ConnectorError, match=r"table 'words' of .*text\.db: file is not a database"):
        drive_source(SqliteSource(tmp_path / "text.db", "words"))


def test_impossible_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"splits=0.*at least 1"):
        SqliteSource("a.db", "t", splits=0)
    with pytest.raises(ConfigurationError, match="at least one column"):
        SqliteSource("a.db", "t", columns=[])
