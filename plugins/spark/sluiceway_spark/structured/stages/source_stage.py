"""Source stage of a streaming query: all sources of a job as one data source of Spark."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

# Before a query begins Spark starts processes that only ask for schemas and readers, and waits for them: what does
# the work is imported when there is some.
from sluiceway_spark.structured.row_format import SCHEMA, to_batches

if TYPE_CHECKING:
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured.microbatch.planning import SourcePlanning

__all__ = ["FORMAT", "source_rows"]

FORMAT: Final = "sluiceway-sources"
"""Name of the data source in Spark."""


def source_rows(spark: Any, shipped: bytes, directory: str, limits: BatchLimits | None = None) -> Any:
    """Return the rows of all sources of a job as a streaming DataFrame.

    In each batch there is at least one row by each channel out of a source. A batch is read until each reader has
    nothing more for now or has reached its limit. When all sources have ended there are no further batches, and
    while nothing comes and nothing is due there are none, either.

    Args:
        spark: the session.
        shipped: the plan and the services, as ``stages.ship`` makes them.
        directory: of the job, beside Spark's checkpoint; executors see it, too.
        limits: how much a batch is to be.
    """
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured.microbatch.source_spec import SourceStage

    place = directory if "://" in directory else os.path.abspath(os.path.expanduser(directory))
    stage = SourceStage(shipped, place, limits or BatchLimits(), tuple(sys.path))

    class Sources(SourceData):  # a class of a function goes to Python workers with what it holds
        stage_bytes = cloudpickle.dumps(stage)

    spark.dataSource.register(Sources)
    return spark.readStream.format(FORMAT).load()


class SourceData(DataSource):  # type: ignore[misc]
    """Data source of all sources of one job. Made by :func:`source_rows`."""

    stage_bytes: bytes

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return FORMAT

    def schema(self) -> str:
        """Schema of the rows."""
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Plans batches in the driver and reads them in Python workers."""
        return _StageReader(self.stage_bytes)


class _StageReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, stage: bytes) -> None:
        self._bytes = stage
        self._open: SourcePlanning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_bytes": self._bytes, "_open": None}

    # -- in the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"run": uuid4().hex, "batch": 0}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        try:
            return self._planning(start["run"]).next(start)
        except Exception as error:
            raise _sent(error) from None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        try:
            return [InputPartition(part) for part in self._planning(end["run"]).partitions(int(end["batch"]))]
        except Exception as error:
            raise _sent(error) from None

    def commit(self, end: dict[str, Any]) -> None:
        try:
            self._planning(end["run"]).committed(int(end["batch"]))
        except Exception as error:
            raise _sent(error) from None

    def stop(self) -> None:
        planning, self._open = self._open, None
        if planning is not None:
            planning.close()

    def _planning(self, run: str) -> SourcePlanning:
        if self._open is None:
            from sluiceway_spark.structured.microbatch.planning import SourcePlanning

            self._open = SourcePlanning(pickle.loads(self._bytes), run)
        return self._open

    # -- in a Python worker ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from sluiceway_spark.structured.microbatch.reading import read_part

        return to_batches(read_part(pickle.loads(self._bytes), partition.value))


def _sent(error: Exception) -> Exception:
    from sluiceway_spark.structured.stages.batch_tasks import sent

    return sent(error)
