"""Base of accumulators as arrays: one element for each position, which stands for a key in a window.

Values are added in the order of their rows, position by position, so results do not depend on batches: sums of
floats are added up one after the other, those of integers and decimals are exact.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.util.overriding import override

__all__ = ["Accumulator", "Arrays", "PlainAccumulator", "after", "arrays_of", "some_so_far", "struct_of"]

_SMALLEST: Final = 64


class Arrays:
    """Arrays of one length that grow together.

    Args:
        initial: the value of new elements, by the name of the array.
    """

    def __init__(self, **initial: Any) -> None:
        self._initial = {name: np.asarray(value) for name, value in initial.items()}
        self._marked = 0
        self.size = 0
        self.all: dict[str, Any] = {name: np.empty(0, value.dtype) for name, value in self._initial.items()}

    def __getitem__(self, name: str) -> Any:
        return self.all[name]

    def of_rows(self, **values: Any) -> Arrays:
        """Return other values as arrays of the same kind."""
        made = copy.copy(self)
        made.all = values
        made.size = len(next(iter(values.values())))
        return made

    def mark(self, name: str, rows: RowPositions) -> None:
        """Set elements of the only array of bool to True, in which none becomes False again.

        After the first rows of each key all elements are True. To set them once more would cost as much as a sum.
        """
        at, marked = rows.at, self._marked
        if not len(at) or int(at.max()) < marked:
            return
        marks = self.all[name]
        if marked * 2 > rows.size:
            marks[at[np.flatnonzero(at >= marked)]] = True
        elif rows.are_many:
            marks[: rows.size] |= rows.counts > 0
        else:
            marks[at] = True
        # Up to the first one that is False: that of a position that no row has had yet.
        rest = marks[marked:]
        self._marked = marked + (len(rest) if rest.all() else int(rest.argmin()))

    def resize(self, size: int) -> None:
        """Have at least ``size`` elements."""
        if size <= self.size:
            return
        # Growth by half, so that an element is copied a few times only.
        capacity = max(size, self.size + self.size // 2, _SMALLEST)
        for name, old in self.all.items():
            grown = np.empty(capacity, old.dtype)
            grown[: self.size] = old
            grown[self.size :] = self._initial[name]
            self.all[name] = grown
        self.size = capacity


class Accumulator(ABC):
    """Accumulators of one aggregate, by position. From one thread only.

    Positions given to :meth:`update` may repeat, those given to :meth:`merge` and :meth:`restore` do not.

    Attributes:
        takes_arrivals: whether it reads the numbers of rows, in whose order values come.
    """

    takes_arrivals: ClassVar[bool] = False

    @abstractmethod
    def resize(self, size: int) -> None:
        """Have positions up to ``size``, the new ones empty."""

    @abstractmethod
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows.

        Args:
            rows: position of each row.
            columns: the aggregate's columns.
            arrivals: numbers of the rows, ascending, also from call to call; None where no aggregate takes them.
        """

    @abstractmethod
    def merge(self, at: Any, other: Any) -> None:
        """Add accumulators of the same kind: the first ``len(at)`` of ``other``, to positions ``at``."""

    @property
    def depends_on_order(self) -> bool:
        """True if results depend on the order of updates and merges in their last bits, as sums of floats do."""
        return False

    @property
    def combines(self) -> bool:
        """True if rows that come by several ways may be aggregated on each first, and merged in any order.

        Results are then the same to the last bit, and an accumulator is no larger than its rows.
        """
        return False

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, as :meth:`update` does, and return accumulators with a position for each row: what was then.

        Only :meth:`result` may be called of these, and :meth:`part` where :attr:`depends_on_order`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no running results")

    @abstractmethod
    def result(self, count: int) -> Any:
        """Return the results of the first ``count`` positions, as an Arrow array."""

    @abstractmethod
    def state(self, count: int) -> Any:
        """Return the first ``count`` accumulators as an Arrow array, for a snapshot."""

    def part(self, at: Any) -> Any:
        """Return the accumulators at the positions of an array, as :meth:`state` returns those of all."""
        return self.state(int(at.max()) + 1).take(array_of(at)) if len(at) else self.state(0)

    @abstractmethod
    def restore(self, at: Any, state: Any) -> None:
        """Set empty positions ``at`` to what :meth:`state` has returned."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""


def struct_of(arrays: Mapping[str, Any]) -> Any:
    """Return numpy arrays as one array of structs."""
    return pa.StructArray.from_arrays(
        [array if isinstance(array, pa.Array) else array_of(array) for array in arrays.values()], list(arrays)
    )


def arrays_of(state: Any) -> dict[str, Any]:
    """Return the fields of an array of structs as numpy arrays."""
    return {field.name: numpy_of(values) for field, values in zip(state.type, state.flatten(), strict=True)}


class PlainAccumulator(Accumulator):
    """Base of accumulators that are arrays of numbers and nothing else."""

    arrays: Arrays

    @override
    def resize(self, size: int) -> None:
        self.arrays.resize(size)

    @override
    def state(self, count: int) -> Any:
        return self.part(slice(count))

    @override
    def part(self, at: Any) -> Any:
        return struct_of({name: array[at] for name, array in self.arrays.all.items()})

    @override
    def restore(self, at: Any, state: Any) -> None:
        for name, values in arrays_of(state).items():
            self.arrays[name][at] = values

    @property
    @override
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.all.values())


def after(accumulator: Any, runs: Runs, **rows: Any) -> Any:
    """Keep what is there after the last row of each run, and return accumulators of all rows."""
    for name, values in rows.items():
        accumulator.arrays[name][runs.positions] = values[runs.lasts]
    made = copy.copy(accumulator)
    made.arrays = accumulator.arrays.of_rows(**rows)
    return made


def some_so_far(runs: Runs, state: Any, valid: Any) -> Any:
    """Return for each row if there has been a value."""
    return runs.scan(np.logical_or, state[runs.positions], valid)
