"""Spark's format ``sluiceway``: connectors of Sluiceway as data sources of plain PySpark."""
