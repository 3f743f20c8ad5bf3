"""Names of pipelines and steps on Spark's own pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluiceway.runtime.stepped import SteppedPlan

__all__ = ["job_text", "steps_text"]

_SHOWN: Final = 300


def steps_text(plan: SteppedPlan, stages: Iterable[int] | None = None) -> str:
    """Return the names of the steps of some stages, or of all, for Spark's pages."""
    vertices = dict.fromkeys(
        plan.who(target)[0]
        for stage in (range(plan.last_stage + 1) if stages is None else stages)
        for target in plan.targets_of(stage)
    )
    return ", ".join(plan.graph.vertex(id_).name for id_ in vertices)[:_SHOWN]


def job_text(job: str, what: str) -> str:
    """Return the description of a job for Spark's pages: pipeline, and steps or what else it does."""
    return f"sluiceway: {job}: {what}"
