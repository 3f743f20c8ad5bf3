"""Endpoint about the keys of a step: records are counted while it is asked."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.diagnosis import Diagnosis, with_key
from sluiceway.monitoring.key_samples import KeySample, StepKeys, step_keys
from sluiceway_web._context import context_of, get, vertex_request
from sluiceway_web._errors import RequestError
from sluiceway_web._sampler import Sampler

__all__ = ["routes", "with_last_key"]

_USUAL_S = 2.0
_MOST_S = 10.0
_AT_ONCE = 4
_MOST_KEPT = 64
_GOOD_S = 300.0


class _Counts:
    """Number of requests for which keys are being counted."""

    open = 0


def _seconds(request: Request) -> float:
    text = request.query_params.get("seconds", str(_USUAL_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MOST_S:
        raise RequestError(400, f"seconds is a number up to {_MOST_S:g}, not {text[:50]!r}")
    return seconds


async def hot_keys(request: Request) -> StepKeys:
    """Count the keys of the records that come to a vertex for some seconds, and return those with most."""
    asked = await vertex_request(request)
    seconds = _seconds(request)
    if _Counts.open >= _AT_ONCE:
        raise RequestError(503, f"Keys are counted for {_AT_ONCE} requests already: try again in a few seconds")
    sampler = context_of(request).sampler
    job, vertex = asked.job.job, asked.vertex.id
    _Counts.open += 1
    try:
        samples = await sampler.ask(lambda: sampler.monitor.sample_keys(job, [vertex], seconds))
    finally:
        _Counts.open -= 1
    kept = sampler.key_samples
    kept[job, vertex] = time.monotonic(), samples
    kept.move_to_end((job, vertex))
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
    return step_keys(samples)[0]


def with_last_key(sampler: Sampler, job: str, found: Diagnosis) -> Diagnosis:
    """Name the hottest key in a diagnosis of skewed keys, if keys were counted in the last minutes."""

    def last(vertex: int) -> list[KeySample]:
        at, samples = sampler.key_samples.get((job, vertex), (0.0, []))
        return samples if time.monotonic() - at < _GOOD_S else []

    return with_key(found, last)


routes: list[Route] = get("/jobs/{job}/vertices/{vertex}/hot-keys", hot_keys)
