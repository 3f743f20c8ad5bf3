"""Metrics of a task, computed from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluiceway.connector.lib.dead_letter_files import DEAD_LETTER_SINK
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK
from sluiceway.graph import ExecutionState
from sluiceway.metrics import Histogram, MetricGroup, SubtaskMetrics
from sluiceway.metrics.registry import read_by_step
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators import Operator, SinkOperator
from sluiceway.runtime.loop.tasklet import Progress, Tasklet
from sluiceway.runtime.task.channels import EdgeOutput
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.runtime.task.task_input import TaskInput

__all__ = ["at_rest_s", "latencies", "records_to_sinks", "subtask_metrics"]


def subtask_metrics(
    tasklet: Tasklet,
    deployment: TaskDeployment,
    state: ExecutionState,
    *,
    worker: str,
    records: tuple[int, int],
    times: tuple[int, float],
    source: TaskInput,
    operators: Sequence[Operator],
    edges: Iterable[EdgeOutput],
    partitions: Sequence[ResultPartition],
    groups: Iterable[tuple[str, MetricGroup]],
) -> SubtaskMetrics:
    """Return the metrics of a subtask. From any thread; figures may be a batch apart.

    Args:
        tasklet: the task.
        deployment: what it was told.
        state: its state.
        worker: name of the worker process; empty in one process.
        records: how many came in and went out to other tasks.
        times: the clock's readings, ms since the epoch and monotonic seconds.
        source: where it reads from.
        operators: its chain.
        edges: the edges out.
        partitions: theirs.
        groups: the metrics of each step.
    """
    d = deployment
    user: dict[str, float] = {}
    by_operator = read_by_step(groups)
    for own in by_operator.values():
        user.update(own)
    if isinstance(source, SourceInput) and (drift := source.drift_ms) is not None:
        user["watermarkAlignmentDrift"] = drift
        by_operator.setdefault(d.vertex.head.name, {})["watermarkAlignmentDrift"] = drift
    sinks = (o.current_watermark for o in operators if isinstance(o, SinkOperator))
    # Sinks count like edges: a chain that ends in sinks may have no edge out.
    entered, left = source.watermark, min((*(e.watermark for e in edges), *sinks), default=MIN_WATERMARK)
    now_ms, now = times
    blocked_s, idle_s = at_rest_s(tasklet, now)
    return SubtaskMetrics(
        vertex=d.vertex.name,
        subtask=d.subtask,
        state=state.value,
        records_in=records[0],
        records_out=records[1] + sum(o.records for o in operators if isinstance(o, SinkOperator)),
        busy_s=tasklet.busy_s,
        backpressured_s=blocked_s,
        idle_s=idle_s,
        watermark=None if entered == MIN_WATERMARK else entered,
        output_watermark=None if left == MIN_WATERMARK else left,
        watermark_lag_ms=now_ms - left if MIN_WATERMARK < left < MAX_WATERMARK else None,
        user=user,
        operators=by_operator,
        vertex_id=d.vertex.id,
        attempt=d.attempt,
        bytes_in=source.bytes_in,
        bytes_out=sum(p.bytes_out for p in partitions),
        queued=source.queued(),
        backlog=sum(p.backlog() for p in partitions),
        buffers=sum(p.buffers for p in partitions),
        buffers_in_use=sum(p.buffers_in_use for p in partitions),
        worker=worker,
        at_ms=now_ms,
        splits=source.split_times(),
    )


def at_rest_s(tasklet: Tasklet, now: float) -> tuple[float, float]:
    """Return the seconds parked because of blocked output and of missing input, the current time included."""
    rest, lasts_s = tasklet.rest, now - tasklet.rest_since
    return (
        tasklet.blocked_s + (lasts_s if rest is Progress.BLOCKED else 0.0),
        tasklet.idle_s + (lasts_s if rest is Progress.IDLE else 0.0),
    )


def records_to_sinks(operators: Iterable[Operator]) -> int:
    """Return the number of records written by the sinks of a chain, that of the option dead-letters apart."""
    sinks = (o for o in operators if isinstance(o, SinkOperator))
    return sum(o.records for o in sinks if o.context.node.uid != DEAD_LETTER_SINK)


def latencies(operators: Iterable[Operator]) -> dict[str, Histogram]:
    """Return latency quantiles by sink of a chain."""
    return {o.step_name: o.context.metrics.histogram("latency") for o in operators if isinstance(o, SinkOperator)}
