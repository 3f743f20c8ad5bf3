"""Endpoints that change jobs: cancel, stop, savepoints."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

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
_BODY_S: Final = 60.0
"""Seconds in which the body of a request has to come."""


_Trigger: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")] | None
"""Id that the client chooses for an operation; None: the server chooses one."""

_Format: TypeAlias = Literal["CANONICAL", "NATIVE"] | None


class _SavepointRequest(msgspec.Struct, rename="kebab"):
    target_directory: str | None = None
    cancel_job: bool = False
    format_type: _Format = msgspec.field(default=None, name="formatType")
    trigger: _Trigger = msgspec.field(default=None, name="triggerId")


class _StopRequest(msgspec.Struct, rename="camel"):
    target_directory: str | None = None
    drain: bool = False
    format_type: _Format = None
    trigger: _Trigger = msgspec.field(default=None, name="triggerId")


class _CheckpointRequest(msgspec.Struct, rename="camel"):
    checkpoint_type: str = "CONFIGURED"
    trigger: _Trigger = msgspec.field(default=None, name="triggerId")


class Operations:
    """Checkpoints, savepoints, rescales and replays that were requested, and their results. A hundred are kept."""

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[str, str], dict[str, Any] | None] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    def has(self, job: str, request: str) -> bool:
        """Return whether an operation of a job has this id."""
        return (job, request) in self._results

    def start(self, job: str, action: Callable[[], dict[str, Any]], request: str | None = None) -> str:
        """Run an action in a helper thread, and return the id of its result. Raises RequestError.

        Args:
            job: id of the job.
            action: what to run; not run if the job has an operation with the id already.
            request: the id; None: a new one.
        """
        if request is not None and self.has(job, request):
            return request
        return self.start_task(job, lambda: asyncio.to_thread(action), request)

    def start_task(
        self, job: str, action: Callable[[], Awaitable[dict[str, Any]]], request: str | None = None
    ) -> str:
        """Run an action in the event loop, and return the id of its result. Raises RequestError."""
        if len(self._running) >= _MOST_RUNNING:
            raise RequestError(503, f"{_MOST_RUNNING} operations are under way: try again when one is complete")
        request = request or secrets.token_hex(16)
        self._results[job, request] = None
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
        if self.has(job, request):
            self._results[job, request] = result

    def status(self, job: str, request: str) -> a.OperationStatus:
        """Return the state of an operation. Raises RequestError."""
        if not self.has(job, request):
            raise RequestError(404, f"There is no operation {request} of job {job}")
        result = self._results[job, request]
        return a.OperationStatus({"id": "IN_PROGRESS" if result is None else "COMPLETED"}, result)


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
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():  # one in chunks has no length that could have been checked
                body += part
                if len(body) > LONGEST_BODY:
                    raise RequestError(413, f"The body of a request has at most {LONGEST_BODY} bytes.")
    except TimeoutError:
        raise RequestError(408, f"The body of the request has not come within {_BODY_S:g} seconds.") from None
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RequestError(400, f"The body of the request is not valid: {error}") from None


async def savepoint(request: Request) -> a.Triggered:
    """Take a savepoint."""
    body: _SavepointRequest = await body_of(request, _SavepointRequest)
    return await _savepoint(request, body.target_directory or "", body.trigger, stop=body.cancel_job)


async def checkpoint(request: Request) -> a.Triggered:
    """Take a checkpoint now."""
    body: _CheckpointRequest = await body_of(request, _CheckpointRequest)
    if body.checkpoint_type != "CONFIGURED":
        raise RequestError(400, f"checkpointType {body.checkpoint_type!r} is not supported: CONFIGURED is")
    monitor = context_of(request).sampler.monitor
    return await _start(request, body.trigger, lambda job: {"checkpointId": monitor.checkpoint(job)})


async def stop(request: Request) -> a.Triggered:
    """Take a savepoint, and end the job with it."""
    body: _StopRequest = await body_of(request, _StopRequest)
    if body.drain:
        raise RequestError(400, "drain is not supported here: sluiceway stop JOB ends the sources")
    return await _savepoint(request, body.target_directory or "", body.trigger, stop=True)


async def _savepoint(request: Request, place: str, trigger: str | None, *, stop: bool) -> a.Triggered:
    monitor = context_of(request).sampler.monitor
    return await _start(request, trigger, lambda job: {"location": monitor.savepoint(job, place, stop=stop)})


async def _start(request: Request, trigger: str | None, action: Callable[[str], dict[str, Any]]) -> a.Triggered:
    """Run an action for the job of the path, unless the client repeats a request that it has given an id."""
    operations: Operations = request.app.state.operations
    if trigger is not None:
        trigger = trigger.lower()
        reading = await context_of(request).sampler.reading()
        # Before anything is refused: by now the job may have ended by that request.
        if operations.has(reading.job(request.path_params["job"]).job, trigger):
            return a.Triggered(trigger)
    job = await running_job(request)
    return a.Triggered(operations.start(job, lambda: action(job), trigger))


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
