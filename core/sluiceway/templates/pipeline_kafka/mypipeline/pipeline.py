"""Counts page views per page and minute: from a topic to another one, exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import sluiceway as sw
from sluiceway.windows import TimeWindow, TumblingEventTimeWindows
from sluiceway_kafka import KafkaSink, KafkaSource

__all__ = ["COUNTS", "LATENESS_MS", "VIEWS", "Count", "View", "build", "count_views", "flow", "servers"]

VIEWS = "my-pipeline-views"
COUNTS = "my-pipeline-counts"
LATENESS_MS = 5_000
"""Maximum delay of a view behind others at which it is still counted."""


@dataclass(frozen=True)
class View:
    """Value of a record of the topic of views, as JSON. The record's timestamp is the time of the view."""

    user: str
    page: str


@dataclass(frozen=True)
class Count:
    """Value of a record of the topic of counts, as JSON; its key is the page."""

    page: str
    minute: int
    views: int


class Counter(sw.AggregateFunction[View, int, int]):
    """Counter of views: one number per page and window."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: View, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


def with_minute(page: str, window: TimeWindow, results: list[int]) -> Iterator[Count]:
    """The count of a page, with the minute of its window, counted since 1970."""
    for views in results:
        yield Count(page, window.start // 60_000, views)


def count_views(views: sw.DataStream[View]) -> sw.DataStream[Count]:
    """One count for each page and minute, when the minute is over in event time."""
    return (
        views.key_by(lambda view: view.page)
        .window(TumblingEventTimeWindows("1min"))
        .aggregate(Counter(), with_minute)
        .uid("counts")
    )


def in_time() -> sw.WatermarkStrategy[View]:
    """Minutes are over LATENESS_MS after their end. Partitions without views for 10 s do not hold them up."""
    return sw.WatermarkStrategy.for_bounded_out_of_orderness(f"{LATENESS_MS}ms").with_idleness("10s")


def servers() -> str:
    """Addresses of brokers."""
    return os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


def build(brokers: str, views: str = VIEWS, counts: str = COUNTS, *, stop: str | None = None) -> sw.Pipeline:
    """Return the pipeline. With ``stop="latest"`` it ends with the views that are there when it starts."""
    # Each run of a topic's pipeline uses the same prefix: it finds the transactions that a killed run has left.
    sink = KafkaSink(
        brokers,
        counts,
        serializer="json",
        key=lambda count: count.page,
        guarantee="exactly-once",
        transactional_id_prefix=counts,
    )
    # group_id is for tools that show how far the pipeline is; where it goes on is in its checkpoints.
    source = KafkaSource(brokers, views, deserializer="json", type=View, stop=stop, group_id="my-pipeline")
    pipeline = sw.Pipeline("my-pipeline")
    # Given to the source, the strategy has a watermark for each partition.
    count_views(pipeline.source(source, watermark_strategy=in_time()).uid("views")).sink(sink).uid("written")
    return pipeline


def flow() -> sw.Pipeline:
    """Return the pipeline on the topics of this project."""
    return build(servers())
