"""Event times of rows: between timestamps of a batch, numpy arrays and columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.numpy_arrays import numpy_of
from sluiceway.errors import FunctionContractError

__all__ = [
    "as_array",
    "as_numbers",
    "as_numpy",
    "event_times",
    "problem_of_time_column",
    "without_time",
]

_UNITS: Final = {"s": 1000, "ms": 1, "us": -1000, "ns": -1_000_000}
"""Milliseconds in a unit; a negative number: units in a millisecond."""


def as_numpy(stamps: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a batch's timestamps as an int64 array, which shares the memory of an ``array("q")``."""
    if type(stamps) is array:
        return np.frombuffer(stamps, np.int64)
    return np.array(stamps, np.int64)


def as_array(stamps: np.ndarray[Any, Any]) -> array[int]:
    """Return an int64 array as timestamps of a batch."""
    out = array("q")
    # One copy: tobytes() would be a second, in fresh memory, which took ten times as long.
    data: Any = np.ascontiguousarray(stamps, np.int64).view(np.uint8)
    out.frombytes(data)
    return out


def problem_of_time_column(kind: pa.DataType) -> str | None:
    """Return the reason why a column of this type cannot give event times; None: it can."""
    if pa.types.is_timestamp(kind) or pa.types.is_int64(kind):
        return None
    return "event time is a timestamp, or an int64 of milliseconds since the epoch"


def event_times(column: pa.Array[Any], name: str, step: str) -> array[int]:
    """Return the event times of rows in ms since the epoch, rounded down.

    A timestamp without a zone is taken as UTC, as Arrow does.

    Args:
        column: of timestamps of any unit, or of int64 milliseconds.
        name: name of the column, for messages.
        step: name of the step, for messages.

    Raises:
        FunctionContractError: a row has no event time.
    """
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise FunctionContractError(
            f"step {step!r}: column {name!r} gives the event time and is null in {column.null_count} of "
            f"{len(column)} rows of a batch, first in row {row}: filter such rows out before"
        )
    if pa.types.is_timestamp(column.type):
        factor = _UNITS[column.type.unit]
        numbers = as_numbers(column)
        if factor < 0:
            return as_array(np.floor_divide(numbers, -factor))
        stamps = numbers * factor
        if factor > 1 and (wrong := np.flatnonzero(stamps // factor != numbers)).size:
            raise FunctionContractError(
                f"step {step!r}: column {name!r} gives the event time, and {numbers[wrong[0]]} s in row "
                f"{wrong[0]} of a batch is beyond what milliseconds of 64 bits can hold: filter such rows out"
            )
        return as_array(stamps)
    return as_array(as_numbers(column))


def without_time(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether :func:`event_times` fails on it."""
    missing = numpy_of(column.is_null())
    if pa.types.is_timestamp(column.type) and (factor := _UNITS[column.type.unit]) > 1:
        numbers = as_numbers(column.fill_null(0))
        missing = missing | (numbers * factor // factor != numbers)
    return missing


def as_numbers(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of 64-bit timestamps or numbers, without nulls, as an int64 array."""
    return numpy_of(column.cast(pa.int64()))
