"""Tables, queries and files that Apache Spark reads, through PySpark: ``SparkSource``.

For plugins that build on Spark, too: ``SessionConf``, of which sessions are made, ``need_spark`` and ``said``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_spark._sessions import SessionConf, need_spark, said
    from sluiceway_spark._source import SparkSource

__all__ = ["SessionConf", "SparkSource", "need_spark", "said"]


def __getattr__(name: str) -> Any:
    if name == "SparkSource":
        from sluiceway_spark._source import SparkSource

        return SparkSource
    if name in __all__:
        from sluiceway_spark import _sessions

        return getattr(_sessions, name)
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
