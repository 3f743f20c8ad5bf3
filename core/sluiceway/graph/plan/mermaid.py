"""Plan as a Mermaid flow chart, for documents."""

from __future__ import annotations

from sluiceway.graph.plan.model import Plan, edge_text, facts, format_of
from sluiceway.streamgraph import StreamGraph

__all__ = ["explain_mermaid"]


def explain_mermaid(graph: StreamGraph) -> str:
    """Return the plan as Mermaid source: a box for each task with its steps; dotted lines are feedback."""
    plan = Plan(graph)
    lines = ["flowchart LR"]
    for vertex in plan.job.vertices:
        number = plan.number(vertex.id)
        title = _quoted(f"task {number}: {plan.task_text(vertex)}")
        lines.append(f"  subgraph task{number}[{title}]")
        for node in vertex.nodes:
            told = filter(None, [node.name, node.description, ", ".join(facts(node))])
            label = _quoted("\n".join(told))
            left, right = ("[(", ")]") if node.step.stateful else ("[", "]")
            lines.append(f"    n{node.id}{left}{label}{right}")
        lines.append("  end")
    inner = {edge.id for vertex in plan.job.vertices for edge in vertex.inner_edges}
    for edge in graph.edges:
        how = edge_text(edge, graph.node(edge.target))
        if edge.id not in inner:
            how += f"\n{format_of(graph, edge)}"
        ends = f"n{edge.source}", f"n{edge.target}"
        if edge.feedback:
            lines.append(f"  {ends[0]} -. {_quoted(how)} .-> {ends[1]}")
        elif edge.id in inner and edge.tag is None:
            lines.append(f"  {ends[0]} --> {ends[1]}")
        else:
            text = f"side output {edge.tag.name!r}" if edge.id in inner and edge.tag else how
            lines.append(f"  {ends[0]} -- {_quoted(text)} --> {ends[1]}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text escaped for Mermaid."""
    for character, code in (
        ("#", "#35;"),
        ('"', "#quot;"),
        ("<", "#lt;"),
        (">", "#gt;"),
        ("`", "#96;"),
        ("\\", "#92;"),
    ):
        # The codes have a '#' of their own, so that one is replaced first.
        text = text.replace(character, code)
    return '"' + "<br/>".join(text.splitlines()) + '"'
