"""The sink at the end of a chain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluiceway.connector import SinkWriter, Wait, WriterContext
from sluiceway.elements import Batch, Element, LatencyMarker, Watermark
from sluiceway.faults import record_loop
from sluiceway.operators.base import Operator, OperatorContext, OperatorSnapshot
from sluiceway.steps import SinkStep

__all__ = ["SinkOperator"]


class SinkOperator(Operator):
    """Drives a sink writer by its protocol: nothing is written while it is blocked."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, SinkStep)
        self._sink = step.sink
        self._writer: SinkWriter[Any] | None = None
        self._dirty = False
        self.records = 0

    def initialize_state(self, restored: list[OperatorSnapshot]) -> None:
        """Make the writer, which may have state."""
        context = self.context
        self._writer = self._sink.create_writer(
            WriterContext(
                subtask=context.subtask,
                parallelism=context.node.parallelism,
                clock=context.clock,
                wake=context.wake,
                metrics=context.metrics,
            )
        )

    def checkpointed(self, context: OperatorContext) -> Iterable[object]:
        """The writer."""
        return (self._writer,)

    def open(self) -> None:
        """Open the writer."""
        assert self._writer is not None
        self._writer.open()

    @record_loop
    def process(self, batch: Batch[Any]) -> None:
        """Write the batch."""
        assert self._writer is not None
        self._dirty = True
        self.records += len(batch.values)
        self._writer.write(batch.values, batch.timestamps)

    def control(self, element: Element) -> None:
        """Markers end here, and watermarks."""
        if type(element) is Watermark:
            self.current_watermark = element.timestamp
        elif type(element) is LatencyMarker:
            self.record_latency(element)

    def blocked(self) -> Wait | None:
        """What the writer waits for."""
        return None if self._writer is None else self._writer.blocked()

    def idle(self) -> None:
        """Flush once, when input runs dry after a write."""
        if self._dirty and self._writer is not None and self._writer.blocked() is None:
            self._dirty = False
            self._writer.flush()

    def finish(self) -> None:
        """Hand everything on to the outside."""
        assert self._writer is not None
        self._dirty = False
        self._writer.finish()

    def close(self) -> None:
        """Close the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
