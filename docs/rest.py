"""``python docs/rest.py``: writes the tables of the REST API into docs/reference/rest.md."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sluiceway_web._app import API
from sluiceway_web._openapi import document

PAGE = Path(__file__).parent / "reference" / "rest.md"
BEGIN, END = "<!-- from here on made by docs/rest.py -->\n", "<!-- to here -->\n"

_JOB = "/jobs/{job}"
_VERTEX = f"{_JOB}/vertices/{{vertex}}"

FLINK = f"""
DELETE /cluster
GET /config
GET /overview
GET /datasets
DELETE /datasets/{{dataset}}
GET /datasets/delete/{{request}}
GET /applications/overview
GET /applications/{{application}}
POST /applications/{{application}}/cancel
GET /applications/{{application}}/exceptions
GET /jars
POST /jars/upload
DELETE /jars/{{file}}
GET /jars/{{file}}/plan
POST /jars/{{file}}/plan
POST /jars/{{file}}/run
POST /jars/{{file}}/run-application
GET /jobmanager/config
GET /jobmanager/environment
GET /jobmanager/log
GET /jobmanager/logs
GET /jobmanager/logs/{{file}}
GET /jobmanager/metrics
GET /jobmanager/profiler
GET /jobmanager/stdout
GET /jobmanager/thread-dump
GET /jobs
POST /jobs
GET /jobs/metrics
GET /jobs/overview
GET {_JOB}
PATCH {_JOB}
GET {_JOB}/accumulators
GET {_JOB}/checkpoints
POST {_JOB}/checkpoints
GET {_JOB}/checkpoints/config
GET {_JOB}/checkpoints/details/{{checkpoint}}
GET {_JOB}/checkpoints/details/{{checkpoint}}/subtasks/{{vertex}}
GET {_JOB}/checkpoints/{{request}}
PATCH {_JOB}/clientHeartbeat
GET {_JOB}/config
GET {_JOB}/exceptions
GET {_JOB}/execution-result
GET {_JOB}/jobmanager/config
GET {_JOB}/jobmanager/environment
GET {_JOB}/jobmanager/log-url
GET {_JOB}/metrics
GET {_JOB}/plan
GET {_JOB}/rescales/config
GET {_JOB}/rescales/details/{{rescale}}
GET {_JOB}/rescales/history
GET {_JOB}/rescales/overview
GET {_JOB}/rescales/summary
GET {_JOB}/resource-requirements
PUT {_JOB}/resource-requirements
POST {_JOB}/savepoints
GET {_JOB}/savepoints/{{request}}
GET {_JOB}/status
POST {_JOB}/stop
GET {_JOB}/taskmanagers/{{worker}}/log-url
GET {_VERTEX}
GET {_VERTEX}/accumulators
GET {_VERTEX}/backpressure
GET {_VERTEX}/flamegraph
GET {_VERTEX}/jm-operator-metrics
GET {_VERTEX}/metrics
GET {_VERTEX}/subtasks/accumulators
GET {_VERTEX}/subtasks/metrics
GET {_VERTEX}/subtasks/{{subtask}}
GET {_VERTEX}/subtasks/{{subtask}}/attempts/{{attempt}}
GET {_VERTEX}/subtasks/{{subtask}}/attempts/{{attempt}}/accumulators
GET {_VERTEX}/subtasks/{{subtask}}/metrics
GET {_VERTEX}/subtasktimes
GET {_VERTEX}/taskmanagers
GET {_VERTEX}/watermarks
GET {_JOB}/yarn-cancel
POST /savepoint-disposal
GET /savepoint-disposal/{{request}}
GET /taskmanagers
GET /taskmanagers/metrics
GET /taskmanagers/{{worker}}
GET /taskmanagers/{{worker}}/log
GET /taskmanagers/{{worker}}/logs
GET /taskmanagers/{{worker}}/logs/{{file}}
GET /taskmanagers/{{worker}}/metrics
GET /taskmanagers/{{worker}}/profiler
GET /taskmanagers/{{worker}}/stdout
GET /taskmanagers/{{worker}}/thread-dump
""".split("\n")[1:-1]
"""Methods and paths of Flink 2's REST API v1, with the names of parameters as they are here."""

_FIGURES = "heap is the resident memory of the process, up to the memory of the machine; what Python lacks is 0"
_METRICS = (
    "`Status.JVM.Memory.Heap.Used` is resident memory, `Status.JVM.CPU.Load` the share of all CPUs; "
    "the same figures under names of our own, `process.rss` to `process.gcLongestPauseMs`; what the platform does "
    "not tell is left out"
)

_LOG = "text of at most 1 MiB of the file, the end of it by default"

DIFFERS = {
    f"POST {_JOB}/dead-letters/replay": (
        "the body has `step` (default: all), `delete` (default: true), and for a cluster `program`, the "
        "id of an uploaded one, with `entryClass`, `programArgs` or `programArgsList`"
    ),
    "GET /config": "`features` says what this server allows",
    "GET /applications/overview": "one application for each job, with its id",
    "GET /applications/{application}": "without the times of its states",
    "GET /applications/{application}/exceptions": "the failure that the job has ended with",
    "GET /jobs/overview": "with `job`, `restarts`, `records-in`, `records-out`",
    f"GET {_JOB}": "with `job`, the name of the job for people",
    f"PATCH {_JOB}": "`mode=cancel` only",
    f"GET {_JOB}/checkpoints": "counts and quantiles over the last 32 checkpoints; `restored` is always null",
    f"POST {_JOB}/checkpoints": "`checkpointType` is `CONFIGURED`",
    f"GET {_JOB}/config": "all options of the job are in `user-config`; credentials are `***`",
    f"GET {_JOB}/exceptions": "the last 16 failures; no concurrent ones",
    f"GET {_JOB}/rescales/config": "the last 16 are kept; the timeouts of Flink's adaptive scheduler are null",
    f"GET {_JOB}/rescales/details/{{rescale}}": "without slots; two states: `Executing` up to the stop of the "
    "tasks, then `Restarting`; with `reason`, `checkpoint`, `stoppedInMillis`",
    f"GET {_JOB}/rescales/history": "the last 16; none is ignored",
    f"GET {_JOB}/rescales/overview": "counts of the last 16; none is ignored",
    f"GET {_JOB}/rescales/summary": "over the last 16",
    f"GET {_JOB}/resource-requirements": "the upper bound is the parallelism, the lower one is always 1",
    f"PUT {_JOB}/resource-requirements": "the job goes to the upper bounds, or stays as it is: 409 if the slots "
    "are not there, if a vertex cannot have as many subtasks, and while it is rescaled or restarted; 200 as soon "
    "as nothing is in the way; vertices that are not named keep their parallelism",
    f"POST {_JOB}/savepoints": "there is one format, whatever `formatType` is",
    f"POST {_JOB}/stop": "there is one format, whatever `formatType` is; `drain` is refused: `sluiceway stop JOB` "
    "ends the sources",
    f"GET {_JOB}/yarn-cancel": "needs the bearer token, or a page of this server, since it changes a job",
    f"GET {_VERTEX}/accumulators": "sums of the metrics of the functions",
    f"GET {_VERTEX}/subtasks/accumulators": "the metrics of the functions",
    f"GET {_VERTEX}/backpressure": "with `waitingRatio`: the task could work, but another one of its process runs",
    f"GET {_VERTEX}/flamegraph": "`from` and `to` (ms) choose the time; `{}` until there are samples, which are "
    "taken for as long as somebody asks",
    f"GET {_VERTEX}/watermarks": "with `splits`: the event time of the splits of a source",
    f"GET {_VERTEX}/subtasks/{{subtask}}/attempts/{{attempt}}": "earlier attempts without metrics",
    "GET /taskmanagers": _FIGURES,
    "GET /taskmanagers/{worker}": _FIGURES,
    "GET /taskmanagers/{worker}/metrics": _METRICS,
    "GET /jobmanager/metrics": _METRICS,
    "GET /taskmanagers/{worker}/log": _LOG,
    "GET /jobmanager/log": _LOG,
    "GET /taskmanagers/{worker}/stdout": "what functions have printed, to stdout or stderr",
    "GET /taskmanagers/{worker}/logs/{file}": "its end, or `offset` and `size` or a Range header; JSON lines",
    "GET /jobmanager/logs": "of all processes, also of workers that have ended",
    "GET /jobmanager/config": "with `origin`: a flag, a variable, a file, or `default`",
    "DELETE /cluster": "answered with 202 when the end has begun; a single job is refused with 409",
    "GET /taskmanagers/{worker}/thread-dump": "Python's threads, also of a worker that is busy in a function",
    "GET /jars": "404 without `--web-submit`, as the other paths of `/jars`; a program is a `.py` or a wheel",
    "POST /jars/upload": "the first file of the form; at most 32 MiB",
    "POST /jars/{file}/run": "`entryClass` is the name of the pipeline, for a wheel `package.module:NAME`; "
    "`flinkConfiguration` has options of Sluiceway; `jobId` and modes other than `NO_CLAIM` are refused",
    "GET /jars/{file}/plan": "needs the bearer token, or a page of this server, since it runs the program",
    "GET /jobmanager/environment": "the interpreter of the job manager in place of a JVM; `SLUICEWAY_*` variables",
}
"""Differences from Flink's answer, beyond additional fields."""


def page(old: str) -> str:
    """Return the page with the tables as they are now."""
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def tables() -> str:
    """Return the tables of paths, and the fields of the answers."""
    made = document(API)
    here = {f"{method.upper()} {path}": told for path, of in made["paths"].items() for method, told in of.items()}
    refused = {name for name, told in here.items() if told["summary"].startswith("Refuse")}
    here = {name: told for name, told in here.items() if name not in refused}
    unknown = set(DIFFERS) - set(here)
    if unknown:
        raise LookupError(f"not served: {sorted(unknown)}")
    return "\n".join(
        [
            "## Flink's paths\n",
            *_table([name for name in FLINK if name in here], here),
            "\n## Additional paths\n",
            *_table(sorted(set(here) - set(FLINK), key=lambda name: name.split()[::-1]), here),
            "\n## Paths of Flink that are not there\n",
            "They are answered with 404 or 405.\n",
            *(f"- `{name}`" for name in FLINK if name not in here),
            "\n## Answers\n",
            *_answers(made["components"]["schemas"]),
        ]
    )


def _table(names: Sequence[str], here: dict[str, Any]) -> Iterator[str]:
    yield "| method | path | does | answer | what differs |"
    yield "|---|---|---|---|---|"
    for name in names:
        method, path = name.split()
        told = here[name]
        schema = told["responses"]["200"]["content"]["application/json"]["schema"]
        summary = told["summary"].rstrip(".").replace("``", "`")
        yield f"| {method} | `{path}` | {summary} | {_type(schema)} | {DIFFERS.get(name, '')} |"


def _type(schema: dict[str, Any]) -> str:
    """Return a type in words, with links to the answers."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items)}" if items else "list"
    if kind == "object":
        values = schema.get("additionalProperties") or {}
        return f"object of {_type(values)}" if isinstance(values, dict) and values else "object"
    return str(kind)


def _answers(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        yield f"### {name}\n"
        text = re.sub(r"\s+", " ", schema.get("description", "")).replace("``", "`")
        if text:
            yield f"{text}\n"
        for field, told in schema.get("properties", {}).items():
            yield f"- `{field}`: {_type(told)}"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
