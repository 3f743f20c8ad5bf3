"""Streams in columns by key, their windows and aggregates."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn

import pyarrow as pa

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.api.step_options import both_inputs
from sluiceway.api.table.arguments import aggregate_fields, check_named, check_names
from sluiceway.api.table.joins import asof_joined, interval_joined
from sluiceway.api.table.late_rows import HasLateRows
from sluiceway.api.table.over import OverTable, over
from sluiceway.api.unknown_names import answer
from sluiceway.columns.aggregation.aggregates import RUNNING, Aggregate
from sluiceway.columns.keys.key_ids import check_key_type
from sluiceway.columns.routing import ColumnKey
from sluiceway.errors import GraphError, UnstableKeyError
from sluiceway.functions import OutputTag
from sluiceway.graph import InputRef
from sluiceway.operators.columns.slicing import slicing_of
from sluiceway.steps import ColumnDistinctStep, ColumnRunningStep, ColumnSessionStep, ColumnWindowStep
from sluiceway.util.name_hints import hint_for
from sluiceway.windows import EventTimeSessionWindows, GlobalWindows, TumblingEventTimeWindows
from sluiceway.windows.base import WindowAssigner
from sluiceway.windows.durations import Duration, milliseconds

if TYPE_CHECKING:
    from typing import Self

    from sluiceway.api.program import Program
    from sluiceway.api.table.stream import TableStream
    from sluiceway.steps.columns import ColumnStep

__all__ = ["KeyedTable", "WindowedTable"]

_OF_WINDOWS = ("window_start", "window_end")


class KeyedTable:
    """Stream in columns by key: rows with equal keys are in one place and in order.

    Made by :meth:`TableStream.key_by`. The key is the same as for records, so that both meet in the same subtask.
    """

    def __init__(
        self,
        pipeline: Program,
        inputs: tuple[InputRef, ...],
        schema: pa.Schema,
        names: tuple[str, ...],
        time_column: str | None,
    ) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._schema = schema
        self._names = names
        # For steps that emit rows with their event times and their columns unchanged.
        self._time_column = time_column

    def window(self, assigner: WindowAssigner) -> WindowedTable:
        """Cut the stream into windows of event time: ``window(TumblingEventTimeWindows("10s"))``.

        Args:
            assigner: tumbling, sliding or cumulative windows of event time, or sessions of one gap.

        Raises:
            TypeError: not a WindowAssigner.
            GraphError: windows that columns do not have.
        """
        if not isinstance(assigner, WindowAssigner):
            raise TypeError(
                f'window() at {caller_location()} takes a WindowAssigner, as in TumblingEventTimeWindows("10s"), '
                f"not {describe(assigner)}"
            )
        if isinstance(assigner, GlobalWindows):
            instead = hint_for("KeyedTable", "count_window")
            raise GraphError(
                f"window() at {caller_location()}: columns have no {assigner!r}: {instead}. Totals at the end of "
                "the input need no window: key_by(...).aggregate(...)"
            )
        if slicing_of(assigner) is None and not _has_sessions(assigner):
            raise GraphError(
                f"window() at {caller_location()}: columns have tumbling, sliding (without gaps), cumulative and "
                f"(with one gap) session windows of event time, and not {assigner!r}: use "
                "to_records().key_by(...).window(...)"
            )
        return WindowedTable(self, assigner)

    def aggregate(self, *unnamed: Never, **aggregates: Aggregate) -> TableStream:
        """Aggregate all rows of a key, and emit a row per key at the end of the input.

        An input that never ends has no results: give it windows.

        Args:
            unnamed: none.
            aggregates: aggregates by the names of their results: ``aggregate(total=agg.sum("price"))``.

        Raises:
            GraphError: a column that does not exist or that the aggregate does not take; or a name twice.
            TypeError: no aggregate, or one without a name.
        """
        check_named("aggregate", unnamed)
        return aggregated(self, None, None, aggregates)

    def interval_join(
        self,
        other: KeyedTable,
        lower: Duration,
        upper: Duration,
        *,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffix: str | None = None,
        left_late: OutputTag[Any] | None = None,
        right_late: OutputTag[Any] | None = None,
    ) -> TableStream:
        """Join a row at ``t`` with the rows of another stream with its key, from ``t + lower`` to ``t + upper``.

        A pair comes as soon as the second of the two rows is there, with the later event time. Its columns are
        those of the left row and, but for the key, of the right one. A row is kept until the watermark says that
        nothing can match it; one that comes after the watermark is late.

        Args:
            other: a stream in columns of the same pipeline, by columns of the same types.
            lower: a timedelta, ms, or a text (``"5min"``, ``"-5min"``); negative: before the left row.
            upper: the same; not below ``lower``. Both bounds are included.
            how: ``inner`` emits pairs alone. ``left`` also emits each left row that has had no partner, when none
                can come any more, with nulls for the right columns and its own event time; ``right`` does so for
                right rows, ``full`` for both. Watermarks behind the step wait for these rows. Late rows are not
                among them.
            suffix: added to the name of a right column that the left rows have, too.
            left_late: side output for late left rows; None: they are dropped, and counted by the metric
                ``numLateRecordsDropped``.
            right_late: the same for right rows.

        Raises:
            ConfigurationError: not a duration, ``lower`` is above ``upper``, or ``how`` is another word.
            GraphError: keys of other types, a column that both have, or another pipeline.
            TypeError: ``other`` is no KeyedTable, or a tag is no OutputTag.
        """
        return interval_joined(self, other, lower, upper, how, suffix, (left_late, right_late))

    def over(self, *, rows: int | None = None, range: Duration | None = None) -> OverTable:  # noqa: A002 (SQL's word)
        """Give each row the last rows of its key in event time: ``over(rows=10).aggregate(mean=agg.mean("x"))``.

        Args:
            rows: so many, the row itself included.
            range: those that are so much older at the most: a timedelta, ms, or a text (``"5min"``). Without
                ``rows`` all rows of the row's own time are among them, as in SQL.

        Raises:
            ConfigurationError: neither is given, not a duration, or not a number of at least 1.
        """
        return over(self, rows, range)

    def distinct(self) -> TableStream:
        """Emit the first row of each key, when it arrives, and drop the others.

        Rows keep their columns and their event times. State holds every key: where keys have no end, use
        ``window(...).distinct()``.
        """
        return _distinct(self, None, None)

    def running(self, *unnamed: Never, **aggregates: Aggregate) -> TableStream:
        """Emit each row with the aggregates of its key so far, the row itself included.

        Rows keep their columns, their event times and the order of their key. State holds every key.

        Args:
            unnamed: none.
            aggregates: aggregates by the names of their columns: ``running(total=agg.sum("price"))``. All but
                ``collect``, ``top_k``, ``quantile`` and ``custom``.

        Raises:
            GraphError: a column that does not exist or that the aggregate does not take; a name twice; or an
                aggregate without running results.
            TypeError: no aggregate, or one without a name.
        """
        check_named("running", unnamed)
        where = f"running() at {caller_location()}"
        fields = list(self._schema)
        fields += aggregate_fields("running", where, self._schema, set(self._schema.names), aggregates)
        for name, aggregate in aggregates.items():
            if aggregate.kind not in RUNNING:
                raise GraphError(
                    f"{where}: {name}={aggregate} has no running results: use to_records().key_by(...).process(), "
                    "or windows"
                )
        schema = pa.schema(fields)
        step = ColumnRunningStep(schema, ColumnKey(self._names), self._schema, tuple(aggregates.items()))
        name = f"running({', '.join(aggregates)})"
        return self._then(step, name, "running()", time_column=self._time_column)

    def asof_join(
        self,
        other: KeyedTable,
        *,
        tolerance: Duration | None = None,
        how: Literal["left", "inner"] = "left",
        suffix: str | None = None,
        left_late: OutputTag[Any] | None = None,
    ) -> TableStream:
        """Join each row with the latest row of another stream that has its key and no later event time.

        A row comes when the watermark has reached its event time, in order of time. Its columns are those of the
        left row and, but for the key, of the right one. Of right rows of one time the last to arrive counts. The
        latest right row of a key is kept for ever, or, with a tolerance, until it is too old.

        Args:
            other: a stream in columns of the same pipeline, by columns of the same types.
            tolerance: how much older the right row may be: a timedelta, ms, or a text (``"5min"``); None: any age.
            how: ``left`` gives a row without a partner nulls, ``inner`` leaves it out.
            suffix: added to the name of a right column that the left rows have, too.
            left_late: side output for left rows that come after the watermark; None: they are dropped, and counted
                by the metric ``numLateRecordsDropped``. Late right rows count for what is not joined yet.

        Raises:
            ConfigurationError: not a duration, or ``how`` is another word.
            GraphError: keys of other types, a column that both have, or another pipeline.
            TypeError: ``other`` is no KeyedTable, or the tag is no OutputTag.
        """
        return asof_joined(self, other, tolerance, how, suffix, left_late)

    def _then(
        self,
        step: ColumnStep,
        name: str,
        made_by: str,
        *,
        second: KeyedTable | None = None,
        late: Sequence[tuple[OutputTag[Any] | None, KeyedTable]] = (),
        time_column: str | None = None,
    ) -> TableStream:
        """Add a step that reads this stream, and perhaps a second one.

        Args:
            step: the step.
            name: its name.
            made_by: the method that returns the stream, for messages.
            second: the second input; None: there is none.
            late: side outputs of late rows, each with the input that they are rows of.
            time_column: the column of the event times of what comes out; None: it is not known.
        """
        # Imported here: a TableStream imports this module, as it makes a KeyedTable.
        from sluiceway.api.table.stream import TableStream

        inputs = self._inputs if second is None else both_inputs(self._inputs, second._inputs)
        t = self._pipeline._add(step, inputs, name)
        sides = {tag.name: rows for tag, rows in late if tag is not None}
        return TableStream(self._pipeline, (InputRef(t),), step.schema, made_by, sides, time_column)

    def __repr__(self) -> str:
        return f"<KeyedTable by {', '.join(self._names)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "KeyedTable")


class WindowedTable(HasLateRows):
    """Stream in columns by key and window: settings first, then :meth:`aggregate`."""

    def __init__(self, keyed: KeyedTable, assigner: WindowAssigner) -> None:
        self._keyed = keyed
        self._assigner = assigner
        self._lateness_ms = 0

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Keep a window for ``lateness`` after its end; each late row within that time emits its new result.

        Raises:
            ConfigurationError: no duration.
        """
        changed = copy.copy(self)
        changed._lateness_ms = milliseconds(f"allowed_lateness({lateness!r})", lateness)
        return changed

    def aggregate(self, *unnamed: Never, **aggregates: Aggregate) -> TableStream:
        """Aggregate the rows of a key and window, and emit a row for each when the watermark passes its end.

        The columns are those of the key, the aggregates, and ``window_start`` and ``window_end``, timestamps of ms
        in UTC. The event time is the last ms of the window. Windows come in the order of their ends, keys in the
        order in which they arrived.

        Args:
            unnamed: none.
            aggregates: aggregates by the names of their results: ``aggregate(total=agg.sum("price"))``.

        Raises:
            GraphError: a column that does not exist or that the aggregate does not take; or a name twice.
            TypeError: no aggregate, or one without a name.
        """
        check_named("aggregate", unnamed)
        return aggregated(self._keyed, self._assigner, self._late_tag, aggregates, self._lateness_ms)

    def distinct(self) -> TableStream:
        """Emit the first row of each key and window, when it arrives, and drop the others.

        Rows keep their columns and their event times. State holds the keys of a window until it is over.

        Raises:
            GraphError: the windows are not tumbling ones.
        """
        if not isinstance(self._assigner, TumblingEventTimeWindows):
            raise GraphError(
                f"distinct() at {caller_location()}: tumbling windows have a first row of each key, in which each "
                f"row is in one window; {self._assigner!r} has none"
            )
        return _distinct(self._keyed, self._assigner, self._late_tag, self._lateness_ms)

    def __repr__(self) -> str:
        return f"<WindowedTable of {self._assigner!r} by {', '.join(self._keyed._names)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "WindowedTable")


def key_columns(names: tuple[object, ...], schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of key columns, after a look at their types.

    Raises:
        TypeError: a name is no str, or there is none.
        GraphError: no such column, one twice, or its values cannot be a key.
    """
    checked = check_names("key_by", names, schema)
    if len(set(checked)) < len(checked):
        raise GraphError(f"key_by() at {caller_location()}: a column is named twice in {', '.join(checked)}")
    for name in checked:
        try:
            check_key_type(name, schema.field(name).type)
        except UnstableKeyError as error:
            raise GraphError(f"key_by() at {caller_location()}: {error}") from None
    return checked


def aggregated(
    keyed: KeyedTable,
    assigner: WindowAssigner | None,
    late_tag: OutputTag[Any] | None,
    aggregates: Mapping[str, Any],
    lateness_ms: int = 0,
) -> TableStream:
    """Add the step, after a look at its columns."""
    where = f"aggregate() at {caller_location()}"
    entering = keyed._schema
    fields = [_plain_field(entering.field(name)) for name in keyed._names]
    own = {*keyed._names, *(_OF_WINDOWS if assigner is not None else ())}
    if assigner is not None and (twice := set(_OF_WINDOWS).intersection(keyed._names)):
        raise GraphError(f"{where}: the result has a column {min(twice)!r} of its own; rename() that of the key")
    fields += aggregate_fields("aggregate", where, entering, own, aggregates)
    if assigner is not None:
        fields += [pa.field(name, pa.timestamp("ms", "UTC"), nullable=False) for name in _OF_WINDOWS]
    schema = pa.schema(fields)
    kind = ColumnSessionStep if _has_sessions(assigner) else ColumnWindowStep
    step = kind(
        schema, ColumnKey(keyed._names), entering, tuple(aggregates.items()), assigner, late_tag, lateness_ms
    )
    shown = f"aggregate({', '.join(aggregates)})"
    name = shown if assigner is None else f"{assigner!r}.{shown}"
    return keyed._then(step, name, "aggregate()", late=[(late_tag, keyed)])


def _distinct(
    keyed: KeyedTable, assigner: WindowAssigner | None, late_tag: OutputTag[Any] | None, lateness_ms: int = 0
) -> TableStream:
    schema = keyed._schema
    step = ColumnDistinctStep(schema, ColumnKey(keyed._names), schema, (), assigner, late_tag, lateness_ms)
    shown = f"distinct({', '.join(keyed._names)})"
    name = shown if assigner is None else f"{assigner!r}.{shown}"
    return keyed._then(step, name, "distinct()", late=[(late_tag, keyed)], time_column=keyed._time_column)


def _has_sessions(assigner: WindowAssigner | None) -> bool:
    given: Any = assigner
    return type(assigner) is EventTimeSessionWindows and given.gap_ms is not None


def _plain_field(field: Any) -> Any:
    kind: Any = field.type
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return pa.field(field.name, kind, field.nullable)
