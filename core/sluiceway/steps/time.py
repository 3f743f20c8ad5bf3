"""Step of timestamps and watermarks."""

from __future__ import annotations

from typing import Any, ClassVar

from sluiceway.eventtime import TimestampAssigner, WatermarkStrategy
from sluiceway.steps.base import Step
from sluiceway.types import parameter_type
from sluiceway.util.overriding import override

__all__ = ["TimestampsStep"]


class TimestampsStep(Step, frozen=True):
    """Step that assigns event times, and emits its own watermarks instead of those of its input."""

    strategy: WatermarkStrategy[Any]
    kind: ClassVar[str] = "timestamps"
    skips: ClassVar[bool] = True

    @property
    def function(self) -> object | None:
        """Timestamp assigner, or None."""
        return self.strategy.assigner

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the record type that the assigner takes."""
        assigner = self.strategy.assigner
        if assigner is None:
            return []
        method = "extract_timestamp" if isinstance(assigner, TimestampAssigner) else None
        return [parameter_type(assigner, 0, method)]

    @override
    def output_type(self, *entering: Any) -> Any:
        return entering[0]
