"""Restarts of a job as findings: subtasks that wait for their next attempt, and a job that fails repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluiceway.metrics import FailureInfo
from sluiceway.monitoring.findings import Finding, age
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription

__all__ = ["fails_repeatedly", "waits_for_restart"]

_ENDED: Final = ("failed", "canceling", "canceled")
_RECENT_MS: Final = 600_000
_OFTEN: Final = 3
"""Failures in that time from which on the job is said to fail repeatedly."""
_LONGEST: Final = 200
"""Characters of the error in a finding."""


def waits_for_restart(description: JobDescription, failures: Sequence[FailureInfo]) -> Finding | None:
    """Return a finding if subtasks of a running job have ended and wait for their next attempt.

    Args:
        description: the job's graph and attempts.
        failures: the job's last failures, oldest first.
    """
    newest = {(e.vertex, e.subtask): e for e in description.executions}
    ended = [e for e in newest.values() if e.state in _ENDED]
    if not ended:
        return None
    some = f"{len(ended)} of {len(newest)} subtasks do not run"
    begun = max((min(e.timestamps.values(), default=0) for e in ended), default=0)
    if not failures or failures[-1].at_ms < begun:
        return Finding("restarting", f"{some}: the job restarts them.", "notice")
    last = failures[-1]
    delay = "" if last.delay_ms is None else f" {age(last.delay_ms)} after the failure"
    text = f"The job restarts, as {_failed(last)}. {some}, and restart{delay}."
    return Finding("restarting", text, "cause", _vertex(description, last))


def fails_repeatedly(
    description: JobDescription,
    checkpoints: Sequence[CheckpointInfo],
    failures: Sequence[FailureInfo],
    now_ms: int,
) -> Finding | None:
    """Return a finding if a job has failed three times or more in the last ten minutes."""
    recent = [failure for failure in failures if now_ms - failure.at_ms <= _RECENT_MS]
    if len(recent) < _OFTEN:
        return None
    last, since = recent[-1], age(max(1, now_ms - recent[0].at_ms))
    has_one = any(checkpoint.status == "completed" for checkpoint in checkpoints)
    then = "goes back to its last checkpoint each time" if has_one else "is restarted each time"
    text = f"The job has failed {len(recent)} times in {since}, and {then}: {_failed(last)}."
    return Finding("repeated-failures", text, "cause", _vertex(description, last))


def _failed(failure: FailureInfo) -> str:
    lines = failure.cause.strip().splitlines()
    cause = lines[0] if lines else "an error without a message"
    error = cause if len(cause) <= _LONGEST else cause[: _LONGEST - 1] + "…"
    return (
        f"{failure.task!r} has failed with {error.rstrip('.')}" if failure.task else f"it has failed with {error}"
    )


def _vertex(description: JobDescription, failure: FailureInfo) -> int | None:
    return next((vertex.id for vertex in description.vertices if vertex.name == failure.task), None)
