"""Batch reader of the data source ``sluiceway``: ``spark.read``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluiceway.clock import SystemClock
from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.connector.products import are_records, wrong_poll
from sluiceway.runtime.microbatch.batch_reader import LiveReader, raise_rejected
from sluiceway.runtime.microbatch.driven_enumerator import Dealt, check_all_received, deal_splits
from sluiceway_spark.datasource.lazy_pickle import Shipped
from sluiceway_spark.datasource.read_options import SourceTold
from sluiceway_spark.datasource.records_to_rows import Tables

__all__ = ["ROWS", "SourceBatchReader", "tables_of"]

ROWS: Final = 16_384
"""Records in a batch of Arrow's, at the most."""

_LOOK_S: Final = 3600.0


class SourceBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reader of a bounded source, with as many tasks as readers."""

    def __init__(self, told: SourceTold, schema: Any, search_path: tuple[str, ...]) -> None:
        self._told = Shipped(told, search_path)
        self._schema = schema
        self._search_path = search_path

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each reader that has splits."""
        told = self._told.get()
        dealt = enumerate(deal_splits(told.source, told.readers))
        return [self._part(reader, mine) for reader, mine in dealt if mine.first or mine.answers]

    def _part(self, reader: int, dealt: Dealt) -> InputPartition:
        return InputPartition(Shipped((reader, dealt), self._search_path))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return all records of a reader. Raises the exception of one that cannot be decoded."""
        if partition.value is None:  # what Spark makes of no partitions at all
            return
        number, dealt = partition.value.get()
        told, clock = self._told.get(), SystemClock()
        tables = tables_of(told, self._schema)
        live = LiveReader(told.source, number, told.readers, clock, dealt.first)
        left = deque(dealt.answers)
        try:
            while True:
                # As they are requested: all at once may be more files than a reader can have open.
                if left and live.asked:
                    live.give(left.popleft())
                if not left:
                    live.give((), no_more=True)
                result = live.reader.poll(ROWS)
                raise_rejected(live.reader)
                if result is END_OF_INPUT:
                    check_all_received(told.source.name, number, told.readers, left)
                    return
                if isinstance(result, Wait):
                    if left and (live.asked or not live.snapshot()):
                        live.give(left.popleft())
                        continue
                    live.waiter.sleep(result, clock.monotonic() + _LOOK_S)
                elif are_records(result):
                    yield tables.of(result)
                else:
                    raise wrong_poll(result, told.source)
        finally:
            live.close()


def tables_of(told: SourceTold, schema: Any) -> Tables:
    """Return a converter of the source's records to batches with Spark's schema. Raises ConfigurationError."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 it has no such argument, and times are in UTC.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    arrow = to_arrow_schema(schema, **zone)
    return Tables(arrow, told.source.output_type, told.timestamp, f"source {told.source.name}")
