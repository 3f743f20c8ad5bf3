"""Sinks as Spark's format ``sluiceway``: from plain PySpark, with a real session on this machine."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigurationError
from sluiceway_spark.session.pyspark_version import FORMAT, too_old

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(too_old(FORMAT) is not None, reason=f"format 'sluiceway': {too_old(FORMAT)}"),
]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """Spark's own sockets come and go whenever it collects garbage."""


@pytest.fixture
def numbers(spark: Any, tmp_path: Path) -> Any:
    """A stream of 0 to 59, in three batches of two partitions."""
    for first in (0, 20, 40):
        spark.range(first, first + 20, 1, 2).write.mode("append").parquet(str(tmp_path / "in"))
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))


def run(query: Any, checkpoints: Path) -> None:
    started = query.option("checkpointLocation", str(checkpoints)).trigger(availableNow=True).start()
    try:
        started.awaitTermination(240)
    finally:
        started.stop()


def forget_last(checkpoints: Path) -> None:
    """As if the driver had been killed before Spark noted that it was done with the last batch."""
    last = max((checkpoints / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def in_text(out: Path) -> Counter[int]:
    return Counter(int(line) for path in out.glob("part-*") for line in path.read_text().split())


def in_sqlite(path: Path) -> Counter[int]:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(n for (n,) in connection.execute("SELECT id FROM numbers"))


def to_text(writer: Any, out: Path) -> Any:
    return (
        writer.format("sluiceway")
        .option("sink", "sluiceway_files:FilesSink.text")
        .option("sink.directory", str(out))
    )


def to_sqlite(writer: Any, path: Path, **more: str) -> Any:
    options = {"sink": "sql", "sink.database": str(path), "sink.table": "numbers", "sink.columns": '["id"]'}
    return writer.format("sluiceway").options(**options, **more)


def said(error: pytest.ExceptionInfo[Exception]) -> str:
    return str(error.value)


# ---- DataFrames ---------------------------------------------------------------------------------------------


@pytest.mark.pysparks
def test_a_dataframe_becomes_parquet_files_beside_those_that_are_there(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = spark.range(0, 50, 1, 3).selectExpr("id", "concat('w', id) AS word")
    for _ in range(2):
        writer = rows.write.format("sluiceway").option("sink", "files").option("sink.format", "parquet")
        writer.option("sink.directory", str(out)).mode("append").save()
    found = Counter((row.id, row.word) for row in spark.read.parquet(str(out)).collect())
    assert found == Counter({(n, f"w{n}"): 2 for n in range(50)})
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_a_dataframe_becomes_rows_of_a_database(spark: Any, tmp_path: Path) -> None:
    to_sqlite(spark.range(0, 50, 1, 3).write, tmp_path / "db").mode("append").save()
    assert in_sqlite(tmp_path / "db") == Counter(range(50))


def test_a_dataframe_that_fails_halfway_is_not_seen(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = spark.range(0, 40, 1, 4).selectExpr("CASE WHEN id = 35 THEN raise_error('no') ELSE id END AS value")
    with pytest.raises(Exception, match="no"):
        to_text(rows.write, out).option("name", "mine").mode("append").save()
    assert list(out.glob("part-*")) == []
    # What tasks that were killed may have left goes with what is written under the same name.
    to_text(spark.range(40).selectExpr("id AS value").write, out).option("name", "mine").mode("append").save()
    assert in_text(out) == Counter(range(40))
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_what_is_wrong_is_told_before_anything_runs(spark: Any, tmp_path: Path, numbers: Any) -> None:
    frame = spark.range(1)
    for options, message in (
        ({}, "option sink says what to write to: 'package.module:function', or the name of a connector"),
        ({"sink": "nowhere:sink"}, "there is no module 'nowhere' where Spark's Python runs"),
        (
            {"sink": "files", "sinks.directory": "x"},
            "format 'sluiceway' has no option 'sinks.directory' for writing",
        ),
        ({"sink": "files", "record": "dict"}, "did you mean records? There are sink, records"),
        ({"sink": "files", "sink.directory": "x", "commits": "y"}, "option commits is for streams"),
    ):
        with pytest.raises(Exception, match="Python data source") as raised:
            frame.write.format("sluiceway").options(**options).mode("append").save()
        assert message in said(raised)
    with pytest.raises(Exception, match="Python data source") as raised:
        to_text(frame.write, tmp_path / "out").mode("overwrite").save()
    assert "adds to what is there: write with mode('append')" in said(raised)
    with pytest.raises(Exception, match="Python data source") as raised:
        to_text(frame.write, tmp_path / "out").mode("append").save("/somewhere")
    assert "call save() or start() without a path" in said(raised)
    assert not (tmp_path / "out").exists()


def test_a_sink_that_overwrites_what_is_there_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    from sluiceway_spark.datasource.writers import sink_writer, stream_sink_writer

    schema = pa.schema([("id", pa.int64())])
    options = {"sink": "spark", "sink.path": str(tmp_path / "out"), "sink.mode": "append"}
    assert sink_writer(options, schema, False, ()) is not None
    for writer in (sink_writer, stream_sink_writer):
        with pytest.raises(ConfigurationError, match="and format 'sluiceway' adds to it"):
            writer({**options, "sink.mode": "overwrite"}, schema, False, ())


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_sink_that_commits_by_the_session_is_refused(mode: str) -> None:
    import pyarrow as pa

    from sluiceway_spark.datasource.writers import sink_writer

    options = {"sink": "sluiceway_spark:SparkTableSink", "sink.name": "lake.orders", "sink.mode": mode}
    with pytest.raises(ConfigurationError, match="commits by an object of the program"):
        sink_writer(options, pa.schema([("id", pa.int64())]), False, ())


def test_two_attempts_at_a_time_are_refused(spark: Any, tmp_path: Path) -> None:
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(Exception, match=r"writes in two phases, which does not go with spark\.speculation"):
            to_text(spark.range(3).selectExpr("id AS value").write, tmp_path / "out").mode("append").save()
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A module beside the program."""
    from sluiceway_spark import register

    place = tmp_path_factory.mktemp("program")
    (place / "shop_sinks.py").write_text(
        "from sluiceway_files import FilesSink\n"
        "class Doubled(FilesSink):\n"
        "    pass\n"
        "def doubled(directory):\n"
        "    return Doubled.text(directory, to_text=lambda n: str(2 * n))\n"
    )
    sys.path.insert(0, str(place))
    register(spark)
    sys.path.remove(str(place))
    return "shop_sinks"


def test_modules_beside_the_program_are_found_where_the_format_is_registered(
    spark: Any, tmp_path: Path, shop: str
) -> None:
    writer = spark.range(20).selectExpr("id AS value").write.format("sluiceway")
    writer = writer.option("sink", f"{shop}:doubled").option("sink.directory", str(tmp_path / "out"))
    writer.mode("append").save()
    assert in_text(tmp_path / "out") == Counter(range(0, 40, 2))


# ---- streams ------------------------------------------------------------------------------------------------


def test_a_stream_to_files_is_exactly_once_over_a_restart(spark: Any, tmp_path: Path, numbers: Any) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    values = numbers.selectExpr("id AS value")
    run(to_text(values.writeStream, out), checkpoints)
    assert in_text(out) == Counter(range(60))
    assert {path.name for path in (checkpoints / "sluiceway" / "commits").iterdir()} == {"0", "1", "2"}
    forget_last(checkpoints)
    run(to_text(values.writeStream, out), checkpoints)
    assert in_text(out) == Counter(range(60))
    assert (checkpoints / "commits" / "2").exists()
    spark.range(60, 70, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
    run(to_text(values.writeStream, out), checkpoints)
    assert in_text(out) == Counter(range(70))
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_a_stream_to_a_database_is_exactly_once_over_a_restart(tmp_path: Path, numbers: Any) -> None:
    path, checkpoints, commits = tmp_path / "db", tmp_path / "checkpoints", tmp_path / "noted"
    run(to_sqlite(numbers.writeStream, path, commits=str(commits)), checkpoints)
    assert in_sqlite(path) == Counter(range(60))
    forget_last(checkpoints)
    run(to_sqlite(numbers.writeStream, path, commits=str(commits)), checkpoints)
    assert in_sqlite(path) == Counter(range(60))
    assert {path.name for path in (commits / "commits").iterdir()} == {"0", "1", "2"}
    # A query that begins anew has numbers of its own for its batches.
    with pytest.raises(Exception, match=r"STREAM_FAILED|commits of another query") as raised:
        run(to_sqlite(numbers.writeStream, path, commits=str(commits)), tmp_path / "others")
    assert "has the commits of another query" in said(raised)
    assert in_sqlite(path) == Counter(range(60))


def test_a_commit_that_fails_is_made_up_for(tmp_path: Path, numbers: Any) -> None:
    """The database is locked while the first batch is to be committed."""
    path, checkpoints = tmp_path / "db", tmp_path / "checkpoints"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (id CHECK (id <> 25))")
    with pytest.raises(Exception, match=r"STREAM_FAILED|CHECK"):
        run(to_sqlite(numbers.writeStream, path), checkpoints)
    before = in_sqlite(path)
    assert before == Counter(range(20))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE numbers RENAME TO old")
        connection.execute("CREATE TABLE numbers (id)")
        connection.execute("INSERT INTO numbers SELECT id FROM old")
        connection.commit()
    run(to_sqlite(numbers.writeStream, path), checkpoints)
    assert in_sqlite(path) == Counter(range(60))


def test_a_stream_without_a_place_for_commits_is_refused(spark: Any, tmp_path: Path, numbers: Any) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "conf"))
    try:
        started = to_text(numbers.selectExpr("id AS value").writeStream, tmp_path / "out")
        with pytest.raises(Exception, match="exactly-once, which takes a place to note what was committed"):
            started.trigger(availableNow=True).start().awaitTermination(240)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
