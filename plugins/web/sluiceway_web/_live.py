"""Live figures for our own pages: one stream of server-sent events per page, one event per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.diagnosis import diagnose, why_late
from sluiceway.monitoring.figures import lowest_watermark
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, JobInfo, RescaleInfo
from sluiceway.monitoring.losses import losses, why_lost
from sluiceway.monitoring.micro_batches import is_load_known
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway.monitoring.split_diagnosis import source_splits
from sluiceway.util.surrogates import json_bytes
from sluiceway_web._cluster_page import cluster_page
from sluiceway_web._context import context_of
from sluiceway_web._errors import RequestError, error_response
from sluiceway_web._ids import vertex_id
from sluiceway_web._jobs_page import jobs_page
from sluiceway_web._keys import with_last_key
from sluiceway_web._page_cache import PageFields
from sluiceway_web._sampler import Sampler
from sluiceway_web._shapes import described, job_overview, now_ms, vertex_status

__all__ = ["routes"]

_PERIOD_S: Final = 1.0
_MOST_STREAMS: Final = 32
_MOST_TEXT: Final = 20_000
_HISTORY: Final = 120
"""Points per vertex; live.mjs keeps as many."""


def _short(finding: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(finding)
    return found


async def _job(sampler: Sampler, wanted: str) -> dict[str, Any]:
    """Return the page of one job."""
    reading = await sampler.reading()
    job = reading.job(wanted)
    description = await sampler.describe(job.job)
    metrics, rates = reading.metrics(job.job, description), reading.rates_of(job.job, description)
    checkpoints = await sampler.checkpoints(job.job) if description.vertices else []
    found = diagnose(description, metrics, rates, checkpoints, job.failures)
    found = sampler.functions.name(job.job, with_last_key(sampler, job.job, found))
    late = why_late(description, metrics, rates, failures=job.failures)
    names = {v.uid: v.name for v in description.vertices}
    return {
        "now": now_ms(),
        "job": msgspec.to_builtins(job_overview(reading, job)) | {"failure": job.failure[:_MOST_TEXT]},
        "healthy": found.healthy,
        "findings": [_short(f) for f in found.findings],
        "late": [_short(f) for f in late.findings],
        "lost": [_short(f) for f in why_lost(metrics).findings],
        "losses": msgspec.to_builtins(losses(metrics)),
        "vertices": [_vertex(job, metrics, description, rates, v) for v in description.vertices],
        "edges": [
            {"source": e.source, "target": e.target, "text": e.description, "feedback": e.feedback}
            for e in description.edges
        ],
        "options": [{"name": o.name, "value": o.value, "default": o.is_default} for o in description.options],
        "is_load_known": is_load_known(metrics),
        "micro_batches": msgspec.to_builtins(description.micro_batches),
        "engine_url": description.engine_url,
        "checkpoint_interval_ms": description.checkpoint_interval_ms,
        "checkpoints": [_checkpoint(c) for c in reversed(checkpoints)],
        "rescales": [_rescale(r, names) for r in reversed(description.rescales)],
        "failures": [
            {
                "at_ms": f.at_ms,
                "task": f.task,
                "subtask": f.subtask,
                "worker": f.worker,
                "cause": f.cause[:_MOST_TEXT],
                "traceback": f.traceback[-_MOST_TEXT:],
                "restarted": f.restarted,
            }
            for f in reversed(job.failures)
        ],
        "history": [
            [p.at_ms, p.vertex, round(p.in_per_s, 1), round(p.busy, 3), round(p.blocked, 3), p.lag_ms]
            for p in sampler.history(job.job)[-_HISTORY * max(1, len(description.vertices)) :]
        ],
    }


def _vertex(
    job: JobInfo, metrics: JobMetrics, description: JobDescription, rates: list[SubtaskRates], vertex: Any
) -> dict[str, Any]:
    own = [r for r in rates if r.metrics.vertex_id == vertex.id]
    newest = {e.subtask: e for e in description.executions if e.vertex == vertex.id}
    totals = [m for m in metrics.subtasks if m.vertex_id == vertex.id]
    return {
        "number": vertex.id,
        "id": vertex_id(job.job, vertex.uid),
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "description": described(vertex.name, vertex.steps),
        "steps": [
            {"name": s.name, "uid": s.uid, "kind": s.kind, "stateful": s.stateful, "description": s.description}
            for s in vertex.steps
        ],
        "source": vertex.is_source,
        "keyed": any(e.target == vertex.id and e.partitioner == "hash" for e in description.edges),
        "status": vertex_status(e.state for e in newest.values()),
        "in_per_s": sum(r.in_per_s for r in own),
        "out_per_s": sum(r.out_per_s for r in own),
        "records_in": sum(m.records_in for m in totals),
        "records_out": sum(m.records_out for m in totals),
        "busy": max((r.busy for r in own), default=0.0),
        "blocked": max((r.blocked for r in own), default=0.0),
        "idle": min((r.idle for r in own), default=0.0),
        "waiting": max((r.waiting for r in own), default=0.0),
        "shares": {
            name: sum(getattr(r, name) for r in own) / max(1, len(own))
            for name in ("busy", "blocked", "waiting", "idle")
        },
        "watermark": lowest_watermark(r.metrics.output_watermark for r in own),
        "input_watermark": lowest_watermark(r.metrics.watermark for r in own),
        "splits": msgspec.to_builtins(source_splits(own)) if vertex.is_source else None,
        "subtasks": [
            {
                "subtask": r.metrics.subtask,
                "attempt": r.metrics.attempt,
                "worker": r.metrics.worker or "local",
                "state": r.metrics.state,
                "in_per_s": r.in_per_s,
                "out_per_s": r.out_per_s,
                "busy": r.busy,
                "blocked": r.blocked,
                "idle": r.idle,
                "waiting": r.waiting,
                "watermark": r.metrics.output_watermark,
                "input_watermark": r.metrics.watermark,
                "queued": r.metrics.queued,
                "backlog": r.metrics.backlog,
                "user": dict(list(r.metrics.user.items())[:200]),
            }
            for r in own
        ],
    }


def _rescale(info: RescaleInfo, names: dict[str, str]) -> dict[str, Any]:
    changed = [uid for uid in info.after if info.after[uid] != info.before.get(uid)]
    return {
        "requested_ms": info.requested_ms,
        "status": info.status,
        "reason": info.reason[:_MOST_TEXT],
        "changes": [[names.get(uid, uid), info.before.get(uid), info.after[uid]] for uid in changed],
        "checkpoint": info.checkpoint,
        "stopped_ms": info.stopped_ms if info.ended_ms else None,
    }


def _checkpoint(info: CheckpointInfo) -> dict[str, Any]:
    slowest = max(info.subtasks, key=lambda s: s.duration_ms, default=None)
    phases = {
        "start_delay": slowest.barrier_ms if slowest else 0,
        "alignment": slowest.alignment_ms if slowest else 0,
        "flush": slowest.flush_ms if slowest else 0,
        "sync": slowest.sync_ms if slowest else 0,
        "async": slowest.async_ms if slowest else 0,
        "storing": _storing_ms(info),
    }
    return {
        "id": info.checkpoint,
        "status": info.status,
        "triggered_ms": info.triggered_ms,
        "duration_ms": info.duration_ms,
        "size": info.size,
        "in_flight": info.in_flight,
        "savepoint": info.savepoint,
        "reason": info.reason[:1000],
        "phases": phases,
        "slowest": None if slowest is None else f"{slowest.task} [{slowest.subtask + 1}]",
    }


def _storing_ms(info: CheckpointInfo) -> int:
    """Return the time in which the metadata of a completed checkpoint was stored."""
    if info.acknowledged_ms is None or info.duration_ms is None:
        return 0
    return max(0, info.duration_ms - info.acknowledged_ms)


_PAGES: Final = {"cluster": cluster_page, "jobs": jobs_page, "job": _job}


class _Encoder:
    """Events of one stream: the fields that differ from the event before, and the new points of the history.

    Most of a page stays the same from one second to the next: options, failures with their tracebacks,
    checkpoints. The history grows by one point per vertex.
    """

    def __init__(self) -> None:
        self._sent: dict[str, bytes] = {}
        self._until_ms = 0

    def event(self, page: PageFields) -> bytes:
        """Return the event for a page whose earlier events have been sent."""
        changed = {name: value for name, value in page.fields.items() if value != self._sent.get(name)}
        self._sent |= changed
        told = {name: msgspec.Raw(value) for name, value in changed.items()}
        if page.history is not None:
            if self._until_ms:
                points = [point for point in page.history if point[0] > self._until_ms]
                told["more_history"] = msgspec.Raw(msgspec.json.encode(points))
            else:
                told["history"] = msgspec.Raw(msgspec.json.encode(page.history))
            self._until_ms = max((point[0] for point in page.history), default=self._until_ms)
        return b"data: " + msgspec.json.encode(told) + b"\n\n"


class _Streams:
    """Number of streams that are open."""

    count = 0


async def live(request: Request) -> Response:
    """Stream the figures of a page, or return them once with ``?once``.

    The first event has all fields, later ones those that have changed; ``more_history`` is to be appended.
    """
    page = _PAGES.get(request.path_params["page"])
    if page is None:
        return error_response(404, f"There is no page {request.path_params['page']}")
    sampler = context_of(request).sampler
    wanted = request.query_params.get("job", "")
    pages = sampler.pages

    async def encoded() -> PageFields:
        return await pages.get((request.path_params["page"], wanted), lambda: page(sampler, wanted))

    first = await encoded()  # its error has a status of its own
    # nginx would collect events before it passes them on.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if "once" in request.query_params:
        return Response(first.whole(), media_type="application/json", headers=headers)
    if _Streams.count >= _MOST_STREAMS:
        return error_response(503, f"{_MOST_STREAMS} pages are open already: close one")

    async def events() -> AsyncIterator[bytes]:
        _Streams.count += 1
        encoder = _Encoder()
        try:
            yield encoder.event(first)
            while not await request.is_disconnected():
                await asyncio.sleep(_PERIOD_S)
                try:
                    event = encoder.event(await encoded())
                except RequestError as error:
                    event = b"data: " + json_bytes({"error": str(error), "status": error.status}) + b"\n\n"
                yield event
        finally:
            _Streams.count -= 1

    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


routes: list[Route] = [Route("/live/{page}", live, methods=["GET"])]
