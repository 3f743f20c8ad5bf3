"""Records of Arrow batches: dicts, tuples, objects of a type, or the batches themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from sluiceway.errors import ConfigurationError, ConnectorError

__all__ = ["ARROW", "Convert", "converter", "record_type"]

ARROW = "arrow"
"""The ``records`` that stands for the batches themselves."""

Convert = Callable[[Any], list[Any]]


def record_type(records: Any) -> Any:
    """The type of what :func:`converter` makes.

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
    """What makes records of a batch with this schema.

    Raises:
        ConnectorError: a field of the type is no column.
    """
    names: list[str] = schema.names
    if records is dict:
        return lambda batch: [dict(zip(names, row, strict=True)) for row in _rows(batch)]
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
    wanted = list[records]
    in_order = hasattr(records, "_fields")  # of a NamedTuple, which is made of a sequence
    if in_order and present != list(records._fields)[: len(present)]:
        raise ConnectorError(
            f"{what} lacks a column in the middle of {records.__name__}: it has {', '.join(map(repr, names))}"
        )

    def make(batch: Any) -> list[Any]:
        rows: Any = _rows(batch.select(present))
        rows = list(rows) if in_order else [dict(zip(present, row, strict=True)) for row in rows]
        try:
            made: list[Any] = msgspec.convert(rows, wanted)
        except msgspec.ValidationError as error:
            raise ConnectorError(f"a row of {what} is no {records.__name__}: {error}") from error
        return made

    return make


def _rows(batch: Any) -> Any:
    """An iterator over the rows of a batch, as tuples."""
    return zip(*map(_values, batch.columns), strict=True) if batch.num_columns else iter([()] * batch.num_rows)


def _values(column: Any) -> list[Any]:
    import pyarrow as pa

    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values: list[Any] = column.to_numpy().tolist()  # several times as fast as to_pylist()
        return values
    return list(column.to_pylist())
