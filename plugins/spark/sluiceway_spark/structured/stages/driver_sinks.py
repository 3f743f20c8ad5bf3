"""Sinks that run in the driver, such as ``collect()`` and ``print()``."""

from __future__ import annotations

from typing import Any

from sluiceway.connector import DeliveryGuarantee
from sluiceway.connector.lib import PrintSink
from sluiceway.errors import ConfigurationError
from sluiceway.graph.check.features import handles_of
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.steps import SinkStep

__all__ = ["in_this_process", "refuse_speculation"]


def in_this_process(plan: SteppedPlan) -> frozenset[int]:
    """Return the ids of vertices whose sinks pass records to this program: ``collect()``, ``print()`` and such."""
    return frozenset(v for v in plan.sinks if _is_local(plan.graph.vertex(v).head.step))


def refuse_speculation(session: Any, plan: SteppedPlan) -> None:
    """Raise ConfigurationError if Spark would run a sink in two phases twice at a time."""
    if session.conf.get("spark.speculation", "false").lower() != "true":
        return
    here = in_this_process(plan)
    for vertex in map(plan.graph.vertex, plan.sinks):
        step = vertex.head.step
        assert isinstance(step, SinkStep)
        if vertex.id not in here and step.sink.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            raise ConfigurationError(
                f"sink {vertex.head.name!r} writes in two phases, which does not go with spark.speculation=true: "
                "of two attempts that run at the same time, each would take away what the other has written. Set "
                "spark.speculation to false"
            )


def _is_local(step: Any) -> bool:
    assert isinstance(step, SinkStep)
    return isinstance(step.sink, PrintSink) or bool(handles_of(step.sink))
