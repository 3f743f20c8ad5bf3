"""Stateful stage of a streaming transform, in a query of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sluiceway.util.overriding import override

# As there: Spark waits 10 s for a process that only asks what state there is, and imports this.
from sluiceway_spark.structured.stages.large_plans import PlanFile
from sluiceway_spark.structured.stages.stateful_stage import StageProcessor

__all__ = ["FrameProcessor"]

_QUERY_ID: Final = "sql.streaming.queryId"
_SEQ: Final = 3


class FrameProcessor(StageProcessor):
    """Processor of one stage whose processing time comes with the rows, and whose state knows its pipeline.

    Args:
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        shipped: plan and services, from ``large_plans.in_message_or_file``.
        stage: the stage.
        shape: hash of what state depends on: steps, key groups and their order.
    """

    def __init__(self, path: Sequence[str], shipped: bytes | PlanFile, stage: int, shape: str) -> None:
        super().__init__("", path, shipped, stage)
        self._shape = shape

    @override
    def init(self, handle: Any) -> None:
        from pyspark import TaskContext

        super().init(handle)
        self._kept: Any = _OfPipeline(self._kept, self._shape)
        context = TaskContext.get()
        self._run = (None if context is None else context.getLocalProperty(_QUERY_ID)) or ""

    # Spark calls these by name of parameter.
    @override
    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,
    ) -> Iterator[Any]:
        from sluiceway_spark.frames.tasks import readable

        with readable():
            yield from super().handleInputRows(key, self._rows(rows), timerValues)

    def _rows(self, rows: Iterator[Any]) -> Iterator[Any]:
        from sluiceway_spark.frames.rows import time_in

        for row in rows:
            now_ms = time_in(row[_SEQ])
            if now_ms is not None:
                self._now_ms = now_ms
            yield row


class _OfPipeline:
    """State in Spark's store that belongs to one shape of pipeline, by what its token begins with."""

    def __init__(self, kept: Any, shape: str) -> None:
        self._kept = kept
        self._shape = shape
        self.records = kept.records
        self.append = kept.append
        self.replace = kept.replace

    def token(self, *, is_there: bool) -> str | None:
        found: str | None = self._kept.token(is_there=is_there)
        if found is None:
            return None
        shape, _, token = found.partition(".")
        if shape != self._shape:
            from sluiceway.errors import StateError

            raise StateError(
                "the query's checkpoint was written by a pipeline with other steps, uids or key groups: go on "
                "with that one, whose functions may change, or name another checkpointLocation"
            )
        return token

    def set_token(self, token: str) -> None:
        self._kept.set_token(f"{self._shape}.{token}")
