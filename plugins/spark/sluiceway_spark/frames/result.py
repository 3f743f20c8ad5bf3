"""Columns of the DataFrame that a transform returns."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import ConfigurationError
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.conversion.arrow_schema import schema_as_is, schema_of
from sluiceway_spark.datasource.records_to_rows import arrow_schema_of, place_of
from sluiceway_spark.frames.tasks import Result
from sluiceway_spark.session.configuration import said

__all__ = ["result_of"]


def result_of(plan: SteppedPlan, schema: Any, timestamp: str | None, where: str) -> tuple[Any, Result]:
    """Return the schema of the result for Spark, and what Python workers need to make rows of it.

    Args:
        plan: the job.
        schema: as the user gives it; None: that of the type of the results.
        timestamp: column for event times, or None.
        where: names the transform in messages.

    Raises:
        ConfigurationError: there is no such schema, or none can be told from the type.
    """
    (sink,) = plan.sinks
    kinds = {plan.deployment(sink, 0).inputs[0].record_type} if plan.graph.in_edges(sink) else {None}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    columns = _struct(schema, kind, timestamp, where)
    arrow = schema_as_is(columns, "UTC", f"{where}: the result")
    if timestamp is not None:
        place = place_of(timestamp, columns.names)
        if place is None or type(columns[place].dataType).__name__ not in ("TimestampType", "TimestampNTZType"):
            raise ConfigurationError(
                f"{where}: result_timestamp={timestamp!r} is no timestamp column of the result, which has "
                f"{', '.join(f'{field.name} {field.dataType.simpleString()}' for field in columns)}"
            )
        if len(columns) == 1:
            raise ConfigurationError(f"{where}: the result has no column for its records beside {timestamp!r}")
    return columns, Result(arrow, kind, timestamp, where)


def _struct(schema: Any, kind: Any, timestamp: str | None, where: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        found = schema
    elif isinstance(schema, str):
        try:
            found = StructType.fromDDL(schema)
        except Exception as error:  # which class it is depends on how the session talks to Spark
            raise ConfigurationError(f"{where}: schema={schema!r:.200}: {said(error)}") from error
    elif isinstance(schema, (list, tuple, dict)):  # names alone, as createDataFrame() takes them
        raise ConfigurationError(
            f"{where}: schema={schema!r:.200} must be a text such as 'word string, count long', or a StructType"
        )
    elif schema is not None:
        found = from_arrow_schema(schema_of(schema, where))
    else:
        try:
            found = from_arrow_schema(arrow_schema_of(kind, timestamp, where))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{where}: the columns of the result cannot be told from the type of the results "
                f"({'not known' if kind is None else kind}): give schema='name type, ...'"
            ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigurationError(f"{where}: schema={schema!r:.200} has no columns")
    return found
