"""Conversion of records to columns and of columns to records."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Final

import pyarrow as pa

from sluiceway.columns.exact import exact_array
from sluiceway.columns.schemas import fields_of, is_record_type, shown
from sluiceway.errors import FunctionContractError
from sluiceway.record_errors import shown as shown_record
from sluiceway.types import members
from sluiceway.util.arrow_values import NoPythonValueError, rows_as_dicts, values_of

__all__ = ["Encoder", "decoder"]

_PAIR: Final = 2


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
        # Arrow lets nulls into fields and elements that are not nullable.
        self._inside = {field.name for field in schema if _has_required(field.type)}
        self._convert = {field.name: of for field in schema if (of := _as_mappings(field.type)) is not None}

    def encode(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Return the columns of records.

        Raises:
            FunctionContractError: a record does not fit; the message has it, and the column.
        """
        try:
            arrays = [exact_array(self._column(values, field.name), field.type) for field in self._schema]
        except Exception as error:
            raise self._misfit(values, error) from None
        for name, array in zip(self._schema.names, arrays, strict=True):
            if array.null_count and name in self._required:
                record = values[array.is_null().index(True).as_py()]
                raise self._null(name, record)
            if name in self._inside and _required_null(array, name):
                rows = ((value, array.take(pa.array([at]))) for at, value in enumerate(values))
                record, place = next((value, found) for value, row in rows if (found := _required_null(row, name)))
                raise self._null(place, record)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _null(self, place: str, record: Any) -> FunctionContractError:
        return FunctionContractError(
            f"step {self._step!r}: column {place!r} may not be null, and is in {shown_record(record, 200)}"
        )

    def _column(self, values: Sequence[Any], name: str) -> list[Any]:
        try:
            get = itemgetter(name) if isinstance(values[0], Mapping) else attrgetter(name)
            column = list(map(get, values))
        except (AttributeError, KeyError, TypeError):
            # A key is missing, or mappings and objects are in one batch, which must not matter.
            column = [value.get(name) if isinstance(value, Mapping) else getattr(value, name) for value in values]
        convert = self._convert.get(name)
        return column if convert is None else list(map(convert, column))

    def _misfit(self, values: Sequence[Any], error: Exception) -> Exception:
        """Return the error for the first record and column that do not fit."""
        # Arrow's error does not say which value it is about: each is tried by itself.
        for value in values:
            for field in self._schema:
                try:
                    exact_array(self._column([value], field.name), field.type)
                except Exception as why:
                    return FunctionContractError(
                        f"step {self._step!r}: {shown_record(value, 200)} ({type(value).__name__}) does not fit "
                        f"into column {field.name!r} of type {field.type}: {why}"
                    )
        return error


def _inner_fields(kind: Any) -> list[Any]:
    """Return the fields of a struct, or the elements of a list or map; nothing for other types."""
    if pa.types.is_map(kind):
        return [kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


def _has_required(kind: Any) -> bool:
    """Return whether a value of this type has fields or elements that may not be null."""
    return any(not field.nullable or _has_required(field.type) for field in _inner_fields(kind))


def _required_null(array: Any, place: str) -> str | None:
    """Return the place of a null inside of the values that may not be there; None: there is none."""
    kind = array.type
    array = array.drop_null() if array.null_count else array
    for at, field in enumerate(_inner_fields(kind)):
        if pa.types.is_struct(kind):
            inner, where = array.flatten()[at], f"{place}.{field.name}"
        else:
            # Arrow flattens no maps, and the items of one do not keep to a slice: so no array here is a slice.
            inner, where = array.items if pa.types.is_map(kind) else array.flatten(), f"{place}[]"
        if inner.null_count and not field.nullable:
            return where
        if found := _required_null(inner, where):
            return found
    return None


def _as_mappings(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes mappings of the records in a value of this type; None if it can have none."""
    if pa.types.is_struct(kind):
        inner = {kind.field(at).name: _as_mappings(kind.field(at).type) for at in range(kind.num_fields)}

        def as_mapping(value: Any) -> Any:
            if value is None:
                return None
            of = value.get if isinstance(value, Mapping) else partial(getattr, value)
            return {name: of(name) if part is None else part(of(name)) for name, part in inner.items()}

        return as_mapping
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = _as_mappings(kind.value_type)
        return None if each is None else lambda value: None if value is None else list(map(each, value))
    if pa.types.is_map(kind):
        of_item = _as_mappings(kind.item_type)
        if of_item is None:
            return None
        return lambda value: None if value is None else [(k, of_item(v)) for k, v in dict(value).items()]
    return None


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
        return _naming(step, rows_as_dicts)
    names = list(fields_of(record_type))
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise FunctionContractError(
            f"step {step!r}: {record_type.__name__} has the field {missing[0]!r}, for which there is no column; "
            f"the columns are {shown(schema)}"
        )
    as_mapping = isinstance(record_type, type) and issubclass(record_type, dict)
    # A TypedDict has no signature.
    by_name = not as_mapping and _takes_names_only(record_type)
    makers = {name: of for name, hint in fields_of(record_type).items() if (of := _maker(hint)) is not None}

    def decode(data: pa.RecordBatch) -> list[Any]:
        if as_mapping and not makers:
            return rows_as_dicts(data.select(names))
        columns = [values_of(data.column(name), name) for name in names]
        for at, name in enumerate(names):
            if name in makers:
                columns[at] = list(map(makers[name], columns[at]))
        if by_name or as_mapping:
            return [record_type(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        return list(map(record_type, *columns)) if columns else []

    return _naming(step, decode)


def _naming(step: str, decode: Callable[[pa.RecordBatch], list[Any]]) -> Callable[[pa.RecordBatch], list[Any]]:
    """Return a function that names the step where Python has no value for one of a column."""

    def named(data: pa.RecordBatch) -> list[Any]:
        try:
            return decode(data)
        except NoPythonValueError as error:
            raise FunctionContractError(f"step {step!r}: {error}") from error

    return named


def _takes_names_only(record_type: Any) -> bool:
    """Return whether a class has to be called with names: a model, or one with keyword-only fields."""
    if hasattr(record_type, "model_fields"):
        return True
    parameters = inspect.signature(record_type).parameters.values()
    return any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)


def _maker(hint: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes a value of a type of what Arrow gives; None if it is that already."""
    inner = [one for one in members(hint) if one is not NoneType]
    if len(inner) != 1:
        return None
    (only,) = inner
    origin, args = typing.get_origin(only), typing.get_args(only)
    if origin in (list, tuple, Sequence) and args:
        each, kind = _maker(args[0]), tuple if origin is tuple else list
        if each is None and kind is list:
            return None
        return lambda value: None if value is None else kind(value if each is None else map(each, value))
    if origin in (dict, Mapping) and len(args) == _PAIR:
        of_value = _maker(args[1])
        if of_value is None:
            return None
        return lambda value: None if value is None else {k: of_value(v) for k, v in value.items()}
    if not is_record_type(only) or issubclass(only, dict):
        return None
    makers = {name: by for name, of in fields_of(only).items() if (by := _maker(of)) is not None}

    def make(value: Any) -> Any:
        if value is None:
            return None
        parts = {name: makers[name](part) if name in makers else part for name, part in value.items()}
        return only(**parts)

    return make
