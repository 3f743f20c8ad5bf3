"""Accumulator of lists of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator, struct_of
from sluiceway.columns.aggregation.by_position import RowsByPosition
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.util.overriding import override

__all__ = ["Collected", "flat", "lists_of"]


def lists_of(at: Any, values: Any, count: int) -> Any:
    """Return an array of lists: for each position up to ``count`` the values there.

    Args:
        at: position of each value, ascending.
        values: an Arrow array.
        count: number of positions.
    """
    offsets: Any = np.searchsorted(at, np.arange(count + 1)).astype(np.int32)
    whole: Any = array_of(offsets)
    return pa.ListArray.from_arrays(whole, values)


def flat(state: Any) -> tuple[Any, Any]:
    """Return for an array of lists the index of the list of each value, and the values."""
    lengths = np.diff(numpy_of(state.offsets))
    return np.repeat(np.arange(len(state)), lengths), state.flatten()


class Collected(Accumulator):
    """Lists of values, in the order of arrival.

    Args:
        kind: type of the column.
    """

    takes_arrivals = True

    def __init__(self, kind: Any) -> None:
        self._rows = RowsByPosition(np.zeros(0, np.int64), pa.nulls(0, kind))

    @override
    def resize(self, size: int) -> None:
        pass

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        values = columns[0]
        array = values.array
        if (present := values.present) is not None:
            arrivals, array = arrivals[present], array.drop_null()
        self._rows.append(rows.present(values).at, arrivals, array)

    @override
    def merge(self, at: Any, other: Collected) -> None:
        for positions, arrivals, array in other._rows:
            self._rows.append(at[positions], arrivals, array)

    def _sorted(self) -> tuple[Any, Any, Any]:
        """Return positions, arrivals and values, by position and arrival."""
        found = _in_order(*self._rows.all())
        self._rows.replace(*found)
        return found

    @override
    def result(self, count: int) -> Any:
        at, _, array = self._sorted()
        return lists_of(at, array, count)

    @override
    def state(self, count: int) -> Any:
        return _state(*self._sorted(), count)

    @override
    def part(self, at: Any) -> Any:
        return _state(*_in_order(*self._rows.of(at)), len(at))

    @override
    def restore(self, at: Any, state: Any) -> None:
        where, values = flat(state)
        if len(where):
            self._rows.append(at[where], numpy_of(values.field("arrival")), values.field("value"))

    @property
    @override
    def nbytes(self) -> int:
        return self._rows.nbytes


def _in_order(at: Any, arrivals: Any, array: Any) -> tuple[Any, Any, Any]:
    # Merged chunks are in no order: the arrivals say which value was first.
    order = np.lexsort((arrivals, at))
    return at[order], arrivals[order], array.take(array_of(order))


def _state(at: Any, arrivals: Any, array: Any, count: int) -> Any:
    return lists_of(at, struct_of({"value": array, "arrival": arrivals}), count)
