"""Endpoints about the checkpoints of a job."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.infos import CheckpointInfo
from sluiceway_web import _answers as a
from sluiceway_web._context import JobRequest, context_of, get, job_request
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import find_vertex, vertex_id
from sluiceway_web._shapes import checkpoint_details, checkpoint_summary, statistics

__all__ = ["routes"]


async def _asked(request: Request) -> tuple[JobRequest, list[CheckpointInfo]]:
    asked = await job_request(request)
    return asked, await context_of(request).sampler.checkpoints(asked.job.job)


async def checkpoints(request: Request) -> a.Checkpoints:
    """Return the last checkpoints of a job, newest first, with quantiles and counts over them."""
    asked, infos = await _asked(request)
    every = [checkpoint_details(asked.job.job, info, asked.description) for info in reversed(infos)]

    def newest(status: str, savepoint: bool) -> a.CheckpointDetails | None:
        return next((c for c in every if c.status == status and c.is_savepoint == savepoint), None)

    states = [c.status for c in every]
    return a.Checkpoints(
        counts=a.CheckpointCounts(
            restored=0,
            total=len(infos),
            in_progress=states.count("IN_PROGRESS"),
            completed=states.count("COMPLETED"),
            failed=states.count("FAILED"),
        ),
        summary=checkpoint_summary(infos),
        latest=a.LatestCheckpoints(
            completed=newest("COMPLETED", savepoint=False),
            savepoint=newest("COMPLETED", savepoint=True),
            failed=next((c for c in every if c.status == "FAILED"), None),
            restored=None,
        ),
        history=every,
    )


async def config(request: Request) -> a.CheckpointConfig:
    """Return the options of the checkpoints of a job."""
    asked = await job_request(request)
    options = {option.name: option.value for option in asked.description.options}

    def number(name: str) -> int:
        value = options.get(name, "0")
        return int(value) if value.lstrip("-").isdigit() else 0

    unaligned = options.get("checkpoint-unaligned") == "True"
    return a.CheckpointConfig(
        mode=options.get("checkpoint-mode", "exactly-once").replace("-", "_"),
        # Flink's number where none are taken.
        interval=number("checkpoint-interval") or (1 << 63) - 1,
        timeout=number("checkpoint-timeout"),
        min_pause=number("checkpoint-min-pause"),
        max_concurrent=number("checkpoint-max-concurrent"),
        externalization={"enabled": bool(options.get("checkpoints")), "delete_on_cancellation": True},
        state_backend=options.get("state-backend", ""),
        checkpoint_storage=options.get("checkpoints", "") or "temporary",
        unaligned_checkpoints=unaligned,
        tolerable_failed_checkpoints=number("checkpoint-tolerated-failures"),
        aligned_checkpoint_timeout=number("checkpoint-aligned-timeout"),
        checkpoints_after_tasks_finish=True,
    )


def _found(request: Request, infos: list[CheckpointInfo]) -> CheckpointInfo:
    wanted = request.path_params["checkpoint"]
    for info in infos:
        if str(info.checkpoint) == wanted:
            return info
    raise RequestError(404, f"Could not find checkpoint {wanted}: the last {len(infos)} are kept")


async def details(request: Request) -> a.CheckpointDetails:
    """Return one checkpoint."""
    asked, infos = await _asked(request)
    return checkpoint_details(asked.job.job, _found(request, infos), asked.description)


async def vertex_details(request: Request) -> a.VertexCheckpoint:
    """Return the parts of a vertex's subtasks in a checkpoint."""
    asked, infos = await _asked(request)
    info = _found(request, infos)
    vertex = find_vertex(asked.description, asked.job.job, request.path_params["vertex"])
    if vertex is None:
        raise RequestError(404, f"Job {asked.job.job} has no vertex {request.path_params['vertex']}")
    whole = checkpoint_details(asked.job.job, info, asked.description)
    parts = [s for s in info.subtasks if s.vertex_id == vertex.id]
    subtasks = [
        a.SubtaskOfCheckpoint(
            index=s.subtask,
            status="completed",
            ack_timestamp=info.triggered_ms + s.duration_ms,
            end_to_end_duration=s.duration_ms,
            checkpointed_size=s.size,
            state_size=s.size,
            checkpoint={"sync": s.sync_ms, "async": s.async_ms, "flush": s.flush_ms},
            alignment={"buffered": 0, "processed": 0, "persisted": s.in_flight, "duration": s.alignment_ms},
            start_delay=s.barrier_ms,
            unaligned_checkpoint=bool(s.in_flight),
        )
        for s in parts
    ]
    one = whole.tasks[vertex_id(asked.job.job, vertex.uid)]
    return a.VertexCheckpoint(
        id=info.checkpoint,
        status=one.status,
        latest_ack_timestamp=one.latest_ack_timestamp,
        checkpointed_size=one.checkpointed_size,
        state_size=one.state_size,
        end_to_end_duration=one.end_to_end_duration,
        alignment_buffered=0,
        processed_data=0,
        persisted_data=one.persisted_data,
        num_subtasks=one.num_subtasks,
        num_acknowledged_subtasks=one.num_acknowledged_subtasks,
        summary={
            "checkpointed_size": statistics(s.size for s in parts),
            "state_size": statistics(s.size for s in parts),
            "end_to_end_duration": statistics(s.duration_ms for s in parts),
            "checkpoint_duration": {
                "sync": statistics(s.sync_ms for s in parts),
                "async": statistics(s.async_ms for s in parts),
            },
            "alignment": {
                "buffered": statistics(0 for _ in parts),
                "processed": statistics(0 for _ in parts),
                "persisted": statistics(s.in_flight for s in parts),
                "duration": statistics(s.alignment_ms for s in parts),
            },
            "start_delay": statistics(s.barrier_ms for s in parts),
        },
        subtasks=subtasks,
    )


_JOB: Final = "/jobs/{job}/checkpoints"

routes: list[Route] = [
    *get(_JOB, checkpoints),
    *get(_JOB + "/config", config),
    *get(_JOB + "/details/{checkpoint}", details),
    *get(_JOB + "/details/{checkpoint}/subtasks/{vertex}", vertex_details),
]
