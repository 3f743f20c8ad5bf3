"""Texts about the steps and edges of a plan, for all its drawings."""

from __future__ import annotations

import msgspec

from sluiceway.connector import Boundedness
from sluiceway.graph.identity import function_name
from sluiceway.graph.job_graph import JobEdge, JobGraph, JobVertex, build_job_graph, slots_required
from sluiceway.graph.plan.settings import errors_text, settings_text
from sluiceway.serializers.edges import EdgeFormat, edge_format
from sluiceway.steps import ColumnLookupStep, ColumnStep, SourceStep
from sluiceway.streamgraph import ChainingStrategy, StreamEdge, StreamGraph, StreamNode
from sluiceway.types import type_name

__all__ = ["Plan", "Row", "boundedness", "edge_text", "facts", "format_of", "given_text", "key_text", "uid_text"]

_CHAINING = {ChainingStrategy.HEAD: "starts a chain", ChainingStrategy.NEVER: "never chained"}


class Row(msgspec.Struct, frozen=True):
    """Step in its chain.

    Attributes:
        node: the step.
        depth: 0 for the head, one more for each step that is called directly.
        entry: the edge inside the chain that leads to it; None for the head.
        outgoing: the edges from it to other tasks.
    """

    node: StreamNode
    depth: int
    entry: StreamEdge | None
    outgoing: tuple[JobEdge, ...]


class Plan:
    """Stream graph with its tasks, numbered from 1.

    Attributes:
        graph: the stream graph.
        job: the job graph made of it.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self.graph = graph
        self.job: JobGraph = build_job_graph(graph)
        self._numbers = {v.id: i for i, v in enumerate(self.job.vertices, 1)}
        self._outgoing: dict[int, list[JobEdge]] = {n.id: [] for n in graph.nodes}
        for edge in self.job.edges:
            self._outgoing[edge.source_node].append(edge)

    def number(self, vertex_id: int) -> int:
        """Return the number of a task."""
        return self._numbers[vertex_id]

    def rows(self, vertex: JobVertex) -> list[Row]:
        """Return the steps of a chain, each right after the one that calls it where the chain does not branch."""
        below: dict[int, list[StreamEdge]] = {n.id: [] for n in vertex.nodes}
        for edge in vertex.inner_edges:
            below[edge.source].append(edge)
        rows = []
        todo: list[tuple[int, int, StreamEdge | None]] = [(vertex.head.id, 0, None)]
        while todo:
            node_id, depth, entry = todo.pop()
            rows.append(Row(self.graph.node(node_id), depth, entry, tuple(self._outgoing[node_id])))
            todo += [(edge.target, depth + 1, edge) for edge in reversed(below[node_id])]
        return rows

    def summary(self) -> str:
        """Return the size of the plan: ``5 steps in 2 tasks, 4 slots``."""
        slots = sum(slots_required(self.job).values())
        counts = [
            (len(self.graph.nodes), "step"),
            (len(self.job.vertices), "task"),
            (slots, "slot"),
        ]
        steps, tasks, places = (f"{n} {word}{'s' * (n != 1)}" for n, word in counts)
        return f"{steps} in {tasks}, {places}"

    def task_text(self, vertex: JobVertex) -> str:
        """Return a task's parallelism, ``parallelism 4 (max 128)``, and its slot-sharing group unless default."""
        group = vertex.slot_sharing_group
        shared = "" if group == "default" else f", slot-sharing group {group!r}"
        return f"parallelism {vertex.parallelism} (max {vertex.max_parallelism}){shared}"


def boundedness(node: StreamNode) -> Boundedness | None:
    """Return whether a source is bounded; None for what is no source."""
    return node.step.source.boundedness if isinstance(node.step, SourceStep) else None


def given_text(node: StreamNode) -> str | None:
    """Return the type of a step's records, or its columns with their types; None if they are not known."""
    if isinstance(node.step, ColumnStep | ColumnLookupStep):
        return f"columns {node.step.columns}"
    return None if node.output_type is None else type_name(node.output_type)


def facts(node: StreamNode) -> list[str]:
    """Return noteworthy facts of a step: boundedness, state, settings, type, chaining."""
    found = []
    bounds = boundedness(node)
    if bounds is not None:
        found.append(bounds.value)
    elif node.step.stateful:
        found.append("state")
    found += settings_text(node.step)
    found += errors_text(node)
    if (given := given_text(node)) is not None:
        found.append(f"gives {given}")
    if node.co_location_group is not None:
        found.append(f"co-location group {node.co_location_group!r}")
    if node.chaining in _CHAINING:
        found.append(_CHAINING[node.chaining])
    if node.buffer_timeout_ms:
        when_full = node.buffer_timeout_ms < 0
        found.append("sends full buffers" if when_full else f"sends within {node.buffer_timeout_ms} ms")
    return found


def uid_text(node: StreamNode) -> str:
    """Return a step's uid, and whether it may change."""
    return f"uid {node.uid}" if node.uid_given else f"uid {node.uid} (derived)"


def key_text(edge: StreamEdge) -> str | None:
    """Return the name of an edge's key selector, or the columns that it names; None: the edge has no key."""
    key = edge.partitioner.key
    names = getattr(key, "names", None)
    if isinstance(names, tuple):  # a ColumnKey, whose module imports pyarrow
        return ", ".join(names)
    return None if key is None else function_name(key)


def format_of(graph: StreamGraph, edge: StreamEdge) -> EdgeFormat:
    """Return the encoding of an edge's records where they go to another process."""
    return edge_format(edge.tag.type if edge.tag is not None else graph.node(edge.source).output_type)


def edge_text(edge: StreamEdge, target: StreamNode) -> str:
    """Return the text of an edge: ``hash by user``, with the side output and the loop that it belongs to.

    Where its ``target`` has two inputs, also which of them.
    """
    key = key_text(edge)
    text = edge.partitioner.name if key is None else f"{edge.partitioner.name} by {key.strip('<>')}"
    if edge.partitioner.columns is not None:
        text += f", sends {', '.join(edge.partitioner.columns)}"
    if edge.tag is not None:
        text += f", side output {edge.tag.name!r}"
    if target.step.ports > 1:
        text += f", input {edge.port + 1}"
    return f"{text}, feedback" if edge.feedback else text
