"""Accumulators that keep one of the values: the least, the greatest, the first or the last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator, Arrays, after, some_so_far, struct_of
from sluiceway.columns.aggregation.row_positions import RowPositions, without_nulls
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.values import Values, where_valid
from sluiceway.columns.keys.key_columns import counts_type, numbers_of
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.util.overriding import override

__all__ = ["Extreme", "Picked", "numpy_type", "one_zero", "result_array"]


def result_array(numbers: Any, kind: Any, empty: Any) -> Any:
    """Return numbers as :func:`numbers_of` makes them as an Arrow array of the column's type."""
    found = array_of(numbers, mask=empty)
    return found.view(kind) if pa.types.is_temporal(kind) else found


def numpy_type(kind: Any) -> Any:
    """Return the type of the numbers of a column; object where it has none."""
    numbers = numbers_of(pa.nulls(0, kind))
    return np.dtype(object) if numbers is None else numbers.dtype


def one_zero(numbers: Any) -> Any:
    """Return floats with 0.0 in place of -0.0, other numbers as they are.

    Which of the two numpy's fmin and maximum return depends on the length of the arrays, and so on the batches.
    """
    return numbers + 0.0 if numbers.dtype.kind == "f" else numbers


class _Typed(Accumulator):
    """Base of accumulators of values of the column's own type: numbers in an array, others as Python objects."""

    def __init__(self, kind: Any, **more: Any) -> None:
        self._kind = kind
        self._dtype = numpy_type(kind)
        self.arrays = Arrays(value=np.zeros((), self._dtype), **more)

    @property
    def is_object(self) -> bool:
        """True if the values are Python objects."""
        return bool(self._dtype.kind == "O")

    @override
    def resize(self, size: int) -> None:
        self.arrays.resize(size)

    def _values(self, at: Any) -> Any:
        values, empty = self.arrays["value"][at], self._empty(at)
        if self.is_object:
            counts = counts_type(self._kind)
            made: Any = pa.array([None if none else v for v, none in zip(values, empty, strict=True)], counts)
            return made if counts.equals(self._kind) else made.view(self._kind)
        return result_array(values, self._kind, empty)

    @abstractmethod
    def _empty(self, at: Any) -> Any:
        """Return for positions, or a slice of them, where there is no value."""

    @override
    def result(self, count: int) -> Any:
        return self._values(slice(count))

    @override
    def state(self, count: int) -> Any:
        return self.part(slice(count))

    @override
    def part(self, at: Any) -> Any:
        more = {name: array[at] for name, array in self.arrays.all.items() if name != "value"}
        return struct_of({"value": self._values(at), **more})

    @override
    def restore(self, at: Any, state: Any) -> None:
        for field, values in zip(state.type, state.flatten(), strict=True):
            if field.name != "value":
                self.arrays[field.name][at] = numpy_of(values)
                continue
            kept = Values(values)
            valid = slice(None) if kept.valid is None else kept.valid
            self.arrays["value"][at[valid]] = (kept.objects if self.is_object else kept.numbers)[valid]

    @property
    @override
    def nbytes(self) -> int:
        each = 64 if self.is_object else 0
        return int(sum(array.nbytes for array in self.arrays.all.values())) + each * self.arrays.size


class Extreme(_Typed):
    """Least or greatest values; NaN is greater than any number.

    Args:
        kind: type of the column.
        greatest: True for the greatest.
    """

    def __init__(self, kind: Any, *, greatest: bool) -> None:
        super().__init__(kind, some=False)
        self._greatest = greatest
        kinds = {(False, True): np.fmin, (True, True): np.maximum, (False, False): np.minimum}
        self._pick = kinds.get((greatest, self._dtype.kind == "f"), np.maximum)
        # An empty position has a value that loses to each other one, NaN for least floats as fmin passes over
        # it: updates and merges need no test for empty positions.
        initial: Any = None
        if self._dtype.kind == "f":
            initial = -np.inf if greatest else np.nan
        elif self._dtype.kind == "b":
            initial = not greatest
        elif not self.is_object:
            limits = np.iinfo(self._dtype)
            initial = limits.min if greatest else limits.max
        self._nothing = np.array(initial, self._dtype)
        self.arrays = Arrays(value=self._nothing, some=False)

    @property
    @override
    def combines(self) -> bool:
        # Of NaNs with other bits the first one is the greatest.
        return bool(self._dtype.kind != "f")

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        values = columns[0]
        if self.is_object:
            rows, present = rows.present(values), values.present
            self._pick_objects(rows.at, values.objects if present is None else values.objects[present])
        else:
            rows, numbers = without_nulls(rows, values)
            with np.errstate(all="ignore"):
                self._pick.at(self.arrays["value"], rows.at, one_zero(numbers))
        self.arrays.mark("some", rows)

    def _pick_objects(self, at: Any, objects: Any) -> None:
        kept, greatest = self.arrays["value"], self._greatest
        for position, value in zip(at.tolist(), objects, strict=True):
            before = kept[position]
            if before is None or (value > before if greatest else value < before):
                kept[position] = value

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        values, kept = columns[0], self.arrays["value"]
        valid = where_valid(values)
        if self.is_object:
            reached = np.empty(len(runs), object)
            greatest = self._greatest
            for row, (position, value) in enumerate(zip(runs.at.tolist(), values.objects, strict=True)):
                before = kept[position]
                if value is not None and (before is None or (value > before if greatest else value < before)):
                    kept[position] = before = value
                reached[row] = before
        else:
            numbers = np.where(valid, one_zero(values.numbers), self._nothing)
            with np.errstate(all="ignore"):
                reached = runs.scan(self._pick, kept[runs.positions], numbers)
        made: Accumulator = after(self, runs, value=reached, some=some_so_far(runs, self.arrays["some"], valid))
        return made

    @override
    def merge(self, at: Any, other: Extreme) -> None:
        some = other.arrays["some"][: len(at)]
        theirs = other.arrays["value"][: len(at)]
        mine = self.arrays["value"]
        if self.is_object:
            self._pick_objects(at[some], theirs[some])
        else:
            with np.errstate(all="ignore"):
                mine[at] = self._pick(mine[at], theirs)
        self.arrays["some"][at] |= some

    def _empty(self, at: Any) -> Any:
        return ~self.arrays["some"][at]


class Picked(_Typed):
    """First or last values in the order of arrival.

    Args:
        kind: type of the column.
        last: True for the last ones.
    """

    takes_arrivals = True

    def __init__(self, kind: Any, *, last: bool) -> None:
        super().__init__(kind, arrival=np.int64(-1))
        self._last = last

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        values, at = columns[0], rows.at
        some = np.arange(len(at)) if values.present is None else values.present
        if not self._last:
            # In reverse, so that the first of several rows is written last.
            some = some[np.flatnonzero(self.arrays["arrival"][at[some]] < 0)][::-1]
        # Of several values for one position the last one stays.
        at = at[some]
        self.arrays["arrival"][at] = arrivals[some]
        if self.is_object:
            # Only the values that stay become Python objects.
            kept = np.flatnonzero(self.arrays["arrival"][at] == arrivals[some])
            some, at = some[kept], at[kept]
            self.arrays["value"][at] = values.take(some).objects
        else:
            self.arrays["value"][at] = values.numbers[some]

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        values, valid = columns[0], where_valid(columns[0])
        kept = {name: array[runs.at] for name, array in self.arrays.all.items()}
        if self._last:
            source = runs.latest(valid)
        else:
            # A position that has a value from earlier batches keeps it.
            source = np.where(kept["arrival"] >= 0, -1, runs.earliest(valid))
        is_new = source >= 0
        given = values.objects if self.is_object else values.numbers
        for name, array in (("value", given), ("arrival", arrivals)):
            kept[name][is_new] = array[source[is_new]]
        made: Accumulator = after(self, runs, **kept)
        return made

    @override
    def merge(self, at: Any, other: Picked) -> None:
        theirs, mine = other.arrays["arrival"][: len(at)], self.arrays["arrival"][at]
        better = theirs > mine if self._last else (theirs >= 0) & ((mine < 0) | (theirs < mine))
        at = at[better]
        for name, array in other.arrays.all.items():
            self.arrays[name][at] = array[: len(better)][better]

    def _empty(self, at: Any) -> Any:
        return self.arrays["arrival"][at] < 0
