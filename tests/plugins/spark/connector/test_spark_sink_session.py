"""What SparkSink writes, read by Apache Spark: with a real session on this machine."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConfigurationError, ConnectorError
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


@pytest.mark.pysparks
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
        reader.join(PATIENT_S)
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


# ---- tables ----------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    id: int
    user: str
    at: dt.datetime
    tags: list[str]


AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def orders(numbers: range) -> list[Order]:
    return [Order(n, f"u{n % 3}", AT, ["x"] * (n % 2)) for n in numbers]


@pytest.mark.parametrize(
    ("options", "partition_by"), [({}, ()), ({"workers": 2}, "user"), ({"checkpoint_interval": "50ms"}, ["user"])]
)
def test_a_table_is_made_and_written_to_again(spark: Any, options: dict[str, Any], partition_by: Any) -> None:
    spark.sql("DROP TABLE IF EXISTS orders")
    for numbers in (range(10), range(10, 20)):
        flow = sw.Pipeline("orders", parallelism=2)
        given = flow.from_collection(orders(numbers)).rebalance()
        given.sink("spark", table="orders", schema=Order, partition_by=partition_by, mode="append")
        flow.run(**options)
        frame = spark.table("orders").orderBy("id")
        found = [Order(row.id, row.user, row.at.astimezone(dt.UTC), row.tags) for row in frame.collect()]
        assert found == orders(range(numbers.stop))
    with pytest.raises(ConnectorError, match=r"SparkSink to table orders: there is .* already"):
        drive_sink(SparkSink.table("orders"), orders(range(1)))
    drive_sink(SparkSink.table("orders", mode="append"), orders(range(20, 21)))


@pytest.mark.parametrize("options", [{"workers": 2}, {"engine": "spark"}, {"engine": "spark", "hosted": True}])
def test_a_check_creates_no_table(spark: Any, options: dict[str, Any]) -> None:
    spark.sql("DROP TABLE IF EXISTS unmade")
    flow = sw.Pipeline("orders", parallelism=2)
    flow.from_collection(orders(range(10))).sink(SparkSink.table("unmade", schema=Order)).uid("orders")
    assert not [finding for finding in flow.check(**options) if finding.level.value == "error"]
    assert not spark.catalog.tableExists("unmade")


def test_the_catalog_is_told_of_partitions_while_a_job_runs(spark: Any) -> None:
    import sluiceway_spark
    from sluiceway.engine import JobStatus
    from sluiceway_spark.connector import catalog_tables

    def tell() -> None:
        sluiceway_spark.sluiceway_checkpoint_completed()
        if (thread := catalog_tables._watched._thread) is not None:
            thread.join(PATIENT_S)

    spark.sql("DROP TABLE IF EXISTS words")
    spark.sql("CREATE TABLE words (id BIGINT, word STRING) USING orc PARTITIONED BY (word)")
    sluiceway_spark.sluiceway_job_status_changed("driven", JobStatus.RUNNING)
    with SinkDriver(SparkSink.table("words"), checkpoints=True) as driver:
        for n in range(2):
            driver.write([(n, f"w{n}")])
            driver.checkpoint()
            driver.complete()
            tell()
            assert spark.table("words").count() == n + 1
        driver.finish()
    with SinkDriver(SparkSink.table("words", mode="overwrite"), checkpoints=True) as driver:
        driver.write([(7, "w7")])
        driver.finish()
    sluiceway_spark.sluiceway_job_status_changed("driven", JobStatus.FINISHED)
    assert rows(spark.table("words")) == [(7, "w7")]
    assert [row.partition for row in spark.sql("SHOW PARTITIONS words").collect()] == ["word=w7"]
    assert catalog_tables._watched._tables == {}


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (None, {}, r"table t: there is no such table, and without schema= it cannot be made"),
        ("TABLE t (id BIGINT) USING csv", {}, r"that is a table of csv. Tables of Parquet and ORC"),
        ("TEMP VIEW t AS SELECT 1 AS id", {}, r"that is a view, which has no files"),
        ("TABLE t (id BIGINT, b INT) USING parquet CLUSTERED BY (b) INTO 2 BUCKETS", {}, r"the table is bucketed"),
        (
            "TABLE t (id BIGINT, word INT) USING parquet",
            {"schema": SCHEMA},
            r"'word' is string in schema=, but in",
        ),
        ("TABLE t (id BIGINT, word STRING) USING parquet", {"partition_by": "word"}, r"partitioned by nothing"),
        ("TABLE t (id BIGINT) USING parquet", {"format": "orc"}, r"format='orc', but it is a table of parquet"),
        ("TABLE t (id BIGINT) USING orc", {"codec": "gzip"}, r"codec='gzip' is none of orc"),
    ],
)
def test_tables_that_cannot_be_written_to_are_told(
    spark: Any, made: str | None, options: dict[str, Any], message: str
) -> None:
    spark.catalog.dropTempView("t")
    spark.sql("DROP TABLE IF EXISTS t")
    if made is not None:
        spark.sql(f"CREATE {made}")
    flow = sw.Pipeline("t")
    flow.from_collection([(1, "to")]).sink(SparkSink.table("t", **options))
    with pytest.raises((ConnectorError, ConfigurationError), match=message):
        flow.run(workers=1)
