"""Endpoints about log files: ``.../logs``, ``.../log`` and ``.../stdout`` of workers and of the job manager."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluiceway.errors import ConnectorError, SluicewayError
from sluiceway.monitoring.processes import JOB_MANAGER, MOST_LOG_BYTES, LogFile, LogPart
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import RequestError
from sluiceway_web._processes import process_of

__all__ = ["routes"]

_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)
_PRINTED: Final = ("STDOUT", "STDERR")


class _Line(msgspec.Struct):
    """Line of a log file."""

    time: str
    level: str
    message: str
    logger: str = ""
    job: str | None = None
    operator: str | None = None
    subtask: int | None = None
    parallelism: int | None = None
    traceback: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Line)


async def _files(request: Request) -> list[LogFile]:
    """Return the files of a path: of a worker its own, of the job manager those of all processes."""
    process = await process_of(request)
    sampler = context_of(request).sampler
    files = await sampler.ask(sampler.monitor.processes.logs)
    if "worker" in request.path_params:
        return [file for file in files if file.process == process]
    # Those of workers that have ended are found here alone.
    return sorted(files, key=lambda file: (file.process != JOB_MANAGER, file.name))


async def logs(request: Request) -> a.LogList:
    """Return the log files; of the job manager, also those of workers that have ended."""
    return a.LogList([a.LogInfo(f.name, f.size, f.modified_ms, f.process) for f in await _files(request)])


async def _part(request: Request, name: str) -> LogPart:
    offset, size = _wanted(request)
    sampler = context_of(request).sampler
    processes = sampler.monitor.processes

    def read() -> LogPart:
        try:
            return processes.read_log(name, offset, size)
        except ConnectorError:
            raise
        except SluicewayError as error:
            raise RequestError(404, str(error)) from error

    return await sampler.ask(read)


def _wanted(request: Request) -> tuple[int | None, int]:
    """Return the first byte (None: the end is wanted) and the number of bytes."""
    given = request.headers.get("range")
    if given is not None:
        found = _RANGE.fullmatch(given.strip())
        if found is None or not (found[1] or found[2]):
            raise RequestError(416, f"Range is one range of bytes, not {given[:50]!r}")
        if not found[1]:
            return None, min(int(found[2]), MOST_LOG_BYTES)
        first = int(found[1])
        last = int(found[2]) if found[2] else first + MOST_LOG_BYTES - 1
        if last < first:
            raise RequestError(416, f"Range is one range of bytes, not {given[:50]!r}")
        return first, min(last - first + 1, MOST_LOG_BYTES)
    return _number(request, "offset"), min(_number(request, "size") or MOST_LOG_BYTES, MOST_LOG_BYTES)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestError(400, f"{name} is a number of bytes, not {text[:50]!r}")
    return int(text)


async def log_file(request: Request) -> Response:
    """Return bytes of a log file: its end, or those that ``offset`` and ``size`` or a Range header name."""
    name = request.path_params["file"]
    # Only names that the job manager lists: no path of a client is opened.
    if name not in {file.name for file in await _files(request)}:
        raise RequestError(404, f"There is no log file {name[:120]}")
    part = await _part(request, name)
    end = part.offset + len(part.data)
    headers = _headers(part)
    status = 200
    if "range" in request.headers:
        if not part.data:
            raise RequestError(416, f"The file has {part.size} bytes")
        status = 206
        headers["Content-Range"] = f"bytes {part.offset}-{end - 1}/{part.size}"
    return PlainTextResponse(part.data, status, headers)


def _headers(part: LogPart) -> dict[str, str]:
    return {
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
        "X-Log-Offset": str(part.offset),
        "X-Log-Size": str(part.size),
    }


async def log(request: Request) -> Response:
    """Return the end of the log of a process as text, or what ``offset`` and ``size`` name."""
    return await _text(request, lambda line: line.level not in _PRINTED)


async def stdout(request: Request) -> Response:
    """Return the end of what a process has printed as text."""
    return await _text(request, lambda line: line.level in _PRINTED)


async def _text(request: Request, wanted: Callable[[_Line], bool]) -> Response:
    process = await process_of(request)
    files = [file.name for file in await _files(request) if file.process == process]
    if not files:
        raise RequestError(404, f"{request.path_params.get('worker', process)} has no log file: it logs to stderr")
    part = await _part(request, files[0])  # that with the shorter name is the newer one
    text = "".join(f"{_shown(line)}\n" for line in _lines(part) if wanted(line))
    return PlainTextResponse(text, headers=_headers(part))


def _lines(part: LogPart) -> Iterator[_Line]:
    for each in part.data.splitlines():
        try:
            yield _DECODER.decode(each)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # the part begins or ends within it


def _shown(line: _Line) -> str:
    if line.level in _PRINTED:
        return line.message
    try:
        when = datetime.fromisoformat(line.time).astimezone().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    except (ValueError, OverflowError, OSError):
        when = line.time
    where = (
        ""
        if line.operator is None
        else f" [{line.job} {line.operator} {(line.subtask or 0) + 1}/{line.parallelism}]"
    )
    if not where and line.job:
        where = f" [{line.job}]"
    text = f"{when} {line.level:7} {line.logger}{where} {line.message}"
    return f"{text}\n{line.traceback}" if line.traceback else text


def _plain(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> list[Route]:
    return [Route(prefix + path, endpoint, methods=["GET"]) for prefix in ("", "/v1")]


routes: list[Route] = [
    route
    for process in ("/taskmanagers/{worker}", "/jobmanager")
    for route in (
        *get(f"{process}/logs", logs),
        *_plain(f"{process}/logs/{{file}}", log_file),
        *_plain(f"{process}/log", log),
        *_plain(f"{process}/stdout", stdout),
    )
]
