"""Step of aggregates in columns over the last rows of a key."""

from __future__ import annotations

from typing import Any, ClassVar

from sluiceway.functions import OutputTag
from sluiceway.steps.columns import ColumnStep

__all__ = ["ColumnOverStep"]


class ColumnOverStep(ColumnStep, frozen=True):
    """Rows, each with aggregates of the last rows of its key in event time.

    Attributes:
        key: the key columns, a :class:`sluiceway.columns.routing.ColumnKey`.
        entering: the columns that go in, a ``pyarrow.Schema``.
        aggregates: names of the results, each with its
            :class:`sluiceway.columns.aggregation.aggregates.Aggregate`.
        rows: how many rows, the row itself included; None: any number.
        age: how much older than the row they may be, in ms; None: any age.
        late_tag: the side output for rows that are too late, or None to count and drop them.
    """

    key: Any
    entering: Any
    aggregates: tuple[tuple[str, Any], ...]
    rows: int | None = None
    age: int | None = None
    late_tag: OutputTag[Any] | None = None
    kind: ClassVar[str] = "columns over"
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True

    @property
    def event_time(self) -> bool:
        """True: rows come in order of event time."""
        return True

    @property
    def known_side_outputs(self) -> frozenset[str]:
        """The output for late rows, if there is one."""
        return frozenset() if self.late_tag is None else frozenset({self.late_tag.name})
