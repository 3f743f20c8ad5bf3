"""What Spark calls a data source: says who reads and who writes."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["SluicewayDataSource"]


class SluicewayDataSource(DataSource):  # type: ignore[misc]
    """What ``spark.write.format("sluiceway")`` names. Spark makes one wherever it needs it, of the options."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "sluiceway"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """What writes a DataFrame. Raises ConfigurationError."""
        from sluiceway_spark.datasource._sinkside import sink_writer

        return sink_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """What writes a streaming query. Raises ConfigurationError."""
        from sluiceway_spark.datasource._sinkside import stream_sink_writer

        return stream_sink_writer(self.options, schema, overwrite)
