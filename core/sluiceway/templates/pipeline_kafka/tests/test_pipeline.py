"""The steps between the topics, run on a few views without a broker."""

from __future__ import annotations

import sluiceway as sw
from sluiceway.testing import run_pipeline

from mypipeline.pipeline import Count, View, count_views


def test_views_are_counted_per_page_and_minute() -> None:
    pipeline = sw.Pipeline("test")
    views = [(View("ann", "/"), 1_000), (View("bob", "/"), 59_999), (View("ann", "/"), 60_000)]
    timed = pipeline.from_collection(views).assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda each: each[1])
    )
    counts = count_views(timed.map(lambda each: each[0])).collect()
    run_pipeline(pipeline)
    assert list(counts) == [Count("/", 0, 2), Count("/", 1, 1)]
