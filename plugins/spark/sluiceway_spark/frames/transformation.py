"""``transform``: a pipeline between two DataFrames of the user's session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

# A face of the plugin: the user's function gets a stream of the public API.
from sluiceway import DataStream, DataStreamSink, Pipeline, WatermarkStrategy
from sluiceway.config.settings import Settings
from sluiceway.errors import ConfigurationError
from sluiceway.eventtime import NoWatermarks
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.conversion.any_names import map_in_arrow
from sluiceway_spark.conversion.arrow_schema import schema_as_is
from sluiceway_spark.conversion.arrow_to_records import ARROW, record_type
from sluiceway_spark.conversion.readable_types import check_readable
from sluiceway_spark.datasource.rows_to_records import COLUMNS, Rows
from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
from sluiceway_spark.frames.plan import plan_of, shape_of
from sluiceway_spark.frames.processor import FrameProcessor
from sluiceway_spark.frames.result import result_of
from sluiceway_spark.frames.tasks import (
    NOW,
    Shipped,
    calling_task,
    entry_task,
    result_task,
    stage_task,
)
from sluiceway_spark.session.application import unless_stopped
from sluiceway_spark.session.configuration import need_spark
from sluiceway_spark.session.context import context_of, tasks_at_a_time
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old
from sluiceway_spark.structured.row_format import SCHEMA, together
from sluiceway_spark.structured.stages.batch_tasks import ship
from sluiceway_spark.structured.stages.large_plans import in_message_or_file
from sluiceway_spark.structured.stages.stage_grouping import StageGroup, stage_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["transform"]

_STREAM_PARALLELISM: Final = 4
"""Of steps without keys behind an exchange: state is kept for each subtask, so it must not depend on a machine."""

_LEAST: Final = 2
"""So that a step with one subtask stands apart from those that run in each partition."""

_CONNECT_MOST: Final = 8
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_TIMES: Final = ("TimestampType", "TimestampNTZType", "ByteType", "ShortType", "IntegerType", "LongType")
"""Types of columns with event times, as ``Rows`` reads them."""
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def transform(
    frame: DataFrame,
    build: Callable[[DataStream[Any]], DataStream[Any]],
    schema: Any = None,
    *,
    records: Any = dict,
    timestamp: str | None = None,
    watermark_strategy: WatermarkStrategy[Any] | None = None,
    result_timestamp: str | None = None,
    name: str | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
) -> DataFrame:
    """Return the DataFrame that a pipeline makes of another one, streaming or not, in the session of that.

    Nothing runs before Spark asks for rows of the result. Steps before the first ``key_by`` run where the rows
    are, in each partition; keyed steps behind a shuffle of Spark's. Over a streaming DataFrame, keyed state is
    part of the query's checkpoint, and results are appended.

    ``df.transform(transform, build, schema=...)`` is the same.

    Args:
        frame: rows that enter, each as a record.
        build: called once, with the stream of these records; returns the stream of the results. It may use
            whatever steps a pipeline may, but no sources and sinks of its own.
        schema: of the result: a text such as ``"word string, count long"``, a StructType, a pyarrow.Schema, or a
            dataclass, NamedTuple, TypedDict or msgspec.Struct; None: that of the type of the results.
        records: type of the records that enter: ``dict``, ``tuple``, ``"value"`` (the only column), ``"arrow"``
            (RecordBatches), or a dataclass, NamedTuple or msgspec.Struct with the columns' names. ``"columns"``:
            ``build`` is called with a :class:`~sluiceway.table.TableStream`; it may return one in any case.
        timestamp: column with the event time: a timestamp, or ms since the epoch. With ``records="arrow"`` a
            RecordBatch has the highest of its rows, and so has what is made of them; ``"columns"`` keeps theirs.
        watermark_strategy: as for :meth:`sluiceway.Pipeline.source`.
        result_timestamp: timestamp column of the result for the event times of the results; null where one is no
            timestamp of Spark's, as behind a global window.
        name: of the pipeline, in messages; None: that of ``build``.
        parallelism: subtasks of steps behind a shuffle, at least 2; None: as many as Spark runs tasks at a time,
            and over a streaming DataFrame 4, and one per key group of keyed steps; no more than key groups.
        max_parallelism: number of key groups, at least 2; None: 32. It and ``parallelism`` cannot change over a
            checkpoint.

    Raises:
        ConfigurationError: an argument or a setting of the session cannot be used.
        ConnectorError: the session is stopped meanwhile.
        GraphError: the pipeline cannot run here, or cannot be sent to Spark's workers; names the steps.
    """
    need_spark()
    if not callable(getattr(frame, "mapInArrow", None)):
        raise ConfigurationError(f"transform() takes a DataFrame of Spark, not {frame!r:.100}")
    if not callable(build):
        raise ConfigurationError(f"transform() takes a function of a stream, not {build!r:.100}")
    name = name or _name_of(build)
    where = f"transform {name!r}"
    context = context_of(frame.sparkSession)
    if context is not None and context._jsc is None:
        raise ConfigurationError(f"{where}: the session of the DataFrame was stopped. Make both anew")
    in_columns = records == COLUMNS
    check_readable(frame.schema, f"the DataFrame of {where}", as_arrow=in_columns or records == ARROW)
    rows = _rows(records, timestamp, frame.schema, where)
    for option, count in (("parallelism", parallelism), ("max_parallelism", max_parallelism)):
        if count is not None and (type(count) is not int or count < 1):
            raise ConfigurationError(f"{where}: {option}={count!r:.100} is not a whole number >= 1")
    with unless_stopped(frame.sparkSession, where):
        streams = bool(frame.isStreaming)
        slots = parallelism or (_STREAM_PARALLELISM if streams else _slots(frame.sparkSession))
    source = FrameSource(
        rows, streams, schema_as_is(frame.schema, "UTC", f"the DataFrame of {where}") if in_columns else None
    )
    if parallelism is None and max_parallelism is not None:
        slots = min(slots, max(_LEAST, max_parallelism))
    flow = Pipeline(name, parallelism=max(_LEAST, slots), max_parallelism=max_parallelism)
    enter: Any = flow.table if in_columns else flow.source
    entered = enter(source, watermark_strategy=watermark_strategy)
    if timestamp is None:
        _need_times(watermark_strategy, in_columns, where)
    result = build(entered)
    if _is_table(result):
        schema = schema if schema is not None else _schema_of_table(result, result_timestamp, where)
    elif not isinstance(result, DataStream):
        raise ConfigurationError(f"{where}: {_no_stream(result)}")
    if result._pipeline is not flow:
        raise ConfigurationError(
            f"{where}: build returned a stream of another pipeline: begin with the stream that it is called with"
        )
    result.sink(FrameSink())
    settings = Settings(engine="spark")
    plan, services = plan_of(flow, settings, source, keyed_subtasks=None if streams else slots)
    with unless_stopped(frame.sparkSession, where):
        columns, given = result_of(plan, schema, result_timestamp, where)
        shipped = Shipped(ship(plan, services), dump(given), tuple(sys.path), streams)
        if streams:
            return _streaming(frame, plan, shipped, columns, where)
        return _batch(frame, plan, shipped, columns, slots)


def _batch(frame: Any, plan: SteppedPlan, shipped: Shipped, columns: Any, slots: int) -> Any:
    # The first pass is that of the sources: here it runs in the partitions of the DataFrame, by entry_task().
    groups = [
        StageGroup(tuple(stage for stage in each.stages if stage < plan.last_stage), each.parts)
        for each in stage_groups(plan, slots, by_id=hasattr(frame, "repartitionById"), readers_known=False)[1:]
    ]
    groups = [each for each in groups if each.stages]
    if not groups:
        return map_in_arrow(frame, entry_task(shipped, last=True), columns)
    # A row for each subtask from outside of the DataFrame, which may have no partition at all.
    calls = frame.sparkSession.range(0, 1, 1, 1).mapInArrow(calling_task(shipped), SCHEMA)
    rows = map_in_arrow(frame, entry_task(shipped, last=False), SCHEMA).union(calls)
    *others, final = groups
    for each in others:
        rows = together(rows, each.parts, each.parts).mapInArrow(
            stage_task(shipped, each.stages, last=False), SCHEMA
        )
    return together(rows, final.parts, final.parts).mapInArrow(
        stage_task(shipped, final.stages, last=True), columns
    )


def _streaming(frame: Any, plan: SteppedPlan, shipped: Shipped, columns: Any, where: str) -> Any:
    from pyspark.sql.functions import expr

    timed = frame.withColumn(NOW, expr("unix_millis(current_timestamp())"))
    if plan.last_stage == 1:
        return map_in_arrow(timed, entry_task(shipped, last=True), columns)
    _need_state(frame.sparkSession, where)
    rows = map_in_arrow(timed, entry_task(shipped, last=False), SCHEMA)
    shape = shape_of(plan)
    job = in_message_or_file(frame.sparkSession, shipped.job)
    for stage in range(1, plan.last_stage):
        rows = rows.groupBy("target").transformWithState(
            FrameProcessor(shipped.path, job, stage, shape), SCHEMA, outputMode="append", timeMode="None"
        )
    return rows.mapInArrow(result_task(shipped), columns)


def _need_state(session: Any, where: str) -> None:
    """Raise ConfigurationError where Spark cannot keep state for Python."""
    if (older := too_old(MICRO_BATCHES)) is not None:
        raise ConfigurationError(f"{where}: keyed steps over a streaming DataFrame: {older}")
    provider = session.conf.get(_PROVIDER, "")
    if provider != _ROCKSDB:
        raise ConfigurationError(
            f"{where}: Spark keeps state for Python in RocksDB alone, and this session has "
            f"{provider.rpartition('.')[2] or 'another store'}. Before transform(), call "
            f"spark.conf.set({_PROVIDER!r}, {_ROCKSDB!r})"
        )


def _slots(session: Any) -> int:
    """Return how many tasks Spark runs at a time; over Connect, as many as it makes of a shuffle, up to 8."""
    return tasks_at_a_time(session, min(_CONNECT_MOST, int(session.conf.get("spark.sql.shuffle.partitions"))))


def _rows(records: Any, timestamp: str | None, schema: Any, where: str) -> Rows:
    columns = schema.names
    if records == COLUMNS:
        pass
    elif records == "value":
        rest = [column for column in columns if column != timestamp]
        if len(rest) != 1:
            raise ConfigurationError(
                f"{where}: records='value' takes one column, and the DataFrame has {', '.join(rest) or 'none'}"
            )
    else:
        record_type(records)
    if timestamp is not None and timestamp not in columns:
        raise ConfigurationError(
            f"{where}: timestamp={timestamp!r} is none of the columns of the DataFrame: {', '.join(columns)}"
        )
    if timestamp is not None and type(kind := schema[timestamp].dataType).__name__ not in _TIMES:
        raise ConfigurationError(
            f"{where}: timestamp={timestamp!r}: the column is {kind.simpleString()}, not a timestamp or ms since "
            "the epoch"
        )
    return Rows(records, timestamp)


def _need_times(strategy: WatermarkStrategy[Any] | None, in_columns: bool, where: str) -> None:
    """Raise ConfigurationError if a strategy makes watermarks of event times that no row has."""
    if strategy is None or strategy.assigner is not None or strategy.generator is NoWatermarks:
        return
    instead = "with_timestamp_column(name)" if in_columns else "with_timestamp_assigner(function of a record)"
    raise ConfigurationError(
        f"{where}: rows have no event time for watermark_strategy= to make watermarks from: name its column with "
        f"timestamp=, or add {instead} to the strategy"
    )


def _is_table(result: object) -> bool:
    """Return whether ``build`` has returned a stream in columns, by its methods: its class is of an extra."""
    return callable(getattr(result, "to_arrow", None)) and callable(getattr(result, "to_records", None))


def _schema_of_table(result: Any, timestamp: str | None, where: str) -> Any:
    import pyarrow as pa

    schema = result.schema
    if timestamp is None:
        return schema
    if timestamp in schema.names:
        raise ConfigurationError(f"{where}: result_timestamp={timestamp!r}: the result has a column of that name")
    return schema.append(pa.field(timestamp, pa.timestamp("us", "UTC")))


def _no_stream(result: object) -> str:
    if result is None:
        return "build returned None: it has to return the stream of the results"
    if isinstance(result, (dict, tuple, list)):
        return (
            f"build returned a {type(result).__name__}, and a transform has one result. Bring several streams "
            "together with union(), with a field that names the output, and take them apart behind it by filter()"
        )
    if isinstance(result, DataStreamSink):
        return "build returned a sink: it has to return the stream, of which Spark takes the records"
    return f"build returned a {type(result).__name__}: it has to return the stream that a step returns"


def _name_of(build: object) -> str:
    name = getattr(build, "__name__", type(build).__name__)
    return "transform" if name == "<lambda>" else str(name)
