"""Where a pipeline begins, ends, and comes back to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sluiceway.connector import Sink, Source
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.steps.base import Step

__all__ = ["IterationHeadStep", "SinkStep", "SourceStep"]


@dataclass(frozen=True)
class SourceStep(Step):
    """Reads a source, and says how far event time has come, if there is a strategy for that."""

    source: Source[Any]
    strategy: WatermarkStrategy[Any] | None = None
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True

    @property
    def skips(self) -> bool:  # type: ignore[override]
        """Return whether records can be undecodable, or a timestamp assigner can raise."""
        assigns = self.strategy is not None and self.strategy.assigner is not None
        return assigns or self.source.rejects_records

    def output_type(self, *entering: Any) -> Any:
        """What the source says."""
        return self.source.output_type


@dataclass(frozen=True)
class IterationHeadStep(Step):
    """Where a feedback loop begins: passes on its input and what comes back on its feedback edges."""

    kind: ClassVar[str] = "iterate"

    def output_type(self, *entering: Any) -> Any:
        """What comes in goes out."""
        return entering[0]


@dataclass(frozen=True)
class SinkStep(Step):
    """Writes to a sink."""

    sink: Sink[Any]
    kind: ClassVar[str] = "sink"

    def wanted_types(self, port: int = 0) -> list[Any]:
        """What the sink says."""
        return [self.sink.input_type]
