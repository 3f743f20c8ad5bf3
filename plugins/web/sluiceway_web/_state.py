"""Endpoints about the state of jobs and their dead letters. They are read by another process, as text."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.state_view import DeadLetters, KeyState, StateSizes
from sluiceway_web._context import JobRequest, context_of, get, job_request
from sluiceway_web._errors import RequestError

__all__ = ["dead_letter_directory", "routes"]

_LONGEST = 1_000
_MOST_LETTERS = 200


def _text(request: Request, name: str, usual: str | None = None) -> str:
    text = request.query_params.get(name, usual)
    if text is None:
        raise RequestError(400, f"The query needs {name}")
    if len(text) > _LONGEST:
        raise RequestError(400, f"{name} has at most {_LONGEST:,} characters")
    return text


def dead_letter_directory(asked: JobRequest) -> str:
    """Return the directory in which a job keeps its dead letters. Raises RequestError."""
    place = next((o.value for o in asked.description.options if o.name == "dead-letters" and not o.is_default), "")
    if not place:
        raise RequestError(404, f"Job {asked.job.job} keeps no dead letters: it has no option dead-letters")
    return place


async def sizes(request: Request) -> StateSizes:
    """Measure the keyed state in the last completed checkpoint of a job."""
    asked, sampler = await job_request(request), context_of(request).sampler
    return await sampler.ask(lambda: sampler.monitor.state.sizes(asked.job.job))


async def find(request: Request) -> KeyState:
    """Return the value of a key in the last completed checkpoint, or in the task that has the key."""
    asked, sampler = await job_request(request), context_of(request).sampler
    uid, state, key = (_text(request, name) for name in ("uid", "state", "key"))
    live = _text(request, "live", "false")
    if live not in ("true", "false"):
        raise RequestError(400, f"live is true or false, not {live[:50]!r}")
    return await sampler.ask(
        lambda: sampler.monitor.state.find(asked.job.job, uid, state, key, live=live == "true")
    )


async def dead_letters(request: Request) -> DeadLetters:
    """Return the newest dead letters of a job, and their number by step."""
    asked, sampler = await job_request(request), context_of(request).sampler
    step, limit = _text(request, "step", ""), _text(request, "limit", "100")
    if not limit.isascii() or not limit.isdigit() or not 0 < int(limit) <= _MOST_LETTERS:
        raise RequestError(400, f"limit is a number from 1 to {_MOST_LETTERS}, not {limit[:50]!r}")
    place = dead_letter_directory(asked)
    name = asked.job.name
    return await sampler.ask(lambda: sampler.monitor.state.dead_letters(name, place, step, int(limit)))


routes: list[Route] = [
    *get("/jobs/{job}/state", sizes),
    *get("/jobs/{job}/state/key", find),
    *get("/jobs/{job}/dead-letters", dead_letters),
]
