"""Counts page views per page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sluiceway as sw

__all__ = ["View", "build", "count_views", "flow", "parse"]


@dataclass(frozen=True)
class View:
    """Somebody looked at a page."""

    user: str
    page: str


def parse(line: str) -> list[View]:
    """The view that a line (``user page``) tells of; none for a line that is something else."""
    words = line.split()
    return [View(*words)] if len(words) == 2 else []


def count_views(lines: sw.DataStream[str]) -> sw.DataStream[tuple[str, int]]:
    """For each view the page and how often it was looked at so far."""
    return lines.flat_map(parse).key_by(lambda view: view.page).count().uid("counts")


def build(lines: Sequence[str]) -> sw.Pipeline:
    """Return the pipeline. A source may replace its collection: ``.source("socket", host=..., port=...)``."""
    pipeline = sw.Pipeline("my-pipeline")
    count_views(pipeline.from_collection(lines).uid("lines")).print()
    return pipeline


flow = build(["ann /", "bob /prices", "", "ann /prices"])
