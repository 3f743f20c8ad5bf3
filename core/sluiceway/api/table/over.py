"""Aggregates over the last rows of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never, NoReturn

import pyarrow as pa

from sluiceway.api.location import caller_location
from sluiceway.api.table.arguments import aggregate_fields, check_named
from sluiceway.api.table.late_rows import HasLateRows
from sluiceway.api.unknown_names import answer
from sluiceway.columns.aggregation.aggregates import Aggregate
from sluiceway.columns.kept.blocks import plain_schema, problem_of_rows
from sluiceway.columns.routing import ColumnKey
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.steps.column_over import ColumnOverStep
from sluiceway.windows.durations import Duration, milliseconds
from sluiceway.windows.durations import shown as shown_duration

if TYPE_CHECKING:
    from sluiceway.api.table.keyed import KeyedTable
    from sluiceway.api.table.stream import TableStream

__all__ = ["OverTable", "over"]

_MOST_ROWS: Final = 1 << 62
"""Most rows of a window: places of rows are computed in 64 bits."""


class OverTable(HasLateRows):
    """Stream in columns by key, each row with the last rows of its key: settings first, then :meth:`aggregate`."""

    def __init__(self, keyed: KeyedTable, rows: int | None, age: int | None) -> None:
        self._keyed = keyed
        self._rows = rows
        self._age = age

    def aggregate(self, *unnamed: Never, **aggregates: Aggregate) -> TableStream:
        """Emit each row with aggregates of the last rows of its key, when the watermark has reached its time.

        Rows come in order of event time, those of one time in the order of arrival. They keep their columns and
        their event times.

        Args:
            unnamed: none.
            aggregates: aggregates by the names of their columns: ``aggregate(mean=agg.mean("price"))``.

        Raises:
            GraphError: a column that does not exist or that the aggregate does not take; or a name twice.
            TypeError: no aggregate, or one without a name.
        """
        check_named("aggregate", unnamed)
        keyed = self._keyed
        entering = keyed._schema
        where = f"aggregate() at {caller_location()}"
        fields = list(plain_schema(entering))
        fields += aggregate_fields("aggregate", where, entering, set(entering.names), aggregates)
        if problem := problem_of_rows(entering):
            raise GraphError(f"{where}: {problem}")
        schema = pa.schema(fields)
        step = ColumnOverStep(
            schema,
            ColumnKey(keyed._names),
            entering,
            tuple(aggregates.items()),
            self._rows,
            self._age,
            self._late_tag,
        )
        name = f"{self._shown()}.aggregate({', '.join(aggregates)})"
        late = [(self._late_tag, keyed)]
        return keyed._then(step, name, "aggregate()", late=late, time_column=keyed._time_column)

    def _shown(self) -> str:
        given = [] if self._rows is None else [f"rows={self._rows}"]
        given += [] if self._age is None else [f"range={shown_duration(self._age)}"]
        return f"over({', '.join(given)})"

    def __repr__(self) -> str:
        return f"<OverTable {self._shown()} by {', '.join(self._keyed._names)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "OverTable")


def over(keyed: KeyedTable, rows: object, age: Duration | None) -> OverTable:
    """Check the arguments of :meth:`KeyedTable.over` and return its result."""
    where = f"over(rows={rows!r:.40}, range={age!r:.40}) at {caller_location()}"
    if rows is None and age is None:
        raise ConfigurationError(f"{where}: give rows=, the number of the last rows, or range=, a time, or both")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= _MOST_ROWS):
        raise ConfigurationError(
            f"{where}: rows is a whole number from 1 to {_MOST_ROWS}, the row itself included"
        )
    return OverTable(keyed, rows, None if age is None else milliseconds(where, age))
