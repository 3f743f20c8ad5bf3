"""Descriptions of jobs and their checkpoints, as sent to clients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sluiceway.config.settings import OPTIONS, Settings
from sluiceway.engine import JobFailure
from sluiceway.graph import ExecutionGraph, JobGraph
from sluiceway.graph.execution import Execution
from sluiceway.graph.plan.model import edge_text
from sluiceway.monitoring.infos import (
    CheckpointInfo,
    EdgeInfo,
    ExecutionInfo,
    FailureInfo,
    JobDescription,
    OptionInfo,
    RescaleInfo,
    StepInfo,
    SubtaskInfo,
    VertexInfo,
)
from sluiceway.runtime.failures.error_texts import cut, describe, format_error
from sluiceway.runtime.jobmanager.checkpoint_records import CheckpointRecord
from sluiceway.util.redaction import redact_option

__all__ = ["checkpoint_infos", "describe_job", "failure_info", "told_error"]


def describe_job(
    graph: JobGraph,
    settings: Settings,
    executions: ExecutionGraph | None,
    rescales: Iterable[RescaleInfo] = (),
) -> JobDescription:
    """Return the description of a job. From any thread; ``executions`` is None before the start."""
    return JobDescription(
        vertices=[
            VertexInfo(
                id=vertex.id,
                uid=vertex.uid,
                name=vertex.name,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                steps=[StepInfo(n.name, n.uid, n.step.kind, n.step.stateful, n.description) for n in vertex.nodes],
                slot_sharing_group=vertex.slot_sharing_group,
            )
            for vertex in graph.vertices
        ],
        edges=[
            EdgeInfo(
                source=edge.source,
                target=edge.target,
                partitioner=edge.edge.partitioner.name,
                description=edge_text(edge.edge, graph.vertex(edge.target).head),
                input_index=edge.input_index,
                feedback=edge.feedback,
            )
            for edge in graph.edges
        ],
        executions=[] if executions is None else _executions(executions),
        options=list(_options(settings)),
        checkpoint_interval_ms=settings.checkpoint_interval_ms,
        rescales=list(rescales),
    )


def _executions(executions: ExecutionGraph) -> list[ExecutionInfo]:
    return [
        _execution(execution)
        for vertex in executions.subtasks()
        for execution in (*list(vertex.past), vertex.current)
    ]


def _execution(execution: Execution) -> ExecutionInfo:
    return ExecutionInfo(
        vertex=execution.vertex_id,
        subtask=execution.subtask,
        attempt=execution.attempt,
        state=execution.state.value,
        timestamps={state.value: at_ms for state, at_ms in list(execution.timestamps.items())},
    )


@lru_cache(maxsize=16)
def _options(settings: Settings) -> tuple[OptionInfo, ...]:
    """Return the options, which stay the same for the life of a job."""
    usual = Settings()
    return tuple(
        OptionInfo(
            name=name,
            value=_text(redact_option(name, getattr(settings, option.field))),
            is_default=getattr(settings, option.field) == getattr(usual, option.field),
        )
        for name, option in OPTIONS.items()
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def checkpoint_infos(graph: JobGraph, history: Iterable[CheckpointRecord]) -> list[CheckpointInfo]:
    """Return the infos of checkpoints for clients, in the order of ``history``."""
    names = {vertex.id: vertex.name for vertex in graph.vertices}
    return [_checkpoint(names, record) for record in history]


def _checkpoint(names: dict[int, str], record: CheckpointRecord) -> CheckpointInfo:
    if record.info is not None:
        return record.info
    is_pending = record.is_pending  # read first: the record may end meanwhile, and this may be half of it
    info = _info_of(names, record)
    if not is_pending:
        record.info = info
    return info


def _info_of(names: dict[int, str], record: CheckpointRecord) -> CheckpointInfo:
    # Copied at once: the job master adds to it in another thread.
    tasks = sorted(record.tasks.copy().items())
    return CheckpointInfo(
        checkpoint=record.checkpoint_id,
        status=record.status,
        triggered_ms=record.triggered_ms,
        duration_ms=record.duration_ms,
        size=record.size,
        reason=record.reason,
        savepoint=record.savepoint,
        subtasks=[
            SubtaskInfo(
                names[vertex],
                subtask,
                s.start_delay_ms,
                s.alignment_ms,
                s.flush_ms,
                s.sync_ms,
                s.async_ms,
                s.size,
                s.in_flight_size,
                vertex,
            )
            for (vertex, subtask), s in tasks
        ],
        in_flight=sum(s.in_flight_size for _, s in tasks),
        acknowledged_ms=record.acknowledged_ms,
    )


def told_error(error: BaseException) -> str:
    """Return an error and its notes, in a few lines."""
    notes: Any = getattr(error, "__notes__", ())
    return cut("\n".join([describe(error), *notes]).splitlines())


def failure_info(failure: JobFailure) -> FailureInfo:
    """Return the info of a failure for clients."""
    return FailureInfo(
        failure.at_ms,
        failure.task,
        failure.subtask,
        failure.attempt,
        failure.worker,
        told_error(failure.cause),
        _traceback(failure.cause),
        failure.restarted,
        failure.delay_ms,
    )


def _traceback(error: BaseException) -> str:
    """Return the traceback at the place of origin, which may be in a worker."""
    remote = getattr(error.__cause__, "remote_traceback", None)
    return remote if isinstance(remote, str) else format_error(error)
