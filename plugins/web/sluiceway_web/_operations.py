"""Endpoints that change jobs: cancel, stop, savepoints."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluiceway.errors import SluicewayError
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import JsonResponse, RequestError
from sluiceway_web._security import LONGEST_BODY

__all__ = ["Operations", "body_of", "cancel_job", "routes", "running_job"]

_KEPT: Final = 100
_MOST_RUNNING: Final = 8


class _SavepointRequest(msgspec.Struct, rename="kebab"):
    target_directory: str | None = None
    cancel_job: bool = False


class _StopRequest(msgspec.Struct):
    targetDirectory: str | None = None  # noqa: N815
    drain: bool = False


class _CheckpointRequest(msgspec.Struct):
    checkpointType: str = "CONFIGURED"  # noqa: N815


class Operations:
    """Checkpoints, savepoints, rescales and replays that were requested, and their results. A hundred are kept."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, tuple[str, dict[str, Any] | None]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, job: str, action: Callable[[], dict[str, Any]]) -> str:
        """Run an action in a helper thread, and return the id of its result. Raises RequestError."""
        return self.start_task(job, lambda: asyncio.to_thread(action))

    def start_task(self, job: str, action: Callable[[], Awaitable[dict[str, Any]]]) -> str:
        """Run an action in the event loop, and return the id of its result. Raises RequestError."""
        if len(self._running) >= _MOST_RUNNING:
            raise RequestError(503, f"{_MOST_RUNNING} operations are under way: try again when one is complete")
        request = secrets.token_hex(16)
        self._results[request] = job, None
        while len(self._results) > _KEPT:
            self._results.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._run(request, job, action))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return request

    async def _run(self, request: str, job: str, action: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        result: dict[str, Any]
        try:
            result = await action()
        except (SluicewayError, RequestError) as error:
            result = {"failure-cause": {"class": type(error).__name__, "stack-trace": str(error)}}
        # It may have been dropped for newer ones.
        if request in self._results:
            self._results[request] = job, result

    def status(self, job: str, request: str) -> a.OperationStatus:
        """Return the state of an operation. Raises RequestError."""
        found = self._results.get(request)
        if found is None or found[0] != job:
            raise RequestError(404, f"There is no operation {request} of job {job}")
        return a.OperationStatus({"id": "IN_PROGRESS" if found[1] is None else "COMPLETED"}, found[1])


async def running_job(request: Request, wanted: str = "") -> str:
    """Return the id of a job, by default that of the path. Raises RequestError; 409 if it has ended."""
    reading = await context_of(request).sampler.reading()
    job = reading.job(wanted or request.path_params["job"])
    if job.status in ("finished", "canceled", "failed"):
        raise RequestError(409, f"Job {job.job} is {job.status} already")
    return job.job


async def patch(request: Request) -> Response:
    """Cancel a job."""
    mode = request.query_params.get("mode", "cancel")
    if mode != "cancel":
        raise RequestError(400, f"The mode {mode!r} is not supported: cancel is")
    return await cancel(request)


async def cancel(request: Request) -> Response:
    """Cancel a job."""
    return await cancel_job(request, request.path_params["job"])


async def cancel_job(request: Request, wanted: str) -> Response:
    """Cancel the job with an id, and return the answer to the request. Raises RequestError."""
    job = await running_job(request, wanted)
    sampler = context_of(request).sampler
    await sampler.ask(lambda: sampler.monitor.cancel(job))
    return JsonResponse({}, 202)


async def body_of(request: Request, kind: type[Any]) -> Any:
    """Return the body of a request, decoded. Raises RequestError."""
    body = b""
    async for part in request.stream():  # one in chunks has no length that could have been checked
        body += part
        if len(body) > LONGEST_BODY:
            raise RequestError(413, f"The body of a request has at most {LONGEST_BODY} bytes.")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RequestError(400, f"The body of the request is not valid: {error}") from None


async def savepoint(request: Request) -> a.Triggered:
    """Take a savepoint."""
    body: _SavepointRequest = await body_of(request, _SavepointRequest)
    return await _start(request, body.target_directory or "", stop=body.cancel_job)


async def checkpoint(request: Request) -> a.Triggered:
    """Take a checkpoint now."""
    body: _CheckpointRequest = await body_of(request, _CheckpointRequest)
    if body.checkpointType != "CONFIGURED":
        raise RequestError(400, f"checkpointType {body.checkpointType!r} is not supported: CONFIGURED is")
    job = await running_job(request)
    monitor = context_of(request).sampler.monitor
    operations: Operations = request.app.state.operations
    return a.Triggered(operations.start(job, lambda: {"checkpointId": monitor.checkpoint(job)}))


async def stop(request: Request) -> a.Triggered:
    """Take a savepoint, and end the job with it."""
    body: _StopRequest = await body_of(request, _StopRequest)
    if body.drain:
        raise RequestError(400, "drain is not supported here: sluiceway stop JOB ends the sources")
    return await _start(request, body.targetDirectory or "", stop=True)


async def _start(request: Request, place: str, *, stop: bool) -> a.Triggered:
    job = await running_job(request)
    context = context_of(request)
    monitor = context.sampler.monitor
    operations: Operations = request.app.state.operations
    return a.Triggered(operations.start(job, lambda: {"location": monitor.savepoint(job, place, stop=stop)}))


async def result(request: Request) -> a.OperationStatus:
    """Return the state of a checkpoint or savepoint that was requested."""
    reading = await context_of(request).sampler.reading()
    operations: Operations = request.app.state.operations
    return operations.status(reading.job(request.path_params["job"]).job, request.path_params["request"])


routes: list[Route] = [
    *(Route(prefix + "/jobs/{job}", patch, methods=["PATCH"]) for prefix in ("", "/v1")),
    *(Route(prefix + "/jobs/{job}/yarn-cancel", cancel, methods=["GET"]) for prefix in ("", "/v1")),
    *get("/jobs/{job}/checkpoints", checkpoint, ("POST",), 202),
    *get("/jobs/{job}/checkpoints/{request}", result),
    *get("/jobs/{job}/savepoints", savepoint, ("POST",), 202),
    *get("/jobs/{job}/stop", stop, ("POST",), 202),
    *get("/jobs/{job}/savepoints/{request}", result),
]
