"""Pipelined regions: subtasks that must run at the same time, because records flow between them."""

from __future__ import annotations

from sluiceway.graph.execution_graph import ExecutionGraph, ExecutionVertex
from sluiceway.partitioner import Distribution

__all__ = ["pipelined_regions"]


def pipelined_regions(graph: ExecutionGraph) -> list[tuple[ExecutionVertex, ...]]:
    """Divide the subtasks of a job into regions.

    Two subtasks are in one region if pipelined exchanges, feedback included, connect them, directly or
    through others. A failure inside a region is mended by restarting that region alone.

    Returns:
        the regions, each in topological order, in the order of their first subtasks.
    """
    # Union-find, with path halving.
    leader: dict[ExecutionVertex, ExecutionVertex] = {s: s for s in graph.subtasks()}

    def find(subtask: ExecutionVertex) -> ExecutionVertex:
        while leader[subtask] is not subtask:
            leader[subtask] = subtask = leader[leader[subtask]]
        return subtask

    for edge in graph.edges:
        if edge.blocking:
            continue
        producers = graph.vertex(edge.source).subtasks
        if edge.distribution is Distribution.ALL_TO_ALL:
            # One union per subtask has the same result as one per pair.
            everybody = [*producers, *graph.vertex(edge.target).subtasks]
            for subtask in everybody[1:]:
                leader[find(subtask)] = find(everybody[0])
            continue
        for consumer in graph.vertex(edge.target).subtasks:
            for index in graph.producers_of(edge, consumer.subtask):
                leader[find(producers[index])] = find(consumer)

    regions: dict[ExecutionVertex, list[ExecutionVertex]] = {}
    for subtask in graph.subtasks():
        regions.setdefault(find(subtask), []).append(subtask)
    return [tuple(region) for region in regions.values()]
