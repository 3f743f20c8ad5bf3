"""Conversion of Python values to Arrow arrays without loss.

``pyarrow.array`` cuts off what a type cannot hold in some cases, without an error: 1.5 becomes 1 in a column of
integers, a datetime loses its time in one of dates, and a time of the day its zone; 7 becomes a day of 1970. They
are errors here, and so is a text in a column of lists, of which it makes a list of characters. Times are cut off
to the unit of their column, as on Spark: a column of milliseconds is asked for by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Number
from types import NoneType
from typing import Any, Final

import pyarrow as pa

from sluiceway.columns.not_null import checked_cast

__all__ = ["cast_exactly", "converts_exactly", "exact_array"]

_Check = Callable[[Sequence[Any]], None]

_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_ALIKE: Final = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)
"""Types whose casts to each other keep values or raise, apart from casts to floats and decimals."""
_SINGLE_BITS: Final = 32

_INTEGERS: Final = frozenset({int, NoneType})


def exact_array(values: Sequence[Any], kind: Any = None) -> Any:
    """Return values as an array of a type.

    Args:
        values: the values; None is null.
        kind: type of the array, also a nested one; None: that which Arrow infers from the values.

    Raises:
        pyarrow.ArrowException: a value does not fit.
        OverflowError: a number does not fit.
        TypeError: a value is of a class that does not fit.
        ValueError: a value would lose a part.
    """
    # Arrow first: the checks rely on its refusal of values of other classes.
    array = pa.array(values, kind)
    check = _check_of(array.type)
    if check is not None:
        check(values)
    return array


def cast_exactly(rows: Any, schema: Any) -> Any:
    """Return the columns of a schema from what a function of the user has made, in the types that it has.

    Floats are rounded to those of the schema, and a time without a zone is one of UTC, as in records.

    Args:
        rows: a ``pyarrow.Table`` or ``RecordBatch``; the result is of the same class.
        schema: the columns.

    Raises:
        KeyError: a column is missing.
        pyarrow.ArrowException: a value does not fit.
        ValueError: a cast could change values.
    """
    rows = rows.select(schema.names)
    for old, new in zip(rows.schema, schema, strict=True):
        if not converts_exactly(old.type, new.type, as_records=True):
            raise ValueError(
                f"column {new.name!r} is {old.type}, whose cast to {new.type} could change values: cast it there"
            )
    return checked_cast(rows, schema)


def converts_exactly(old: Any, new: Any, *, as_records: bool = False) -> bool:
    """Return whether Arrow's cast from one type to another keeps each value, or raises an error.

    Its other casts give something else without an error: 5 becomes true, a time loses its zone or becomes a
    number, 1.239 becomes 1.24, and 1e300 infinity.

    Args:
        old: type of the values.
        new: type to cast them to.
        as_records: allow what records of such values have in such a column, too: floats are rounded, and a time
            without a zone is one of UTC.
    """
    if old.equals(new) or pa.types.is_null(old):
        return True
    again = partial(converts_exactly, as_records=as_records)
    if pa.types.is_dictionary(old) or pa.types.is_dictionary(new):
        return again(*(kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (old, new)))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return again(old.key_type, new.key_type) and again(old.item_type, new.item_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        names = {field.name for field in old}
        return all(again(old.field(field.name).type, field.type) for field in new if field.name in names)
    if any(is_list(old) for is_list in _LISTS) and any(is_list(new) for is_list in _LISTS):
        return again(old.value_type, new.value_type)
    if pa.types.is_floating(new):
        if pa.types.is_floating(old):
            return as_records or bool(old.bit_width <= new.bit_width)
        return bool(pa.types.is_integer(old) and new.bit_width >= _SINGLE_BITS)
    if pa.types.is_decimal(new):
        return bool(pa.types.is_decimal(old) or pa.types.is_integer(old))
    if pa.types.is_timestamp(old) and pa.types.is_timestamp(new):
        return as_records or (old.tz is None) == (new.tz is None)
    return any(any(is_of(old) for is_of in kinds) and any(is_of(new) for is_of in kinds) for kinds in _ALIKE)


def _check_of(kind: Any) -> _Check | None:
    """Return a function that raises ValueError for values that lose a part; None: the type loses nothing."""
    if pa.types.is_integer(kind):
        return _check_whole
    if pa.types.is_date(kind):
        return _check_dates
    if pa.types.is_time(kind):
        return _check_times
    if pa.types.is_dictionary(kind):
        return _check_of(kind.value_type)
    if pa.types.is_map(kind):
        return _check_of_map(kind)
    if pa.types.is_struct(kind):
        return _check_of_struct(kind)
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return _check_of_list(_check_of(kind.value_type))
    return None


def _check_of_list(each: _Check | None) -> _Check:
    def check(values: Sequence[Any]) -> None:
        if str in map(type, values):
            text = next(value for value in values if type(value) is str)
            raise ValueError(f"{text!r} is a text, which would become a list of its characters")
        if each is not None:
            each([one for value in _known(values) for one in value])

    return check


def _check_of_map(kind: Any) -> _Check | None:
    of_key, of_item = _check_of(kind.key_type), _check_of(kind.item_type)
    if of_key is None and of_item is None:
        return None

    def check(values: Sequence[Any]) -> None:
        pairs = [
            pair for value in _known(values) for pair in (value.items() if hasattr(value, "items") else value)
        ]
        for at, each in enumerate((of_key, of_item)):
            if each is not None:
                each([pair[at] for pair in pairs])

    return check


def _check_of_struct(kind: Any) -> _Check | None:
    checks = [(kind.field(at).name, _check_of(kind.field(at).type)) for at in range(kind.num_fields)]
    if all(each is None for _, each in checks):
        return None

    def check(values: Sequence[Any]) -> None:
        records = [value for value in values if isinstance(value, Mapping)]
        for name, each in checks:
            if each is not None:
                each([record.get(name) for record in records])

    return check


def _known(values: Sequence[Any]) -> Iterable[Any]:
    return (value for value in values if value is not None)


def _check_whole(values: Sequence[Any]) -> None:
    if _INTEGERS.issuperset(map(type, values)):
        return
    for value in values:
        if isinstance(value, Number) and value % 1:  # type: ignore[operator]
            raise ValueError(f"{value!r} is no whole number")


def _check_dates(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, Number):
            raise ValueError(f"{value!r} is a number, which would count as days since 1970")
        if isinstance(value, dt.datetime) and value.time() != dt.time():
            raise ValueError(f"{value!r} has a time of the day, which a date has not")


def _check_times(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, Number):
            raise ValueError(f"{value!r} is a number, which would count as the time since midnight")
        if isinstance(value, dt.time) and value.tzinfo is not None:
            raise ValueError(f"{value!r} has a zone, which a time of the day in a column has not")
