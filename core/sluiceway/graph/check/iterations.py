"""Checks of feedback loops that this runtime cannot end, and of options that exclude loops."""

from __future__ import annotations

from sluiceway.config.settings import Settings
from sluiceway.errors import GraphError
from sluiceway.graph import JobGraph, JobVertex
from sluiceway.steps import IterationHeadStep
from sluiceway.streamgraph import StreamNode

__all__ = ["check_checkpoints", "check_iterations", "check_rescale", "check_savepoint"]


def check_iterations(graph: JobGraph) -> None:
    """Refuse loops inside loops: that a loop is empty cannot be known while another one turns inside it.

    Raises:
        GraphError: names both iterations.
    """
    heads = [v for v in graph.vertices if isinstance(v.head.step, IterationHeadStep)]
    for index, outer in enumerate(heads):
        after = _reachable(graph, outer)
        for inner in heads[index + 1 :]:
            if inner.id in after and outer.id in _reachable(graph, inner):
                raise GraphError(
                    f"iteration {inner.head.name!r} is inside the loop of iteration {outer.head.name!r}: "
                    "nested iterations are not supported; put both decisions into one loop body"
                )


def check_checkpoints(graph: JobGraph, settings: Settings) -> None:
    """Refuse checkpoints of a job with a feedback loop: they would not include its in-flight records.

    Raises:
        GraphError: names the iteration.
    """
    head = _head(graph)
    if settings.checkpoint_interval_ms and head is not None:
        raise GraphError(
            f"iteration {head.name!r}: checkpoints of a job with a feedback loop are not supported, because the "
            "records that go round are in none of them: leave checkpoint-interval at 0, or do without the loop"
        )


def check_savepoint(graph: JobGraph) -> None:
    """Refuse a savepoint of a job with a feedback loop. Raises GraphError, which names the iteration."""
    head = _head(graph)
    if head is not None:
        raise GraphError(
            f"iteration {head.name!r}: savepoints of a job with a feedback loop are not supported, because the "
            "records that go round would not be in them"
        )


def check_rescale(graph: JobGraph) -> None:
    """Refuse another parallelism for a job with a feedback loop. Raises GraphError, which names the iteration."""
    head = _head(graph)
    if head is not None:
        raise GraphError(
            f"iteration {head.name!r}: a job with a feedback loop cannot be rescaled, because the records that go "
            "round would be lost"
        )


def _head(graph: JobGraph) -> StreamNode | None:
    return next((v.head for v in graph.vertices if isinstance(v.head.step, IterationHeadStep)), None)


def _reachable(graph: JobGraph, start: JobVertex) -> set[int]:
    seen: set[int] = set()
    todo = [start.id]
    while todo:
        for edge in graph.out_edges(todo.pop()):
            if edge.target not in seen:
                seen.add(edge.target)
                todo.append(edge.target)
    return seen
