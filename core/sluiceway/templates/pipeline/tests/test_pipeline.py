"""The pipeline, run on a few records."""

from __future__ import annotations

import sluiceway as sw
from sluiceway.testing import run_pipeline

from mypipeline.pipeline import View, count_views, parse


def test_views_are_counted_per_page() -> None:
    pipeline = sw.Pipeline("test")
    counts = count_views(pipeline.from_collection(["ann /", "bob /prices", "nothing", "ann /prices"])).collect()
    run_pipeline(pipeline)
    assert list(counts) == [("/", 1), ("/prices", 1), ("/prices", 2)]


def test_what_is_no_view_is_left_out() -> None:
    assert parse("ann /") == [View("ann", "/")]
    assert parse("who is this") == []
