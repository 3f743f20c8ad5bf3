"""Endpoints that change the parallelism of a job that runs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get, job_request
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import find_vertex, vertex_id
from sluiceway_web._operations import Operations, body_of, running_job

__all__ = ["routes"]

_MOST_STEPS = 1000
_MOST_SUBTASKS = 2**31 - 1
"""Largest integer of the REST API; each step has a smaller limit of its own."""


class _RescaleRequest(msgspec.Struct, forbid_unknown_fields=True):
    parallelism: int | None = None
    steps: dict[str, int] = {}


async def requirements(request: Request) -> dict[str, a.VertexRequirements]:
    """Return the parallelism of each vertex."""
    asked = await job_request(request)
    return {
        vertex_id(asked.job.job, v.uid): a.VertexRequirements(a.ParallelismBounds(1, v.parallelism))
        for v in asked.description.vertices
    }


async def require(request: Request) -> dict[str, Any]:
    """Change the parallelism of vertices to their upper bounds; answer when nothing is in the way."""
    body: dict[str, a.VertexRequirements] = await body_of(request, dict[str, a.VertexRequirements])
    job = await running_job(request)
    context = context_of(request)
    description = await context.sampler.describe(job)
    steps = {}
    for wanted, required in body.items():
        vertex, bounds = find_vertex(description, job, wanted), required.parallelism
        if vertex is None:
            raise RequestError(400, f"Job {job} has no vertex {wanted}")
        if not 1 <= bounds.lower_bound <= bounds.upper_bound <= _MOST_SUBTASKS:
            raise RequestError(
                400,
                f"The bounds of vertex {wanted} are {bounds.lower_bound} and {bounds.upper_bound}: the lower must "
                f"be at least 1, and the upper not less than that and at most {_MOST_SUBTASKS}",
            )
        steps[vertex.uid] = bounds.upper_bound
    if not steps:
        raise RequestError(400, 'Name vertices: {VERTEX: {"parallelism": {"lowerBound": 1, "upperBound": N}}}')
    await context.sampler.ask_change(lambda: context.sampler.monitor.rescale(job, None, steps, wait=False))
    return {}


async def rescale(request: Request) -> a.Triggered:
    """Change the parallelism of a job."""
    body: _RescaleRequest = await body_of(request, _RescaleRequest)
    if (body.parallelism is None and not body.steps) or len(body.steps) > _MOST_STEPS:
        raise RequestError(400, 'The body is {"parallelism": N}, or has "steps" with NAME: N')
    if any(
        not 1 <= n <= _MOST_SUBTASKS
        for n in (1 if body.parallelism is None else body.parallelism, *body.steps.values())
    ):
        raise RequestError(400, f"A parallelism is 1 to {_MOST_SUBTASKS}")
    job = await running_job(request)
    monitor = context_of(request).sampler.monitor
    operations: Operations = request.app.state.operations

    def change() -> dict[str, Any]:
        done: dict[str, Any] = msgspec.to_builtins(monitor.rescale(job, body.parallelism, body.steps))
        return {"rescale": done}

    return a.Triggered(operations.start(job, change))


async def result(request: Request) -> a.OperationStatus:
    """Return the state of a rescale that was requested."""
    reading = await context_of(request).sampler.reading()
    operations: Operations = request.app.state.operations
    return operations.status(reading.job(request.path_params["job"]).job, request.path_params["request"])


routes: list[Route] = [
    *get("/jobs/{job}/resource-requirements", requirements),
    *get("/jobs/{job}/resource-requirements", require, ("PUT",)),
    *get("/jobs/{job}/rescale", rescale, ("POST",), 202),
    *get("/jobs/{job}/rescale/{request}", result),
]
