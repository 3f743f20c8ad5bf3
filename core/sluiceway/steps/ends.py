"""Sources, sinks, and heads of feedback loops."""

from __future__ import annotations

from typing import Any, ClassVar

from sluiceway.connector import Sink, Source
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.steps.base import Step
from sluiceway.util.overriding import override

__all__ = ["IterationHeadStep", "SinkStep", "SourceStep"]


class SourceStep(Step, frozen=True):
    """Step that reads a source, and emits watermarks if it has a strategy.

    Attributes:
        source: the source.
        strategy: the watermark strategy; None: no watermarks but at the end.
        pushed: what the source leaves out because no step needs it, for plans; empty: nothing.
    """

    source: Source[Any]
    strategy: WatermarkStrategy[Any] | None = None
    pushed: str = ""
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True

    @property
    def skips(self) -> bool:  # type: ignore[override]
        """Return whether records can be undecodable, or a timestamp assigner can raise."""
        assigns = self.strategy is not None and self.strategy.assigner is not None
        return assigns or self.source.rejects_records

    def output_type(self, *entering: Any) -> Any:
        """Return the record type that the source declares."""
        return self.source.output_type


class IterationHeadStep(Step, frozen=True):
    """Head of a feedback loop: passes on records of its input and of its feedback edges."""

    kind: ClassVar[str] = "iterate"

    @override
    def output_type(self, *entering: Any) -> Any:
        return entering[0]


class SinkStep(Step, frozen=True):
    """Step that writes to a sink."""

    sink: Sink[Any]
    kind: ClassVar[str] = "sink"

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the record type that the sink declares."""
        return [self.sink.input_type]
