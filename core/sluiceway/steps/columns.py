"""Steps of streams in columns."""

from __future__ import annotations

from typing import Any, ClassVar

from sluiceway.elements import Columns
from sluiceway.functions import OutputTag
from sluiceway.steps.base import Step
from sluiceway.windows.base import WindowAssigner

__all__ = [
    "ColumnDistinctStep",
    "ColumnRunningStep",
    "ColumnSessionStep",
    "ColumnStep",
    "ColumnTransformStep",
    "ColumnWindowStep",
    "ToColumnsStep",
    "ToRecordsStep",
]


class ColumnStep(Step, frozen=True):
    """Base of steps that emit columns.

    Attributes:
        schema: the columns that come out, a ``pyarrow.Schema``.
    """

    schema: Any

    def output_type(self, *entering: Any) -> Any:
        """Columns: rows that nobody can change."""
        return Columns

    @property
    def columns(self) -> str:
        """Columns for plans: ``user: string, price: double``."""
        return ", ".join(f"{field.name}: {field.type}" for field in self.schema)

    def wanted_types(self, port: int = 0) -> list[Any]:
        """None: columns have a schema."""
        return []


class ToColumnsStep(ColumnStep, frozen=True):
    """Columns of records.

    Attributes:
        batches: whether each record is a ``pyarrow.RecordBatch`` of the schema, whose rows come out; None: not
            known before the records are there.
    """

    batches: bool | None = False
    kind: ClassVar[str] = "to_columns"
    skips: ClassVar[bool] = True


class ColumnTransformStep(ColumnStep, frozen=True):
    """A transform of columns that keeps no state: see :mod:`sluiceway.columns.transforms`."""

    transform: Any
    kind: ClassVar[str] = "columns"
    skips: ClassVar[bool] = True


class ColumnWindowStep(ColumnStep, frozen=True):
    """Aggregates of columns per key and window.

    Attributes:
        key: the key columns, a :class:`sluiceway.columns.routing.ColumnKey`.
        entering: the columns that go in, a ``pyarrow.Schema``.
        aggregates: names of the results, each with its
            :class:`sluiceway.columns.aggregation.aggregates.Aggregate`.
        assigner: assigns rows to windows, by event time; None: one window that ends with the input.
        late_tag: the side output for rows that are too late, or None to count and drop them.
        lateness_ms: time after its end for which a window takes late rows, in ms.
    """

    key: Any
    entering: Any
    aggregates: tuple[tuple[str, Any], ...]
    assigner: WindowAssigner | None = None
    late_tag: OutputTag[Any] | None = None
    lateness_ms: int = 0
    kind: ClassVar[str] = "columns window"
    keyed: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    side_outputs: ClassVar[bool] = True

    @property
    def event_time(self) -> bool:
        """Windows go by event time, the end of the input does not."""
        return self.assigner is not None

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """The output for late rows, if there is one."""
        return frozenset() if self.late_tag is None else frozenset({self.late_tag.name})


class ColumnDistinctStep(ColumnWindowStep, frozen=True):
    """First row of each key, or of each key and window."""

    kind: ClassVar[str] = "columns distinct"


class ColumnRunningStep(ColumnWindowStep, frozen=True):
    """Rows, each with the aggregates of its key so far."""

    kind: ClassVar[str] = "columns running"


class ColumnSessionStep(ColumnWindowStep, frozen=True):
    """Aggregates of columns per key and session of event time."""

    kind: ClassVar[str] = "columns session"


class ToRecordsStep(Step, frozen=True):
    """Records of columns.

    Attributes:
        schema: the columns that go in.
        record_type: class of the records; None: dicts.
    """

    schema: Any
    record_type: Any = None
    kind: ClassVar[str] = "to_records"

    def output_type(self, *entering: Any) -> Any:
        """Return the class of the records."""
        return dict[str, Any] if self.record_type is None else self.record_type
