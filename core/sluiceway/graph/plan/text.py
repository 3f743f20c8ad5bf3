"""Plan for a terminal."""

from __future__ import annotations

from sluiceway.graph.plan.model import Plan, Row, edge_text, facts, format_of, uid_text
from sluiceway.streamgraph import StreamGraph
from sluiceway.util.visible_text import padded, width_of

__all__ = ["explain_text"]


def explain_text(graph: StreamGraph) -> str:
    """Return the plan as lines, of plain ASCII where the program's own names are.

    The step above an indented one calls it directly. Lines with ``#`` are descriptions.
    """
    plan = Plan(graph)
    tables = [(vertex, plan.rows(vertex)) for vertex in plan.job.vertices]
    names = [width_of(_indent(row) + row.node.name) for _, rows in tables for row in rows]
    width = min(max(names, default=0), 48)
    lines = [f"Pipeline {graph.job_name!r}: {plan.summary()}"]
    for vertex, rows in tables:
        lines += ["", f"Task {plan.number(vertex.id)}: {plan.task_text(vertex)}"]
        for row in rows:
            told = [*facts(row.node), uid_text(row.node)]
            if row.entry is not None and row.entry.tag is not None:
                told.insert(0, f"from side output {row.entry.tag.name!r}")
            lines.append(f"{padded(_indent(row) + row.node.name, width)}  {', '.join(told)}")
            if row.node.description is not None:
                lines += [f"{_indent(row)}  # {line}" for line in row.node.description.splitlines()]
            for edge in row.outgoing:
                how = f"{edge_text(edge.edge, graph.node(edge.target_node))}, {format_of(graph, edge.edge)}"
                lines.append(f"{_indent(row)}  => task {plan.number(edge.target)}: {how}")
    return "\n".join(lines) + "\n"


def _indent(row: Row) -> str:
    return "  " * (row.depth + 1)
