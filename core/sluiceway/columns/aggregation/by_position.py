"""Rows of accumulators with several rows per position, found by position without a look at the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.numpy_arrays import array_of

__all__ = ["RowsByPosition"]


class _Chunk(NamedTuple):
    """Rows that were added one after the other.

    Attributes:
        at: position of each row.
        columns: the rows.
        in_order: whether the positions ascend.
    """

    at: Any
    columns: tuple[Any, ...]
    in_order: bool


def _taken(column: Any, rows: Any) -> Any:
    return column.take(array_of(rows)) if isinstance(column, pa.Array) else column[rows]


def _concatenated(columns: tuple[Any, ...]) -> Any:
    return pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)


class RowsByPosition:
    """Rows by position, in a few chunks of growing size. A chunk is sorted when some of its rows are looked for.

    Args:
        empty: each column without rows, an array of numpy or of Arrow.
    """

    def __init__(self, *empty: Any) -> None:
        self._empty = _Chunk(np.zeros(0, np.int64), empty, True)
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return sum(len(chunk.at) for chunk in self._chunks)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield positions and columns of each chunk."""
        return ((chunk.at, *chunk.columns) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(int(chunk.at.nbytes) + sum(each.nbytes for each in chunk.columns) for chunk in self._chunks)

    def append(self, at: Any, *columns: Any) -> None:
        """Add rows at some positions."""
        if not len(at):
            return
        chunks = self._chunks
        chunks.append(_Chunk(at, columns, False))
        # In powers, so that each row is copied a few times only.
        while len(chunks) > 1 and len(chunks[-1].at) * 2 > len(chunks[-2].at):
            self._join()

    def _join(self) -> None:
        older, newer = self._chunks[-2:]
        columns = tuple(map(_concatenated, zip(older.columns, newer.columns, strict=True)))
        self._chunks[-2:] = [_Chunk(np.concatenate([older.at, newer.at]), columns, False)]

    def replace(self, at: Any, *columns: Any) -> None:
        """Have these rows, whose positions ascend, in place of all."""
        self._chunks = [_Chunk(at, columns, True)] if len(at) else []

    def all(self) -> tuple[Any, ...]:
        """Return positions and columns of all rows, in no order."""
        while len(self._chunks) > 1:
            self._join()
        at, columns, _ = self._chunks[0] if self._chunks else self._empty
        return at, *columns

    def of(self, at: Any) -> tuple[Any, ...]:
        """Return the rows at some positions: for each row the index of its position in ``at``, and the columns.

        They are in no order. It costs as much as there are of them, besides sorting what was added since.
        """
        found = [_Chunk(self._empty.at, self._empty.columns, True)]
        for place, chunk in enumerate(self._chunks):
            if not chunk.in_order:
                order = chunk.at.argsort(kind="stable")
                columns = tuple(_taken(column, order) for column in chunk.columns)
                self._chunks[place] = chunk = _Chunk(chunk.at[order], columns, True)
            first = np.searchsorted(chunk.at, at)
            counts = np.searchsorted(chunk.at, at, "right") - first
            ends = np.cumsum(counts)
            if len(ends) and ends[-1]:
                rows = np.arange(ends[-1]) - np.repeat(ends - counts - first, counts)
                columns = tuple(_taken(column, rows) for column in chunk.columns)
                found.append(_Chunk(np.repeat(np.arange(len(at)), counts), columns, True))
        which = np.concatenate([chunk.at for chunk in found])
        return which, *map(_concatenated, zip(*(chunk.columns for chunk in found), strict=True))
