"""Endpoints about applications: one for each job, with the same id."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._jobs import exceptions_of
from sluiceway_web._operations import cancel_job
from sluiceway_web._shapes import job_overview

__all__ = ["routes"]


async def overview(request: Request) -> a.Applications:
    """Return one application for each job."""
    reading = await context_of(request).sampler.listing()
    found = []
    for job in (job_overview(reading, job) for job in reading.cluster.jobs):
        found.append(
            a.ApplicationInfo(
                job.jid, job.name, job.state, job.start_time, job.end_time, job.duration, {job.state: 1}
            )
        )
    return a.Applications(found)


async def details(request: Request) -> a.ApplicationDetails:
    """Return the application of a job."""
    reading = await context_of(request).sampler.listing()
    job = job_overview(reading, reading.job(request.path_params["application"]))
    return a.ApplicationDetails(
        id=job.jid,
        name=job.name,
        status=job.state,
        start_time=job.start_time,
        end_time=job.end_time,
        duration=job.duration,
        jobs=[job],
    )


async def exceptions(request: Request) -> a.ApplicationExceptions:
    """Return the failure that an application has ended with, if any."""
    reading = await context_of(request).sampler.listing()
    info = reading.job(request.path_params["application"])
    ended = exceptions_of(info, 1) if info.status == "failed" else []
    job = job_overview(reading, info).jid
    entries = [a.ApplicationException(e.exceptionName, e.stacktrace, e.timestamp, job) for e in ended]
    return a.ApplicationExceptions(a.ApplicationExceptionHistory(entries))


async def cancel(request: Request) -> Response:
    """Cancel the job of an application."""
    return await cancel_job(request, request.path_params["application"])


_ONE = "/applications/{application}"

routes: list[Route] = [
    *get("/applications/overview", overview),
    *get(_ONE, details),
    *get(f"{_ONE}/exceptions", exceptions),
    *(Route(f"{prefix}{_ONE}/cancel", cancel, methods=["POST"]) for prefix in ("", "/v1")),
]
