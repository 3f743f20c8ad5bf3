"""Checks of whether steps of event time will receive timestamps and watermarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sluiceway.connector import Boundedness
from sluiceway.eventtime import NoWatermarks, WatermarkStrategy
from sluiceway.graph.findings import Finding, Level
from sluiceway.steps import (
    ColumnJoinStep,
    ColumnOverStep,
    ColumnWindowStep,
    FilterStep,
    FlatMapStep,
    KeyedAggregateStep,
    KeyedReduceStep,
    MapStep,
    SourceStep,
    TimestampsStep,
    WindowStep,
    without_timestamps,
)
from sluiceway.streamgraph import StreamEdge, StreamGraph, StreamNode

__all__ = ["check_order_of_watermarks", "check_timestamps", "check_watermarks"]

_OF_TIME: Final = (ColumnJoinStep, ColumnOverStep, ColumnWindowStep, WindowStep)
_KEEP_TIMESTAMPS: Final = (FilterStep, FlatMapStep, KeyedAggregateStep, KeyedReduceStep, MapStep)
_SIDES: Final = ("left", "right")
"""Inputs of a join, by port."""


def check_watermarks(
    graph: StreamGraph, node: StreamNode, entering: Mapping[int, Sequence[StreamEdge]]
) -> Iterator[Finding]:
    """Look upstream of a step for a watermark strategy. A bounded source needs none: it ends with one.

    Args:
        graph: the whole graph.
        node: the step.
        entering: the edges into each step, by its id.
    """
    if not node.step.event_time:
        return
    seen: set[int] = set()
    upstream = [edge.source for edge in entering[node.id]]
    while upstream:
        id_ = upstream.pop(0)
        step = graph.node(id_).step
        if id_ in seen or (isinstance(step, SourceStep | TimestampsStep) and _makes_watermarks(step.strategy)):
            continue
        seen.add(id_)
        upstream += [edge.source for edge in entering[id_]]
        if isinstance(step, SourceStep) and step.source.boundedness is Boundedness.UNBOUNDED:
            source = graph.node(id_)
            yield Finding(
                Level.WARNING,
                "no-watermarks",
                f"{_label(node)} waits for event time to advance, which it never does: no watermarks are emitted "
                f"by {_label(source)}, and it never ends. Give the source a watermark_strategy=, or put"
                " assign_timestamps_and_watermarks() in between",
                node.name,
                node.location,
            )


def check_order_of_watermarks(
    graph: StreamGraph, node: StreamNode, entering: Mapping[int, Sequence[StreamEdge]]
) -> Iterator[Finding]:
    """Look upstream of a step that makes watermarks for records whose order depends on the load.

    Args:
        graph: the whole graph.
        node: the step.
        entering: the edges into each step, by its id.
    """
    if not (isinstance(node.step, TimestampsStep) and _makes_watermarks(node.step.strategy)):
        return
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here.id in seen:
            continue
        seen.add(here.id)
        edges = entering[here.id]
        sources = [graph.node(edge.source) for edge in edges]
        mixed = "several inputs" if len(edges) > 1 else ""
        if not mixed and edges and edges[0].partitioner.name != "forward" and sources[0].parallelism > 1:
            mixed = f"the {sources[0].parallelism} subtasks of {_label(sources[0])}"
        if mixed:
            yield Finding(
                Level.WARNING,
                "watermarks-of-mixed-records",
                f"{_label(node)} makes watermarks by the order of its records. {_label(here)} receives them from "
                f"{mixed}, in an order that depends on the load: more of them or fewer are late and dropped by "
                "windows and joins behind it. Assign event times at the sources, of which records keep them, or "
                "give late records a side output",
                node.name,
                node.location,
            )
            return
        waiting += sources


def check_timestamps(
    graph: StreamGraph, node: StreamNode, entering: Mapping[int, Sequence[StreamEdge]]
) -> Iterator[Finding]:
    """Look upstream of a step of event time for a source without timestamps that no step assigns.

    Only steps that keep timestamps are passed: others may set them.

    Args:
        graph: the whole graph.
        node: the step.
        entering: the edges into each step, by its id.
    """
    if not (isinstance(node.step, _OF_TIME) and node.step.event_time):
        return
    seen: set[int] = set()
    upstream = [(edge.source, edge.port) for edge in entering[node.id]]
    while upstream:
        id_, port = upstream.pop()
        step = graph.node(id_).step
        if id_ in seen:
            continue
        seen.add(id_)
        if isinstance(step, _KEEP_TIMESTAMPS):
            upstream += [(edge.source, port) for edge in entering[id_] if edge.tag is None]
        elif isinstance(step, SourceStep) and step.strategy is None and not step.source.gives_timestamps:
            has_sides = isinstance(node.step, ColumnJoinStep)
            records = f"the records of its {_SIDES[port]} input" if has_sides else "its records"
            message = without_timestamps(_label(node), records)
            yield Finding(Level.ERROR, "no-timestamps", message, node.name, node.location)
            return


def _makes_watermarks(strategy: WatermarkStrategy[Any] | None) -> bool:
    return strategy is not None and strategy.generator is not NoWatermarks


def _label(node: StreamNode) -> str:
    return f"{node.name!r} ({node.location})" if node.location else repr(node.name)
