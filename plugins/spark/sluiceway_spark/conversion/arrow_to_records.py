"""Conversion of Arrow batches to records: dicts, tuples, objects of a type, or the batches themselves."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_spark.conversion.time_zones import with_python_zones

__all__ = ["ARROW", "Convert", "converter", "record_type", "values_of"]

ARROW = "arrow"
"""The ``records`` that stands for the batches themselves."""

Convert = Callable[[Any], list[Any]]


def record_type(records: Any) -> Any:
    """Return the type of the records that :func:`converter` makes.

    Raises:
        ConfigurationError: ``records`` is nothing that rows can become.
    """
    if records is dict:
        return dict[str, Any]
    if records is tuple:
        return tuple
    if records == ARROW:
        return None
    if isinstance(records, type) and (
        dataclasses.is_dataclass(records) or issubclass(records, msgspec.Struct) or hasattr(records, "_fields")
    ):
        return records
    raise ConfigurationError(
        f"records={records!r:.100} must be dict, tuple, 'arrow', or a dataclass, NamedTuple or msgspec.Struct "
        "with the columns' names"
    )


def converter(records: Any, schema: Any, what: str) -> Convert:
    """Return a function that converts batches with this schema to records.

    Raises:
        ConnectorError: a field of the type is no column.
    """
    names: list[str] = schema.names
    if records is dict:
        to_dicts = _dict_maker(names)
        return lambda batch: to_dicts(_columns(batch)) if names else [{}] * batch.num_rows
    if records is tuple:
        return lambda batch: list(_rows(batch))
    info: Any = msgspec.inspect.type_info(records)
    fields = [(field.encode_name, field.required) for field in info.fields]
    if missing := [name for name, is_required in fields if is_required and name not in names]:
        raise ConnectorError(
            f"{what} has no column {', '.join(map(repr, missing))} for {records.__name__}; it has "
            f"{', '.join(map(repr, names))}"
        )
    present = [name for name, _ in fields if name in names]
    in_order = hasattr(records, "_fields")  # of a NamedTuple, which is made of a sequence
    if in_order and present != list(records._fields)[: len(present)]:
        raise ConnectorError(
            f"{what} lacks a column in the middle of {records.__name__}: it has {', '.join(map(repr, names))}"
        )
    checked = _checked(records, present, in_order, what)
    if in_order or not _is_made_by_position(records, info.fields, present, schema):
        return checked
    nullable = [_is_optional(field.type) for field in info.fields if field.encode_name in names]

    def made(batch: Any) -> list[Any]:
        part = batch.select(present)
        if any(column.null_count and not may for column, may in zip(part.columns, nullable, strict=True)):
            return checked(batch)
        return list(map(records, *_columns(part)))

    return made


def _checked(records: Any, present: list[str], in_order: bool, what: str) -> Convert:
    """Return a function that makes objects, and checks each value."""
    wanted = list[records]
    to_dicts = _dict_maker(present)

    def make(batch: Any) -> list[Any]:
        part = batch.select(present)
        if not present:
            rows: list[Any] = [() if in_order else {}] * batch.num_rows
        else:
            rows = list(_rows(part)) if in_order else to_dicts(_columns(part))
        try:
            made: list[Any] = msgspec.convert(rows, wanted)
        except msgspec.ValidationError as error:
            raise ConnectorError(f"a row of {what} is no {records.__name__}: {error}") from error
        return made

    return make


def _is_made_by_position(records: Any, fields: Any, present: list[str], schema: Any) -> bool:
    """Return whether the types of the columns suffice as a check, and the class takes them in their order."""
    if not present or [field.encode_name for field in fields[: len(present)]] != present:
        return False
    try:
        parameters = list(inspect.signature(records).parameters.values())
    except (TypeError, ValueError):
        return False
    if [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] != [field.name for field in fields]:
        return False
    return all(_fits(field.type, schema.field(field.encode_name).type) for field in fields[: len(present)])


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, msgspec.inspect.UnionType) and kind.includes_none


def _fits(kind: Any, column: Any) -> bool:
    """Return whether all values of a column but None are of a type, by the type of the column alone."""
    import pyarrow as pa

    if _is_optional(kind) and len(kind.types) == 2:
        kind = next(part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType))
    of_columns = (
        (msgspec.inspect.IntType(), pa.types.is_integer),
        (msgspec.inspect.FloatType(), pa.types.is_floating),
        (msgspec.inspect.StrType(), pa.types.is_string),
        (msgspec.inspect.BytesType(), pa.types.is_binary),
        (msgspec.inspect.BoolType(), pa.types.is_boolean),
        (msgspec.inspect.DateType(), pa.types.is_date),
        (msgspec.inspect.DateTimeType(), pa.types.is_timestamp),
    )
    return any(kind == known and is_of(column) for known, is_of in of_columns)


def _dict_maker(names: list[str]) -> Callable[[list[Any]], list[Any]]:
    """Return a function that makes dicts of columns: several times as fast as ``zip`` for each."""
    values = [f"v{number}" for number in range(len(names))]
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    source = f"lambda columns: [{{{pairs}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    # Safe: names of columns are in the source as literals alone, by repr().
    made: Callable[[list[Any]], list[Any]] = eval(source) if names else lambda columns: []
    return made


def _rows(batch: Any) -> Any:
    """Return an iterator over the rows of a batch, as tuples."""
    return zip(*_columns(batch), strict=True) if batch.num_columns else iter([()] * batch.num_rows)


def _columns(batch: Any) -> list[list[Any]]:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(values_of(column))
        except UnicodeDecodeError as error:
            raise ConnectorError(
                f"column {name!r} has a text that is not UTF-8: {error}. Cast it to BINARY in Spark"
            ) from error
        except (OverflowError, ValueError) as error:
            raise ConnectorError(
                f"column {name!r} has {column.type}, and a value that Python has none for, whose years are 1 to "
                f"9999: {error}. Filter such rows out in Spark, or cast the column to STRING"
            ) from error
    return columns


def values_of(column: Any) -> list[Any]:
    """Return the values of a column as those of a record: maps as dicts, VARIANTs as what they hold."""
    import pyarrow as pa

    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values: list[Any] = column.to_numpy().tolist()  # faster than to_pylist()
        return values
    if (known := with_python_zones(kind)) is not None:
        column, kind = column.cast(known), known  # the instants stay
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _times(column, kind)
    plain = list(column.to_pylist())
    if not pa.types.is_nested(kind) or (made := _maker(kind)) is None:
        return plain
    return [None if value is None else made(value) for value in plain]


def _maker(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function from a value of pyarrow's of a nested type to that of a record; None: they are the same.

    pyarrow gives maps as lists of pairs, and Spark's VARIANT as the bytes that it is encoded in.
    """
    import pyarrow as pa

    if pa.types.is_map(kind):
        key, item = _of_part(kind.key_type), _of_part(kind.item_type)
        return lambda pairs: {_hashable(key(k)): item(v) for k, v in pairs}
    if pa.types.is_struct(kind):
        if _is_variant(kind):
            return _variant
        makers = {field.name: made for field in kind if (made := _maker(field.type)) is not None}
        return _of_fields(makers) if makers else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = _maker(kind.value_type)
        return None if made is None else lambda values: [None if v is None else made(v) for v in values]
    return None


def _of_part(kind: Any) -> Callable[[Any], Any]:
    made = _maker(kind)
    return (lambda value: value) if made is None else lambda value: None if value is None else made(value)


def _of_fields(makers: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def made(value: dict[str, Any]) -> dict[str, Any]:
        return value | {name: make(value[name]) for name, make in makers.items() if value[name] is not None}

    return made


def _hashable(key: Any) -> Any:
    """Return a key of a map as a key of a dict: arrays and structs as tuples."""
    if isinstance(key, dict):
        return tuple(map(_hashable, key.values()))
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _is_variant(kind: Any) -> bool:
    """Return whether Spark has marked a struct as the encoding of a VARIANT."""
    return {field.name for field in kind} == {"value", "metadata"} and any(
        (field.metadata or {}).get(b"variant") == b"true" for field in kind
    )


def _variant(value: dict[str, Any]) -> Any:
    from pyspark.sql.types import VariantVal

    return VariantVal(value["value"], value["metadata"]).toPython()


def _times(column: Any, kind: Any) -> list[Any]:
    """Return the same as ``to_pylist``, which takes microseconds for each value."""
    import pyarrow as pa

    first = next((value for value in column if value.is_valid), None)
    naive: list[Any] = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
    if first is None:
        return naive
    if kind.tz is None:
        # NumPy gives a number for a year that Python has not, where to_pylist() raises.
        return list(column.to_pylist()) if int in set(map(type, naive)) else naive
    try:
        zone = first.as_py().tzinfo
        if kind.tz in ("UTC", "Etc/UTC"):
            return [None if at is None else at.replace(tzinfo=zone) for at in naive]
        return [None if at is None else at.replace(tzinfo=dt.UTC).astimezone(zone) for at in naive]
    except (AttributeError, OverflowError, ValueError):  # years that Python has not
        return list(column.to_pylist())
