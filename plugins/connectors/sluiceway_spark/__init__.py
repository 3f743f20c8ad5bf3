"""Tables, queries and files that Apache Spark reads, through PySpark: ``SparkSource``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_spark._source import SparkSource

__all__ = ["SparkSource"]


def __getattr__(name: str) -> Any:
    if name == "SparkSource":
        from sluiceway_spark._source import SparkSource

        return SparkSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``spark``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_spark._source import SparkSource

        return Connector(source=SparkSource.of)

    return [Offer("spark", load, "tables, queries and files that Apache Spark reads; source")]
