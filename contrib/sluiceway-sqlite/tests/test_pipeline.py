"""All three in one job: read a table, count in a database, write a table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import sluiceway as sw


def test_words_are_counted(tmp_path: Path) -> None:
    database = tmp_path / "text.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE lines (line)")
        connection.executemany("INSERT INTO lines VALUES (?)", [("to be or",), ("not to be",)])
        connection.commit()

    flow = sw.Pipeline("words")
    (
        flow.source("sqlite", database=database, table="lines", splits=2)
        .flat_map(lambda row: row["line"].split())
        .key_by(lambda word: word)
        .count()
        .sink("sqlite", database=database, table="counts", columns=["word", "n"], key=["word"])
    )
    flow.run(state_backend="sqlite", parallelism=2)

    with closing(sqlite3.connect(database)) as connection:
        counts = dict(connection.execute("SELECT word, n FROM counts"))
    assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}
