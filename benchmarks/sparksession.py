"""Session of Spark in a JVM of its own, which ends with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["spark_session", "workers_of_its_own"]


@contextmanager
def spark_session(conf: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    """Start a session with two cores, and end it and its JVM; a directory is removed afterwards.

    A JVM keeps the directory of its first session for its temporary files, and writes there until it ends.

    Args:
        conf: settings of the session.

    Returns:
        the session, and the directory.
    """
    from pyspark import SparkContext

    from sluiceway_spark import SessionConf

    context: Any = SparkContext
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory, _own_address():
        local = {"spark.local.dir": f"{directory}/spark", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
        session = SessionConf.of("local[2]", None, {**local, **conf}).session()
        try:
            yield session, Path(directory)
        finally:
            session.stop()
            gateway, context._gateway, context._jvm = context._gateway, None, None
            gateway.shutdown()
            gateway.proc.stdin.close()  # at whose end the JVM exits
            gateway.proc.wait()


@contextmanager
def workers_of_its_own(spark: Any) -> Iterator[None]:
    """Have Python functions that are made in this context run in other worker processes than those of ours.

    Spark lends a worker to one query after the other, and ours leave its garbage collector with less to do.
    """
    environment = spark.sparkContext.environment
    environment["SLUICEWAY_BENCHMARK"] = "other"
    try:
        yield
    finally:
        del environment["SLUICEWAY_BENCHMARK"]


@contextmanager
def _own_address() -> Iterator[None]:
    """For Spark to use: else it looks for one, and says so."""
    missing = "SPARK_LOCAL_IP" not in os.environ
    if missing:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        if missing:
            del os.environ["SPARK_LOCAL_IP"]
