"""The data source ``sluiceway``, which names its readers and writers to Spark."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from sluiceway.errors import ConfigurationError
from sluiceway_spark.datasource.read_options import SourceTold
from sluiceway_spark.datasource.records_to_rows import arrow_schema_of
from sluiceway_spark.session.context import tasks_at_a_time
from sluiceway_spark.session.pyspark_version import FORMAT, MICRO_BATCHES, too_old

__all__ = ["SluicewayDataSource", "register"]


class SluicewayDataSource(DataSource):  # type: ignore[misc]
    """Data source ``sluiceway``. Spark makes and calls it in Python processes beside the driver.

    Attributes:
        search_path: the driver's ``sys.path``, where functions that make sources and sinks may be.
        parallelism: how many readers a source has where nothing else is said.
    """

    search_path: tuple[str, ...] = ()
    parallelism: int = os.cpu_count() or 1

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return "sluiceway"

    def schema(self) -> Any:
        """Return the columns, by the type of the source's records."""
        from pyspark.sql.pandas.types import from_arrow_schema

        told = self._source()
        return from_arrow_schema(
            arrow_schema_of(told.source.output_type, told.timestamp, f"source {told.source.name}")
        )

    def reader(self, schema: Any) -> DataSourceReader:
        """For ``spark.read``."""
        from sluiceway_spark.datasource.batch_reader import SourceBatchReader

        told = self._source()
        told.check_batch(self.options)
        return SourceBatchReader(told, schema, self.search_path)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For ``spark.readStream``."""
        _need(MICRO_BATCHES, "to read streams")
        from sluiceway_spark.datasource.stream_reader import SourceStreamReader

        return SourceStreamReader(self._source(), schema, self.search_path)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """For ``df.write``. Raises ConfigurationError."""
        _need(FORMAT)
        from sluiceway_spark.datasource.writers import sink_writer

        self._find_modules()
        return sink_writer(self.options, schema, overwrite, self.search_path)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """For ``df.writeStream``. Raises ConfigurationError."""
        _need(FORMAT)
        from sluiceway_spark.datasource.writers import stream_sink_writer

        self._find_modules()
        return stream_sink_writer(self.options, schema, overwrite, self.search_path)

    def _source(self) -> SourceTold:
        _need(FORMAT)
        self._find_modules()
        return SourceTold.of(self.options, self.parallelism)

    def _find_modules(self) -> None:
        sys.path += [entry for entry in self.search_path if entry not in sys.path]


def register(spark: Any) -> None:
    """Make the format ``sluiceway`` known to a session, for tables and streams.

    Spark finds it by itself where Sluiceway is installed. Registered, it finds functions in modules on this
    process's path, too, such as those beside a script; on other machines these have to be shipped
    (``spark.submit.pyFiles``). And where nothing else is said, a source has as many readers as the session runs
    tasks at a time.

    Args:
        spark: the session.

    Raises:
        ConfigurationError: it is none, or PySpark is too old.
    """
    if not hasattr(spark, "dataSource"):
        raise ConfigurationError(f"register() takes a SparkSession, not {spark!r:.60}")

    _need(FORMAT)

    class Registered(SluicewayDataSource):  # a class of a function goes to other processes with what it holds
        search_path = tuple(os.path.abspath(entry or ".") for entry in sys.path)
        parallelism = tasks_at_a_time(spark, SluicewayDataSource.parallelism)

    spark.dataSource.register(Registered)


def _need(version: tuple[int, int], what: str = "") -> None:
    if (older := too_old(version)) is not None:
        raise ConfigurationError(f"format 'sluiceway'{what and f' {what}'}: {older}")
