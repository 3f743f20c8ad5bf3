"""Steps that say how far event time has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sluiceway.eventtime import TimestampAssigner, WatermarkStrategy
from sluiceway.steps.base import Step
from sluiceway.types import parameter_type

__all__ = ["TimestampsStep"]


@dataclass(frozen=True)
class TimestampsStep(Step):
    """Gives records their event times, and watermarks of its own in place of those that come in."""

    strategy: WatermarkStrategy[Any]
    kind: ClassVar[str] = "timestamps"
    skips: ClassVar[bool] = True

    @property
    def function(self) -> object | None:
        """What takes the timestamp from a record, if there is such a thing."""
        return self.strategy.assigner

    def wanted_types(self, port: int = 0) -> list[Any]:
        """What the assigner takes."""
        assigner = self.strategy.assigner
        if assigner is None:
            return []
        method = "extract_timestamp" if isinstance(assigner, TimestampAssigner) else None
        return [parameter_type(assigner, 0, method)]

    def output_type(self, *entering: Any) -> Any:
        """What comes in goes out."""
        return entering[0]
