"""The engine ``spark``: pipelines on Apache Spark's executors."""

from __future__ import annotations

from typing import Any

from sluiceway.hooks import Offer, hookimpl

__all__: list[str] = []


@hookimpl
def sluiceway_engines() -> list[Offer]:
    """Offer ``spark``."""

    def load() -> Any:
        from sluiceway_sparkengine._engine import SparkEngine

        return SparkEngine

    summary = "workers on Apache Spark's executors, with --hosted"
    return [Offer("spark", load, summary, extra="spark", libraries=("pyspark",))]
