"""Endpoints that submit programs, under Flink's path ``/jars``."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from sluiceway.config.options import OPTIONS
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import job_id, vertex_id
from sluiceway_web._operations import body_of
from sluiceway_web._programs import Program, Programs
from sluiceway_web._shapes import described

__all__ = ["arguments_of", "programs_of", "routes", "target_of"]

_ENTRY: Final = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_OF_THE_CLUSTER: Final = frozenset(
    ("workers", "transport", "network-buffers", "heartbeat-timeout", "engine", "hosted", "log-format")
)
"""Options that are said when the cluster is started."""


class _RunRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    entry_class: str | None = None
    program_args: str | None = None
    program_args_list: list[str] | None = None
    parallelism: int | None = None
    job_id: str | None = None
    savepoint_path: str | None = None
    allow_non_restored_state: bool | None = None
    claim_mode: str | None = None
    restore_mode: str | None = None
    flink_configuration: dict[str, str] | None = None


def programs_of(request: Request) -> Programs:
    """Return the uploaded programs. Raises RequestError if the server takes none."""
    if not context_of(request).options.submit:
        raise RequestError(
            404, "This server takes no programs: that of 'sluiceway cluster start --web --web-submit' does"
        )
    programs: Programs = request.app.state.programs
    return programs


async def listed(request: Request) -> a.Jars:
    """Return the uploaded programs, newest first."""
    found = programs_of(request).all()
    return a.Jars(str(request.base_url), [a.Jar(p.id, p.name, p.uploaded, [a.JarEntry("flow")]) for p in found])


async def upload(request: Request) -> a.JarUploaded:
    """Upload a program."""
    return a.JarUploaded((await programs_of(request).upload(request)).id, "success")


async def delete(request: Request) -> dict[str, str]:
    """Delete an uploaded program."""
    programs = programs_of(request)
    await programs.delete(programs.find(request.path_params["file"]))
    return {}


async def run(request: Request) -> a.JarRun:
    """Submit the pipeline of an uploaded program."""
    programs = programs_of(request)
    program = programs.find(request.path_params["file"])
    asked = await _run_request(request)
    if asked.job_id is not None:
        raise RequestError(400, "jobId is not supported: the job gets an id of its own")
    for mode in (asked.claim_mode, asked.restore_mode):
        if mode not in (None, "NO_CLAIM"):
            raise RequestError(
                400, f"The mode {mode!r:.40} is not supported: a savepoint stays its owner's (NO_CLAIM)"
            )
    command = ["submit", *_parallelism(asked)]
    if asked.savepoint_path:
        command.append(f"--from={asked.savepoint_path}")
    if asked.allow_non_restored_state:
        command.append("--allow-dropped-state")
    arguments = arguments_of(asked.program_args, asked.program_args_list)
    out = await programs.run(
        program, command, target_of(program, asked.entry_class or ""), arguments, _options(asked)
    )
    job = (out.splitlines() or [""])[-1]
    store = (await context_of(request).sampler.fresh()).cluster.job_store
    return a.JarRun(job_id(store, job), job)


async def plan(request: Request) -> dict[str, a.JobPlan]:
    """Return the graph of an uploaded program, which is run for that but not submitted."""
    programs = programs_of(request)
    program = programs.find(request.path_params["file"])
    asked = await _run_request(request)
    command = ["explain", "--json", *_parallelism(asked)]
    arguments = arguments_of(asked.program_args, asked.program_args_list)
    out = await programs.run(
        program, command, target_of(program, asked.entry_class or ""), arguments, _options(asked)
    )
    try:
        # The program may have printed something before the plan, which begins with its version.
        told = msgspec.json.decode(out[max(0, out.find('{\n  "version"')) :], type=_Plan)
    except msgspec.MsgspecError as error:
        raise RequestError(400, f"{program.name} prints to standard output where its plan is: {error}") from None
    return {"plan": _flink_plan(told)}


class _Task(msgspec.Struct):
    id: int
    name: str
    uid: str
    parallelism: int
    steps: list[int]


class _Step(msgspec.Struct):
    id: int
    task: int
    name: str
    kind: str
    description: str | None = None


class _Edge(msgspec.Struct):
    source: int
    target: int
    partitioner: str
    key: str | None
    feedback: bool
    chained: bool


class _Plan(msgspec.Struct):
    job: str
    tasks: list[_Task]
    steps: list[_Step]
    edges: list[_Edge]


def _flink_plan(told: _Plan) -> a.JobPlan:
    tasks = {task.id: task for task in told.tasks}
    steps = {step.id: step for step in told.steps}
    nodes = []
    for task in told.tasks:
        edges = [e for e in told.edges if steps[e.target].task == task.id and not (e.chained or e.feedback)]
        nodes.append(
            a.PlanNode(
                id=vertex_id("", task.uid),
                parallelism=task.parallelism,
                operator=", ".join(steps[number].kind for number in task.steps),
                operator_strategy="",
                description=described(task.name, [steps[number] for number in task.steps]),
                optimizer_properties={},
                inputs=[
                    a.PlanInput(
                        number,
                        vertex_id("", tasks[steps[e.source].task].uid),
                        f"{e.partitioner} by {e.key}" if e.key else e.partitioner,
                    )
                    for number, e in enumerate(edges)
                ],
            )
        )
    return a.JobPlan("0" * 32, told.job, "STREAMING", nodes)


async def _run_request(request: Request) -> _RunRequest:
    """Return what a request asks for, in its body or, where that is silent, in its query."""
    asked: _RunRequest = await body_of(request, _RunRequest)
    query = request.query_params
    given: dict[str, Any] = {
        "entry_class": query.get("entry-class"),
        "program_args": query.get("program-args"),
        "savepoint_path": query.get("savepointPath"),
    }
    if "programArg" in query:
        given["program_args_list"] = query["programArg"].split(",")
    if "allowNonRestoredState" in query:
        given["allow_non_restored_state"] = query["allowNonRestoredState"].lower() == "true"
    if "parallelism" in query:
        try:
            given["parallelism"] = int(query["parallelism"])
        except ValueError:
            raise RequestError(400, "parallelism is a number") from None
    for name, value in given.items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    return asked


def target_of(program: Program, entry: str) -> str:
    """Return the TARGET of a command for an entry point of a program. Raises RequestError."""
    if entry and not _ENTRY.fullmatch(entry):
        raise RequestError(400, f"The entry class {entry!r:.100} is no NAME or package.module:NAME")
    if program.name.endswith(".whl"):
        if not entry:
            raise RequestError(400, "A wheel needs an entry class: package.module or package.module:NAME")
        return entry
    if ":" in entry:
        raise RequestError(400, f"The entry class of a .py is the name of its pipeline alone, not {entry!r:.100}")
    return f"{program.path}:{entry}" if entry else str(program.path)


def arguments_of(words: str | None, split: list[str] | None) -> list[str]:
    """Return a program's arguments, said in one text or one by one. Raises RequestError."""
    if split is not None:
        found = split
    else:
        try:
            found = shlex.split(words or "")
        except ValueError as error:
            raise RequestError(400, f"The program arguments cannot be split: {error}") from None
    return ["--", *found] if found else []


def _parallelism(asked: _RunRequest) -> list[str]:
    return [] if asked.parallelism is None else [f"--parallelism={asked.parallelism}"]


def _options(asked: _RunRequest) -> dict[str, str]:
    """Return the environment variables for options of the run."""
    found = {}
    for name, value in (asked.flink_configuration or {}).items():
        if name not in OPTIONS:
            raise RequestError(400, f"{name!r:.100} is no option: 'sluiceway config show' lists them")
        if name in _OF_THE_CLUSTER:
            raise RequestError(400, f"{name!r} is an option of the cluster, not of a job")
        found[OPTIONS[name].variable] = value
    return found


_FILE: Final = "/jars/{file}"

routes: list[Route] = [
    *get("/jars", listed),
    *get("/jars/upload", upload, ("POST",)),
    *get(_FILE, delete, ("DELETE",)),
    *get(_FILE + "/run", run, ("POST",)),
    *get(_FILE + "/plan", plan, ("GET", "POST")),
]
