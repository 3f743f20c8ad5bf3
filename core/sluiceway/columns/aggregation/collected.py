"""Accumulator of lists of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator, struct_of
from sluiceway.columns.aggregation.values import Values
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
    whole: Any = pa.array(offsets)
    return pa.ListArray.from_arrays(whole, values)


def flat(state: Any) -> tuple[Any, Any]:
    """Return for an array of lists the index of the list of each value, and the values."""
    lengths = np.diff(state.offsets.to_numpy())
    return np.repeat(np.arange(len(state)), lengths), state.flatten()


class Collected(Accumulator):
    """Lists of values, in the order of arrival.

    Args:
        kind: type of the column.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._chunks: list[tuple[Any, Any, Any]] = []

    @override
    def resize(self, size: int) -> None:
        pass

    @override
    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        values = columns[0]
        array = values.array
        if values.valid is not None:
            at, arrivals, array = at[values.valid], arrivals[values.valid], array.drop_null()
        if len(at):
            self._append(at, arrivals, array)

    def _append(self, at: Any, arrivals: Any, array: Any) -> None:
        chunks = self._chunks
        chunks.append((at, arrivals, array))
        # In powers, so that each value is copied a few times only.
        while len(chunks) > 1 and len(chunks[-1][0]) * 2 > len(chunks[-2][0]):
            self._join(chunks)

    @staticmethod
    def _join(chunks: list[tuple[Any, Any, Any]]) -> None:
        (a, b, c), (d, e, f) = chunks[-2:]
        chunks[-2:] = [(np.concatenate([a, d]), np.concatenate([b, e]), pa.concat_arrays([c, f]))]

    @override
    def merge(self, at: Any, other: Collected) -> None:
        for positions, arrivals, array in other._chunks:
            self._append(at[positions], arrivals, array)

    def _sorted(self) -> tuple[Any, Any, Any]:
        """Return positions, arrivals and values, by position and arrival."""
        while len(self._chunks) > 1:
            self._join(self._chunks)
        if not self._chunks:
            none = np.zeros(0, np.int64)
            return none, none, pa.array([], self._kind)
        at, arrivals, array = self._chunks[0]
        # Merged chunks are in no order: the arrivals say which value was first.
        order = np.lexsort((arrivals, at))
        self._chunks = [(at[order], arrivals[order], array.take(pa.array(order)))]
        return self._chunks[0]

    @override
    def result(self, count: int) -> Any:
        at, _, array = self._sorted()
        return lists_of(at, array, count)

    @override
    def state(self, count: int) -> Any:
        at, arrivals, array = self._sorted()
        return lists_of(at, struct_of({"value": array, "arrival": arrivals}), count)

    @override
    def restore(self, at: Any, state: Any) -> None:
        where, values = flat(state)
        if len(where):
            self._append(at[where], values.field("arrival").to_numpy(), values.field("value"))

    @property
    @override
    def nbytes(self) -> int:
        return sum(at.nbytes + arrivals.nbytes + array.nbytes for at, arrivals, array in self._chunks)
