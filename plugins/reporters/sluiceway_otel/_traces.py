"""Traces of checkpoints and restarts: spans made afterwards, from the times that the job master has noted."""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from sluiceway.metrics import CheckpointInfo, RestartInfo, SubtaskInfo
from sluiceway.util.redaction import redact
from sluiceway_otel._attributes import ATTEMPT, STATUS, SUBTASK, TASK, TASK_ID, WORKER, Attributes

__all__ = ["Traces"]

_MOST_SUBTASKS: Final = 100
"""Subtasks with spans in one trace: the slowest. A job of thousands would push out all other spans."""
_LONGEST: Final = 10_000
_MS: Final = 1_000_000


class Traces:
    """Maker of the spans of one job.

    Args:
        tracer: what they are made with.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def checkpoint_ended(self, checkpoint: CheckpointInfo, job: Attributes) -> None:
        """Make the trace of a checkpoint: its trigger, the parts of its subtasks, its commit."""
        begin, duration = checkpoint.triggered_ms, checkpoint.duration_ms or 0
        attributes: Attributes = {
            **job,
            "sluiceway.checkpoint.id": checkpoint.checkpoint,
            "sluiceway.checkpoint.size": checkpoint.size,
            "sluiceway.checkpoint.in_flight.size": checkpoint.in_flight,
            "sluiceway.checkpoint.subtasks": len(checkpoint.subtasks),
            STATUS: checkpoint.status,
        }
        if checkpoint.savepoint:
            attributes["sluiceway.savepoint.location"] = redact(checkpoint.savepoint)
        name = "savepoint" if checkpoint.savepoint else "checkpoint"
        root = self._start(name, begin, attributes)
        if checkpoint.status == "completed":
            root.set_status(StatusCode.OK)
        else:
            root.set_status(Status(StatusCode.ERROR, redact(checkpoint.reason)[:_LONGEST]))
        if checkpoint.subtasks:
            first = min(part.barrier_ms for part in checkpoint.subtasks)
            self._child(root, "trigger", begin, begin + first, job)
        for part in sorted(checkpoint.subtasks, key=lambda part: part.duration_ms)[-_MOST_SUBTASKS:]:
            self._part(root, begin, part, job)
        if checkpoint.acknowledged_ms is not None:
            self._child(root, "commit", begin + checkpoint.acknowledged_ms, begin + duration, job)
        root.end((begin + duration) * _MS)

    def _part(self, root: Span, begin: int, part: SubtaskInfo, job: Attributes) -> None:
        attributes: Attributes = {
            **job,
            TASK: part.task,
            TASK_ID: part.vertex_id,
            SUBTASK: part.subtask,
            "sluiceway.checkpoint.size": part.size,
            "sluiceway.checkpoint.in_flight.size": part.in_flight,
        }
        at = begin + part.barrier_ms
        whole = self._start("subtask", at, attributes, root)
        for name, ms in (
            ("alignment", part.alignment_ms),
            ("flush", part.flush_ms),
            ("sync", part.sync_ms),
            ("async", part.async_ms),
        ):
            self._child(whole, name, at, at + ms, attributes)
            at += ms
        whole.end(at * _MS)

    def restart_ended(self, restart: RestartInfo, job: Attributes) -> None:
        """Make the trace of a restart, or of a failure that no restart followed; its cause is an event."""
        failure = restart.failure
        attributes: Attributes = {
            **job,
            STATUS: restart.outcome,
            "sluiceway.restart.subtasks": failure.restarted,
        }
        if failure.delay_ms is not None:
            attributes["sluiceway.restart.delay"] = failure.delay_ms / 1000
        if failure.task:
            attributes[TASK] = failure.task
        if failure.subtask is not None:
            attributes[SUBTASK] = failure.subtask
        if failure.attempt is not None:
            attributes[ATTEMPT] = failure.attempt
        if failure.worker:
            attributes[WORKER] = failure.worker
        cause = redact(failure.cause)[:_LONGEST]
        kind = cause.partition(":")[0] if cause.partition(":")[0].replace(".", "").isidentifier() else "_OTHER"
        attributes["error.type"] = kind
        span = self._start("restart" if failure.restarted else "failure", failure.at_ms, attributes)
        event: Attributes = {
            "exception.type": kind,
            "exception.message": cause,
            "exception.stacktrace": redact(failure.traceback)[-_LONGEST:],
        }
        span.add_event("exception", event, failure.at_ms * _MS)
        span.set_status(Status(StatusCode.ERROR, cause.partition("\n")[0]))
        span.end(max(failure.at_ms, restart.ended_ms) * _MS)

    def _start(self, name: str, at_ms: int, attributes: Attributes, parent: Span | None = None) -> Span:
        # An empty context: whatever span the program is in, a checkpoint is no part of it.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, attributes=attributes, start_time=at_ms * _MS)

    def _child(self, parent: Span, name: str, begin_ms: int, end_ms: int, attributes: Attributes) -> None:
        self._start(name, begin_ms, attributes, parent).end(max(begin_ms, end_ms) * _MS)
