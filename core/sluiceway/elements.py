"""Stream elements: batches of records, watermarks, barriers and other control elements.

A control element never stands inside a batch, so no loop over records checks a type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "BarrierAnnouncement",
    "Batch",
    "CancelCheckpointMarker",
    "CheckpointBarrier",
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


class Batch(Generic[T]):
    """Records that travel together.

    The lists are shared by reference between steps and must not be changed once the batch was emitted.

    Attributes:
        values: the records.
        timestamps: event times in ms, one per record, or None where the job uses none.
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

    def __len__(self) -> int:
        return len(self.values)

    def span(self) -> tuple[int, int]:
        """The lowest and the highest timestamp, which are looked for once. Only where there are timestamps."""
        span = self._span
        if span is None:
            assert self.timestamps
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


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with a timestamp at or before ``timestamp`` (ms) is to be expected any more."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a channel takes part in the watermark of its receiver."""

    active: bool


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """A time stamp that travels with the data and never overtakes it.

    Attributes:
        emitted_at: monotonic seconds when the source sent it.
        source: uid of the source.
        subtask: index of the source's subtask.
    """

    emitted_at: float
    source: str
    subtask: int


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """What comes before it belongs to checkpoint ``checkpoint_id``, what comes after does not.

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


@dataclass(frozen=True, slots=True)
class BarrierAnnouncement:
    """A barrier is on its way, in its place among the records. Sent ahead, so that the receiver watches the time.

    Attributes:
        checkpoint_id: that of the barrier.
        timestamp_ms: that of the barrier.
        aligned_ms: that of the barrier.
    """

    checkpoint_id: int
    timestamp_ms: int
    aligned_ms: int


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """Checkpoint ``checkpoint_id`` will not be completed; stop aligning for it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TerminationProbe:
    """Sent round a feedback loop after its inputs have ended, to learn whether records are still under way.

    Attributes:
        iteration: uid of the iteration's head.
        quiet_rounds: in how many rounds in a row no head on the way here has seen a record come back.
    """

    iteration: str
    quiet_rounds: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records; operators flush what they hold."""


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last element of a channel."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records that a source skips because its timestamp assigner raised. It never leaves the source's task.

    Attributes:
        records: each with the exception and the event time (ms) that it had before, or None.
    """

    records: list[tuple[Any, Exception, int | None]]


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
