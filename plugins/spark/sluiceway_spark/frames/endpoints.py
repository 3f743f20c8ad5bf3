"""Source and sink that stand for the DataFrames at both ends of a pipeline, and the reader of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    Sink,
    SinkWriter,
    Source,
    Wait,
    WriterContext,
)
from sluiceway.elements import ROWS_PER_RECORD, Batch
from sluiceway.errors import NotBuiltYetError
from sluiceway.util.overriding import override
from sluiceway_spark.conversion.arrow_to_records import record_type
from sluiceway_spark.datasource.rows_to_records import Rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FrameSink", "FrameSource", "PartitionReader"]


@dataclass(frozen=True)
class FrameSource(Source[Any]):
    """Rows of the DataFrame that enters. Spark reads them: it is no source for an engine.

    Attributes:
        rows: form of the records.
        streams: whether the DataFrame is a streaming one.
        schema: Arrow's, of rows that enter in columns; None: they enter as records.
    """

    rows: Rows
    streams: bool
    schema: Any = None

    @property
    @override
    def name(self) -> str:
        return "DataFrame"

    @property
    def boundedness(self) -> Boundedness:
        """Boundedness of the DataFrame."""
        return Boundedness.UNBOUNDED if self.streams else Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Type of the records, where it is known."""
        return None if isinstance(self.rows.records, str) else record_type(self.rows.records)

    @property
    def gives_timestamps(self) -> bool:
        """True if a column holds event times."""
        return self.rows.timestamp is not None

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return itself and the schema, where rows enter in columns."""
        return None if self.schema is None else (self, self.schema)

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Refuse: Spark plans the reading."""
        _refuse()

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Refuse: Spark reads."""
        _refuse()


@dataclass(frozen=True)
class FrameSink(Sink[Any]):
    """Rows of the DataFrame that ``transform`` returns. Spark takes them: it is no sink for an engine."""

    @property
    @override
    def name(self) -> str:
        return "DataFrame"

    @property
    def follows_input(self) -> bool:
        """True: results keep the order in which a subtask gives them."""
        return True

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Refuse: Spark takes the rows."""
        _refuse()


def _refuse() -> NoReturn:
    raise NotBuiltYetError("the pipeline of a transform() runs inside a query of Spark, not by itself")


class PartitionReader(Reader[Any]):
    """Reader of the rows of one partition, as Spark gives them to a Python worker.

    Args:
        batches: the rows as Arrow batches.
        convert: yields records of them, with event times if there are any.
        ends: whether the input ends with the partition; a partition of a micro-batch does not end it.

    Attributes:
        over: whether all rows were read.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        convert: Callable[[Iterable[pa.RecordBatch]], Iterator[Batch[Any]]],
        *,
        ends: bool,
    ) -> None:
        self.over = False
        self._converted = convert(batches)
        self._ends = ends
        self._rest: Batch[Any] = Batch([])
        self._at = 0

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Do nothing: the partition is the only split."""

    def no_more_splits(self) -> None:
        """Do nothing: the partition is the only split."""

    def poll(self, limit: int) -> Poll[Any]:
        """Return up to ``limit`` records of the partition."""
        while self._at >= len(self._rest.values):
            found = None if self.over else next(self._converted, None)
            if found is None:
                self.over = True
                return END_OF_INPUT if self._ends else Wait()
            self._rest, self._at = found, 0
        if self._rest.columns is not None:
            limit *= ROWS_PER_RECORD
        start, self._at = self._at, self._at + limit
        times = self._rest.timestamps
        return Batch(self._rest.values[start : self._at], None if times is None else times[start : self._at])

    def snapshot(self) -> list[Any]:
        """Return no splits: a partition is read once."""
        return []

    def close(self) -> None:
        """Do nothing: Spark closes what it opened."""
