"""How Spark puts down what SparkSource reads: by the JVM's own batches, or by mapInArrow."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.clock import VirtualClock
from sluiceway.errors import ConnectorError
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.testing.drivers import SourceDriver, drive_source

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pa = pytest.importorskip("pyarrow")

from sluiceway_spark import SparkSource  # noqa: E402 - where there is no Spark, this says so in another way
from sluiceway_spark.connector.staging_job import StagingJob  # noqa: E402

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark: Any) -> Any:
    drive_source(SparkSource.query(lambda s: s.range(3)))  # its threads are there now, too
    return spark


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # polls


KINDS = """
    SELECT id, CAST(id AS BYTE) AS a, CAST(id AS SMALLINT) AS b, CAST(id AS INT) AS c, CAST(id AS FLOAT) AS d,
    id % 2 = 0 AS e, CAST(concat('w', id) AS BINARY) AS f, date_add(DATE'2026-01-01', CAST(id AS INT)) AS g,
    timestamp_micros(id * 1000003) AS h, CAST(timestamp_micros(id) AS TIMESTAMP_NTZ) AS i, array(id, NULL) AS j,
    named_struct('x', id, 'y', array(concat('w', id))) AS k, map(concat('k', id), timestamp_micros(id)) AS l,
    CAST(id AS DECIMAL(20, 3)) AS m, IF(id % 3 = 0, NULL, concat('ü', id)) AS n FROM range(0, 50, 1, 3)
"""


@pytest.mark.pysparks
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_what_the_jvm_makes_is_what_map_in_arrow_gives(spark: Any, zone: str, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        tables = []
        for way in ("messages", "map"):
            job = StagingJob(spark.sql(KINDS))
            assert job._schema is not None
            if way == "map":
                job._schema = None
            (tmp_path / way).mkdir()
            job.run(str(tmp_path / way))
            parts = sorted(job.staged())
            assert [partition for partition, _ in parts] == [0, 1, 2]
            files = [pa.ipc.open_stream(tmp_path / way / name).read_all() for _, names in parts for name in names]
            tables.append(pa.concat_tables(files))
        ours, theirs = tables
        assert ours.num_rows == 50
        assert ours.schema.types == theirs.schema.types
        ours.validate(full=True)
        assert ours.to_pylist() == theirs.to_pylist()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.parametrize(
    ("statement", "setting"),
    [
        ("SELECT INTERVAL '3' DAY AS x", None),
        ("SELECT INTERVAL '3' DAY AS x, 1 AS `a.b`, 2 AS `c``d`, 3 AS X", None),
        ("SELECT 'long' AS x", ("spark.sql.execution.arrow.useLargeVarTypes", "true")),
    ],
)
def test_what_is_not_known_of_the_jvm_goes_by_map_in_arrow(
    spark: Any, statement: str, setting: tuple[str, str] | None
) -> None:
    if setting is not None:
        spark.conf.set(*setting)
    try:
        assert StagingJob(spark.sql(statement))._schema is None
        [row] = drive_source(SparkSource.query(lambda session: session.sql(statement)))
        assert row["x"] in ("long", dt.timedelta(days=3))
    finally:
        if setting is not None:
            spark.conf.unset(setting[0])


def test_settings_of_the_session_reach_the_executors(spark: Any) -> None:
    # Told as a task computes it, by the configuration that it finds.
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:

        def make(session: Any) -> Any:
            frame = session.range(0, 4, 1, 2).selectExpr("CAST(concat('x', id) AS INT) AS x", "id")
            return frame.repartition(2).selectExpr("x", "CAST(timestamp_seconds(id) AS STRING) AS at")

        rows = drive_source(SparkSource.query(make))
        assert sorted(row["at"] for row in rows) == [f"1970-01-01 09:00:0{n}" for n in range(4)]
        assert {row["x"] for row in rows} == {None}
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.ansi.enabled")


def test_a_source_that_is_closed_has_spark_stop(spark: Any, tmp_path: Path) -> None:
    def make(session: Any) -> Any:
        return session.range(0, 2, 1, 2).selectExpr("id", "reflect('java.lang.Thread', 'sleep', 600000L) AS x")

    context = spark.sparkContext
    with SourceDriver(SparkSource.query(make, staging=str(tmp_path))) as driver:
        until(lambda: bool(context.statusTracker().getActiveStageIds()))
        thread = driver._driver.enumerator._thread  # type: ignore[attr-defined]
    assert not thread.is_alive()
    until(lambda: not context.statusTracker().getActiveStageIds())


def test_a_job_master_that_closes_a_source_does_not_wait_for_spark(spark: Any, tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def make(session: Any) -> Any:
        begun.set()
        goes_on.wait(PATIENT_S)
        raise ConnectorError("closed by now")

    blocking: list[tuple[Callable[[], Any], Callable[..., None]]] = []
    coordinator = SourceCoordinator(
        SparkSource.query(make, staging=str(tmp_path)),
        1,
        VirtualClock(),
        assign=print,
        no_more=print,
        post=lambda action, after_s: Scheduled(action),
        search=lambda work, done: blocking.append((work, done)),
    )
    coordinator.start()
    ((search, begin),) = blocking
    begin(search(), None)
    enumerator: Any = coordinator.enumerator
    assert begun.wait(PATIENT_S)
    coordinator.close()
    thread = enumerator._thread
    assert thread.is_alive(), "what waits for it is done in another thread"
    goes_on.set()
    blocking[1][0]()
    assert not thread.is_alive()
