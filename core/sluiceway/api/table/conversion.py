"""Conversion of a stream of records into one in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.schemas import schema_of
from sluiceway.config.settings import Settings
from sluiceway.errors import GraphError, SluicewayError
from sluiceway.graph import InputRef, Transformation
from sluiceway.steps import ToColumnsStep
from sluiceway.types import type_name

__all__ = ["columns_of"]


def columns_of(stream: DataStream[Any], of: Any) -> TableStream:
    """Return a stream of the records in columns: see :meth:`DataStream.to_columns`."""
    known = _record_type(stream)
    if of is None:
        of = known
    # The columns of a record batch are known when it is there, which is too late for the steps behind.
    if of is None or of is pa.RecordBatch:
        has = "are record batches" if of is pa.RecordBatch else "have no type that is known"
        raise GraphError(
            f"to_columns() at {caller_location()}: the records {has}: give a pyarrow.Schema"
            + ("" if of is pa.RecordBatch else ", or a class with the fields, as in to_columns(Order)")
        )
    try:
        schema = schema_of(of)
    except SluicewayError as error:
        raise GraphError(f"to_columns({type_name(of)}) at {caller_location()}: {error}") from None
    step = ToColumnsStep(schema, batches=None if known is None else known is pa.RecordBatch)
    t = stream._pipeline._add(step, stream._inputs)
    return TableStream(stream._pipeline, (InputRef(t),), schema, "to_columns()")


def _record_type(stream: DataStream[Any]) -> Any:
    """Return the type of a stream's records as far as hints say."""
    # The inputs of a step in the graph have types without hints, too: filter() passes on that of its input, and
    # late records have that of what enters their window.
    step = ToColumnsStep(None)
    reader = Transformation(step, [InputRef(ref.upstream, ref.tag) for ref in stream._inputs])
    graph = stream._pipeline._unfinished_graph(Settings(), reader)
    here = next(node.id for node in graph.nodes if node.step is step)
    types = {
        graph.node(edge.source).output_type if edge.tag is None else edge.tag.type
        for edge in graph.edges
        if edge.target == here
    }
    return types.pop() if len(types) == 1 else None
