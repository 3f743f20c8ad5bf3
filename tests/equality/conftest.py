"""One session of Spark for all that is compared there, and where the modules of these tests are."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent

for place in (_HERE, _HERE.parents[1]):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from pyspark.sql import SparkSession

    from sluiceway_spark import SessionConf

    try:
        others = SparkSession.active()
    except Exception:  # which class it is depends on whether there is a JVM yet
        pass
    else:
        _call_back(others, tmp_path_factory)
        yield others  # made by others' tests, who end it
        return
    conf = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": 1,
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    }
    session = SessionConf.of("local[2]", None, conf).session()
    # Its Python workers are there now.
    list(session.range(2).mapInArrow(lambda batches: batches, "id long").collect())
    _call_back(session, tmp_path_factory)
    yield session
    session.stop()


def _call_back(session: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have Spark make the connections by which it calls this process: no test is to be taken for their origin."""
    (first := tmp_path_factory.mktemp("first")).joinpath("line.txt").write_text("line\n")
    writer = session.readStream.text(str(first)).writeStream.foreachBatch(lambda frame, batch: None)
    writer = writer.option("checkpointLocation", str(tmp_path_factory.mktemp("kept")))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def _let_go(spark: Any) -> Iterator[None]:
    """The connections of Spark's threads that have ended would stay until the JVM collects its garbage.

    To close one would wait for the thread that reads from it; a shutdown ends that.
    """
    yield
    gateway = spark.sparkContext._gateway
    for connection in {*gateway._gateway_client.deque, *gateway._callback_server.connections}:
        if not connection.initiated_from_client and connection.socket is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked with ``spark`` gets the session, also where that is one parameter of several.

    It comes first of all, so that nobody takes it for something that the test has left behind. Each of these tests
    is run with other versions, too.
    """
    for item in items:
        if item.path.parent == _HERE and item.get_closest_marker("spark"):
            item.add_marker("pysparks")
            item.fixturenames = ["spark", *item.fixturenames, "_let_go"]  # type: ignore[attr-defined]
