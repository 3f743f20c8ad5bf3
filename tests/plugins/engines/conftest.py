"""One session of Spark for what is tested on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from sluiceway_spark import SessionConf

    conf = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": 1,
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    }
    session = SessionConf.of("local[3]", None, conf).session()
    # Its Python workers are there now.
    list(session.range(3).mapInArrow(lambda batches: batches, "id long").collect())
    yield session
    session.stop()
