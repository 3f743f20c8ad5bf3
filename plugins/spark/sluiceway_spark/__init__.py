"""Apache Spark: the engine ``spark``, the connector ``spark``, and Spark's data source ``sluiceway``.

``SparkSource`` reads tables, queries and files of Spark, ``SparkSink`` writes them, ``SparkTableSink``
writes tables of Delta and Iceberg. ``register(spark)`` lets plain
PySpark read and write with connectors of Sluiceway, ``transform`` runs a
pipeline between two DataFrames. ``SessionConf`` describes the session that all of them use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway.engine import JobStatus
    from sluiceway_spark.connector.sink import SparkSink
    from sluiceway_spark.connector.source import SparkSource
    from sluiceway_spark.connector.table_sink import SparkTableSink
    from sluiceway_spark.datasource.data_source import register
    from sluiceway_spark.frames.transformation import transform
    from sluiceway_spark.session.configuration import SessionConf

__all__ = ["SessionConf", "SparkSink", "SparkSource", "SparkTableSink", "register", "transform"]

# Imported on first use: plugins are loaded when any program starts, PySpark takes half a second.
_MODULES: Final = {
    "SessionConf": "session.configuration",
    "SparkSink": "connector.sink",
    "SparkSource": "connector.source",
    "SparkTableSink": "connector.table_sink",
    "register": "datasource.data_source",
    "transform": "frames.transformation",
}
_CATALOG_TABLES: Final = "sluiceway_spark.connector.catalog_tables"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("register", "transform"):
        from sluiceway_spark.session.configuration import need_spark

        need_spark()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_checkpoint_completed() -> None:
    """Refresh the catalog tables that jobs of this process write to."""
    if (tables := sys.modules.get(_CATALOG_TABLES)) is not None:
        tables.checkpointed()


@hookimpl
def sluiceway_job_status_changed(job_name: str, new: JobStatus) -> None:
    """Refresh the catalog tables that jobs of this process write to, when a job has ended."""
    if (tables := sys.modules.get(_CATALOG_TABLES)) is not None:
        tables.status_changed(job_name, new)


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer the connector ``spark``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_spark.connector.sink import SparkSink
        from sluiceway_spark.connector.source import SparkSource

        return Connector(source=SparkSource.of, sink=SparkSink.of)

    summary = "tables, queries and files of Apache Spark; source, and sink that is exactly-once"
    return [Offer("spark", load, summary, extra="spark", libraries=("pyspark",))]


@hookimpl
def sluiceway_engines() -> list[Offer]:
    """Offer the engine ``spark``."""

    def load() -> Any:
        from sluiceway_spark.engine.spark_engine import SparkEngine

        return SparkEngine

    summary = "workers on Apache Spark's executors, with --hosted"
    return [Offer("spark", load, summary, extra="spark", libraries=("pyspark",))]
