"""Aggregates of ranges of rows that overlap, without reading each range anew.

Only for aggregates whose result is the same to the last bit: counts, sums and means of integers by differences of
running sums, minima and maxima by those of blocks of two, four, eight rows and so on. Sums of floats depend on the
order in which they are added, and on what is added before: each range is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.aggregates import BoundAggregate
from sluiceway.columns.aggregation.picked import Extreme, one_zero
from sluiceway.columns.aggregation.sums import Averaged, Counted, Summed
from sluiceway.columns.aggregation.values import Values, where_valid

__all__ = ["of_ranges"]


def of_ranges(bound: BoundAggregate, columns: Mapping[str, Values], first: Any, end: Any) -> Any:
    """Return the result of each range of rows; None: the aggregate needs the rows themselves.

    Args:
        bound: the aggregate.
        columns: the columns that it reads, at least.
        first: of each range, its first row.
        end: the row after its last one; above ``first``.
    """
    accumulator: Any = bound.create()
    values = columns[bound.columns[0]] if bound.columns else None
    kind = type(accumulator)
    if kind is Counted:
        accumulator.resize(len(first))
        accumulator.arrays["count"][: len(first)] = _counts(values, first, end)
    elif values is None or values.numbers is None:
        return None
    elif kind is Summed:
        if not _sums(accumulator, values, first, end):
            return None
    elif kind is Averaged:
        accumulator.resize(len(first))
        if not _sums(accumulator._sum, values, first, end):
            return None
        accumulator._count.arrays["count"][: len(first)] = _counts(values, first, end)
    elif kind is Extreme and not accumulator.is_object:
        accumulator.resize(len(first))
        accumulator.arrays["value"][: len(first)] = _extremes(accumulator, values, first, end)
        accumulator.arrays["some"][: len(first)] = _counts(values, first, end) > 0
    else:
        return None
    return accumulator.result(len(first))


def _differences(numbers: Any, first: Any, end: Any) -> Any:
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers, dtype=np.int64)])
    return sums[end] - sums[first]


def _counts(values: Values | None, first: Any, end: Any) -> Any:
    if values is None or values.valid is None:
        return end - first
    return _differences(values.valid, first, end)


def _sums(accumulator: Summed, values: Values, first: Any, end: Any) -> bool:
    """Set sums of integers; False if they are none, or if all together could leave 64 bits."""
    if not pa.types.is_integer(values.array.type) and not pa.types.is_boolean(values.array.type):
        return False
    valid, numbers = where_valid(values), values.numbers
    # The running sum is over all rows, of all keys, and must fit itself.
    largest = max(int(numbers.max()), -int(numbers.min())) if len(numbers) else 0
    if largest * len(numbers) >= 1 << 63:
        return False
    accumulator.resize(len(first))
    whole = np.where(valid, numbers.astype(np.int64), np.int64(0))
    accumulator.arrays["total"][: len(first)] = _differences(whole, first, end)
    accumulator.arrays["some"][: len(first)] = _counts(values, first, end) > 0
    return True


def _extremes(accumulator: Extreme, values: Values, first: Any, end: Any) -> Any:
    """Return the extreme of each range: of two blocks of rows, the largest that fit at its begin and its end."""
    pick, blocks = accumulator._pick, np.where(where_valid(values), one_zero(values.numbers), accumulator._nothing)
    found = np.empty(len(first), blocks.dtype)
    # The number of bits of a length, less one; exact, as lengths are far below 2**53.
    levels = np.frexp((end - first).astype(np.float64))[1] - 1
    with np.errstate(all="ignore"):
        for level in range(int(levels.max()) + 1 if len(levels) else 0):
            # In place of the blocks of the level before: block i has the 2**level rows from row i on.
            if level:
                half = 1 << (level - 1)
                blocks = pick(blocks[:-half], blocks[half:])
            mine = np.flatnonzero(levels == level)
            found[mine] = pick(blocks[first[mine]], blocks[end[mine] - (1 << level)])
    return found
