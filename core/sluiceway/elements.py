"""Stream elements: batches of records, watermarks, barriers and other control elements.

A control element never stands inside a batch, so no loop over records checks a type.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "ROWS_PER_RECORD",
    "BarrierAnnouncement",
    "Batch",
    "CancelCheckpointMarker",
    "CheckpointBarrier",
    "Columns",
    "Element",
    "EndOfData",
    "EndOfPartition",
    "LatencyMarker",
    "Rejected",
    "TerminationProbe",
    "Watermark",
    "WatermarkStatus",
]

T = TypeVar("T")

MIN_WATERMARK: Final = -(2**63)
MAX_WATERMARK: Final = 2**63 - 1


ROWS_PER_RECORD: Final = 64
"""Rows of columns that count as one record where the option ``batch-size`` sizes batches.

A call of an Arrow kernel costs as much as some ten thousand rows do.
"""


class Columns(Sequence[dict[str, Any]]):
    """Rows of a batch, held as columns in an Arrow record batch.

    As a sequence it has the rows as dicts, so that code for records works on it. Each iteration makes new dicts:
    one may be changed without an effect on another consumer. A slice without a step shares the memory.

    Attributes:
        data: the rows, as a ``pyarrow.RecordBatch``. Arrow's data cannot be changed.
    """

    __slots__ = ("data",)

    def __init__(self, data: pa.RecordBatch) -> None:
        self.data = data

    def __len__(self) -> int:
        rows: int = self.data.num_rows
        return rows

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Columns: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Columns:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return Columns(self.data.slice(start, max(0, stop - start)))
            return Columns(self.data.take(list(range(start, stop, step))))
        at = range(len(self))[index]
        return self._dicts(self.data.slice(at, 1))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._dicts(self.data))

    @staticmethod
    def _dicts(data: pa.RecordBatch) -> list[dict[str, Any]]:
        from sluiceway.util.arrow_values import rows_as_dicts  # pyarrow is optional

        return rows_as_dicts(data)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Columns):
            return bool(self.data.equals(other.data))
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Columns({len(self)} rows of {', '.join(self.data.schema.names)})"


class Batch(Generic[T]):
    """Records that travel together.

    The lists are shared by reference between steps and must not be changed once the batch was emitted.

    Attributes:
        values: the records, a list; or :class:`Columns`, on the edges between steps of a ``TableStream``.
        timestamps: event times in ms, one per record, or None where the job uses none. A list; with
            :class:`Columns` an ``array("q")`` or a list.
        keys: the records' keys, one per record, where the sender has computed them already, or None.
    """

    __slots__ = ("_span", "keys", "timestamps", "values")

    def __init__(
        self, values: list[T], timestamps: list[int] | None = None, keys: list[Any] | None = None
    ) -> None:
        self.values = values
        self.timestamps = timestamps
        self.keys = keys
        self._span: tuple[int, int] | None = None

    @classmethod
    def of_columns(cls, data: pa.RecordBatch, timestamps: Sequence[int] | None = None) -> Batch[dict[str, Any]]:
        """Return a batch of rows in columns.

        Args:
            data: the rows.
            timestamps: event time of each in ms, preferably as an ``array("q")``.
        """
        values: Any = Columns(data)
        stamps: Any = timestamps
        return Batch(values, stamps)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> pa.RecordBatch | None:
        """Rows in columns; None if the batch has records."""
        values: Any = self.values
        return values.data if type(values) is Columns else None

    def part(self, start: int, end: int | None) -> Batch[T]:
        """Return the records from ``start`` up to ``end``, with their timestamps and keys."""
        of = slice(start, end)
        stamps, keys = self.timestamps, self.keys
        return Batch(self.values[of], None if stamps is None else stamps[of], None if keys is None else keys[of])

    def span(self) -> tuple[int, int]:
        """Return the lowest and the highest timestamp, computed once. Only where there are timestamps."""
        span = self._span
        if span is None:
            assert self.timestamps
            stamps: Any = self.timestamps
            if type(stamps) is array:
                import numpy as np  # a dependency of columns alone

                of_columns = np.frombuffer(stamps, np.int64)
                span = self._span = (int(of_columns.min()), int(of_columns.max()))
            else:
                span = self._span = (min(self.timestamps), max(self.timestamps))
        return span

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return self.values == other.values and self.timestamps == other.timestamps

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        stamped = "" if self.timestamps is None else f", timestamps={self.timestamps!r}"
        return f"Batch({self.values!r}{stamped})"


class Watermark(msgspec.Struct, frozen=True):
    """No record with a timestamp at or before ``timestamp`` (ms) is to be expected any more."""

    timestamp: int


class WatermarkStatus(msgspec.Struct, frozen=True):
    """Participation of a channel in the watermark of its receiver: active or idle."""

    active: bool


class LatencyMarker(msgspec.Struct, frozen=True):
    """A time stamp that travels with the data and never overtakes it.

    Attributes:
        emitted_at: monotonic seconds when the source sent it.
        source: uid of the source.
        subtask: index of the source's subtask.
    """

    emitted_at: float
    source: str
    subtask: int


class CheckpointBarrier(msgspec.Struct, frozen=True):
    """Boundary of checkpoint ``checkpoint_id`` in a stream: it covers the elements before, not the later ones.

    Attributes:
        checkpoint_id: the number of the checkpoint.
        timestamp_ms: when it was triggered, ms since the epoch.
        savepoint: path or URL of the savepoint's own directory; empty: it is no savepoint.
        stops: whether the job ends with it: tasks stand still behind it until it is complete.
        aligned_ms: for how long after ``timestamp_ms`` it keeps its place among the records. Then it overtakes
            them, and they belong to the checkpoint as what was in flight. 0: at once; -1: never.
    """

    checkpoint_id: int
    timestamp_ms: int
    savepoint: str = ""
    stops: bool = False
    aligned_ms: int = -1


class BarrierAnnouncement(msgspec.Struct, frozen=True):
    """A barrier is on its way, in its place among the records. Sent ahead, so that the receiver watches the time.

    Attributes:
        checkpoint_id: that of the barrier.
        timestamp_ms: that of the barrier.
        aligned_ms: that of the barrier.
    """

    checkpoint_id: int
    timestamp_ms: int
    aligned_ms: int


class CancelCheckpointMarker(msgspec.Struct, frozen=True):
    """Checkpoint ``checkpoint_id`` will not be completed; stop aligning for it."""

    checkpoint_id: int


class TerminationProbe(msgspec.Struct, frozen=True):
    """Sent round a feedback loop after its inputs have ended, to learn whether records are still under way.

    Attributes:
        iteration: uid of the iteration's head.
        quiet_rounds: in how many rounds in a row no head on the way here has seen a record come back.
    """

    iteration: str
    quiet_rounds: int


class EndOfData(msgspec.Struct, frozen=True):
    """No more records; operators flush what they hold."""


class EndOfPartition(msgspec.Struct, frozen=True):
    """The last element of a channel."""


class Rejected(msgspec.Struct, frozen=True):
    """Records that a source cannot decode, or its timestamp assigner raised on. It never leaves the source's task.

    Attributes:
        records: each with the exception, the event time (ms) that it had before, or None, and its text for people;
            None: its representation.
        undecoded: True if the reader could not decode them.
    """

    records: list[tuple[Any, Exception, int | None, str | None]]
    undecoded: bool = False


Element: TypeAlias = (
    Batch[Any]
    | Watermark
    | WatermarkStatus
    | LatencyMarker
    | CheckpointBarrier
    | BarrierAnnouncement
    | CancelCheckpointMarker
    | TerminationProbe
    | EndOfData
    | EndOfPartition
    | Rejected
)
