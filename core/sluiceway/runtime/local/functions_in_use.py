"""Function objects of the jobs that run in this process, which no two of them may share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

from msgspec.structs import replace as replace_struct

from sluiceway.functions import FunctionObject
from sluiceway.functions.life import called_by
from sluiceway.graph import JobGraph
from sluiceway.operators import copied_function
from sluiceway.streamgraph import StreamNode

__all__ = ["own_functions"]

_lock = Lock()
_in_use: set[int] = set()  # ids of objects that their jobs keep alive


@contextmanager
def own_functions(graph: JobGraph) -> Iterator[JobGraph]:
    """Yield the graph with copies of the function objects that another job in this process is using.

    A pipeline that is started twice, and two pipelines with one object, would mix up their state: the second
    ``open()`` replaces the handles of the first. The first job keeps the user's own objects.

    Raises:
        GraphError: such an object cannot be copied.
    """
    mine: set[int] = set()

    def node_with_own(node: StreamNode) -> StreamNode:
        def own(function: FunctionObject) -> FunctionObject:
            called = id(called_by(function))
            if called in _in_use:
                return copied_function(function, node, "is used by another job in this process")
            mine.add(called)
            return function

        step = node.step.with_own_functions(own)
        return replace_struct(node, step=step)

    try:
        with _lock:
            vertices = tuple(
                replace_struct(vertex, nodes=tuple(map(node_with_own, vertex.nodes))) for vertex in graph.vertices
            )
            _in_use.update(mine)
        yield replace(graph, vertices=vertices)
    finally:
        with _lock:
            _in_use.difference_update(mine)
