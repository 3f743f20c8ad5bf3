"""Stream in columns, and the methods that add steps to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, TypeAlias, TypeVar, Unpack, overload

import narwhals as nw
import pyarrow as pa
from narwhals import col, lit, when

from sluiceway.api.arguments import check_function, describe
from sluiceway.api.location import caller_location
from sluiceway.api.resolution import resolve_sink
from sluiceway.api.step_options import StepSettings, output_of_one_step
from sluiceway.api.stream import DataStream
from sluiceway.api.table.arguments import check_expressions, check_names, result_schema
from sluiceway.api.table.keyed import KeyedTable, key_columns
from sluiceway.api.table.sources import lookup_of
from sluiceway.api.timestamps import check_strategy
from sluiceway.api.unknown_names import KEYED_ONLY, answer
from sluiceway.columns.infallible import cannot_fail
from sluiceway.columns.record_conversion import decoder
from sluiceway.columns.routing import ColumnKey
from sluiceway.columns.schemas import is_record_type, is_without_type, schema_of, shown
from sluiceway.columns.times import problem_of_time_column
from sluiceway.columns.transforms import (
    Drop,
    Explode,
    Filter,
    MapBatches,
    Rename,
    Select,
    Transform,
    Unnest,
    WithColumns,
)
from sluiceway.connector import Sink
from sluiceway.connector.lib import Collected
from sluiceway.errors import GraphError, SluicewayError
from sluiceway.eventtime import ColumnTimestamps, WatermarkStrategy
from sluiceway.functions import (
    AsyncFunction,
    AsyncRetryStrategy,
    DeadLetter,
    FlatMapFunction,
    MapFunction,
    OutputTag,
)
from sluiceway.graph import InputRef, Transformation
from sluiceway.steps import ColumnTransformStep, SinkStep, Step, TimestampsStep, ToRecordsStep
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.types import parameter_type
from sluiceway.util.name_hints import hint_for

if TYPE_CHECKING:
    from sluiceway.api.program import Program
    from sluiceway.api.run_options import RunOptions
    from sluiceway.api.sink import DataStreamSink

__all__ = ["Expression", "TableStream", "col", "lit", "when"]

R = TypeVar("R")
S = TypeVar("S", bound=StepSettings)
T = TypeVar("T")

Expression: TypeAlias = nw.Expr | str
"""Expression of Narwhals, or the name of a column."""

_FRAMES = {
    ("pyarrow", "RecordBatch"): "arrow",
    ("pyarrow", "Table"): "table",
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("narwhals", "DataFrame"): "narwhals",
}


class TableStream(StepSettings):
    """Stream of rows with a schema, in Arrow columns, between two steps.

    Made by :meth:`sluiceway.Pipeline.table`, by :meth:`sluiceway.DataStream.to_columns` and by the methods here; a
    method adds a step and returns what comes out of it. A stream may be used more than once. Columns and types are
    checked where a method is called: GraphError says which column, and has its type.

    Rows keep their event times. Results do not depend on how rows come in batches.
    """

    def __init__(
        self,
        pipeline: Program,
        inputs: tuple[InputRef, ...],
        schema: pa.Schema,
        made_by: str,
        sides: Mapping[str, KeyedTable] | None = None,
        time_column: str | None = None,
    ) -> None:
        # By the names of their tags, the inputs of which late rows go to side outputs.
        self._sides = sides or {}
        self._pipeline = pipeline
        self._inputs = inputs
        self._schema = schema
        self._made_by = made_by
        # Name of the column that the event times were taken from; None: not known, or changed since.
        self._time_column = time_column

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        return self._schema

    # ---- columns ------------------------------------------------------------------------------------------

    def select(self, *expressions: Expression, **named: Any) -> TableStream:
        """Compute columns in place of those that come in: ``select("user", total=col("price") * col("count"))``.

        Args:
            expressions: names of columns, or expressions of Narwhals that look at one row at a time.
            named: the same, or plain numbers, by the names of their results.

        Raises:
            GraphError: no such column; an operation that its type does not have; or an expression that looks at
                other rows.
        """
        return self._transformed(Select(check_expressions("select", expressions, named, self._schema)))

    def with_columns(self, *expressions: Expression, **named: Any) -> TableStream:
        """Compute columns beside those that come in, or in place of those of the same name. As :meth:`select`."""
        checked = check_expressions("with_columns", expressions, named, self._schema)
        return self._transformed(WithColumns(checked, cannot_fail(checked, self._schema)))

    def filter(self, *predicates: Expression) -> TableStream:
        """Keep the rows for which all predicates are true, neither false nor null. Errors as :meth:`select`."""
        checked = check_expressions("filter", predicates, {}, self._schema)
        transform = Filter(checked, cannot_fail(checked, self._schema))
        result_schema("filter", transform, self._schema)
        return self._transformed(transform)

    def drop(self, *names: str) -> TableStream:
        """Leave out columns. Raises GraphError: no such column, or none would be left."""
        checked = check_names("drop", names, self._schema)
        if not set(self._schema.names).difference(checked):
            raise GraphError(f"drop() at {caller_location()}: no column would be left")
        return self._transformed(Drop(checked))

    def rename(self, names: dict[str, str]) -> TableStream:
        """Rename columns: ``rename({"old": "new"})``. Raises GraphError: no such column, or a name twice."""
        if not isinstance(names, dict):
            raise TypeError(f"rename() at {caller_location()} takes a dict of old and new names")
        check_names("rename", names, self._schema)
        return self._transformed(Rename(tuple(names.items())))

    def explode(self, name: str) -> TableStream:
        """Make a row of each element of a list column. A row whose list is empty or null gives none.

        Raises:
            GraphError: no such column, or it has no lists.
        """
        check_names("explode", (name,), self._schema)
        kind = self._schema.field(name).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise GraphError(f"explode() at {caller_location()}: column {name!r} has {kind}, and no lists")
        return self._transformed(Explode(name))

    def unnest(self, name: str) -> TableStream:
        """Put the fields of a struct column in its place. Raises GraphError: no such column, or no structs."""
        check_names("unnest", (name,), self._schema)
        kind = self._schema.field(name).type
        if not pa.types.is_struct(kind):
            raise GraphError(f"unnest() at {caller_location()}: column {name!r} has {kind}, and no structs")
        return self._transformed(Unnest(name))

    def map_batches(self, fn: Callable[[Any], Any], schema: Any = None) -> TableStream:
        """Call ``fn(rows)`` for each batch of rows, and emit the rows that it returns.

        The number of rows in a batch depends on the load, so a result must not depend on where a batch ends. Where
        rows have event times, as many must be returned, in their order.

        Args:
            fn: function of a ``pyarrow.RecordBatch``; or, by its annotation, of a ``pyarrow.Table`` or of a frame
                of pandas, Polars or Narwhals. It returns any of these. Integers and bools are of pandas' nullable
                types (``Int64``), floats and times of numpy's, others of ``pandas.ArrowDtype``.
            schema: the columns that it returns, as a ``pyarrow.Schema`` or a class; None: found by a call without
                rows.

        Raises:
            GraphError: the function fails without rows, returns no rows of any kind, or a column that has no type
                without rows, so that its columns are not known; or ``schema`` has no columns.
            TypeError: ``fn`` cannot be called with one argument.
        """
        check_function("map_batches", fn, (), 1)
        hint: Any = parameter_type(fn)
        hint = getattr(hint, "__origin__", hint)
        # By names, so that none of the libraries has to be imported.
        module = str(getattr(hint, "__module__", "")).partition(".")[0]
        given = _FRAMES.get((module, getattr(hint, "__name__", "")), "arrow")
        transform = MapBatches(fn, given, getattr(fn, "__name__", "map_batches"))
        if schema is not None:
            try:
                given_schema = schema_of(schema)
            except SluicewayError as error:
                raise GraphError(f"map_batches() at {caller_location()}: schema=: {error}") from None
            return self._transformed(transform, given_schema)
        found = result_schema("map_batches", transform, self._schema)
        for field in found:
            if is_without_type(field.type) and field not in list(self._schema):
                raise GraphError(
                    f"map_batches() at {caller_location()}: the function returned column {field.name!r} with the "
                    f"type {field.type} for no rows, so that the type of its values is not known. Give the "
                    f'columns, as in map_batches(fn, pyarrow.schema([("{field.name}", pyarrow.string()), ...]))'
                )
        return self._transformed(transform, found)

    def lookup(self, rows: Any, on: str, how: Literal["inner", "left"] = "inner") -> TableStream:
        """Add the columns of a table that stays the same, found by the value of a column: a lookup join.

        Args:
            rows: a ``pyarrow.Table`` or anything else that :meth:`Pipeline.table` takes but sources. It travels
                with the job, to each subtask.
            on: a column of both, of the same type. In ``rows`` each value occurs once; null has no partner.
            how: ``inner`` leaves out rows without a partner, ``left`` gives them nulls.

        Raises:
            GraphError: no such column, another type, a value that occurs twice, or a column that both have.
            TypeError: ``rows`` is no table.
        """
        if how not in ("inner", "left"):
            raise GraphError(f"lookup() at {caller_location()}: how={how!r:.40}; it is 'inner' or 'left'")
        return self._transformed(lookup_of(rows, on, self._schema, outer=how == "left"))

    def lookup_async(
        self,
        fn: Callable[[Any], Coroutine[Any, Any, Any]] | AsyncFunction[Any, Any],
        on: str,
        schema: Any,
        how: Literal["inner", "left"] = "inner",
        *,
        timeout: timedelta | int | str | None,
        capacity: int = 10,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> TableStream:
        """Add columns that an async function finds by the values of a column: ``async def find(ids: list): ...``.

        The function is called for a batch of rows, with the values of the column, each once and without null. It
        returns rows with that column and those of ``schema``: a table or frame as :meth:`map_batches` does, or a
        list of dicts; none for a value that it does not know. A checkpoint holds the rows whose calls are under
        way, which are made again after a restore. How many values are in a call depends on the load, so a result
        must depend on its value alone.

        Args:
            fn: the function, of a ``pyarrow.Array``, or of a list where it is annotated so.
            on: the column whose values are looked up; null has no partner.
            schema: the columns that are found, a ``pyarrow.Schema`` or a class; ``on`` may be among them.
            how: ``inner`` leaves out rows without a partner, ``left`` gives them nulls.
            timeout: how long a call may take, all attempts together: a timedelta, ms, a text (``"1s"``), or None
                for any time. Then the job fails with TimeoutError unless an AsyncFunction's ``timeout(values)``
                has other results.
            capacity: how many calls of a subtask may be under way, each for a batch.
            ordered: whether batches keep their order. If not, none passes a watermark.
            retry: when to call again after a failure, or for a result of no use; None: never.

        Raises:
            GraphError: no such column, one whose values cannot be looked up, or a column that both have.
            TypeError: ``fn`` is no async function, or something is of the wrong type.
            ValueError: a number or a duration is too small.
        """
        from sluiceway.api.table.async_lookup import lookup_step

        step = lookup_step(self._schema, fn, on, schema, how, timeout, capacity, ordered, retry)
        word = "lookup_async"
        return self._then(step, step.schema, word, f"{word}({on})", time_column=self._time_column)

    def union(self, *tables: TableStream) -> TableStream:
        """Merge with other streams of the same columns; the order of rows of different streams is undefined.

        Where one stream has nulls in a column and another has none, the columns of the result are nullable.

        Raises:
            GraphError: other columns or types, or a stream of another pipeline.
            TypeError: something is no TableStream.
        """
        nullable = _nullable(self._schema)
        for other in tables:
            if not isinstance(other, TableStream):
                raise TypeError(f"union() at {caller_location()} takes a TableStream, not {describe(other)}")
            if other._pipeline is not self._pipeline:
                raise GraphError(f"union() at {caller_location()}: the streams belong to different pipelines")
            if not _nullable(other._schema).equals(nullable):
                raise GraphError(
                    f"union() at {caller_location()}: one stream has {shown(self._schema)}, the other "
                    f"{shown(other._schema)}; select() and rename() make them equal"
                )
        streams = [self, *tables]
        if not all(each._schema.equals(self._schema) for each in tables):
            # Computed columns are nullable.
            streams = [t if t._schema.equals(nullable) else t.select(*nullable.names) for t in streams]
        inputs = tuple(ref for each in streams for ref in each._inputs)
        time_column = self._time_column
        if any(each._time_column != time_column for each in streams):
            time_column = None
        return TableStream(self._pipeline, inputs, streams[0]._schema, "union()", time_column=time_column)

    # ---- event time ---------------------------------------------------------------------------------------

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy[Any]) -> TableStream:
        """Assign event times, from a column by ``strategy.with_timestamp_column(name)``, and generate watermarks.

        Raises:
            TypeError: not a WatermarkStrategy.
            GraphError: no such column, or it has no times.
        """
        checked = check_strategy("assign_timestamps_and_watermarks()", strategy, at_source=False)
        check_time_column("assign_timestamps_and_watermarks", checked, self._schema)
        time_column = time_column_of(checked) if checked.assigner is not None else self._time_column
        return self._then(
            TimestampsStep(checked), self._schema, "assign_timestamps_and_watermarks", time_column=time_column
        )

    # ---- keys and windows ---------------------------------------------------------------------------------

    def key_by(self, *names: str) -> KeyedTable:
        """Partition by the values of columns, for windows and aggregates.

        Raises:
            TypeError: a name is no str, or there is none.
            GraphError: no such column, one twice, or its values cannot be a key.
        """
        checked = key_columns(names, self._schema)
        spec = PartitionerSpec("hash", key=ColumnKey(checked))
        # The key is on the edges to the next step: a stream of several inputs, as of union(), has it on each.
        inputs = tuple(replace(ref, partitioner=spec) for ref in self._inputs)
        return KeyedTable(self._pipeline, inputs, self._schema, checked, self._time_column)

    def get_side_output(self, tag: OutputTag[Any]) -> TableStream:
        """Return the rows that the step emits with ``tag``: late ones, with their event times.

        Raises:
            GraphError: this comes of a step that never emits to it.
            TypeError: ``tag`` is no OutputTag.
        """
        if not isinstance(tag, OutputTag):
            raise TypeError(f'get_side_output() takes an OutputTag, as in OutputTag("late"), not {describe(tag)}')
        t = self._settable("get_side_output")
        if tag.name not in self._sides:
            raise GraphError(
                f"get_side_output({tag.name!r}) at {caller_location()}: {t.label()} has no such output; name the "
                "one for late rows before: windows and over() take side_output_late_data(tag), interval_join() "
                "takes left_late=tag and right_late=tag, asof_join() left_late=tag"
            )
        # A step emits to the tags that it has; asking twice for one adds none.
        if all(have.name != tag.name for have in t.side_output_tags):
            t.side_output_tags.append(tag)
        late = self._sides[tag.name]
        inputs, time_column = (InputRef(t, tag),), late._time_column
        return TableStream(self._pipeline, inputs, late._schema, "get_side_output()", time_column=time_column)

    def dead_letters(self) -> DataStream[DeadLetter]:
        """Return the rows on which the step fails and that it skips: see :meth:`on_error`.

        The record of a letter is a ``pyarrow.RecordBatch`` of one row.

        Raises:
            GraphError: a step of this kind cannot skip rows.
        """
        return DataStream(self._pipeline, self._inputs, self._made_by).dead_letters()

    # ---- ways between steps -------------------------------------------------------------------------------

    def rebalance(self) -> TableStream:
        """Deal the rows of each batch to all subtasks of the next step."""
        inputs = tuple(replace(ref, partitioner=PartitionerSpec("rebalance")) for ref in self._inputs)
        return TableStream(self._pipeline, inputs, self._schema, "rebalance()", time_column=self._time_column)

    # ---- records ------------------------------------------------------------------------------------------

    @overload
    def to_records(self) -> DataStream[dict[str, Any]]: ...
    @overload
    def to_records(self, record_type: type[R]) -> DataStream[R]: ...
    def to_records(self, record_type: Any = None) -> DataStream[Any]:
        """Make a record of each row, for functions of records.

        Args:
            record_type: class with a field per column, by name: a dataclass, named tuple, Struct, TypedDict or
                model; columns without a field are left out. None: dicts. ``pyarrow.RecordBatch``: a record of each
                batch, with the event time of its last row.

        Raises:
            GraphError: a field without a column.
        """
        if record_type is not None and record_type is not pa.RecordBatch:
            try:
                decoder(record_type, self._schema, "to_records")
            except SluicewayError as error:
                raise GraphError(f"to_records() at {caller_location()}: {error}") from None
        step = ToRecordsStep(self._schema, record_type)
        t = self._pipeline._add(step, self._inputs)
        return DataStream(self._pipeline, (InputRef(t),), "to_records()")

    def map(self, fn: Callable[[Any], R] | MapFunction[Any, R]) -> DataStream[R]:
        """Emit ``fn(row)`` for each row: a dict, or an object of the class that ``fn`` is annotated with."""
        records = self._records_for(fn)
        return _with_parallelism_of(records.map(fn), records)

    def flat_map(self, fn: Callable[[Any], Iterable[R]] | FlatMapFunction[Any, R]) -> DataStream[R]:
        """Emit the elements of ``fn(row)`` for each row, which is as for :meth:`map`."""
        records = self._records_for(fn)
        return _with_parallelism_of(records.flat_map(fn), records)

    def _records_for(self, fn: Any) -> DataStream[Any]:
        method = "map" if isinstance(fn, MapFunction) else "flat_map" if isinstance(fn, FlatMapFunction) else None
        wanted = parameter_type(fn, 0, method)
        return self.to_records(wanted) if is_record_type(wanted) else self.to_records()

    def _records_in_order(self, record_type: Any = None) -> DataStream[Any]:
        """Return the records for a sink that keeps the order of a stream of one subtask."""
        records = self.to_records(record_type)
        records._settable("to_records").parallelism_of = [ref.upstream for ref in self._inputs]
        return records

    # ---- ends ---------------------------------------------------------------------------------------------

    def sink(self, sink: Sink[Any] | str, /, *unnamed: Never, **options: Any) -> DataStreamSink:
        """Write the rows to a sink. One that takes columns gets them; any other gets rows as dicts.

        Arguments and errors are those of :meth:`DataStream.sink`.

        Raises:
            GraphError: the sink names a column that does not exist, or cannot write one of this type.
            ConnectorError: a sink that looks at its target finds that it does not take these columns.
        """
        from sluiceway.api.sink import DataStreamSink

        resolved = resolve_sink(sink, options, unnamed)
        if problems := resolved.problems_of_columns(self._schema):
            raise GraphError(f"sink() at {caller_location()}: {resolved!r}: {'. '.join(problems)}")
        resolved = resolved.for_columns(self._schema)
        return DataStreamSink(self._pipeline._add(SinkStep(resolved), self._inputs), type(self))

    def print(self, label: str = "") -> DataStreamSink:
        """Print every row as a dict on a line of its own, after ``label> `` if there is a label."""
        records = self.to_records()
        return _with_parallelism_of(records.print(label), records)

    def collect(self) -> Collected[dict[str, Any]]:
        """Keep all rows in memory as dicts, as :meth:`DataStream.collect`. :meth:`to_arrow` keeps columns."""
        return self._records_in_order().collect()

    def to_arrow(self, **options: Unpack[RunOptions]) -> pa.Table:
        """Run what this stream is made of, to its end, and return its rows.

        Args:
            options: as for :meth:`Pipeline.run`.

        Raises:
            ConfigurationError, GraphError: as :meth:`Pipeline.run`.
            BaseException: what the job failed with.
        """
        with self._records_in_order(pa.RecordBatch).execute_and_collect(**options) as batches:
            return pa.Table.from_batches(list(batches), self._schema)

    # ---- inside -------------------------------------------------------------------------------------------

    def _transformed(self, transform: Transform, schema: pa.Schema | None = None) -> TableStream:
        if schema is None:
            schema = result_schema(transform.word, transform, self._schema)
        was = self._time_column
        time_column = None if was is None else transform.name_after(was, self._schema)
        step = ColumnTransformStep(schema, transform)
        return self._then(step, schema, transform.word, transform.word, time_column=time_column)

    def _then(
        self, step: Step, schema: pa.Schema, made_by: str, name: str | None = None, *, time_column: str | None
    ) -> TableStream:
        t = self._pipeline._add(step, self._inputs, name)
        return TableStream(self._pipeline, (InputRef(t),), schema, f"{made_by}()", time_column=time_column)

    def _settable(self, setting: str) -> Transformation:
        return output_of_one_step(self._inputs, setting, self._made_by)

    def __repr__(self) -> str:
        return f"<TableStream of {self._made_by} with {shown(self._schema)}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            public = not name.startswith("_") and not hint_for("TableStream", name)
            if public and (name in dir(KeyedTable) or name in KEYED_ONLY):
                raise AttributeError(
                    f"TableStream has no {name}(): key_by() first, as in key_by('user').{name}(...)"
                )
            if public and name in dir(DataStream):
                raise AttributeError(
                    f"TableStream has no {name}(): it works on records, so call to_records() first, as in "
                    f"to_records().{name}(...)"
                )
            answer(self, name, "TableStream")


def _with_parallelism_of(result: S, records: DataStream[Any]) -> S:
    """Return a step behind a conversion to records, which from now on has the parallelism of that step."""
    records._settable("to_records").parallelism_of = [result._settable("to_records")]
    return result


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def time_column_of(strategy: WatermarkStrategy[Any] | None) -> str | None:
    """Return the column that a strategy takes event times from; None: it takes them from elsewhere."""
    assigner = None if strategy is None else strategy.assigner
    return assigner.name if isinstance(assigner, ColumnTimestamps) else None


def check_time_column(method: str, strategy: WatermarkStrategy[Any], schema: pa.Schema) -> None:
    """Check that the column of event times exists and has times.

    Raises:
        GraphError: no such column, or of another type.
    """
    assigner = strategy.assigner
    if not isinstance(assigner, ColumnTimestamps):
        return
    check_names(method, (assigner.name,), schema)
    kind = schema.field(assigner.name).type
    if problem := problem_of_time_column(kind):
        raise GraphError(f"{method}() at {caller_location()}: column {assigner.name!r} has {kind}: {problem}")
