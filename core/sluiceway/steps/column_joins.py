"""Steps that join two keyed streams in columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from sluiceway.functions import OutputTag
from sluiceway.steps.columns import ColumnStep

__all__ = ["ColumnAsOfJoinStep", "ColumnIntervalJoinStep", "ColumnJoinStep"]


class ColumnJoinStep(ColumnStep, frozen=True):
    """Base of the joins of two keyed streams in columns.

    Attributes:
        key: the key columns of the left input, a :class:`sluiceway.columns.routing.ColumnKey`.
        right_key: those of the right input, of the same types in the same order.
        left: the columns of the left input, a ``pyarrow.Schema``.
        right: those of the right input.
        left_late: the side output for left rows that come too late; None: they are dropped and counted.
    """

    key: Any
    right_key: Any
    left: Any
    right: Any
    left_late: OutputTag[Any] | None = None
    ports: ClassVar[int] = 2
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True

    @property
    def keys(self) -> tuple[Any, ...]:
        """Key selectors of the left and the right input."""
        return self.key, self.right_key

    @property
    def event_time(self) -> bool:
        """True: rows are joined by event time, and watermarks end their state."""
        return True

    @property
    def known_side_outputs(self) -> frozenset[str]:
        """Side output of late left rows."""
        return frozenset() if self.left_late is None else frozenset({self.left_late.name})


class ColumnIntervalJoinStep(ColumnJoinStep, frozen=True):
    """Join of rows with equal keys and event times within bounds of each other.

    Attributes:
        lower: a right row may be this much later than the left one, at least, in ms; both bounds inclusive.
        upper: at most.
        right_late: the side output for right rows that come too late; None: they are dropped and counted.
        how: ``inner``: pairs alone; ``left``, ``right``, ``full``: also rows of that side or of both that have had
            no match, when none can come.
    """

    lower: int = 0
    upper: int = 0
    right_late: OutputTag[Any] | None = None
    how: Literal["inner", "left", "right", "full"] = "inner"
    kind: ClassVar[str] = "columns interval_join"

    @property
    def known_side_outputs(self) -> frozenset[str]:
        """Side outputs of late rows."""
        return frozenset(tag.name for tag in (self.left_late, self.right_late) if tag is not None)


class ColumnAsOfJoinStep(ColumnJoinStep, frozen=True):
    """Join of each left row with the latest right row of its key, as of its event time.

    Attributes:
        tolerance: how much older the right row may be, in ms; None: any age.
        how: ``left``: a left row without a right one has nulls; ``inner``: it is dropped.
    """

    tolerance: int | None = None
    how: Literal["left", "inner"] = "left"
    kind: ClassVar[str] = "columns asof_join"
