"""Where a pipeline begins, ends, and comes back to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sluiceway.connector import Sink, Source
from sluiceway.steps.base import Step

__all__ = ["IterationHeadStep", "SinkStep", "SourceStep"]


@dataclass(frozen=True)
class SourceStep(Step):
    """Reads a source."""

    source: Source[Any]
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True

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
