"""Plan of a transform: the graph of its pipeline, checked, with one subtask for the steps in the partitions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Final

from msgspec.structs import replace as replace_struct

from sluiceway import Pipeline
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import GraphError
from sluiceway.functions import CheckpointedFunction
from sluiceway.graph import JobGraph
from sluiceway.graph.check.pipeline import refuse
from sluiceway.plugins import default_manager
from sluiceway.runtime.messages.pickling import check_shippable
from sluiceway.runtime.microbatch.run_directory import new_run
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.steps import AsyncStep, SinkStep, SourceStep, TimestampsStep
from sluiceway.streamgraph import ChainingStrategy, StreamGraph, StreamNode
from sluiceway_spark.frames.capabilities import batch, stream
from sluiceway_spark.frames.endpoints import FrameSink, FrameSource

__all__ = ["plan_of", "shape_of"]

_BATCH: Final = 4096
"""Records at a time: nobody waits for them, and each batch has its price."""


def plan_of(
    flow: Pipeline, settings: Settings, source: FrameSource, *, keyed_subtasks: int | None
) -> tuple[SteppedPlan, Services]:
    """Return the plan of a pipeline, and what plugins give for it.

    Args:
        flow: the pipeline.
        settings: options of the run.
        source: where the rows enter.
        keyed_subtasks: subtasks of keyed steps, at the least; None: one for each key group.

    Raises:
        GraphError: the pipeline cannot run here, or cannot be sent to Spark's workers; names the steps.
    """
    manager = default_manager()
    manager.register_serializers()
    services = manager.services()
    graph = flow.graph(settings)
    _check_ends(graph, source)
    refuse(graph, settings, stream() if source.streams else batch())
    # Every chain that the program breaks would be a shuffle.
    nodes = tuple(replace_struct(node, chaining=ChainingStrategy.ALWAYS) for node in graph.nodes)
    settings = replace(settings, batch_size=_BATCH)
    plan = SteppedPlan.of(replace(graph, nodes=nodes), settings, services, keyed_subtasks=keyed_subtasks)
    plan = _entered_by_one(plan, settings)
    _check_entry(plan, streams=source.streams)
    check_shippable(plan.graph)
    return plan, services


def shape_of(plan: SteppedPlan) -> str:
    """Return a hash of what the state of a plan depends on: steps, subtasks, key groups and inputs."""
    vertices = [asdict(vertex) for vertex in new_run(plan, "spark", 0, 0).vertices]
    for vertex in vertices:
        del vertex["name"]
    return hashlib.blake2b(json.dumps(vertices).encode(), digest_size=8).hexdigest()


def _entered_by_one(plan: SteppedPlan, settings: Settings) -> SteppedPlan:
    """Return the plan with one subtask for the steps in the partitions, of which there may be any number.

    To all that come behind them they are one sender, which each of them plays for its part.
    """
    vertices = tuple(
        replace_struct(
            vertex,
            parallelism=1,
            nodes=tuple(replace_struct(node, parallelism=1) for node in vertex.nodes),
        )
        if vertex.id in plan.sources
        else vertex
        for vertex in plan.graph.vertices
    )
    graph = plan.graph
    return SteppedPlan(JobGraph(graph.job_name, vertices, graph.edges, graph.serializers), settings)


def _check_ends(graph: StreamGraph, source: FrameSource) -> None:
    """Refuse sources and sinks of the pipeline's own."""
    for node in graph.nodes:
        step = node.step
        if isinstance(step, SourceStep) and step.source is not source:
            raise GraphError(
                f"{_who(node)}: a transform reads its DataFrame and no source of its own: join what else is to be "
                "read before it, with Spark"
            )
        if isinstance(step, SinkStep) and not isinstance(step.sink, FrameSink):
            raise GraphError(
                f"{_who(node)}: a transform has no sink of its own: it returns a DataFrame. Write that, with "
                "df.write or df.writeStream, which have a format 'sluiceway' for sinks"
            )


def _check_entry(plan: SteppedPlan, *, streams: bool) -> None:
    """Refuse state where rows enter: a partition is there for one micro-batch alone."""
    (entry,) = plan.sources
    for node in plan.graph.vertex(entry).nodes:
        step = node.step
        has_state = any(isinstance(function, CheckpointedFunction) for function in step.functions)
        has_state |= step.stateful and not isinstance(step, (SourceStep, TimestampsStep, AsyncStep))
        if step.keyed or (streams and has_state):
            raise GraphError(
                f"{_who(node)}: steps before the first key_by() run anew in each partition of each "
                "micro-batch, and this one has state: put a key_by() before it"
            )


def _who(node: StreamNode) -> str:
    return f"{node.name!r} ({node.location})" if node.location else repr(node.name)
