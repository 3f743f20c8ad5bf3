"""What SparkSink writes, read by Apache Spark: with a real session on this machine."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sluiceway as sw
from sluiceway.errors import ConnectorError
from sluiceway.testing.drivers import SinkDriver, drive_sink

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pa = pytest.importorskip("pyarrow")

from sluiceway_spark import SparkSink, SparkSource  # noqa: E402 - where there is no Spark, this says so in another way

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


class Visit(NamedTuple):
    user: str | None
    at: dt.datetime
    day: dt.date
    pages: list[int]
    extra: dict[str, float]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from sluiceway_spark import SessionConf

    conf = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.session.timeZone": "UTC",
    }
    session = SessionConf.of("local[2]", None, conf).session()
    list(
        session.range(3).mapInArrow(lambda batches: batches, "id long").collect()
    )  # its Python workers are there now
    yield session
    session.stop()


def rows(frame: Any) -> list[Any]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize("codec", [None, "zstd", "none"])
def test_spark_reads_rows_of_all_kinds(spark: Any, tmp_path: Path, form: str, codec: str | None) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
    visits = [Visit("ann", at, at.date(), [1, 2], {"x": 0.5}), Visit(None, at, at.date(), [], {})]
    drive_sink(SparkSink.path(tmp_path / "out", format=form, codec=codec), visits)
    found = {row.user: row for row in spark.read.format(form).load(str(tmp_path / "out")).collect()}
    ann = found["ann"]
    assert (ann.day, ann.pages, ann.extra, found[None].pages) == (at.date(), [1, 2], {"x": 0.5}, [])
    assert ann.at.astimezone(dt.UTC) == at


def test_spark_finds_partitions_and_their_columns(spark: Any, tmp_path: Path) -> None:
    records = [(1, "a/b=c"), (2, "ü [x] 100%"), (3, None), (4, "a/b=c"), (5, "")]
    drive_sink(SparkSink.path(tmp_path / "out", schema=SCHEMA, partition_by="word"), records)
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert {row.id: row.word for row in frame.collect()} == {
        1: "a/b=c",
        2: "ü [x] 100%",
        3: None,
        4: "a/b=c",
        5: None,
    }


def test_it_writes_beside_what_spark_wrote_and_the_other_way_round(spark: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    frame = spark.sql("SELECT 1L AS id, 'to' AS word, TIMESTAMP'2026-01-02 03:04:05' AS at, array(1.5D) AS xs")
    frame.write.parquet(out)
    sink = SparkSink.path(out, schema=frame.schema, mode="append")
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    drive_sink(sink, [(2, "be", at, [2.5])])
    frame.write.mode("append").parquet(out)
    assert rows(spark.read.parquet(out).select("id", "xs")) == [(1, [1.5]), (1, [1.5]), (2, [2.5])]
    with pytest.raises(ConnectorError, match="'word' is not there, but in"):
        drive_sink(SparkSink.path(out, schema=frame.drop("word").schema, mode="append"), [])
    drive_sink(SparkSink.path(out, schema=frame.schema, mode="overwrite"), [(3, "or", at, [])])
    assert rows(spark.read.parquet(out).select("id", "xs")) == [(3, [])]


def test_no_rows_at_all_still_have_columns(spark: Any, tmp_path: Path) -> None:
    for form in ("parquet", "orc"):
        drive_sink(SparkSink.path(tmp_path / form, schema=SCHEMA, format=form), [])
        frame = spark.read.format(form).load(str(tmp_path / form))
        assert (frame.columns, frame.count()) == (["id", "word"], 0)


def test_spark_reads_at_any_moment(spark: Any, tmp_path: Path) -> None:
    """Whole checkpoints, and never less than before."""
    out, counts, done = str(tmp_path / "out"), [0], threading.Event()
    drive_sink(SparkSink.path(out, schema=SCHEMA), [])

    def read() -> None:
        while not done.is_set():
            counts.append(spark.read.parquet(out).count())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with SinkDriver(SparkSink.path(out, schema=SCHEMA, mode="append"), checkpoints=True) as driver:
            for n in range(40):
                driver.write([(n, "x")] * 100)
                driver.checkpoint()
                driver.complete()
                if n % 10 == 0:
                    spark.range(1).count()
            driver.finish()
    finally:
        done.set()
        reader.join(60)
    assert counts == sorted(counts)
    assert all(count % 100 == 0 for count in counts)
    assert spark.read.parquet(out).count() == 4000


@pytest.mark.parametrize("options", [{}, {"checkpoint_interval": "50ms"}, {"workers": 2}])
def test_from_spark_to_spark(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    spark.range(0, 1000, 1, 4).selectExpr("id", "concat('w', id % 7) AS word").write.parquet(str(tmp_path / "in"))
    flow = sw.Pipeline("copy", parallelism=2)
    batches = flow.source(SparkSource.path(str(tmp_path / "in"), records="arrow"))
    batches.sink(SparkSink.path(tmp_path / "out", partition_by="word"))
    flow.run(**options)
    assert rows(spark.read.parquet(str(tmp_path / "out")).select("id", "word")) == rows(
        spark.read.parquet(str(tmp_path / "in"))
    )
