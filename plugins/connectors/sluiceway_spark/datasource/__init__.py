"""The format ``sluiceway`` of Spark's: connectors of Sluiceway as data sources of plain PySpark."""
