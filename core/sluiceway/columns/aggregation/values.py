"""Column of rows that are aggregated, with what the aggregates of it share."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.keys.key_columns import counts_of, numbers_of, plain, valid_of
from sluiceway.columns.numpy_arrays import array_of

__all__ = ["Values", "as_floats", "where_valid"]


class Values:
    """Column of some rows, with what the aggregates of the column share.

    Args:
        array: the column, without chunks or encodings.
    """

    __slots__ = ("_array", "_largest", "_numbers", "_objects", "_of", "_present", "_rows", "_valid")

    def __init__(self, array: Any) -> None:
        self._array: Any = plain(array)
        # Where these are some rows of a column: all of it, and which.
        self._of: Values | None = None
        self._rows: Any = None
        self._numbers: Any = None
        self._objects: Any = None
        self._largest: int | None = None
        self._valid: Any = _UNKNOWN
        self._present: Any = None

    def __len__(self) -> int:
        return len(self._array) if self._of is None else len(self._rows)

    @property
    def array(self) -> Any:
        """The column, as an Arrow array."""
        if self._array is None and self._of is not None:
            self._array = self._of.array.take(array_of(self._rows))
        return self._array

    @property
    def numbers(self) -> Any:
        """Values as a numpy array, times as integers; None for types without a fixed width."""
        if self._numbers is None:
            whole = None if self._of is None else self._of.numbers
            self._numbers = numbers_of(self.array) if whole is None else whole[self._rows]
        return self._numbers

    @property
    def objects(self) -> Any:
        """Values as an array of Python objects, times inside of structs, lists and maps as integers."""
        if self._objects is None:
            self._objects = objects = np.empty(len(self), object)
            objects[:] = counts_of(self.array).to_pylist()
        return self._objects

    @property
    def valid(self) -> Any:
        """Array of bool, False for nulls; None where nothing is null."""
        if self._valid is _UNKNOWN:
            whole = None if self._of is None else self._of.valid
            if self._of is None:
                self._valid = valid_of(self.array)
            else:
                self._valid = None if whole is None else whole[self._rows]
        return self._valid

    @property
    def present(self) -> Any:
        """Indices of the values that are not null, ascending; None where nothing is null.

        To take these rows by :attr:`valid` costs four times as much, where nulls come at random.
        """
        if self._present is None and self.valid is not None:
            self._present = np.flatnonzero(self.valid)
        return self._present

    @property
    def largest(self) -> int:
        """The absolute value of the largest integer, or more: where rows were taken of a column, that of it."""
        if self._of is not None:
            return self._of.largest
        if self._largest is None:
            numbers = self.numbers
            if not len(numbers):
                self._largest = 0
            elif numbers.dtype.itemsize < 8:
                self._largest = 1 << 8 * numbers.dtype.itemsize
            else:
                self._largest = max(int(numbers.max()), -int(numbers.min()))
        return self._largest

    def take(self, rows: Any) -> Values:
        """Return some of the rows; what was computed of all of them is not computed again."""
        taken = Values.__new__(Values)
        taken._array = taken._numbers = taken._objects = taken._present = taken._largest = None
        taken._valid = _UNKNOWN
        taken._of, taken._rows = self, rows
        return taken


_UNKNOWN: Final = object()


def where_valid(values: Values) -> Any:
    """Return for each row if it is not null."""
    return np.ones(len(values), bool) if values.valid is None else values.valid


def as_floats(values: Values) -> Values:
    """Return decimals as floats, and other numbers as they are."""
    return Values(values.array.cast(pa.float64())) if values.numbers is None else values  # decimals
