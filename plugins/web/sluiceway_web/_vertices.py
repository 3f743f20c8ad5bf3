"""Endpoints about the vertices of a job and their subtasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.metrics import SubtaskMetrics
from sluiceway.monitoring.infos import ExecutionInfo
from sluiceway.monitoring.micro_batches import is_load_known
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway_web import _answers as a
from sluiceway_web._context import VertexRequest, get, vertex_request
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import vertex_id
from sluiceway_web._shapes import STATES, aggregated, level, now_ms, subtask_answer, subtask_statistics

__all__ = ["routes"]

_MIN_WATERMARK: Final = -(1 << 63)
_MOST_METRICS: Final = 2_000
_ENTERED: Final = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
_AGGREGATED: Final = (
    "read-bytes",
    "write-bytes",
    "read-records",
    "write-records",
    "accumulated-backpressured-time",
    "accumulated-idle-time",
    "accumulated-busy-time",
)

_FIGURES: Final[Mapping[str, Callable[[SubtaskRates], float | None]]] = {
    "numRecordsIn": lambda r: r.metrics.records_in,
    "numRecordsOut": lambda r: r.metrics.records_out,
    "numRecordsInPerSecond": lambda r: r.in_per_s,
    "numRecordsOutPerSecond": lambda r: r.out_per_s,
    "numBytesIn": lambda r: r.metrics.bytes_in,
    "numBytesOut": lambda r: r.metrics.bytes_out,
    "numBytesInPerSecond": lambda r: r.bytes_in_per_s,
    "numBytesOutPerSecond": lambda r: r.bytes_out_per_s,
    "busyTimeMsPerSecond": lambda r: r.busy * 1000,
    "backPressuredTimeMsPerSecond": lambda r: r.blocked * 1000,
    "idleTimeMsPerSecond": lambda r: r.idle * 1000,
    "waitingTimeMsPerSecond": lambda r: r.waiting * 1000,
    "accumulateBusyTimeMs": lambda r: r.metrics.busy_s * 1000,
    "accumulateBackPressuredTimeMs": lambda r: r.metrics.backpressured_s * 1000,
    "accumulateIdleTimeMs": lambda r: r.metrics.idle_s * 1000,
    "currentInputWatermark": lambda r: r.metrics.watermark,
    "currentOutputWatermark": lambda r: r.metrics.output_watermark,
    "watermarkLag": lambda r: r.metrics.watermark_lag_ms,
    "inputQueueLength": lambda r: r.metrics.queued,
    "outputQueueLength": lambda r: r.metrics.backlog,
    "buffers.outPoolUsage": lambda r: r.metrics.buffers_in_use / r.metrics.buffers if r.metrics.buffers else 0.0,
}
"""Metrics of a subtask under Flink's names; ``waitingTimeMsPerSecond``, ``watermarkLag`` are ours."""


def _figures(rates: SubtaskRates) -> dict[str, float]:
    found = {name: value for name, read in _FIGURES.items() if (value := read(rates)) is not None}
    for step, own in rates.metrics.operators.items():
        found.update({f"{step}.{name}": value for name, value in own.items()})
    return found


def _current(asked: VertexRequest) -> list[ExecutionInfo]:
    # Attempts are in their order, so that the last one of a subtask stays.
    newest = {e.subtask: e for e in asked.description.executions if e.vertex == asked.vertex.id}
    return [newest[subtask] for subtask in sorted(newest)]


def _metrics_of(asked: VertexRequest) -> dict[tuple[int, int], SubtaskMetrics]:
    figures = asked.metrics.subtasks
    return {(m.subtask, m.attempt): m for m in figures if m.vertex_id == asked.vertex.id}


def _aggregates(subtasks: Sequence[a.SubtaskAnswer]) -> dict[str, Any]:
    """Return statistics over subtasks. Flink's dashboard needs each of them to show a vertex."""
    return {
        "metrics": {name: subtask_statistics(s.metrics[name] for s in subtasks) for name in _AGGREGATED},
        "status-duration": {
            state: subtask_statistics(s.status_duration[state] for s in subtasks) for state in _ENTERED
        },
        "duration": subtask_statistics(s.duration for s in subtasks),
    }


async def details(request: Request) -> a.VertexDetails:
    """Return a vertex with its subtasks."""
    asked = await vertex_request(request)
    known = _metrics_of(asked)
    subtasks = [subtask_answer(e, known.get((e.subtask, e.attempt))) for e in _current(asked)]
    return a.VertexDetails(
        id=vertex_id(asked.job.job, asked.vertex.uid),
        name=asked.vertex.name,
        parallelism=asked.vertex.parallelism,
        maxParallelism=asked.vertex.max_parallelism,
        now=now_ms(),
        subtasks=subtasks,
        aggregated=_aggregates(subtasks),
    )


async def times(request: Request) -> a.VertexTimes:
    """Return when each subtask entered its states."""
    asked = await vertex_request(request)
    known = _metrics_of(asked)
    subtasks = []
    for execution in _current(asked):
        answer = subtask_answer(execution, known.get((execution.subtask, execution.attempt)))
        entered = {state: execution.timestamps.get(state.lower(), 0) for state in STATES}
        subtasks.append(a.SubtaskTimes(execution.subtask, answer.endpoint, answer.duration, entered))
    return a.VertexTimes(vertex_id(asked.job.job, asked.vertex.uid), asked.vertex.name, now_ms(), subtasks)


async def task_managers(request: Request) -> dict[str, Any]:
    """Return the workers that run a vertex."""
    asked = await vertex_request(request)
    known = _metrics_of(asked)
    by_worker: dict[str, list[a.SubtaskAnswer]] = {}
    for execution in _current(asked):
        answer = subtask_answer(execution, known.get((execution.subtask, execution.attempt)))
        by_worker.setdefault(answer.endpoint or "local", []).append(answer)
    found = []
    for worker, answers in by_worker.items():
        start = min(s.start_time for s in answers)
        ends = [s.end_time for s in answers]
        end = -1 if min(ends) < 0 else max(ends)
        names = answers[0].metrics
        found.append(
            {
                "endpoint": worker,
                "taskmanager-id": worker,
                "status": answers[0].status,
                "start-time": start,
                "end-time": end,
                "duration": max(s.duration for s in answers),
                "metrics": {
                    n: True if n.endswith("complete") else sum(s.metrics[n] for s in answers) for n in names
                },
                "status-counts": {state: sum(s.status == state for s in answers) for state in STATES},
                "aggregated": _aggregates(answers),
            }
        )
    return {
        "id": vertex_id(asked.job.job, asked.vertex.uid),
        "name": asked.vertex.name,
        "now": now_ms(),
        "taskmanagers": found,
    }


async def backpressure(request: Request) -> a.Backpressure:
    """Return the shares of the time of each subtask."""
    asked = await vertex_request(request)
    if not asked.rates or not is_load_known(asked.metrics):
        # Flink's word where there are no figures.
        return a.Backpressure("deprecated", None, None, [])
    levels = [level(r) for r in asked.rates]
    worst = next(word for word in ("high", "low", "ok") if word in levels)
    return a.Backpressure(
        status="ok",
        backpressure_level=worst,
        end_timestamp=max(r.metrics.at_ms for r in asked.rates),
        subtasks=[
            a.BackpressureOfSubtask(
                subtask=r.metrics.subtask,
                backpressure_level=level(r),
                ratio=r.blocked,
                idleRatio=r.idle,
                busyRatio=r.busy,
                waitingRatio=r.waiting,
                attempt_number=r.metrics.attempt,
            )
            for r in asked.rates
        ],
    )


async def watermarks(request: Request) -> list[a.WatermarkMetric]:
    """Return the input watermark of each subtask that has one, and the event time of its splits."""
    asked = await vertex_request(request)
    found = []
    for rates in asked.rates:
        mark = rates.metrics.watermark
        # Sources have no input.
        mark = rates.metrics.output_watermark if mark is None else mark
        if mark is not None and mark > _MIN_WATERMARK:
            name = f"{rates.metrics.subtask}.currentInputWatermark"
            found.append(a.WatermarkMetric(name, str(mark), splits=rates.metrics.splits))
    return found


async def metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of a vertex by subtask, with ``get`` their values."""
    asked = await vertex_request(request)
    figures = {f"{r.metrics.subtask}.{name}": value for r in asked.rates for name, value in _figures(r).items()}
    return _chosen(figures, request.query_params.get("get"))


async def subtask_metrics(request: Request) -> list[Any]:
    """Return the metrics of a vertex over its subtasks, with ``get`` aggregated values."""
    asked = await vertex_request(request)
    by_name: dict[str, list[float]] = {}
    for rates in asked.rates:
        for name, value in _figures(rates).items():
            by_name.setdefault(name, []).append(value)
    wanted = request.query_params.get("get")
    if wanted is None:
        return [a.Metric(name) for name in list(by_name)[:_MOST_METRICS]]
    return [aggregated(name, by_name[name]) for name in wanted.split(",")[:_MOST_METRICS] if name in by_name]


def _chosen(figures: Mapping[str, float], wanted: str | None) -> list[a.Metric]:
    if wanted is None:
        return [a.Metric(name) for name in list(figures)[:_MOST_METRICS]]
    return [a.Metric(n, str(figures[n])) for n in wanted.split(",")[:_MOST_METRICS] if n in figures]


def _subtask(request: Request, asked: VertexRequest) -> int:
    try:
        subtask = int(request.path_params["subtask"])
    except ValueError:
        raise RequestError(400, "The index of a subtask is a number") from None
    if not 0 <= subtask < asked.vertex.parallelism:
        raise RequestError(404, f"{asked.vertex.name} has no subtask {subtask}")
    return subtask


async def one_subtask(request: Request) -> a.SubtaskAnswer:
    """Return the current attempt of a subtask, or one of the last before it."""
    asked = await vertex_request(request)
    subtask = _subtask(request, asked)
    attempts = [e for e in asked.description.executions if (e.vertex, e.subtask) == (asked.vertex.id, subtask)]
    wanted = request.path_params.get("attempt")
    if wanted is not None:
        attempts = [e for e in attempts if str(e.attempt) == wanted]
    if not attempts:
        raise RequestError(404, f"Subtask {subtask} of {asked.vertex.name} has no attempt {wanted or ''}".rstrip())
    return subtask_answer(attempts[-1], _metrics_of(asked).get((subtask, attempts[-1].attempt)))


async def one_subtask_metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of a subtask, with ``get`` their values."""
    asked = await vertex_request(request)
    subtask = _subtask(request, asked)
    figures = next((_figures(r) for r in asked.rates if r.metrics.subtask == subtask), {})
    return _chosen(figures, request.query_params.get("get"))


def _accumulators(metrics: SubtaskMetrics) -> list[dict[str, str]]:
    return [
        {"name": name, "type": type(value).__name__, "value": str(value)} for name, value in metrics.user.items()
    ]


async def accumulators(request: Request) -> dict[str, Any]:
    """Return the sums of the functions' own metrics."""
    asked = await vertex_request(request)
    sums: dict[str, float] = {}
    for rates in asked.rates:
        for name, value in rates.metrics.user.items():
            sums[name] = sums.get(name, 0) + value
    found = [{"name": n, "type": type(v).__name__, "value": str(v)} for n, v in sums.items()]
    return {"id": vertex_id(asked.job.job, asked.vertex.uid), "user-accumulators": found}


async def subtask_accumulators(request: Request) -> dict[str, Any]:
    """Return the functions' own metrics by subtask."""
    asked = await vertex_request(request)
    return {
        "id": vertex_id(asked.job.job, asked.vertex.uid),
        "parallelism": asked.vertex.parallelism,
        "subtasks": [
            {
                "subtask": r.metrics.subtask,
                "attempt": r.metrics.attempt,
                "endpoint": r.metrics.worker or "local",
                "user-accumulators": _accumulators(r.metrics),
            }
            for r in asked.rates
        ],
    }


_VERTEX: Final = "/jobs/{job}/vertices/{vertex}"

routes: list[Route] = [
    *get(_VERTEX, details),
    *get(_VERTEX + "/subtasktimes", times),
    *get(_VERTEX + "/taskmanagers", task_managers),
    *get(_VERTEX + "/backpressure", backpressure),
    *get(_VERTEX + "/watermarks", watermarks),
    *get(_VERTEX + "/metrics", metrics),
    *get(_VERTEX + "/accumulators", accumulators),
    *get(_VERTEX + "/subtasks/metrics", subtask_metrics),
    *get(_VERTEX + "/subtasks/accumulators", subtask_accumulators),
    *get(_VERTEX + "/subtasks/{subtask}", one_subtask),
    *get(_VERTEX + "/subtasks/{subtask}/metrics", one_subtask_metrics),
    *get(_VERTEX + "/subtasks/{subtask}/attempts/{attempt}", one_subtask),
]
