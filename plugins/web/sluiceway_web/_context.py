"""Access of endpoints to the server's parts, and the job or vertex that a path names."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import JobDescription, JobInfo, VertexInfo
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway.monitoring.web_server import WebOptions
from sluiceway_web._errors import JsonResponse, RequestError
from sluiceway_web._ids import find_vertex
from sluiceway_web._sampler import Reading, Sampler

__all__ = ["Context", "JobRequest", "VertexRequest", "context_of", "get", "job_request", "vertex_request"]


@dataclass(frozen=True, slots=True)
class Context:
    """Parts of the server that endpoints use."""

    sampler: Sampler
    options: WebOptions


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Reading with the job that a path names."""

    reading: Reading
    job: JobInfo
    description: JobDescription
    metrics: JobMetrics
    rates: list[SubtaskRates]


@dataclass(frozen=True, slots=True)
class VertexRequest:
    """Reading with the job and the vertex that a path names; ``rates`` are those of its subtasks."""

    reading: Reading
    job: JobInfo
    description: JobDescription
    metrics: JobMetrics
    vertex: VertexInfo
    rates: list[SubtaskRates]


def context_of(request: Request) -> Context:
    """Return the parts of the server."""
    context: Context = request.app.state.context
    return context


async def job_request(request: Request) -> JobRequest:
    """Return the job of a path. Raises RequestError."""
    sampler = context_of(request).sampler
    reading = await sampler.reading()
    job = reading.job(request.path_params["job"])
    description = await sampler.describe(job.job)
    metrics, rates = reading.metrics(job.job, description), reading.rates_of(job.job, description)
    return JobRequest(reading, job, description, metrics, rates)


async def vertex_request(request: Request) -> VertexRequest:
    """Return the vertex of a path. Raises RequestError."""
    asked = await job_request(request)
    wanted = request.path_params["vertex"]
    vertex = find_vertex(asked.description, asked.job.job, wanted)
    if vertex is None:
        raise RequestError(404, f"Job {asked.job.job} has no vertex {wanted}")
    own = [r for r in asked.rates if r.metrics.vertex_id == vertex.id]
    return VertexRequest(asked.reading, asked.job, asked.description, asked.metrics, vertex, own)


Endpoint = Callable[[Request], Awaitable[Any]]


def get(path: str, endpoint: Endpoint, methods: tuple[str, ...] = ("GET",), status: int = 200) -> list[Route]:
    """Return the routes of an endpoint that returns a value for JSON, with and without ``/v1``."""

    async def answer(request: Request) -> Response:
        return JsonResponse(await endpoint(request), status_code=status, headers={"Cache-Control": "no-store"})

    answer.__doc__ = endpoint.__doc__
    # The OpenAPI document shows the type of the value.
    answer.__annotations__["return"] = typing.get_type_hints(endpoint).get("return", Any)
    return [Route(prefix + path, answer, methods=list(methods)) for prefix in ("", "/v1")]
