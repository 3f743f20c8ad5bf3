"""Values of Arrow columns as Python's."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sluiceway.util.arrow_types import with_leaves

__all__ = ["NoPythonValueError", "as_dicts", "row_as_text", "rows_as_dicts", "values_of"]


class NoPythonValueError(ValueError):
    """A column has a value for which Python has none."""


def rows_as_dicts(data: Any) -> list[dict[str, Any]]:
    """Return the rows of a record batch as dicts of :func:`values_of`. Raises NoPythonValueError."""
    if not any(map(_is_converted, data.schema.types)):
        try:
            rows: list[dict[str, Any]] = data.to_pylist()  # takes half to two thirds of the time
        except (OverflowError, ValueError):
            pass  # columns are read one by one, so that the error names the one
        else:
            return rows
    names = data.schema.names
    columns = [values_of(column, name) for name, column in zip(names, data.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def row_as_text(row: Any) -> str:
    """Return a record batch of one row for people: its dict, or as Arrow shows it if Python has no such value."""
    try:
        return repr(rows_as_dicts(row)[0])
    except NoPythonValueError:
        shown = (column.to_string(skip_new_lines=True) for column in row.columns)
        return ", ".join(f"{name}: {text}" for name, text in zip(row.schema.names, shown, strict=True))


def values_of(column: Any, name: str) -> list[Any]:
    """Return the values of a column: maps as dicts, and times as those of Python.

    Args:
        column: an Arrow array.
        name: name of the column, for the error.

    Raises:
        NoPythonValueError: a time has fractions of a microsecond, or a year that Python does not have; a text is
            not UTF-8.
    """
    kind = column.type
    # By itself, Arrow makes objects of pandas of nanoseconds, if it is installed, and cuts them off times of day.
    known = _in_microseconds(kind)
    if not known.equals(kind):
        try:
            column = column.cast(known)
        except pa.ArrowInvalid as error:
            raise NoPythonValueError(
                f"column {name!r} has {kind}, finer than microseconds, which Python's times are: {error}. Cut "
                f'it before, as in with_columns(col({name!r}).dt.truncate("1us"))'
            ) from error
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise NoPythonValueError(
            f"column {name!r} has {kind}, and a text that is not UTF-8: {error}. Write it as UTF-8, or as binary"
        ) from error
    except (OverflowError, ValueError) as error:
        raise NoPythonValueError(
            f"column {name!r} has {kind}, and a value that Python has none for, whose years are 1 to 9999: {error}"
            ". Filter such rows out before"
        ) from error
    convert = as_dicts(known)
    try:
        return values if convert is None else list(map(convert, values))
    except NoPythonValueError as error:
        raise NoPythonValueError(f"column {name!r} has {kind}: {error}") from None


@lru_cache(1024)
def _is_converted(kind: Any) -> bool:
    """Return whether values of a type are others than those that Arrow makes of them by itself."""
    return not _in_microseconds(kind).equals(kind) or as_dicts(kind) is not None


def _in_microseconds(kind: Any) -> Any:
    """Return a type with microseconds in place of nanoseconds, also inside of structs, lists and maps."""
    return with_leaves(kind, _leaf_in_microseconds)


def _leaf_in_microseconds(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        known = _in_microseconds(kind.value_type)
        return kind if known.equals(kind.value_type) else known
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def as_dicts(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes dicts of the maps in a value that Arrow gives; None if it can have none.

    Maps whose keys have no hash stay lists of pairs. The function raises NoPythonValueError for a key that occurs
    twice in a map.
    """
    if pa.types.is_map(kind):
        item = as_dicts(kind.item_type) or _same
        if pa.types.is_nested(kind.key_type):
            return lambda value: None if value is None else [(k, item(v)) for k, v in value]

        def as_dict(value: Any) -> Any:
            if value is None:
                return None
            made = {k: item(v) for k, v in value}
            if len(made) < len(value):
                raise NoPythonValueError(f"a map has a key twice, which a dict cannot have: {value!r:.100}")
            return made

        return as_dict
    if pa.types.is_struct(kind):
        fields = {field.name: of for field in kind if (of := as_dicts(field.type)) is not None}
        if not fields:
            return None
        return lambda value: (
            None if value is None else {k: fields[k](v) if k in fields else v for k, v in value.items()}
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = as_dicts(kind.value_type)
        return None if each is None else lambda value: None if value is None else list(map(each, value))
    return None


def _same(value: Any) -> Any:
    return value
