"""Stream reader of the data source ``sluiceway``: ``spark.readStream``. Needs PySpark 4.2 or later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.errors import ConfigurationError
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import BatchReader, ReaderCache
from sluiceway.runtime.microbatch.planner import BatchPlanner
from sluiceway.runtime.microbatch.spooled_source import readable
from sluiceway_spark.datasource.batch_reader import ROWS, tables_of
from sluiceway_spark.datasource.lazy_pickle import Shipped
from sluiceway_spark.datasource.named_objects import storage_at
from sluiceway_spark.datasource.read_options import SourceTold

__all__ = ["SourceStreamReader"]

_MOST_SAID: Final = 64
"""Number of splits whose positions an offset shows; it is written into Spark's log with each batch."""

# Readers of this Python worker that are open between batches.
_readers: Final = ReaderCache()


class SourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reader of a source in micro-batches, which plans in the driver and reads in Python workers."""

    def __init__(self, told: SourceTold, schema: Any, search_path: tuple[str, ...]) -> None:
        self._told = Shipped(told, search_path)
        self._schema = schema
        self._search_path = search_path
        self._place = told.place()
        self._planner: BatchPlanner | None = None
        self._first_run = uuid4().hex
        self._run = ""
        self._now = False
        self._since: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    # -- in the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Before the first batch of a run that has files of its own."""
        # Spark asks again when it plans and runs the first batch: that must be the same run.
        return {"run": self._first_run, "batch": 0}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Batches have limits of their own."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop where there is nothing more for now."""
        self._now = True

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Plan the batch behind ``start``; the same if there is nothing to do for now."""
        batch = int(start["batch"])
        if self._now and self._since is None:
            self._since = batch
        planner = self._plans(start["run"])
        plan = planner.plan(batch + 1, dry_since=self._since)
        if plan is None:
            return start
        end: dict[str, Any] = {"run": start["run"], "batch": batch + 1}
        positions = planner.positions(batch + 1)
        if len(positions) <= _MOST_SAID:
            end["from"] = positions
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each reader that has something to do."""
        run, batch = end["run"], int(end["batch"])
        if int(start["batch"]) == batch:
            # Spark's first batch, for which there was nothing; if it is repeated, from the start of another run.
            return []
        if int(start["batch"]) != batch - 1:
            raise ConfigurationError(
                f"format 'sluiceway' reads batch by batch; Spark asks for {start['batch']} to {batch} at once"
            )
        works = self._plans(run).work(batch)
        return [InputPartition(Shipped((run, work), self._search_path)) for work in works]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with a batch."""
        self._plans(end["run"]).committed(int(end["batch"]))

    def stop(self) -> None:
        """Free resources: the query has ended."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _plans(self, run: str) -> BatchPlanner:
        if self._planner is None or self._run != run:
            self.stop()
            told, files = self._told.get(), self._files(run)
            self._run = run
            self._planner = BatchPlanner(
                told.source, files, files.readers(told.readers), limits=told.limits, reads_what_is_left=True
            )
        return self._planner

    def _files(self, run: str) -> BatchLog:
        return BatchLog(storage_at(self._place), run)

    # -- in a Python worker ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one reader in one batch. The last ones come when it is laid down what was read."""
        run, work = partition.value.get()
        told = self._told.get()
        files = self._files(run)
        tables = tables_of(told, self._schema)
        reader = BatchReader(readable(told.source, files), work, files, cache=_readers, program=self._told.digest)
        held: Any = None
        try:
            reader.start()
            while not isinstance(result := reader.poll(ROWS), Wait) and result is not END_OF_INPUT:
                if held is not None:
                    yield held
                held = tables.of(result)
            reader.finish()
            if held is not None:
                yield held
        finally:
            reader.close()
