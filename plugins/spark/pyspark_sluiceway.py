"""The format ``sluiceway``, where Spark finds it by itself: in a module whose name begins with ``pyspark_``."""

from sluiceway_spark.datasource.data_source import SluicewayDataSource as DefaultSource

__all__ = ["DefaultSource"]
