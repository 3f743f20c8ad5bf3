"""Conversion of records to columns and of columns to records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any

import pyarrow as pa

from sluiceway.columns.schemas import fields_of, is_record_type, shown
from sluiceway.errors import FunctionContractError
from sluiceway.record_errors import shown as shown_record
from sluiceway.types import members

__all__ = ["Encoder", "decoder"]


class Encoder:
    """Encoder of records as columns of one schema.

    A record is a mapping, or an object with an attribute per column. A key that is missing in a mapping is null.

    Args:
        schema: of the columns.
        step: name of the step, for messages.
    """

    def __init__(self, schema: pa.Schema, step: str) -> None:
        self._schema = schema
        self._step = step
        self._required = [field.name for field in schema if not field.nullable]

    def encode(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Return the columns of records.

        Raises:
            FunctionContractError: a record does not fit; the message has it, and the column.
        """
        try:
            arrays = [pa.array(self._column(values, field.name), field.type) for field in self._schema]
        except Exception as error:
            raise self._misfit(values, error) from None
        for name, array in zip(self._schema.names, arrays, strict=True):
            if array.null_count and name in self._required:
                record = values[array.is_null().index(True).as_py()]
                raise FunctionContractError(
                    f"step {self._step!r}: column {name!r} may not be null, and is in {shown_record(record, 200)}"
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, values: Sequence[Any], name: str) -> list[Any]:
        if isinstance(values[0], Mapping):
            try:
                return list(map(itemgetter(name), values))
            except KeyError:
                return [value.get(name) for value in values]
        return list(map(attrgetter(name), values))

    def _misfit(self, values: Sequence[Any], error: Exception) -> Exception:
        """Return the error for the first record and column that do not fit."""
        for value in values:
            for field in self._schema:
                try:
                    pa.array(self._column([value], field.name), field.type)
                except Exception as why:
                    return FunctionContractError(
                        f"step {self._step!r}: {shown_record(value, 200)} ({type(value).__name__}) does not fit "
                        f"into column {field.name!r} of type {field.type}: {why}"
                    )
        return error


def decoder(record_type: Any, schema: pa.Schema, step: str) -> Callable[[pa.RecordBatch], list[Any]]:
    """Return a function that makes records of columns.

    Args:
        record_type: class with a field per column, by name; more columns than fields may be there. None: dicts of
            all columns.
        schema: of the columns.
        step: name of the step, for messages.

    Raises:
        FunctionContractError: a field has no column.
    """
    if record_type is None or record_type is dict:
        return pa.RecordBatch.to_pylist
    names = list(fields_of(record_type))
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise FunctionContractError(
            f"step {step!r}: {record_type.__name__} has the field {missing[0]!r}, for which there is no column; "
            f"the columns are {shown(schema)}"
        )
    as_mapping = isinstance(record_type, type) and issubclass(record_type, dict)
    by_name = _takes_names_only(record_type)
    nested = {name: hint for name, hint in _nested(record_type).items() if name in names}

    def decode(data: pa.RecordBatch) -> list[Any]:
        columns = [data.column(name).to_pylist() for name in names]
        if as_mapping:
            return data.select(names).to_pylist()
        for at, name in enumerate(names):
            if name in nested:
                columns[at] = [None if part is None else nested[name](**part) for part in columns[at]]
        if by_name:
            return [record_type(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        return list(map(record_type, *columns)) if columns else []

    return decode


def _takes_names_only(record_type: Any) -> bool:
    """Return whether a class has to be called with names: a model, or one with keyword-only fields."""
    if hasattr(record_type, "model_fields"):
        return True
    parameters = inspect.signature(record_type).parameters.values()
    return any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)


def _nested(record_type: Any) -> dict[str, Any]:
    found = {}
    for name, hint in fields_of(record_type).items():
        inner = [one for one in members(hint) if one is not NoneType]
        if len(inner) == 1 and is_record_type(inner[0]) and not issubclass(inner[0], dict):
            found[name] = inner[0]
    return found
