"""Conversion of Python values to Arrow arrays without loss.

``pyarrow.array`` cuts off what a type cannot hold in some cases, without an error: 1.5 becomes 1 in a column of
integers, and a datetime loses its time in one of dates. Both are errors here. Times are cut off to the unit of
their column, as on Spark: a column of milliseconds is asked for by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from types import NoneType
from typing import Any, Final

import pyarrow as pa

__all__ = ["exact_array"]

_Check = Callable[[Sequence[Any]], None]

_INTEGERS: Final = frozenset({int, NoneType})


def exact_array(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an array of a type.

    Args:
        values: the values; None is null.
        kind: type of the array, also a nested one.

    Raises:
        pyarrow.ArrowException: a value does not fit.
        OverflowError: a number does not fit.
        TypeError: a value is of a class that does not fit.
        ValueError: a value would lose a part.
    """
    # Arrow first: the checks rely on its refusal of values of other classes.
    array = pa.array(values, kind)
    check = _check_of(kind)
    if check is not None:
        check(values)
    return array


def _check_of(kind: Any) -> _Check | None:
    """Return a function that raises ValueError for values that lose a part; None: the type loses nothing."""
    if pa.types.is_integer(kind):
        return _check_whole
    if pa.types.is_date(kind):
        return _check_dates
    if pa.types.is_dictionary(kind):
        return _check_of(kind.value_type)
    if pa.types.is_map(kind):
        return _check_of_map(kind)
    if pa.types.is_struct(kind):
        return _check_of_struct(kind)
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        each = _check_of(kind.value_type)
        return None if each is None else lambda values: each([one for value in _known(values) for one in value])
    return None


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
        if isinstance(value, dt.datetime) and value.time() != dt.time():
            raise ValueError(f"{value!r} has a time of the day, which a date has not")
