"""Check of whether records that may go to another process are serialized efficiently."""

from __future__ import annotations

from collections.abc import Iterator

from sluiceway.graph.findings import Finding, Level
from sluiceway.graph.job_graph import build_job_graph
from sluiceway.graph.plan.model import format_of
from sluiceway.streamgraph import StreamGraph, StreamNode
from sluiceway.types import type_name

__all__ = ["check_serializers"]


def check_serializers(graph: StreamGraph) -> Iterator[Finding]:
    """Look for edges between tasks whose records have to be pickled one by one, going by their declared type."""
    told: set[tuple[int, str | None]] = set()
    for edge in build_job_graph(graph).edges:
        problem = format_of(graph, edge.edge).problem
        up, down = graph.node(edge.source_node), graph.node(edge.target_node)
        tag = edge.edge.tag
        which = (up.id, None if tag is None else tag.name)
        if problem is None or which in told:
            continue
        told.add(which)
        declared = type_name(up.output_type if tag is None else tag.type)
        yield Finding(
            Level.WARNING,
            "pickled",
            f"{_label(up)} sends {declared} to {_label(down)}, and between workers such records are pickled one by"
            f" one, which is slow: {problem}. Make it a dataclass, NamedTuple, msgspec.Struct or pydantic model"
            " that leaves copying to Python, or register a serializer for it; if the records are of another type,"
            " say so with a hint or returns()",
            up.name,
            up.location,
        )


def _label(node: StreamNode) -> str:
    return f"{node.name!r} ({node.location})" if node.location else repr(node.name)
