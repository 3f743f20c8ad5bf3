"""The application: routes of the REST API, live figures, and static files of the pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.web_server import WebOptions
from sluiceway_web import (
    _applications,
    _checkpoints,
    _cluster,
    _jars,
    _jobs,
    _keys,
    _live,
    _logs,
    _operations,
    _processes,
    _replays,
    _rescale_history,
    _rescaling,
    _splits,
    _stacks,
    _state,
    _vertices,
)
from sluiceway_web._context import Context
from sluiceway_web._errors import RequestError, error_response
from sluiceway_web._openapi import openapi
from sluiceway_web._operations import Operations
from sluiceway_web._program_directory import remove_abandoned
from sluiceway_web._programs import Programs
from sluiceway_web._replays import Replays
from sluiceway_web._sampler import Sampler
from sluiceway_web._stacks import StackRecorder

__all__ = ["API", "make_app"]

_STATIC: Final = Path(__file__).parent / "static"
_THREADS: Final = 64
"""More than operations, samples and questions about state can hold at a time."""

API: Final[list[Route]] = [
    *_cluster.routes,
    *_processes.routes,
    *_logs.routes,
    *_jobs.routes,
    *_applications.routes,
    *_vertices.routes,
    *_splits.routes,
    *_keys.routes,
    *_state.routes,
    *_replays.routes,
    *_stacks.routes,
    *_checkpoints.routes,
    *_operations.routes,
    *_rescale_history.routes,
    *_rescaling.routes,
    *_jars.routes,
]
"""Routes of the REST API."""


async def _index(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error.status, str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"There is nothing at {request.url.path}", 405: f"{request.method} is not allowed here"}
    return error_response(error.status_code, text.get(error.status_code, error.detail))


async def _gone(request: Request, error: Exception) -> Response:
    return error_response(400, "The connection was closed within the request.")


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(500, f"The request failed: {type(error).__name__}. The server has printed a traceback.")


def make_app(monitor: Monitor, options: WebOptions) -> Starlette:
    """Return the application over a monitor."""
    sampler = Sampler(monitor)
    stacks = StackRecorder(sampler)
    programs = Programs()
    replays = Replays()

    @asynccontextmanager
    async def sampling(app: Starlette) -> AsyncIterator[None]:
        # asyncio's own has four threads more than cores: a few operations that wait would stop all pages.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "sluiceway-web"))
        readings = asyncio.create_task(sampler.run())
        if options.submit:
            await asyncio.to_thread(remove_abandoned)
        try:
            yield
        finally:
            readings.cancel()
            with suppress(asyncio.CancelledError):
                await readings
            await stacks.close()
            await sampler.processes.close()
            await sampler.functions.close()
            replays.close()
            await programs.close()

    app = Starlette(
        routes=[
            Route("/", _index, methods=["GET"]),
            Route("/openapi.json", openapi(API), methods=["GET"]),
            *API,
            *_live.routes,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _failed,
        },
        lifespan=sampling,
    )
    app.state.context = Context(sampler, options)
    app.state.stacks = stacks
    app.state.operations = Operations()
    app.state.programs = programs
    app.state.replays = replays
    return app
