"""Scheduling strategies: which subtasks to deploy next.

A strategy is a function of the execution graph's states: ask it at the start and after every change, and deploy
the subtasks that it returns. It never returns a subtask that is not in state CREATED.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from sluiceway.errors import choose
from sluiceway.graph.execution import ExecutionState
from sluiceway.graph.execution_graph import ExecutionGraph, ExecutionVertex
from sluiceway.graph.job_graph import JobEdge
from sluiceway.scheduler.pipelined_region import pipelined_regions

__all__ = [
    "SCHEDULERS",
    "EagerScheduling",
    "LazyFromSourcesScheduling",
    "PipelinedRegionScheduling",
    "SchedulingStrategy",
    "scheduling_strategy",
]

_UP: Final = frozenset({ExecutionState.RUNNING, ExecutionState.FINISHED})


class SchedulingStrategy(ABC):
    """Decision of which subtasks to deploy next.

    Args:
        graph: the job.
    """

    name: ClassVar[str]

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph

    @abstractmethod
    def next(self) -> list[ExecutionVertex]:
        """Return the subtasks to deploy now, in topological order; empty: wait."""

    def _created(self) -> list[ExecutionVertex]:
        return [s for s in self._graph.subtasks() if s.state is ExecutionState.CREATED]

    def _producers(self, edge: JobEdge, consumer: ExecutionVertex) -> list[ExecutionVertex]:
        subtasks = self._graph.vertex(edge.source).subtasks
        return [subtasks[i] for i in self._graph.producers_of(edge, consumer.subtask)]


class EagerScheduling(SchedulingStrategy):
    """Strategy that deploys all subtasks at once."""

    name = "eager"

    def next(self) -> list[ExecutionVertex]:
        """Return all subtasks that are not deployed."""
        return self._created()


class LazyFromSourcesScheduling(SchedulingStrategy):
    """Strategy that deploys sources first, and a subtask when its producers run, or have finished.

    Feedback edges are ignored.
    """

    name = "lazy-from-sources"

    def __init__(self, graph: ExecutionGraph) -> None:
        super().__init__(graph)
        self._inputs: dict[int, list[JobEdge]] = {v.id: [] for v in graph.vertices}
        for edge in graph.edges:
            if not edge.feedback:
                self._inputs[edge.target].append(edge)

    def next(self) -> list[ExecutionVertex]:
        """Return the subtasks whose inputs are ready."""
        return [s for s in self._created() if self._ready(s)]

    def _ready(self, subtask: ExecutionVertex) -> bool:
        for edge in self._inputs[subtask.job_vertex.id]:
            # A blocking edge is read when it is complete, a pipelined one while it is written.
            wanted = frozenset({ExecutionState.FINISHED}) if edge.blocking else _UP
            if any(p.state not in wanted for p in self._producers(edge, subtask)):
                return False
        return True


class PipelinedRegionScheduling(SchedulingStrategy):
    """Strategy that deploys a region when its blocking inputs have finished."""

    name = "pipelined-region"

    def __init__(self, graph: ExecutionGraph) -> None:
        super().__init__(graph)
        self._regions = pipelined_regions(graph)
        self._blocking = [e for e in graph.edges if e.blocking]

    def next(self) -> list[ExecutionVertex]:
        """Return the subtasks, not deployed yet, of the regions whose inputs are finished."""
        found: list[ExecutionVertex] = []
        for region in self._regions:
            created = [s for s in region if s.state is ExecutionState.CREATED]
            if created and all(
                p.state is ExecutionState.FINISHED
                for s in region
                for e in self._blocking
                if e.target == s.job_vertex.id
                for p in self._producers(e, s)
            ):
                found += created
        return found


SCHEDULERS: Final[dict[str, type[SchedulingStrategy]]] = {
    s.name: s for s in (EagerScheduling, LazyFromSourcesScheduling, PipelinedRegionScheduling)
}
"""The strategies by the names that the configuration uses."""


def scheduling_strategy(name: str, graph: ExecutionGraph) -> SchedulingStrategy:
    """Make the strategy of that name. Raises UnknownNameError, which lists the known ones."""
    if name not in SCHEDULERS:
        raise choose("scheduling strategy", name, SCHEDULERS)
    return SCHEDULERS[name](graph)
