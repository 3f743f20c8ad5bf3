"""Accumulators that keep several values per position: distinct ones, the greatest, and quantile sketches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator, Arrays, struct_of
from sluiceway.columns.aggregation.by_position import RowsByPosition
from sluiceway.columns.aggregation.collected import flat, lists_of
from sluiceway.columns.aggregation.picked import one_zero, result_array
from sluiceway.columns.aggregation.row_positions import RowPositions, without_nulls
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.values import Values, as_floats
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.keys.word_table import WordTable
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.util.overriding import override

__all__ = ["Distinct", "Greatest", "Sketch"]

_SHIFT: Final = np.int64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)


def _paired(at: Any, numbers: Any) -> Any:
    """Return position and number as one word."""
    return ((at << _SHIFT) | numbers).view(np.uint64)


def _apart(words: Any) -> tuple[Any, Any]:
    """Return positions and numbers of words."""
    return (words >> np.uint64(32)).astype(np.int64), (words & _LOW).astype(np.int64)


class _Pairs(WordTable):
    """Numbers of pairs of a position and a number, found by the position, too."""

    def __init__(self) -> None:
        super().__init__()
        self._by_position = RowsByPosition(np.zeros(0, np.int64))

    @property
    @override
    def nbytes(self) -> int:
        return super().nbytes + self._by_position.nbytes

    def at(self, at: Any) -> tuple[Any, Any, Any]:
        """Return the pairs at some positions: the index of each one's position in ``at``, its number and its own.

        They are in the order of the positions, then in that of the pairs' own numbers.
        """
        words, known = self.words()[0], len(self._by_position)
        # Only what was added since is put in order.
        self._by_position.append(_apart(words[known:])[0], np.arange(known, len(words)))
        which, own = self._by_position.of(at)
        order = np.lexsort((own, which))
        which, own = which[order], own[order]
        return which, _apart(words[own])[1], own


def _valid_rows(at: Any, values: Values) -> tuple[Any, Any]:
    """Return positions and values, as an Arrow array, of the rows that are not null."""
    return (at, values.array) if values.present is None else (at[values.present], values.array.drop_null())


class Distinct(Accumulator):
    """Numbers of distinct values. NaN is one value; 0.0 and -0.0 are one.

    Args:
        kind: type of the column.
    """

    def __init__(self, kind: Any) -> None:
        self._ids = KeyIds([kind], takes_nan=True)
        self._pairs = _Pairs()
        self._counts = Arrays(count=np.int64(0))

    @override
    def resize(self, size: int) -> None:
        self._counts.resize(size)

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        self._add(*_valid_rows(rows.at, columns[0]))

    def _add(self, at: Any, array: Any) -> Any:
        """Add values, and return the indices of the new ones."""
        if not len(at):
            return np.zeros(0, np.int64)
        _, new = self._pairs.find([_paired(at, self._ids.find([array]))])
        np.add.at(self._counts["count"], at[new], 1)
        return new

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        begun, values = self._counts["count"][runs.positions], columns[0]
        new = self._add(*_valid_rows(runs.at, values))
        rows = new if values.valid is None else np.flatnonzero(values.valid)[new]
        is_new = np.zeros(len(runs), bool)
        is_new[rows] = True
        made = copy.copy(self)
        made._counts = self._counts.of_rows(count=runs.sums(begun, is_new))
        return made

    @override
    def merge(self, at: Any, other: Distinct) -> None:
        positions, numbers = _apart(other._pairs.words()[0])
        if len(positions):
            self._add(at[positions], other._ids.columns(numbers)[0])

    @override
    def result(self, count: int) -> Any:
        return array_of(self._counts["count"][:count])

    @override
    def state(self, count: int) -> Any:
        positions, numbers = _apart(self._pairs.words()[0])
        order = positions.argsort(kind="stable")
        return lists_of(positions[order], self._ids.columns(numbers[order])[0], count)

    @override
    def part(self, at: Any) -> Any:
        which, numbers, _ = self._pairs.at(at)
        return lists_of(which, self._ids.columns(numbers)[0], len(at))

    @override
    def restore(self, at: Any, state: Any) -> None:
        where, values = flat(state)
        self._add(at[where], values)

    @property
    @override
    def nbytes(self) -> int:
        kept = sum(column.nbytes for column in self._ids.columns())
        return int(self._pairs.nbytes + kept) + int(self._counts["count"].nbytes)


class Greatest(Accumulator):
    """The ``k`` greatest values, in descending order; NaN is greater than any number, and -0.0 is 0.0.

    Args:
        kind: type of the column, one with numbers.
        k: how many.
    """

    def __init__(self, kind: Any, k: int) -> None:
        self._kind, self._k = kind, k
        self._rows = RowsByPosition(Values(pa.nulls(0, kind)).numbers)
        self._kept = 0

    @override
    def resize(self, size: int) -> None:
        pass

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        rows, numbers = without_nulls(rows, columns[0])
        self._add(rows.at, numbers)

    def _add(self, at: Any, numbers: Any) -> None:
        self._rows.append(at, one_zero(numbers))  # which of two zeros is the greater one depends on the batches
        if len(self._rows) - self._kept > max(1 << 14, self._kept):
            self._compact()

    def _compact(self) -> tuple[Any, Any]:
        """Drop all but the greatest; return positions and numbers, in ascending order."""
        at, numbers = self._greatest(*self._rows.all())
        self._rows.replace(at, numbers)
        self._kept = len(at)
        return at, numbers

    def _greatest(self, at: Any, numbers: Any) -> tuple[Any, Any]:
        """Return the greatest numbers of each position, in ascending order."""
        order = np.lexsort((numbers, at))  # NaN behind all others
        at, numbers = at[order], numbers[order]
        # How many of the same position follow.
        ends = np.searchsorted(at, at, side="right")
        kept = ends - np.arange(len(at)) <= self._k
        return at[kept], numbers[kept]

    @override
    def merge(self, at: Any, other: Greatest) -> None:
        positions, numbers = other._compact()
        self._add(at[positions], numbers)

    def _lists(self, at: Any, numbers: Any, count: int) -> Any:
        reverse = np.lexsort((-np.arange(len(at)), at))
        return lists_of(at, result_array(numbers[reverse], self._kind, None), count)

    @override
    def result(self, count: int) -> Any:
        return self._lists(*self._compact(), count)

    @override
    def state(self, count: int) -> Any:
        return self.result(count)

    @override
    def part(self, at: Any) -> Any:
        return self._lists(*self._greatest(*self._rows.of(at)), len(at))

    @override
    def restore(self, at: Any, state: Any) -> None:
        where, values = flat(state)
        self._add(at[where], Values(values).numbers)

    @property
    @override
    def nbytes(self) -> int:
        return self._rows.nbytes


_ZERO: Final = 1 << 31
_OFFSET: Final = 1 << 24
_INFINITE: Final = 1 << 28
_NAN: Final = 1 << 29


class Sketch(Accumulator):
    """Quantiles with a relative error, from counts of values by the logarithm of their size.

    A sketch does not depend on the order of the values, and sketches merge without loss (Ch. Masson et al.,
    "DDSketch", PVLDB 12(12), 2019).

    Args:
        q: the quantile, from 0 to 1.
        accuracy: the largest relative error, above 0 and below 1.
    """

    def __init__(self, q: float, accuracy: float) -> None:
        self._q = q
        self._gamma = (1 + accuracy) / (1 - accuracy)
        self._pairs = _Pairs()
        self._counts = Arrays(count=np.int64(0))

    @override
    def resize(self, size: int) -> None:
        pass

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        # numpy rounds integers above 2**53, which Arrow refuses to cast.
        rows, numbers = without_nulls(rows, as_floats(columns[0]))
        self._add(rows.at, self._buckets(numbers.astype(np.float64)), 1)

    def _buckets(self, numbers: Any) -> Any:
        """Return the bucket of each number, in the order of the numbers, around ``_ZERO``."""
        with np.errstate(all="ignore"):
            sizes = np.ceil(np.log(np.abs(numbers)) / np.log(self._gamma)) + _OFFSET
        sizes = np.where(numbers == 0, 0, np.where(np.isinf(numbers), _INFINITE, sizes))
        sizes = np.where(np.isnan(numbers), _NAN, sizes).astype(np.int64)
        return np.where(numbers < 0, -sizes, sizes) + _ZERO

    def _add(self, at: Any, buckets: Any, counts: Any) -> None:
        if not len(at):
            return
        # A position and its bucket are one word: buckets, moved by _ZERO, take 32 bits.
        numbers, _ = self._pairs.find([_paired(at, buckets)])
        self._counts.resize(len(self._pairs))
        np.add.at(self._counts["count"], numbers, counts)

    @override
    def merge(self, at: Any, other: Sketch) -> None:
        positions, buckets = _apart(other._pairs.words()[0])
        self._add(at[positions], buckets, other._counts["count"][: len(positions)])

    def _sorted(self) -> tuple[Any, Any, Any]:
        positions, buckets = _apart(self._pairs.words()[0])
        order = np.lexsort((buckets, positions))
        return positions[order], buckets[order], self._counts["count"][: len(positions)][order]

    @override
    def result(self, count: int) -> Any:
        at, buckets, counts = self._sorted()
        if not len(at):
            return pa.nulls(count, pa.float64())
        reached = np.cumsum(counts)
        begins = np.searchsorted(at, np.arange(count + 1))
        before = np.concatenate([[0], reached])[begins]
        totals = before[1:] - before[:-1]
        rank = np.floor(self._q * np.maximum(totals - 1, 0)).astype(np.int64)
        found = np.searchsorted(reached, before[:-1] + rank, side="right")
        return array_of(self._values(buckets[np.minimum(found, len(at) - 1)]), mask=totals == 0)

    def _values(self, buckets: Any) -> Any:
        signed = buckets - _ZERO
        sizes = np.abs(signed)
        with np.errstate(all="ignore"):
            middle = np.exp((sizes - _OFFSET) * np.log(self._gamma)) / ((self._gamma + 1) / 2)
        # The bucket of the largest floats goes on beyond them.
        middle = np.minimum(middle, np.finfo(np.float64).max)
        middle = np.where(sizes == 0, 0.0, np.where(sizes == _INFINITE, np.inf, middle))
        return np.where(sizes == _NAN, np.nan, np.sign(signed) * middle)

    @override
    def state(self, count: int) -> Any:
        at, buckets, counts = self._sorted()
        return lists_of(at, struct_of({"bucket": buckets, "count": counts}), count)

    @override
    def part(self, at: Any) -> Any:
        which, buckets, own = self._pairs.at(at)
        order = np.lexsort((buckets, which))
        counts = self._counts["count"][own[order]]
        return lists_of(which[order], struct_of({"bucket": buckets[order], "count": counts}), len(at))

    @override
    def restore(self, at: Any, state: Any) -> None:
        where, values = flat(state)
        self._add(at[where], numpy_of(values.field("bucket")), numpy_of(values.field("count")))

    @property
    @override
    def nbytes(self) -> int:
        return self._pairs.nbytes + int(self._counts["count"].nbytes)
