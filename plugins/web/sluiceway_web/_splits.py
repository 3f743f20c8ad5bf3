"""Endpoint about the splits of a source."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.split_diagnosis import SourceSplits, source_splits
from sluiceway_web._context import get, vertex_request

__all__ = ["routes"]


async def splits(request: Request) -> SourceSplits:
    """Return the event time of a source's splits: counts of all, and by name those that hold back time."""
    asked = await vertex_request(request)
    return source_splits(asked.rates) or SourceSplits(0, 0, 0, None, None, 0.0, [])


routes: list[Route] = get("/jobs/{job}/vertices/{vertex}/splits", splits)
