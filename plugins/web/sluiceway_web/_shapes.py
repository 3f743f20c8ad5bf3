"""Builders of answers from readings and descriptions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from typing import Any, Final, Protocol

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import (
    CheckpointInfo,
    ExecutionInfo,
    JobDescription,
    JobInfo,
    SubtaskInfo,
    VertexInfo,
)
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway_web import _answers as a
from sluiceway_web._ids import job_id, vertex_id
from sluiceway_web._sampler import Reading

__all__ = [
    "STATES",
    "aggregated",
    "checkpoint_details",
    "checkpoint_summary",
    "job_details",
    "job_overview",
    "job_plan",
    "job_state",
    "level",
    "now_ms",
    "statistics",
    "subtask_answer",
    "vertex_status",
]

STATES: Final = (
    "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING",
    "FINISHED", "CANCELING", "CANCELED", "FAILED", "RECONCILING",
)  # fmt: skip
_TIMED: Final = STATES[:5]
"""States whose durations the dashboard needs, all of them."""
_ENDED: Final = ("finished", "canceled", "failed")
_JOB_STATES: Final = {"cancelling": "CANCELLING", "failing": "FAILING", "waiting": "CREATED", "stuck": "SUSPENDED"}
_QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
_SUBTASK_QUANTILES: Final = (("median", 0.5), ("p25", 0.25), ("p75", 0.75), ("p95", 0.95))


def now_ms() -> int:
    """Return the time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def job_state(job: JobInfo) -> str:
    """Return Flink's word for the status of a job."""
    return _JOB_STATES.get(job.status, job.status.upper())


def _end(job: JobInfo) -> int:
    return job.ended_ms or -1


def _duration(job: JobInfo) -> int:
    return max(0, (job.ended_ms or now_ms()) - job.submitted_ms)


def job_overview(reading: Reading, job: JobInfo) -> a.JobOverview:
    """Return a job in the list of all."""
    counts = a.TaskCounts(
        **{state: job.tasks.get(state, 0) for state in map(str.lower, STATES)}, total=sum(job.tasks.values())
    )
    return a.JobOverview(
        jid=job_id(reading.cluster.job_store, job.job),
        job=job.job,
        name=job.name,
        state=job_state(job),
        start_time=job.submitted_ms,
        end_time=_end(job),
        duration=_duration(job),
        last_modification=max([job.ended_ms or job.submitted_ms, *(f.at_ms for f in job.failures)]),
        tasks=counts,
        restarts=job.restarts,
        records_in=job.records_in,
        records_out=job.records_out,
    )


class _Described(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...


def described(name: str, steps: Iterable[_Described]) -> str:
    """Return the name of a vertex, and below it the descriptions of its steps, a line for each that has one."""
    return "\n".join([name, *(f"{step.name}: {step.description}" for step in steps if step.description)])


def job_plan(reading: Reading, job: JobInfo, description: JobDescription) -> a.JobPlan:
    """Return the graph of a job."""
    vertices = {v.id: v for v in description.vertices}
    nodes = []
    for vertex in description.vertices:
        edges = sorted((e for e in description.edges if e.target == vertex.id), key=lambda e: e.input_index)
        nodes.append(
            a.PlanNode(
                id=vertex_id(job.job, vertex.uid),
                parallelism=vertex.parallelism,
                operator=", ".join(step.kind for step in vertex.steps),
                operator_strategy="",
                description=described(vertex.name, vertex.steps),
                optimizer_properties={},
                inputs=[
                    a.PlanInput(
                        num=number,
                        id=vertex_id(job.job, vertices[edge.source].uid),
                        ship_strategy=edge.description,
                    )
                    for number, edge in enumerate(edges)
                    if not edge.feedback  # the dashboard draws trees
                ],
            )
        )
    return a.JobPlan(job_id(reading.cluster.job_store, job.job), job.name, "STREAMING", nodes)


def _times(executions: Sequence[ExecutionInfo]) -> tuple[int, int]:
    """Return the begin and the end of some attempts, ms since the epoch; -1: not yet."""
    begun = [at for e in executions for state, at in e.timestamps.items() if state == "deploying"]
    ends = [max(e.timestamps.values()) for e in executions if e.state in _ENDED]
    start = min(begun, default=-1)
    return start, max(ends) if executions and len(ends) == len(executions) else -1


def vertex_status(states: Iterable[str]) -> str:
    """Return the state that stands for all subtasks of a vertex, as Flink chooses it."""
    counts = Counter(state.upper() for state in states)
    for state in ("FAILED", "CANCELING", "CANCELED"):
        if counts[state]:
            return state
    if counts["FINISHED"] == counts.total() and counts:
        return "FINISHED"
    return next((s for s in _TIMED if counts[s]), "RUNNING" if counts else "CREATED")


def _current(description: JobDescription, vertex: VertexInfo) -> list[ExecutionInfo]:
    # Attempts are in their order, so that the last one of a subtask stays.
    newest = {e.subtask: e for e in description.executions if e.vertex == vertex.id}
    return [newest[subtask] for subtask in sorted(newest)]


def _io_metrics(tasks: Sequence[Any]) -> dict[str, Any]:
    return {
        "read-bytes": sum(t.bytes_in for t in tasks),
        "read-bytes-complete": True,
        "write-bytes": sum(t.bytes_out for t in tasks),
        "write-bytes-complete": True,
        "read-records": sum(t.records_in for t in tasks),
        "read-records-complete": True,
        "write-records": sum(t.records_out for t in tasks),
        "write-records-complete": True,
        "accumulated-backpressured-time": round(sum(t.backpressured_s for t in tasks) * 1000),
        "accumulated-idle-time": round(sum(t.idle_s for t in tasks) * 1000),
        "accumulated-busy-time": round(sum(t.busy_s for t in tasks) * 1000),
    }


def job_details(reading: Reading, job: JobInfo, description: JobDescription, metrics: JobMetrics) -> a.JobDetails:
    """Return a job with its vertices and its graph."""
    subtasks = metrics.subtasks
    vertices = []
    for vertex in description.vertices:
        current = _current(description, vertex)
        start, end = _times(current)
        states = Counter(e.state for e in current)
        vertices.append(
            a.VertexInJob(
                id=vertex_id(job.job, vertex.uid),
                name=vertex.name,
                maxParallelism=vertex.max_parallelism,
                parallelism=vertex.parallelism,
                status=vertex_status(e.state for e in current),
                start_time=start,
                end_time=end,
                duration=-1 if start < 0 else (now_ms() if end < 0 else end) - start,
                tasks={state: states.get(state.lower(), 0) for state in STATES},
                metrics=_io_metrics([t for t in subtasks if t.vertex_id == vertex.id]),
                slotSharingGroupId=vertex.slot_sharing_group,
            )
        )
    counts = Counter(v.status for v in vertices)
    state = job_state(job)
    timestamps = dict.fromkeys(
        ("INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED",
         "RESTARTING", "SUSPENDED", "RECONCILING"),
        0,
    )  # fmt: skip
    timestamps["CREATED"] = job.submitted_ms
    timestamps["RUNNING"] = min((v.start_time for v in vertices if v.start_time > 0), default=0)
    if state in timestamps and job.ended_ms:
        timestamps[state] = job.ended_ms
    return a.JobDetails(
        jid=job_id(reading.cluster.job_store, job.job),
        job=job.job,
        name=job.name,
        state=state,
        start_time=job.submitted_ms,
        end_time=_end(job),
        duration=_duration(job),
        now=now_ms(),
        timestamps=timestamps,
        vertices=vertices,
        status_counts={state: counts.get(state, 0) for state in STATES},
        plan=job_plan(reading, job, description),
    )


def subtask_answer(execution: ExecutionInfo, metrics: Any) -> a.SubtaskAnswer:
    """Return an attempt of a subtask. ``metrics`` are those of the attempt; None: they are not known."""
    start, end = _times([execution])
    worker = metrics.worker or "local" if metrics is not None else ""
    return a.SubtaskAnswer(
        subtask=execution.subtask,
        status=execution.state.upper(),
        attempt=execution.attempt,
        endpoint=worker,
        start_time=start,
        end_time=end,
        duration=-1 if start < 0 else (now_ms() if end < 0 else end) - start,
        metrics=_io_metrics([] if metrics is None else [metrics]),
        taskmanager_id=worker,
        status_duration=_state_durations(execution),
    )


def _state_durations(execution: ExecutionInfo) -> dict[str, int]:
    """Return ms by state, for all states that the dashboard reads: it hangs if one is missing."""
    # In the order in which they were entered: several may have the same millisecond.
    entered = [(at, state) for state, at in execution.timestamps.items()]
    durations = dict.fromkeys(_TIMED, -1)
    for number, (at, state) in enumerate(entered):
        until = entered[number + 1][0] if number + 1 < len(entered) else now_ms()
        if state.upper() in durations:
            durations[state.upper()] = until - at
    return durations


# ---- checkpoints ----------------------------------------------------------------------------------------


def checkpoint_details(job: str, info: CheckpointInfo, description: JobDescription) -> a.CheckpointDetails:
    """Return one checkpoint."""
    status = {"pending": "IN_PROGRESS"}.get(info.status, info.status.upper())
    total = sum(v.parallelism for v in description.vertices)
    took_ms = info.duration_ms if info.duration_ms is not None else max(0, now_ms() - info.triggered_ms)
    by_vertex: dict[int, list[SubtaskInfo]] = {}
    for subtask in info.subtasks:
        by_vertex.setdefault(subtask.vertex_id, []).append(subtask)
    tasks = {}
    for vertex in description.vertices:
        parts = by_vertex.get(vertex.id, [])
        complete = len(parts) >= vertex.parallelism
        vertex_ms = max((s.duration_ms for s in parts), default=0)
        tasks[vertex_id(job, vertex.uid)] = a.CheckpointVertex(
            id=vertex_id(job, vertex.uid),
            status="COMPLETED" if complete or status == "COMPLETED" else status,
            latest_ack_timestamp=info.triggered_ms + vertex_ms if parts else -1,
            checkpointed_size=sum(s.size for s in parts),
            state_size=sum(s.size for s in parts),
            end_to_end_duration=vertex_ms if parts else -1,
            alignment_buffered=0,
            processed_data=0,
            persisted_data=sum(s.in_flight for s in parts),
            num_subtasks=vertex.parallelism,
            num_acknowledged_subtasks=len(parts),
        )
    return a.CheckpointDetails(
        className={"COMPLETED": "completed", "FAILED": "failed"}.get(status, "in_progress"),
        id=info.checkpoint,
        status=status,
        is_savepoint=bool(info.savepoint),
        savepointFormat="CANONICAL" if info.savepoint else None,
        trigger_timestamp=info.triggered_ms,
        latest_ack_timestamp=info.triggered_ms + took_ms,
        checkpointed_size=info.size,
        state_size=info.size,
        end_to_end_duration=took_ms,
        alignment_buffered=0,
        processed_data=0,
        persisted_data=info.in_flight,
        num_subtasks=total,
        num_acknowledged_subtasks=total if status == "COMPLETED" else len(info.subtasks),
        checkpoint_type="SAVEPOINT" if info.savepoint else "CHECKPOINT",
        tasks=tasks,
        external_path=info.savepoint or None,
        failure_timestamp=info.triggered_ms + took_ms if status == "FAILED" else None,
        failure_message=info.reason or None,
    )


def statistics(values: Iterable[float]) -> dict[str, float]:
    """Return minimum, maximum, average and quantiles, as of checkpoints; zeros for no values."""
    return _statistics(sorted(values), _QUANTILES)


def subtask_statistics(values: Iterable[float]) -> dict[str, float]:
    """Return the same with the sum and the quantiles that Flink has over subtasks."""
    ordered = sorted(values)
    return {**_statistics(ordered, _SUBTASK_QUANTILES), "sum": sum(ordered)}


def _statistics(ordered: Sequence[float], quantiles: Sequence[tuple[str, float]]) -> dict[str, float]:
    if not ordered:
        return dict.fromkeys(("min", "max", "avg", *(name for name, _ in quantiles)), 0)
    found: dict[str, float] = {"min": ordered[0], "max": ordered[-1], "avg": sum(ordered) / len(ordered)}
    for name, q in quantiles:
        found[name] = ordered[min(len(ordered) - 1, int(q * len(ordered)))]
    return found


def checkpoint_summary(infos: Iterable[CheckpointInfo]) -> a.CheckpointSummary:
    """Return quantiles over the completed checkpoints."""
    done = [c for c in infos if c.status == "completed"]

    def over(read: Callable[[CheckpointInfo], float]) -> dict[str, float]:
        return statistics(map(read, done))

    return a.CheckpointSummary(
        end_to_end_duration=over(lambda c: c.duration_ms or 0),
        state_size=over(lambda c: c.size),
        checkpointed_size=over(lambda c: c.size),
        processed_data=over(lambda c: 0),
        persisted_data=over(lambda c: c.in_flight),
        alignment_buffered=over(lambda c: 0),
    )


def aggregated(name: str, values: Sequence[float]) -> a.AggregatedMetric:
    """Return a metric over subtasks."""
    total = sum(values)
    mean = total / len(values)
    deviation = sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    skew = 100 * deviation / mean if mean else 0.0
    return a.AggregatedMetric(name, min(values), max(values), mean, total, skew)


def level(rates: SubtaskRates) -> str:
    """Return Flink's word for the back-pressure of a subtask."""
    # Flink's limits.
    return "high" if rates.blocked > 0.5 else "low" if rates.blocked > 0.1 else "ok"
