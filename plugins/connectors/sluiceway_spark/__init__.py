"""Tables, queries and files of Apache Spark: ``SparkSource`` reads them, ``SparkSink`` writes them.

The other way round, ``register(spark)`` has plain PySpark read and write with connectors of Sluiceway.

For plugins that build on Spark, too: ``SessionConf``, of which sessions are made, ``need_spark`` and ``said``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway.engine import JobStatus
    from sluiceway_spark._sessions import SessionConf, need_spark, said
    from sluiceway_spark._sink import SparkSink
    from sluiceway_spark._source import SparkSource
    from sluiceway_spark.datasource._format import register

__all__ = ["SessionConf", "SparkSink", "SparkSource", "need_spark", "register", "said"]


def __getattr__(name: str) -> Any:
    if name == "SparkSource":
        from sluiceway_spark._source import SparkSource

        return SparkSource
    if name == "SparkSink":
        from sluiceway_spark._sink import SparkSink

        return SparkSink
    if name == "register":
        from sluiceway_spark._sessions import need_spark

        need_spark()
        from sluiceway_spark.datasource._format import register

        return register
    if name in __all__:
        from sluiceway_spark import _sessions

        return getattr(_sessions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_checkpoint_completed() -> None:
    """Have Spark see what is in tables."""
    if (tables := sys.modules.get("sluiceway_spark._tables")) is not None:
        tables.checkpointed()


@hookimpl
def sluiceway_job_status_changed(job_name: str, new: JobStatus) -> None:
    """Have Spark see what is in tables, when a job has ended."""
    if (tables := sys.modules.get("sluiceway_spark._tables")) is not None:
        tables.status_changed(job_name, new)


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``spark``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_spark._sink import SparkSink
        from sluiceway_spark._source import SparkSource

        return Connector(source=SparkSource.of, sink=SparkSink.of)

    summary = "tables, queries and files of Apache Spark; source, and sink that is exactly-once"
    return [Offer("spark", load, summary, extra="spark", libraries=("pyspark",))]
