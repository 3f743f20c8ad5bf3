"""A session of Spark for the tests of each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on this machine, whose batches of Arrow's have 7 rows."""
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from sluiceway_spark import SessionConf

    conf = {
        "spark.sql.shuffle.partitions": 3,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.execution.arrow.maxRecordsPerBatch": 7,
    }
    session = SessionConf.of("local[2]", None, conf).session()
    # Its Python workers are there now.
    list(session.range(3).mapInArrow(lambda batches: batches, "id long").collect())
    yield session
    session.stop()
