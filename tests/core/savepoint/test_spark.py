"""State as a data frame of Spark, and a data frame of Spark as state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.savepoint import read, write

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pytest.importorskip("pyarrow")

pytestmark = pytest.mark.spark

COUNT = sw.ValueStateDescriptor("count", int)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from sluiceway_spark.session.configuration import SessionConf

    conf = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    session = SessionConf.of("local[1]", None, conf).session()
    yield session
    session.stop()


def test_there_and_back(tmp_path: Path, spark: Any) -> None:
    with write(str(tmp_path / "one")) as savepoint:
        savepoint.put("op", COUNT, [(number, number * 2) for number in range(1_000)], key=0, value=1)
    counts = spark.createDataFrame(read(savepoint.location)["op"]["count"].to_arrow())
    counts.createOrReplaceTempView("counts")
    large = spark.sql("SELECT key, value + 1 AS value FROM counts WHERE value >= 1000")
    with write(str(tmp_path / "two")) as savepoint:
        assert savepoint.put("op", COUNT, large.toArrow()) == 500
    rows = {row["key"]: row["value"] for row in read(savepoint.location)["op"]["count"].rows()}
    assert rows == {number: number * 2 + 1 for number in range(500, 1_000)}
