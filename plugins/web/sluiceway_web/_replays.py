"""Endpoints that replay dead letters: a process of its own runs ``sluiceway dlq replay`` on a program.

A replay loads the program anew, so that one that was mended is used, and so that its sinks do not share the
identity of those of the job, which may still run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from sluiceway.config.options import OPTIONS
from sluiceway.monitoring.web_server import WebOptions
from sluiceway_web import _answers as a
from sluiceway_web._context import JobRequest, context_of, get, job_request
from sluiceway_web._errors import RequestError
from sluiceway_web._jars import arguments_of, programs_of, target_of
from sluiceway_web._operations import Operations, body_of
from sluiceway_web._program_runs import MOST_TEXT, ProgramRuns
from sluiceway_web._state import dead_letter_directory

__all__ = ["Replays", "replay_feature", "routes"]

_LONGEST_S: Final = 600.0
_LATE: Final = (
    f"The replay was ended after {_LONGEST_S / 60:.0f} minutes, and its dead letters are still there: "
    "sluiceway dlq replay has no such limit"
)
_MOST_AT_A_TIME: Final = 2
_OF_THE_JOB: Final = ("checkpoints", "from", "resume", "metrics", "checkpoint-retained", "local-recovery")
"""Options that a replay does not take over: checkpoints and the ports of reporters are the job's."""
_KEPT: Final = ("on-error", "max-dead-letters")


class _ReplayRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    step: str = ""
    delete: bool = True
    program: str = ""
    entry_class: str = ""
    program_args: str | None = None
    program_args_list: list[str] | None = None


class Replays:
    """Replays that run, one at a time for each directory of dead letters. In the event loop's thread."""

    def __init__(self) -> None:
        self.runs = ProgramRuns(_MOST_AT_A_TIME)
        self._busy: set[str] = set()

    async def run(
        self, directory: str, command: Sequence[str], environ: Mapping[str, str], hidden: str
    ) -> dict[str, Any]:
        """Run a command that replays a directory, and return what it has written.

        Args:
            directory: that was reserved; it is released.
            command: of ``sluiceway``.
            environ: environment variables on top of the server's.
            hidden: path that is left out of messages.

        Raises:
            RequestError: the replay failed.
        """
        try:
            out, err = await self.runs.run(command, environ, within_s=_LONGEST_S, late=_LATE)
        except RequestError as error:
            raise RequestError(error.status, str(error).replace(hidden, "") if hidden else str(error)) from None
        finally:
            self._busy.discard(directory)
        return {"summary": (err.strip().splitlines() or [""])[-1], "output": out[-MOST_TEXT:]}

    def take(self, directory: str) -> None:
        """Reserve a directory until :meth:`run` is done with it. Raises RequestError if a replay has it."""
        if directory in self._busy:
            raise RequestError(409, f"Dead letters in {directory} are being replayed already")
        self._busy.add(directory)

    def drop(self, directory: str) -> None:
        """Release a directory."""
        self._busy.discard(directory)

    def close(self) -> None:
        """End all replays; their dead letters stay."""
        self.runs.close()


def replay_feature(options: WebOptions) -> str:
    """Return the program that replays use: ``program``, ``upload``, or empty if the server replays nothing."""
    if options.read_only:
        return ""
    return "program" if options.target else "upload" if options.submit else ""


async def replay(request: Request) -> a.Triggered:
    """Replay dead letters of a job."""
    body: _ReplayRequest = await body_of(request, _ReplayRequest)
    asked = await job_request(request)
    directory = os.path.abspath(dead_letter_directory(asked))
    target, arguments, environ, hidden = _program(request, body, asked)
    command = ["dlq", "replay", "--no-progress"]
    if body.delete:
        command.append("--delete")
    if body.step:
        command.append(f"--step={body.step}")
    command += [directory, target, *arguments]
    environ[OPTIONS["dead-letters"].variable] = directory  # what fails again is kept again
    replays: Replays = request.app.state.replays
    operations: Operations = request.app.state.operations
    replays.take(directory)
    try:
        return a.Triggered(
            operations.start_task(asked.job.job, lambda: replays.run(directory, command, environ, hidden))
        )
    except BaseException:
        replays.drop(directory)
        raise


def _program(
    request: Request, body: _ReplayRequest, asked: JobRequest
) -> tuple[str, list[str], dict[str, str], str]:
    """Return target, arguments, environment and directory of the program for a replay. Raises RequestError."""
    options = context_of(request).options
    if options.target:
        if body.program or body.entry_class or body.program_args or body.program_args_list:
            raise RequestError(400, f"Dead letters are replayed by {options.target}: the request names a program")
        dropped = {OPTIONS[name].variable for name in _OF_THE_JOB}
        variables = {name: value for name, value in options.variables.items() if name not in dropped}
        return options.target, ["--", *options.arguments] if options.arguments else [], variables, ""
    if not options.submit:
        raise RequestError(
            404,
            "A replay runs a program, and this server takes none: start it with --web-submit, or run "
            "sluiceway dlq replay",
        )
    programs = programs_of(request)
    if not body.program:
        raise RequestError(400, "The body needs program: the id of an uploaded one, which GET /jars lists")
    program = programs.find(body.program)
    told = {o.name: o.value for o in asked.description.options if not o.is_default}
    variables = {OPTIONS[name].variable: told[name] for name in _KEPT if name in told}
    arguments = arguments_of(body.program_args, body.program_args_list)
    environ = {**variables, **programs.environment(program)}
    return target_of(program, body.entry_class), arguments, environ, f"{program.place}{os.sep}"


async def result(request: Request) -> a.OperationStatus:
    """Return the state of a replay that was requested."""
    reading = await context_of(request).sampler.reading()
    operations: Operations = request.app.state.operations
    return operations.status(reading.job(request.path_params["job"]).job, request.path_params["request"])


routes: list[Route] = [
    *get("/jobs/{job}/dead-letters/replay", replay, ("POST",), 202),
    *get("/jobs/{job}/dead-letters/replay/{request}", result),
]
