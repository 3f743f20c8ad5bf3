"""Job graph: chains of steps that run in one task each, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sluiceway.errors import GraphError
from sluiceway.partitioner import Distribution
from sluiceway.serializers import Serializer
from sluiceway.serializers.registry import registered_serializers
from sluiceway.streamgraph import ChainingStrategy, StreamEdge, StreamGraph, StreamNode

__all__ = ["JobEdge", "JobGraph", "JobVertex", "build_job_graph", "distribution_of", "slots_required"]

_POINTWISE: Final = frozenset({"forward", "rescale"})


class JobVertex(msgspec.Struct, frozen=True):
    """Chain: steps that run in one task and call each other directly. May be a tree.

    Attributes:
        id: the id of its first node, unique within the graph.
        uid: the uid of its first node.
        name: the names of its steps along the chain.
        nodes: its steps in topological order; the first is the head, the only one with inputs from other vertices.
        inner_edges: the edges inside it, in the order of the graph.
        parallelism: number of subtasks, the same for all its steps.
        max_parallelism: the head's number of key groups.
        slot_sharing_group: the group of all its steps.
    """

    id: int
    uid: str
    name: str
    nodes: tuple[StreamNode, ...]
    inner_edges: tuple[StreamEdge, ...]
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str = "default"

    @property
    def head(self) -> StreamNode:
        """First step."""
        return self.nodes[0]


class JobEdge(msgspec.Struct, frozen=True):
    """Exchange of records between two vertices.

    Attributes:
        id: the stream edge's id; also names the intermediate result.
        edge: the stream edge.
        source: id of the producing vertex.
        target: id of the consuming vertex.
        source_node: id of the producing node, somewhere in the source vertex.
        target_node: id of the consuming node, the head of the target vertex.
        input_index: index of the target node's input, from 0, feedback edges last.
        distribution: which subtasks are connected.
        feedback: True if it closes a loop.
        blocking: True if consumers may read only what a finished producer left; exchanges are pipelined
            unless an engine decides otherwise.
    """

    id: str
    edge: StreamEdge
    source: int
    target: int
    source_node: int
    target_node: int
    input_index: int
    distribution: Distribution
    feedback: bool = False
    blocking: bool = False


@dataclass(frozen=True)
class JobGraph:
    """Job as an engine runs it. Vertices are in topological order, feedback edges apart.

    ``serializers`` are those that were registered where it was made: they travel with it. ``left_out`` is that of
    the stream graph.
    """

    job_name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    serializers: tuple[Serializer, ...] = ()
    left_out: frozenset[str] = frozenset()
    _by_id: dict[int, JobVertex] = field(init=False, repr=False, compare=False)
    _by_node: dict[int, JobVertex] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id: dict[int, JobVertex] = {}
        for vertex in self.vertices:
            if vertex.id in by_id:
                raise GraphError(
                    f"job {self.job_name!r}: {vertex.name!r} and {by_id[vertex.id].name!r} have the same"
                    f" vertex id {vertex.id}"
                )
            by_id[vertex.id] = vertex
        object.__setattr__(self, "_by_id", by_id)
        object.__setattr__(self, "_by_node", {n.id: v for v in self.vertices for n in v.nodes})

    def vertex(self, vertex_id: int) -> JobVertex:
        """Return the vertex with that id. Raises KeyError."""
        return self._by_id[vertex_id]

    def vertex_of(self, node_id: int) -> JobVertex:
        """Return the vertex in which a node runs. Raises KeyError."""
        return self._by_node[node_id]

    def in_edges(self, vertex_id: int) -> list[JobEdge]:
        """Return the edges into a vertex, in the order of its inputs."""
        return [e for e in self.edges if e.target == vertex_id]

    def out_edges(self, vertex_id: int) -> list[JobEdge]:
        """Return the edges out of a vertex."""
        return [e for e in self.edges if e.source == vertex_id]


def distribution_of(partitioner: str, plugins: Mapping[str, Distribution] | None = None) -> Distribution:
    """Return which subtasks an edge with that partitioner connects.

    Args:
        partitioner: the partitioner's name.
        plugins: the distributions of plugin partitioners, by name; all-to-all for others.
    """
    if partitioner in _POINTWISE:
        return Distribution.POINTWISE
    return (plugins or {}).get(partitioner, Distribution.ALL_TO_ALL)


def _chainable(graph: StreamGraph, edge: StreamEdge) -> bool:
    """Return whether both ends of an edge may run in one task, given that its target has no other input."""
    up, down = graph.node(edge.source), graph.node(edge.target)
    return (
        graph.chaining
        and not edge.feedback
        and edge.partitioner.name in _POINTWISE
        and up.parallelism == down.parallelism
        and up.slot_sharing_group == down.slot_sharing_group
        # HEAD begins a chain: others may be chained behind it, but it is chained to none.
        and up.chaining is not ChainingStrategy.NEVER
        and down.chaining is ChainingStrategy.ALWAYS
    )


def build_job_graph(graph: StreamGraph, distributions: Mapping[str, Distribution] | None = None) -> JobGraph:
    """Build the job graph of a stream graph, with its steps in chains.

    Args:
        graph: the stream graph.
        distributions: the distribution of each plugin partitioner that the graph uses; without an entry
            it connects all subtasks with all.
    """
    in_edges: dict[int, list[StreamEdge]] = {n.id: [] for n in graph.nodes}
    for edge in graph.edges:
        in_edges[edge.target].append(edge)

    head_of: dict[int, int] = {}
    members: dict[int, list[StreamNode]] = {}
    inner: dict[int, list[StreamEdge]] = {}
    chained: set[int] = set()
    # Nodes come in topological order, so that the head of a chain is known before its members. A node with several
    # inputs is a head, since only heads have channels.
    for node in graph.nodes:
        entering = in_edges[node.id]
        if len(entering) == 1 and _chainable(graph, entering[0]):
            head = head_of[entering[0].source]
            inner[head].append(entering[0])
            chained.add(node.id)
        else:
            head = node.id
            members[head], inner[head] = [], []
        head_of[node.id] = head
        members[head].append(node)

    edges = []
    for target, entering in in_edges.items():
        for index, edge in enumerate(entering):
            # This edge is inside a chain.
            if target in chained:
                continue
            edges.append(
                JobEdge(
                    id=edge.id,
                    edge=edge,
                    source=head_of[edge.source],
                    target=head_of[target],
                    source_node=edge.source,
                    target_node=target,
                    input_index=index,
                    distribution=distribution_of(edge.partitioner.name, distributions),
                    feedback=edge.feedback,
                )
            )
    vertices = tuple(_vertex(members[head], inner[head]) for head in members)
    return JobGraph(graph.job_name, vertices, tuple(edges), registered_serializers(), graph.left_out)


def _vertex(nodes: list[StreamNode], inner: list[StreamEdge]) -> JobVertex:
    head = nodes[0]
    return JobVertex(
        id=head.id,
        uid=head.uid,
        name=_chain_name(head, nodes, inner),
        nodes=tuple(nodes),
        inner_edges=tuple(inner),
        parallelism=head.parallelism,
        max_parallelism=head.max_parallelism,
        slot_sharing_group=head.slot_sharing_group,
    )


def _chain_name(head: StreamNode, nodes: Iterable[StreamNode], inner: Iterable[StreamEdge]) -> str:
    """Return the name of a chain: ``a -> b -> c``; where it branches, ``a -> (b -> c, d)``."""
    children: dict[int, list[int]] = {n.id: [] for n in nodes}
    names = {n.id: n.name for n in nodes}
    for edge in inner:
        children[edge.source].append(edge.target)
    # From the tail to the head, so that long chains need no recursion.
    texts: dict[int, str] = {}
    for node_id in reversed(list(children)):
        below = [texts[c] for c in children[node_id]]
        if not below:
            texts[node_id] = names[node_id]
        elif len(below) == 1:
            texts[node_id] = f"{names[node_id]} -> {below[0]}"
        else:
            texts[node_id] = f"{names[node_id]} -> ({', '.join(below)})"
    return texts[head.id]


def slots_required(job_graph: JobGraph) -> dict[str, int]:
    """Return the slots that each slot-sharing group of a job needs: the highest parallelism in the group."""
    needed: dict[str, int] = {}
    for vertex in job_graph.vertices:
        group = vertex.slot_sharing_group
        needed[group] = max(needed.get(group, 0), vertex.parallelism)
    return needed
