"""Endpoints about the rescales of a job: Flink's history of its adaptive scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.infos import RESCALES_KEPT, RescaleInfo
from sluiceway_web import _answers as a
from sluiceway_web._context import JobRequest, get, job_request
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import rescale_id, vertex_id
from sluiceway_web._shapes import statistics

__all__ = ["routes"]

_STATES: Final = {"completed": "COMPLETED", "failed": "FAILED"}
_REASONS: Final = {"completed": "SUCCEEDED", "failed": "EXCEPTION_OCCURRED"}


async def overview(request: Request) -> a.RescalesOverview:
    """Return how many of the last rescales succeeded, and the latest of each kind."""
    asked = await job_request(request)
    latest = {rescale.status: rescale for rescale in asked.description.rescales}  # the newest is the last one

    def of(status: str) -> a.Rescale | None:
        return _rescale(asked, latest[status], states=False) if status in latest else None

    return a.RescalesOverview(_counts(asked), a.LatestRescales(of("completed"), of("failed")))


async def history(request: Request) -> list[a.Rescale]:
    """Return the last rescales of a job, newest first."""
    asked = await job_request(request)
    return [_rescale(asked, rescale, states=False) for rescale in reversed(asked.description.rescales)]


async def details(request: Request) -> a.Rescale:
    """Return one rescale, with the times at which tasks were stopped and ran again."""
    asked = await job_request(request)
    wanted = request.path_params["rescale"]
    for rescale in asked.description.rescales:
        if rescale_id(asked.job.job, rescale.requested_ms) == wanted:
            return _rescale(asked, rescale, states=True)
    raise RequestError(404, f"Job {asked.job.job} has no rescale {wanted} among its last {RESCALES_KEPT}")


async def summary(request: Request) -> a.RescalesSummary:
    """Return quantiles over the durations of the last rescales of a job."""
    asked = await job_request(request)
    ended = [rescale for rescale in asked.description.rescales if rescale.ended_ms]
    return a.RescalesSummary(
        _counts(asked),
        _durations(ended),
        _durations(rescale for rescale in ended if rescale.status == "completed"),
        _durations([]),
        _durations(rescale for rescale in ended if rescale.status == "failed"),
    )


async def config(request: Request) -> a.RescaleConfig:
    """Return the size of the history of rescales."""
    await job_request(request)
    return a.RescaleConfig(RESCALES_KEPT)


def _counts(asked: JobRequest) -> a.RescaleCounts:
    found = [rescale.status for rescale in asked.description.rescales]
    return a.RescaleCounts(0, found.count("in_progress"), found.count("completed"), found.count("failed"))


def _durations(rescales: Iterable[RescaleInfo]) -> dict[str, float]:
    return statistics(rescale.ended_ms - rescale.requested_ms for rescale in rescales)


def _rescale(asked: JobRequest, rescale: RescaleInfo, *, states: bool) -> a.Rescale:
    job = asked.job.job
    known = {vertex.uid: vertex for vertex in asked.description.vertices}
    vertices = {}
    for uid, wanted in rescale.after.items():
        vertex, before = known.get(uid), rescale.before.get(uid)
        group = "" if vertex is None else vertex.slot_sharing_group
        name = uid if vertex is None else vertex.name
        after = {"completed": wanted, "failed": before}.get(rescale.status)
        # As many subtasks as were asked for, or none is changed.
        vertices[vertex_id(job, uid)] = a.RescaledVertex(
            vertex_id(job, uid), name, group, group, wanted, wanted, before, after
        )
    number = rescale_id(job, rescale.requested_ms)
    return a.Rescale(
        number,
        number,  # each request has one attempt
        1,
        vertices,
        {},
        _states(rescale) if states else None,
        rescale.requested_ms,
        rescale.ended_ms or None,
        _STATES.get(rescale.status),
        "UPDATE_REQUIREMENT",
        _REASONS.get(rescale.status),
        rescale.reason,
        rescale.checkpoint,
        rescale.stopped_ms,
    )


def _states(rescale: RescaleInfo) -> list[a.RescaleState]:
    """Return the time up to the stop of tasks, slots and checkpoint included, and that until they ran again."""
    begun, ended = rescale.requested_ms, rescale.ended_ms or None
    problem = rescale.reason or None
    if ended is None or not rescale.stopped_ms:
        return [_span("Executing", begun, ended, problem)]
    stop = ended - rescale.stopped_ms
    return [_span("Executing", begun, stop, None), _span("Restarting", stop, ended, problem)]


def _span(state: str, begun: int, ended: int | None, problem: str | None) -> a.RescaleState:
    return a.RescaleState(state, begun, ended, None if ended is None else ended - begun, problem)


routes: list[Route] = [
    *get("/jobs/{job}/rescales/overview", overview),
    *get("/jobs/{job}/rescales/history", history),
    *get("/jobs/{job}/rescales/details/{rescale}", details),
    *get("/jobs/{job}/rescales/summary", summary),
    *get("/jobs/{job}/rescales/config", config),
]
