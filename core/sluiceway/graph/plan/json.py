"""A plan for programs to read.

The format is versioned: within version 1 fields are only ever added.

    {"version": 1, "job": name, "chaining": bool, "slots": {group: count},
     "tasks": [{"id", "name", "uid", "parallelism", "max_parallelism", "slot_sharing_group", "steps": [id]}],
     "steps": [{"id", "task", "uid", "uid_given", "name", "description", "kind", "parallelism",
                "max_parallelism", "slot_sharing_group", "co_location_group", "chaining", "buffer_timeout_ms",
                "stateful", "boundedness", "output_type", "location", "settings": {name: value}}],
     "edges": [{"id", "source", "target", "port", "partitioner", "key", "columns", "side_output", "feedback",
                "chained", "distribution", "serializer": {"name", "version", "encoding"}}]}

``settings`` has what is set of a step beyond its function, such as ``trigger``, ``allowed_lateness_ms``,
``bounds_ms``, or ``time_to_live_ms`` by names of states, where descriptors can be seen without calling
anything. ``source`` and ``target`` of an edge are ids of steps. ``boundedness`` is ``bounded`` or
``unbounded`` for a source. ``port`` is the input of the target, 0 or 1. ``distribution`` is ``pointwise`` or
``all-to-all``, null for a chained edge; so is ``serializer``, which says what records go through where they go
to another process: ``encoding`` is ``plain``, ``columns`` or ``pickle`` for records of the declared type,
``content`` where none is declared, ``registered`` for a plugin's or the program's own serializer, ``arrow`` for
rows in columns. ``columns`` has those that rows are sent with, null for all. What is not known is null.
"""

from __future__ import annotations

import json
from typing import Any

from sluiceway.graph.job_graph import slots_required
from sluiceway.graph.plan.model import Plan, boundedness, format_of, given_text, key_text
from sluiceway.graph.plan.settings import settings_of
from sluiceway.streamgraph import StreamEdge, StreamGraph, StreamNode

__all__ = ["explain_json"]


def explain_json(graph: StreamGraph) -> str:
    """Return the plan as a JSON document; see the module's text for the format."""
    plan = Plan(graph)
    exchanged = {edge.id: edge for edge in plan.job.edges}
    document = {
        "version": 1,
        "job": graph.job_name,
        "chaining": graph.chaining,
        "slots": slots_required(plan.job),
        "tasks": [
            {
                "id": vertex.id,
                "name": vertex.name,
                "uid": vertex.uid,
                "parallelism": vertex.parallelism,
                "max_parallelism": vertex.max_parallelism,
                "slot_sharing_group": vertex.slot_sharing_group,
                "steps": [node.id for node in vertex.nodes],
            }
            for vertex in plan.job.vertices
        ],
        "steps": [_step(node, plan.job.vertex_of(node.id).id) for node in graph.nodes],
        "edges": [
            _edge(graph, edge, exchanged[edge.id].distribution.value if edge.id in exchanged else None)
            for edge in graph.edges
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _step(node: StreamNode, task: int) -> dict[str, Any]:
    bounds = boundedness(node)
    return {
        "id": node.id,
        "task": task,
        "uid": node.uid,
        "uid_given": node.uid_given,
        "name": node.name,
        "description": node.description,
        "kind": node.step.kind,
        "parallelism": node.parallelism,
        "max_parallelism": node.max_parallelism,
        "slot_sharing_group": node.slot_sharing_group,
        "co_location_group": node.co_location_group,
        "chaining": node.chaining.value,
        "buffer_timeout_ms": node.buffer_timeout_ms,
        "stateful": node.step.stateful,
        "boundedness": None if bounds is None else bounds.value,
        "output_type": given_text(node),
        "location": node.location or None,
        "settings": settings_of(node.step),
        "on_error": "skip" if node.skips_errors else "fail",
        "max_dead_letters": node.max_dead_letters if node.skips_errors else None,
    }


def _edge(graph: StreamGraph, edge: StreamEdge, distribution: str | None) -> dict[str, Any]:
    made = format_of(graph, edge)
    serializer = {"name": made.name, "version": made.version, "encoding": made.encoding}
    return {
        "id": edge.id,
        "source": edge.source,
        "target": edge.target,
        "port": edge.port,
        "partitioner": edge.partitioner.name,
        "key": key_text(edge),
        "columns": None if edge.partitioner.columns is None else list(edge.partitioner.columns),
        "side_output": None if edge.tag is None else edge.tag.name,
        "feedback": edge.feedback,
        "chained": distribution is None,
        "distribution": distribution,
        "serializer": None if distribution is None else serializer,
    }
