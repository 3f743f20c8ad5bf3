"""Which sinks have to work in the process of the program that runs the job."""

from __future__ import annotations

from typing import Any

from sluiceway.connectors import PrintSink
from sluiceway.graph.features import handles_of
from sluiceway.runtime.embedded import EmbeddedPlan
from sluiceway.steps import SinkStep

__all__ = ["in_this_process"]


def in_this_process(plan: EmbeddedPlan) -> frozenset[int]:
    """The ids of vertices whose sink hands its records to this program: ``collect()``, ``print()`` and such."""
    return frozenset(v for v in plan.sinks if _is_local(plan.graph.vertex(v).head.step))


def _is_local(step: Any) -> bool:
    assert isinstance(step, SinkStep)
    return isinstance(step.sink, PrintSink) or bool(handles_of(step.sink))
