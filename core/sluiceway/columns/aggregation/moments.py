"""Accumulator of variances and standard deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluiceway.columns.aggregation.accumulator import Accumulator, Arrays, PlainAccumulator, after
from sluiceway.columns.aggregation.row_positions import RowPositions, without_nulls
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.values import Values, as_floats, where_valid
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.util.overriding import override

__all__ = ["Moments"]


class Moments(PlainAccumulator):
    """Variances and standard deviations, from sums of differences to the first value of each position.

    Args:
        ddof: what is subtracted from the number of values in the divisor.
        root: True for the standard deviation.
    """

    def __init__(self, ddof: int, *, root: bool) -> None:
        self._ddof, self._root = ddof, root
        self.arrays = Arrays(count=np.int64(0), shift=0.0, sum=0.0, squares=0.0)

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        values = as_floats(columns[0])
        valid, numbers = where_valid(values), values.numbers.astype(np.float64, copy=False)
        self._shift(runs.at[valid], numbers[valid])
        shift = self.arrays["shift"][runs.at]
        with np.errstate(all="ignore"):
            apart = np.where(valid, numbers - shift, 0.0)
            made: Accumulator = after(
                self,
                runs,
                count=runs.sums(self.arrays["count"][runs.positions], valid),
                shift=shift,
                sum=runs.scan(np.add, self.arrays["sum"][runs.positions], apart),
                squares=runs.scan(np.add, self.arrays["squares"][runs.positions], apart * apart),
            )
        return made

    def _shift(self, at: Any, numbers: Any) -> None:
        new = np.flatnonzero(self.arrays["count"][at] == 0)[::-1]  # the first one is written last, and stays
        self.arrays["shift"][at[new]] = numbers[new]

    @property
    @override
    def depends_on_order(self) -> bool:
        return True

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        rows, numbers = without_nulls(rows, as_floats(columns[0]))
        at, numbers = rows.at, numbers.astype(np.float64, copy=False)
        self._shift(at, numbers)
        shift, count = self.arrays["shift"], self.arrays["count"]
        with np.errstate(all="ignore"):
            apart = numbers - shift[at]
            np.add.at(self.arrays["sum"], at, apart)
            np.add.at(self.arrays["squares"], at, apart * apart)
        if rows.are_many:
            count[: rows.size] += rows.counts
        else:
            np.add.at(count, at, 1)

    @override
    def merge(self, at: Any, other: Moments) -> None:
        mine, theirs = self.arrays, {name: array[: len(at)] for name, array in other.arrays.all.items()}
        n, before = theirs["count"], mine["count"][at]
        with np.errstate(all="ignore"):
            # Their sums are about their own first value: they are moved to that of this accumulator. An empty
            # one divides by zero, and is left out below.
            mean = theirs["shift"] + theirs["sum"] / n
            within = theirs["squares"] - theirs["sum"] * theirs["sum"] / n
            apart = mean - mine["shift"][at]
            both = (before > 0) & (n > 0)
            for name, added in (("sum", n * apart), ("squares", within + n * apart * apart)):
                kept = mine[name][at]
                mine[name][at] = np.where(both, kept + added, np.where(before > 0, kept, theirs[name]))
        mine["shift"][at] = np.where(before > 0, mine["shift"][at], theirs["shift"])
        mine["count"][at] = before + n

    @override
    def result(self, count: int) -> Any:
        n, total, squares = (self.arrays[name][:count] for name in ("count", "sum", "squares"))
        with np.errstate(all="ignore"):
            variance = (squares - total * total / n) / (n - self._ddof)
            # Rounding may leave a small negative number.
            variance = np.where(variance < 0, 0.0, variance)
            found = np.sqrt(variance) if self._root else variance
        return array_of(found, mask=n <= self._ddof)
