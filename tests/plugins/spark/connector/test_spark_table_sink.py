"""SparkTableSink and SparkSource on tables of Delta and Iceberg, with the real jars."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.drivers import SinkDriver

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pa = pytest.importorskip("pyarrow")

from tests.plugins.spark.lake import conf, jars, own_jvm  # noqa: E402

from sluiceway_spark import SparkSource, SparkTableSink, transform  # noqa: E402
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.pysparks, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


class Order(NamedTuple):
    id: int
    day: dt.date
    item: str | None
    at: dt.datetime


def order(n: int, day: int = 0) -> Order:
    day = day or n % 3 + 1
    at = dt.datetime(2026, 1, day, 12, tzinfo=dt.UTC)
    return Order(n, dt.date(2026, 1, day), None if n % 5 == 0 else f"item {n}", at)


class Lake:
    """A session with a catalog of one format, and its tables."""

    def __init__(self, session: Any, form: str, directory: Path) -> None:
        self.session = session
        self.form = form
        self.directory = directory
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"{'default' if self.form == 'delta' else 'lake.shop'}.t{self._number}"

    def sink(self, name: str, **options: Any) -> SparkTableSink:
        return SparkTableSink(name, **{"schema": Order, "format": self.form, "partition_by": "day", **options})

    def rows(self, name: str) -> list[Any]:
        return sorted(map(tuple, self.session.sql(f"SELECT id, day, item FROM {name}").collect()))

    def transactions(self, name: str) -> int:
        if self.form == "delta":
            found = self.session.sql(f"DESCRIBE HISTORY {name}").where("operation IN ('WRITE')")
        else:
            found = self.session.table(f"{name}.snapshots")
        return int(found.count())

    def staged(self, name: str) -> list[Path]:
        facts = {
            row.col_name: row.data_type for row in self.session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        }
        return sorted(Path(facts["Location"].removeprefix("file:"), "_sluiceway").iterdir())


@pytest.fixture(scope="module", params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    from sluiceway_spark import SessionConf

    found = jars(request.param, tmp_path_factory.mktemp("jars"))
    directory = tmp_path_factory.mktemp("lake")
    with own_jvm():
        session = SessionConf.of("local[2]", None, conf(request.param, found, directory)).session()
        try:
            if request.param == "iceberg":
                session.sql("CREATE NAMESPACE lake.shop")
            yield Lake(session, request.param, directory)
        finally:
            session.stop()


def expected(orders: list[Order]) -> list[Any]:
    return sorted((one.id, one.day, one.item) for one in orders)


def write(orders: list[Order], sink: Any, parallelism: int = 1, **options: Any) -> Any:
    flow = sw.Pipeline("orders", parallelism=parallelism)
    flow.from_collection(orders).rebalance().map(lambda one: one).sink(sink).uid("table")
    return flow.run(**options)


def test_batch_jobs_append_and_replace_in_one_transaction(lake: Lake) -> None:
    name = lake.name()
    first = [order(n) for n in range(100)]
    assert write(first, lake.sink(name), 2, engine="spark").status is JobStatus.FINISHED
    assert lake.rows(name) == expected(first)
    assert lake.transactions(name) == 1
    assert lake.staged(name) == []

    second = [order(n) for n in range(100, 120)]
    write(second, lake.sink(name, schema=None, format=None, partition_by=()), 2, engine="spark")
    assert lake.rows(name) == expected(first + second)

    third = [order(n, day=2) for n in range(200, 210)]
    write(third, lake.sink(name, mode="overwrite_partitions"), 2, engine="spark")
    kept = [one for one in first + second if one.day.day != 2]
    assert lake.rows(name) == expected(kept + third)
    assert lake.transactions(name) == 3

    read = list(sw.Pipeline("read").source(SparkSource.table(name)).execute_and_collect())
    assert sorted((one["id"], one["day"], one["item"]) for one in read) == expected(kept + third)
    assert {one["at"] for one in read if one["id"] == 201} == {third[1].at}

    write(second, lake.sink(name, mode="overwrite"), 2, engine="spark")
    assert lake.rows(name) == expected(second)
    write([], lake.sink(name, mode="overwrite"), 2, engine="spark")
    assert lake.rows(name) == []


def test_one_process_commits_with_each_checkpoint_and_each_run(lake: Lake) -> None:
    name = lake.name()
    sink = lake.sink(name)
    orders = [order(n) for n in range(50)]
    write(orders, sink, 2)
    assert lake.rows(name) == expected(orders)
    write(orders, sink, 2)  # the same object, in a run of its own
    assert lake.rows(name) == expected(orders + orders)
    assert lake.transactions(name) == 4
    assert lake.staged(name) == []
    with pytest.raises(ConfigurationError, match=r"takes one writer.*set_parallelism"):
        write(orders, lake.sink(name, mode="overwrite"), 2)
    write(orders, lake.sink(name, mode="overwrite"))
    assert lake.rows(name) == expected(orders)


def test_micro_batches_commit_once_each(lake: Lake, tmp_path: Path) -> None:
    if too_old(MICRO_BATCHES):
        pytest.skip("micro-batches need a later PySpark")
    name = lake.name()
    orders = [order(n) for n in range(300)]
    # On a busy machine Spark's own processes miss a time-out of 10 s, which cannot be set.
    restart = "fixed-delay:50:1s"
    result = write(orders, lake.sink(name), 2, engine="spark", checkpoints=str(tmp_path), restart=restart)
    assert result.status is JobStatus.FINISHED
    assert lake.rows(name) == expected(orders)
    assert lake.staged(name) == []


@pytest.fixture
def stays(lake: Lake, tmp_path: Path) -> Callable[[str], Callable[[], None]]:
    """Keeps copies of staged files, and puts them back: as if the process had died before they were removed."""

    def keep(name: str) -> Callable[[], None]:
        files = lake.staged(name)
        for file in files:
            shutil.copy(file, tmp_path / file.name)

        def back() -> None:
            for file in files:
                shutil.copy(tmp_path / file.name, file)

        return back

    return keep


def test_a_repeated_commit_changes_nothing(lake: Lake, stays: Any) -> None:
    name = lake.name()
    with SinkDriver(lake.sink(name), checkpoints=True) as driver:
        driver.write([order(n) for n in range(10)])
        ready = driver.checkpoint()
        back = stays(name)
        driver.complete()
        assert lake.rows(name) == expected([order(n) for n in range(10)])
    back()
    # Another process, which finds the staged files; then one that finds them gone.
    for _ in range(2):
        with SinkDriver(lake.sink(name), checkpoints=True, restored=ready):
            assert lake.rows(name) == expected([order(n) for n in range(10)])
            assert lake.staged(name) == []
    assert lake.transactions(name) == 1


def test_uncommitted_files_that_are_gone_are_an_error(lake: Lake) -> None:
    name = lake.name()
    with SinkDriver(lake.sink(name), checkpoints=True) as driver:
        driver.write([order(1)])
        ready = driver.checkpoint()
        [file] = lake.staged(name)
        file.unlink()
        with pytest.raises(ConnectorError, match=r"is gone, and no transaction 1 of sluiceway-\w+-\w+ is in"):
            driver.complete()
    with pytest.raises(ConnectorError, match="is gone"):
        SinkDriver(lake.sink(name), checkpoints=True, restored=ready)


def test_what_no_checkpoint_has_is_removed(lake: Lake) -> None:
    name = lake.name()
    with SinkDriver(lake.sink(name), checkpoints=True) as driver:
        driver.write([order(1)])
        driver.checkpoint()  # which is never complete
    assert len(lake.staged(name)) == 1
    with SinkDriver(lake.sink(name), checkpoints=True, restored=[]):
        assert lake.staged(name) == []
    assert lake.rows(name) == []


class Paid(NamedTuple):
    id: int
    day: dt.date
    item: str | None
    at: dt.datetime
    paid: float | None


class Renamed(NamedTuple):
    id: int
    day: dt.date
    thing: str
    at: dt.datetime


class Texts(NamedTuple):
    id: str
    day: dt.date
    item: str
    at: dt.datetime


def test_columns_are_added_where_that_was_asked_for_and_nothing_else_changes(lake: Lake) -> None:
    name = lake.name()
    write([order(1)], lake.sink(name))
    with pytest.raises(ConfigurationError, match=r"no column 'paid', which schema= has.*add_columns=True"):
        write([], lake.sink(name, schema=Paid))
    with pytest.raises(ConfigurationError, match="column 'id' is string in schema=, but int64 in the table"):
        write([], lake.sink(name, schema=Texts))
    with pytest.raises(ConfigurationError, match="the table has column 'item', which schema= lacks"):
        write([], lake.sink(name, schema=Renamed, add_columns=True))
    with pytest.raises(ConfigurationError, match="partitioned by day"):
        write([], lake.sink(name, partition_by="id"))
    other = {"delta": "iceberg", "iceberg": "delta"}[lake.form]
    with pytest.raises(ConfigurationError, match=f"format='{other}', but it is a table of {lake.form}"):
        write([], lake.sink(name, format=other))
    write([Paid(*order(2), paid=1.5)], lake.sink(name, schema=Paid, add_columns=True))
    found = lake.session.sql(f"SELECT id, paid FROM {name} ORDER BY id").collect()
    assert list(map(tuple, found)) == [(1, None), (2, 1.5)]
    assert lake.session.table(name).columns[-1] == "paid"


def test_the_rules_of_the_table_hold(lake: Lake) -> None:
    name = lake.name()
    lake.session.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL, item STRING) USING {lake.form}")
    sink = SparkTableSink(name)
    write([{"id": 1, "item": "a"}], sink)  # type: ignore[list-item]
    with pytest.raises(ConnectorError, match=f"cannot commit to table {name}"):
        write([{"id": None, "item": "b"}], sink)  # type: ignore[list-item]
    assert [row.id for row in lake.session.table(name).collect()] == [1]
    with pytest.raises(ConfigurationError, match=r"has no partitions.*mode='overwrite'"):
        write([], SparkTableSink(name, mode="overwrite_partitions"))


def test_other_tables_are_refused(lake: Lake) -> None:
    lake.session.sql("CREATE TABLE spark_catalog.default.plain (id BIGINT) USING parquet")
    with pytest.raises(ConnectorError, match=r"a table of parquet, which SparkSink\.table writes"):
        write([], SparkTableSink("spark_catalog.default.plain"))
    with pytest.raises(ConfigurationError, match=r"no such table.*format='delta' or 'iceberg'"):
        write([], SparkTableSink(lake.name(), schema=Order))


def test_a_stream_between_dataframes_ends_in_the_table(lake: Lake, tmp_path: Path) -> None:
    """Through the format's own sink of streams."""
    if too_old(MICRO_BATCHES):
        pytest.skip("streams need a later PySpark")
    name = lake.name()
    lake.session.createDataFrame([(n,) for n in range(20)], "n long").write.parquet(str(tmp_path / "in"))
    stream = lake.session.readStream.schema("n long").parquet(str(tmp_path / "in"))
    doubled = transform(stream, lambda rows: rows.map(lambda row: {"n": 2 * row["n"]}), schema="n long")
    writer = doubled.writeStream.format(lake.form).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).toTable(name).awaitTermination()
    assert sorted(row.n for row in lake.session.table(name).collect()) == [2 * n for n in range(20)]
