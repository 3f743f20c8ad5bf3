"""Accumulators of aggregates as arrays: one element for each position, which stands for a key in a window.

Values are added in the order of their rows, position by position, so results do not depend on batches: sums of
floats are added up one after the other, those of integers and decimals are exact.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.keycolumns import decimal_halves, numbers_of, plain, valid_of
from sluiceway.columns.runs import Runs
from sluiceway.errors import FunctionContractError, SluicewayError

__all__ = [
    "Accumulator",
    "AggregateOverflowError",
    "Arrays",
    "Averaged",
    "Collected",
    "Counted",
    "Custom",
    "Extreme",
    "Moments",
    "Picked",
    "Summed",
    "Values",
]

_SMALLEST: Final = 64
_LIMB: Final = np.int64(0xFFFFFFFF)


class AggregateOverflowError(SluicewayError, OverflowError):
    """The result of an aggregate does not fit in the type of its column."""


class Values:
    """Column of some rows, with what the aggregates of the column share.

    Args:
        array: the column, without chunks or encodings.
    """

    __slots__ = ("_array", "_numbers", "_objects", "_of", "_rows", "_valid")

    def __init__(self, array: Any) -> None:
        self._array: Any = plain(array)
        # Where these are some rows of a column: all of it, and which.
        self._of: Values | None = None
        self._rows: Any = None
        self._numbers: Any = None
        self._objects: Any = None
        self._valid: Any = _UNKNOWN

    def __len__(self) -> int:
        return len(self._array) if self._of is None else len(self._rows)

    @property
    def array(self) -> Any:
        """The column, as an Arrow array."""
        if self._array is None and self._of is not None:
            self._array = self._of.array.take(pa.array(self._rows))
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
        """Values as an array of Python objects."""
        if self._objects is None:
            self._objects = objects = np.empty(len(self), object)
            objects[:] = self.array.to_pylist()
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

    def take(self, rows: Any) -> Values:
        """Return some of the rows; what was computed of all of them is not computed again."""
        taken = Values.__new__(Values)
        taken._array = taken._numbers = taken._objects = None
        taken._valid = _UNKNOWN
        taken._of, taken._rows = self, rows
        return taken


_UNKNOWN: Final = object()


class Arrays:
    """Arrays of one length that grow together.

    Args:
        initial: the value of new elements, by the name of the array.
    """

    def __init__(self, **initial: Any) -> None:
        self._initial = {name: np.asarray(value) for name, value in initial.items()}
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

    def resize(self, size: int) -> None:
        """Have at least ``size`` elements."""
        if size <= self.size:
            return
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
    """

    @abstractmethod
    def resize(self, size: int) -> None:
        """Have positions up to ``size``, the new ones empty."""

    @abstractmethod
    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows.

        Args:
            at: position of each row.
            columns: the aggregate's columns.
            arrivals: numbers of the rows, ascending, also from call to call.
        """

    @abstractmethod
    def merge(self, at: Any, other: Any) -> None:
        """Add accumulators of the same kind: the first ``len(at)`` of ``other``, to positions ``at``."""

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, as :meth:`update` does, and return accumulators with a position for each row: what was then.

        Only :meth:`result` may be called of these.
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
        return self.state(int(at.max()) + 1).take(pa.array(at)) if len(at) else self.state(0)

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
        [array if isinstance(array, pa.Array) else pa.array(array) for array in arrays.values()], list(arrays)
    )


def arrays_of(state: Any) -> dict[str, Any]:
    """Return the fields of an array of structs as numpy arrays."""
    return {
        field.name: field_values.to_numpy(zero_copy_only=False)
        for field, field_values in zip(state.type, state.flatten(), strict=True)
    }


class _Plain(Accumulator):
    """Base of accumulators that are arrays of numbers and nothing else."""

    arrays: Arrays

    def resize(self, size: int) -> None:
        """Have at least ``size`` positions."""
        self.arrays.resize(size)

    def state(self, count: int) -> Any:
        """Return the accumulators."""
        return self.part(slice(count))

    def part(self, at: Any) -> Any:
        """Return some accumulators."""
        return struct_of({name: array[at] for name, array in self.arrays.all.items()})

    def restore(self, at: Any, state: Any) -> None:
        """Set empty accumulators."""
        for name, values in arrays_of(state).items():
            self.arrays[name][at] = values

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(array.nbytes for array in self.arrays.all.values())


def _after(accumulator: Any, runs: Runs, **rows: Any) -> Any:
    """Keep what is there after the last row of each run, and return accumulators of all rows."""
    for name, values in rows.items():
        accumulator.arrays[name][runs.positions] = values[runs.lasts]
    made = copy.copy(accumulator)
    made.arrays = accumulator.arrays.of_rows(**rows)
    return made


def _where_valid(values: Values) -> Any:
    return np.ones(len(values), bool) if values.valid is None else values.valid


def _some(runs: Runs, state: Any, valid: Any) -> Any:
    """Return for each row if there has been a value."""
    return runs.scan(np.logical_or, state[runs.positions], valid)


def _without_nulls(at: Any, values: Values) -> tuple[Any, Any]:
    """Return positions and numbers of the rows that are not null."""
    numbers, valid = values.numbers, values.valid
    return (at, numbers) if valid is None else (at[valid], numbers[valid])


class Counted(_Plain):
    """Numbers of rows, or of values that are not null."""

    def __init__(self) -> None:
        self.arrays = Arrays(count=np.int64(0))

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        if columns and columns[0].valid is not None:
            at = at[columns[0].valid]
        np.add.at(self.arrays["count"], at, 1)

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        counted = _where_valid(columns[0]) if columns else np.ones(len(runs), bool)
        made: Accumulator = _after(self, runs, count=runs.sums(self.arrays["count"][runs.positions], counted))
        return made

    def merge(self, at: Any, other: Counted) -> None:
        """Add other accumulators."""
        self.arrays["count"][at] += other.arrays["count"][: len(at)]

    def result(self, count: int) -> Any:
        """Return the results."""
        return pa.array(self.arrays["count"][:count])


def limbs_of(values: Values) -> list[Any]:
    """Return the 32-bit parts of integers and decimals, from the lowest to the signed highest one."""
    if pa.types.is_decimal(values.array.type):
        halves = decimal_halves(values.array)
        low, high = halves[:, 0], halves[:, 1]
        mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        return [
            (low & mask).astype(np.int64),
            (low >> shift).astype(np.int64),
            (high & mask).astype(np.int64),
            high.view(np.int64) >> np.int64(32) if high.flags.c_contiguous else high.astype(np.int64) >> 32,
        ]
    numbers = values.numbers
    if numbers.dtype == np.uint64:
        return [(numbers & np.uint64(0xFFFFFFFF)).astype(np.int64), (numbers >> np.uint64(32)).astype(np.int64)]
    numbers = numbers.astype(np.int64)
    return [numbers & _LIMB, numbers >> np.int64(32)]


class Summed(_Plain):
    """Sums: of floats one after the other, of integers, durations and decimals exactly.

    Integers are added up in one array as long as no sum can leave 64 bits, then in parts of 32 bits. Whether the
    result fits is decided at the end, so it does not depend on the order of the rows.

    Args:
        kind: type of the column.
        result_type: type of the sums.
        name: the aggregate, for the error.
    """

    def __init__(self, kind: Any, result_type: Any, name: str) -> None:
        self._kind, self._type, self._name = kind, result_type, name
        self._is_float = pa.types.is_floating(kind)
        self._is_decimal = pa.types.is_decimal(kind)
        self._limbs = 4 if self._is_decimal else 0
        self._bound = 0  # no sum is larger
        self._unsettled = 0  # rows added since the limbs were normalised
        if self._is_decimal:
            self.arrays = self._limb_arrays()
        else:
            self.arrays = Arrays(total=np.float64(0) if self._is_float else np.int64(0), some=False)

    def _limb_arrays(self) -> Arrays:
        return Arrays(some=False, **{f"limb{number}": np.int64(0) for number in range(self._limbs)})

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        values = columns[0]
        valid = values.valid
        if self._is_float:
            at, numbers = _without_nulls(at, values)
            np.add.at(self.arrays["total"], at, numbers.astype(np.float64, copy=False))
        else:
            if not self._limbs and not self._fits(values):
                self._widen()
            if self._limbs:
                self._add_limbs(at, values)
                at = at if valid is None else at[valid]
            else:
                at, numbers = _without_nulls(at, values)
                np.add.at(self.arrays["total"], at, numbers.astype(np.int64, copy=False))
        self.arrays["some"][at] = True

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        values = columns[0]
        valid = _where_valid(values)
        rows: dict[str, Any] = {}
        if not (self._is_float or self._limbs or self._fits(values)):
            self._widen()
        if self._limbs:
            self._settle(len(valid))
        begun = {name: array[runs.positions] for name, array in self.arrays.all.items()}
        if self._is_float:
            numbers = values.numbers.astype(np.float64, copy=False)
            with np.errstate(all="ignore"):
                rows["total"] = runs.scan(np.add, begun["total"], np.where(valid, numbers, 0.0))
        elif self._limbs:
            for number, limb in enumerate(limbs_of(values)):
                name = f"limb{number}"
                rows[name] = runs.sums(begun[name], np.where(valid, limb, np.int64(0)))
        else:
            numbers = values.numbers.astype(np.int64, copy=False)
            rows["total"] = runs.sums(begun["total"], np.where(valid, numbers, np.int64(0)))
        rows["some"] = _some(runs, self.arrays["some"], valid)
        made: Accumulator = _after(self, runs, **rows)
        return made

    def _fits(self, values: Values) -> bool:
        numbers = values.numbers
        if not len(numbers):
            return True
        if numbers.dtype.itemsize < 8:
            largest = 1 << 8 * numbers.dtype.itemsize
        else:
            largest = max(int(numbers.max()), -int(numbers.min()))
        self._bound += largest * len(numbers)
        return self._bound < 1 << 63

    def _widen(self) -> None:
        """Go on in parts of 32 bits."""
        old, self._limbs = self.arrays, 2
        self.arrays = self._limb_arrays()
        self.arrays.resize(old.size)
        total = old["total"]
        for name, part in (("limb0", total & _LIMB), ("limb1", total >> np.int64(32)), ("some", old["some"])):
            self.arrays[name][: old.size] = part

    def _add_limbs(self, at: Any, values: Values) -> None:
        self._settle(len(at))
        valid = values.valid
        for number, limb in enumerate(limbs_of(values)):
            array = self.arrays[f"limb{number}"]
            if valid is None:
                np.add.at(array, at, limb)
            else:
                np.add.at(array, at[valid], limb[valid])

    def _settle(self, rows: int) -> None:
        """Carry, before the parts could leave 64 bits."""
        self._unsettled += rows
        if self._unsettled < 1 << 30:
            return
        self._unsettled = rows
        self._carry()

    def _carry(self) -> None:
        for number in range(self._limbs - 1):
            limb = self.arrays[f"limb{number}"]
            higher = self.arrays[f"limb{number + 1}"]
            higher += limb >> np.int64(32)
            limb &= _LIMB

    def merge(self, at: Any, other: Summed) -> None:
        """Add other accumulators."""
        if not self._is_float and self._limbs != other._limbs:
            (other if self._limbs else self)._widen()
        if not self._is_float and not self._limbs:
            self._bound += other._bound
            if self._bound >= 1 << 63:
                self._widen()
                other._widen()
        if self._limbs:
            self._carry()
            other._carry()
        for name, theirs in other.arrays.all.items():
            mine = self.arrays[name]
            if name == "some":
                mine[at] |= theirs[: len(at)]
            else:
                mine[at] += theirs[: len(at)]

    def totals(self, count: int) -> Any:
        """Return the sums as floats, for means."""
        if not self._limbs:
            return self.arrays["total"][:count].astype(np.float64)
        return np.array([float(total) for total in self.exact(count)], np.float64)

    def exact(self, count: int) -> list[int]:
        """Return the sums as integers, those of decimals without their point."""
        if not self._limbs:
            totals: list[int] = self.arrays["total"][:count].tolist()
            return totals
        parts = [self.arrays[f"limb{number}"][:count].tolist() for number in range(self._limbs)]
        return [sum(part << 32 * number for number, part in enumerate(row)) for row in zip(*parts, strict=True)]

    def result(self, count: int) -> Any:
        """Return the results."""
        empty = ~self.arrays["some"][:count]
        if self._is_float:
            return pa.array(self.arrays["total"][:count], mask=empty)
        if self._is_decimal:
            return self._decimals(count, empty)
        if not self._limbs:
            totals = self.arrays["total"][:count]
        else:
            self._carry()
            low, high = self.arrays["limb0"][:count], self.arrays["limb1"][:count]
            floor, ceiling = (0, 1 << 32) if self._type == pa.uint64() else (-(1 << 31), 1 << 31)
            self._check(((high < floor) | (high >= ceiling)) & ~empty)
            totals = (high << np.int64(32)) | low
        if self._type == pa.uint64():
            return pa.array(totals.view(np.uint64), mask=empty)
        found = pa.array(totals, mask=empty)
        return found if found.type == self._type else found.view(self._type)

    def _check(self, outside: Any) -> None:
        if outside.any():
            raise AggregateOverflowError(
                f"{self._name} does not fit in {self._type}: {int(outside.sum())} of {len(outside)} keys have a "
                "larger one. Cast the column to a decimal or a float before the aggregate"
            )

    def _decimals(self, count: int, empty: Any) -> Any:
        self._carry()
        limbs = [self.arrays[f"limb{number}"][:count] for number in range(4)]
        outside = (limbs[3] < -(1 << 31)) | (limbs[3] >= 1 << 31)
        halves = np.empty((count, 2), np.int64)
        halves[:, 0] = limbs[0] | limbs[1] << np.int64(32)
        halves[:, 1] = limbs[2] | limbs[3] << np.int64(32)
        high = halves[:, 1]
        for row in np.flatnonzero((high >= _LARGE_HIGH) | (high <= -_LARGE_HIGH)):
            low = int(halves[row, 0]) & 0xFFFFFFFFFFFFFFFF
            outside[row] |= abs((int(high[row]) << 64) + low) >= 10**38
        self._check(outside & ~empty)
        packed = np.packbits(~empty, bitorder="little")
        buffers: Any = [pa.py_buffer(packed.tobytes()), pa.py_buffer(halves.tobytes())]
        return pa.Array.from_buffers(self._type, count, buffers)

    def part(self, at: Any) -> Any:
        """Return some accumulators."""
        if self._limbs:
            self._carry()
        return super().part(at)

    def restore(self, at: Any, state: Any) -> None:
        """Set empty accumulators."""
        if not self._is_decimal and not self._is_float:
            wide = state.type.get_field_index("limb0") >= 0
            if wide and not self._limbs:
                self._widen()
            if not wide:
                self._restore_narrow(at, arrays_of(state))
                return
        super().restore(at, state)

    def _restore_narrow(self, at: Any, arrays: Mapping[str, Any]) -> None:
        total = arrays["total"]
        if self._limbs:
            arrays = {"limb0": total & _LIMB, "limb1": total >> np.int64(32), "some": arrays["some"]}
        elif len(total):
            self._bound = max(self._bound, int(total.max()), -int(total.min()))
        for name, values in arrays.items():
            self.arrays[name][at] = values


_LARGE_HIGH: Final = 10**38 >> 64


class Averaged(Accumulator):
    """Means: the sum and the number of values.

    Args:
        kind: type of the column.
        result_type: float64, or a decimal.
        name: the aggregate, for errors.
    """

    def __init__(self, kind: Any, result_type: Any, name: str) -> None:
        self._kind, self._type, self._name = kind, result_type, name
        self._sum = Summed(kind, result_type, name)
        self._count = Counted()

    def resize(self, size: int) -> None:
        """Have at least ``size`` positions."""
        self._sum.resize(size)
        self._count.resize(size)

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        self._sum.update(at, columns, arrivals)
        self._count.update(at, columns, arrivals)

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        made: Any = copy.copy(self)
        made._sum = self._sum.running(runs, columns, arrivals)
        made._count = self._count.running(runs, columns, arrivals)
        return made  # type: ignore[no-any-return]

    def merge(self, at: Any, other: Averaged) -> None:
        """Add other accumulators."""
        self._sum.merge(at, other._sum)
        self._count.merge(at, other._count)

    def result(self, count: int) -> Any:
        """Return the results."""
        counts = self._count.arrays["count"][:count]
        if not pa.types.is_decimal(self._type):
            with np.errstate(all="ignore"):
                return pa.array(self._sum.totals(count) / counts, mask=counts == 0)
        raised = 10 ** (self._type.scale - self._kind.scale)
        return decimals(
            (None if not n else _half_up(total * raised, n))
            for total, n in zip(self._sum.exact(count), counts.tolist(), strict=True)
        )(self._type, self._name)

    def state(self, count: int) -> Any:
        """Return the accumulators."""
        return self.part(slice(count))

    def part(self, at: Any) -> Any:
        """Return some accumulators."""
        return struct_of({"sum": self._sum.part(at), "count": self._count.part(at)})

    def restore(self, at: Any, state: Any) -> None:
        """Set empty accumulators."""
        self._sum.restore(at, state.field("sum"))
        self._count.restore(at, state.field("count"))

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self._sum.nbytes + self._count.nbytes


def _half_up(numerator: int, denominator: int) -> int:
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient


def decimals(unscaled: Iterable[int | None]) -> Callable[[Any, str], Any]:
    """Return a function that makes a decimal128 array of integers without their point."""

    def make(kind: Any, name: str) -> Any:
        values = list(unscaled)
        if any(value is not None and abs(value) >= 10**kind.precision for value in values):
            raise AggregateOverflowError(f"{name} does not fit in {kind}: cast the column to a float")
        halves = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
        valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(valid.tobytes()), pa.py_buffer(halves)])

    return make


def _as_floats(values: Values) -> Values:
    return Values(values.array.cast(pa.float64())) if values.numbers is None else values  # decimals


class Moments(_Plain):
    """Variances and standard deviations, from sums of differences to the first value of each position.

    Args:
        ddof: what is subtracted from the number of values in the divisor.
        root: True for the standard deviation.
    """

    def __init__(self, ddof: int, *, root: bool) -> None:
        self._ddof, self._root = ddof, root
        self.arrays = Arrays(count=np.int64(0), shift=0.0, sum=0.0, squares=0.0)

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        values = _as_floats(columns[0])
        valid, numbers = _where_valid(values), values.numbers.astype(np.float64, copy=False)
        self._shift(runs.at[valid], numbers[valid])
        shift = self.arrays["shift"][runs.at]
        with np.errstate(all="ignore"):
            apart = np.where(valid, numbers - shift, 0.0)
            made: Accumulator = _after(
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

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        at, numbers = _without_nulls(at, _as_floats(columns[0]))
        numbers = numbers.astype(np.float64, copy=False)
        self._shift(at, numbers)
        shift, count = self.arrays["shift"], self.arrays["count"]
        with np.errstate(all="ignore"):
            apart = numbers - shift[at]
            np.add.at(self.arrays["sum"], at, apart)
            np.add.at(self.arrays["squares"], at, apart * apart)
        np.add.at(count, at, 1)

    def merge(self, at: Any, other: Moments) -> None:
        """Add other accumulators."""
        mine, theirs = self.arrays, {name: array[: len(at)] for name, array in other.arrays.all.items()}
        n, before = theirs["count"], mine["count"][at]
        with np.errstate(all="ignore"):
            mean = theirs["shift"] + theirs["sum"] / n
            within = theirs["squares"] - theirs["sum"] * theirs["sum"] / n
            apart = mean - mine["shift"][at]
            both = (before > 0) & (n > 0)
            for name, added in (("sum", n * apart), ("squares", within + n * apart * apart)):
                kept = mine[name][at]
                mine[name][at] = np.where(both, kept + added, np.where(before > 0, kept, theirs[name]))
        mine["shift"][at] = np.where(before > 0, mine["shift"][at], theirs["shift"])
        mine["count"][at] = before + n

    def result(self, count: int) -> Any:
        """Return the results."""
        n, total, squares = (self.arrays[name][:count] for name in ("count", "sum", "squares"))
        with np.errstate(all="ignore"):
            variance = (squares - total * total / n) / (n - self._ddof)
            variance = np.where(variance < 0, 0.0, variance)
            found = np.sqrt(variance) if self._root else variance
        return pa.array(found, mask=n <= self._ddof)


def result_array(numbers: Any, kind: Any, empty: Any) -> Any:
    """Return numbers as :func:`numbers_of` makes them as an Arrow array of the column's type."""
    if not pa.types.is_temporal(kind):
        return pa.array(numbers, kind, mask=empty)
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(numbers, width, mask=empty).view(kind)


def numpy_type(kind: Any) -> Any:
    """Return the type of the numbers of a column; object where it has none."""
    numbers = numbers_of(pa.array([], kind))
    return np.dtype(object) if numbers is None else numbers.dtype


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

    def resize(self, size: int) -> None:
        """Have at least ``size`` positions."""
        self.arrays.resize(size)

    def _values(self, at: Any) -> Any:
        values, empty = self.arrays["value"][at], self._empty(at)
        if self.is_object:
            return pa.array([None if none else v for v, none in zip(values, empty, strict=True)], self._kind)
        return result_array(values, self._kind, empty)

    @abstractmethod
    def _empty(self, at: Any) -> Any:
        """Return for positions, or a slice of them, where there is no value."""

    def result(self, count: int) -> Any:
        """Return the results."""
        return self._values(slice(count))

    def state(self, count: int) -> Any:
        """Return the accumulators."""
        return self.part(slice(count))

    def part(self, at: Any) -> Any:
        """Return some accumulators."""
        more = {name: array[at] for name, array in self.arrays.all.items() if name != "value"}
        return struct_of({"value": self._values(at), **more})

    def restore(self, at: Any, state: Any) -> None:
        """Set empty accumulators."""
        for field, values in zip(state.type, state.flatten(), strict=True):
            if field.name != "value":
                self.arrays[field.name][at] = values.to_numpy(zero_copy_only=False)
                continue
            kept = Values(values)
            valid = slice(None) if kept.valid is None else kept.valid
            self.arrays["value"][at[valid]] = (kept.objects if self.is_object else kept.numbers)[valid]

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
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

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        values = columns[0]
        if self.is_object:
            valid = values.valid
            at, objects = (at, values.objects) if valid is None else (at[valid], values.objects[valid])
            self._pick_objects(at, objects)
        else:
            at, numbers = _without_nulls(at, values)
            with np.errstate(all="ignore"):
                self._pick.at(self.arrays["value"], at, numbers)
        self.arrays["some"][at] = True

    def _pick_objects(self, at: Any, objects: Any) -> None:
        kept, greatest = self.arrays["value"], self._greatest
        for position, value in zip(at.tolist(), objects, strict=True):
            before = kept[position]
            if before is None or (value > before if greatest else value < before):
                kept[position] = value

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        values, kept = columns[0], self.arrays["value"]
        valid = _where_valid(values)
        if self.is_object:
            reached = np.empty(len(runs), object)
            greatest = self._greatest
            for row, (position, value) in enumerate(zip(runs.at.tolist(), values.objects, strict=True)):
                before = kept[position]
                if value is not None and (before is None or (value > before if greatest else value < before)):
                    kept[position] = before = value
                reached[row] = before
        else:
            numbers = np.where(valid, values.numbers, self._nothing)
            with np.errstate(all="ignore"):
                reached = runs.scan(self._pick, kept[runs.positions], numbers)
        made: Accumulator = _after(self, runs, value=reached, some=_some(runs, self.arrays["some"], valid))
        return made

    def merge(self, at: Any, other: Extreme) -> None:
        """Add other accumulators."""
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

    def __init__(self, kind: Any, *, last: bool) -> None:
        super().__init__(kind, arrival=np.int64(-1))
        self._last = last

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        values = columns[0]
        rows = np.arange(len(at)) if values.valid is None else np.flatnonzero(values.valid)
        if not self._last:
            rows = rows[self.arrays["arrival"][at[rows]] < 0][::-1]
        # Of several values for one position the last one stays.
        at = at[rows]
        self.arrays["arrival"][at] = arrivals[rows]
        if self.is_object:
            kept = self.arrays["arrival"][at] == arrivals[rows]
            rows, at = rows[kept], at[kept]
            self.arrays["value"][at] = values.take(rows).objects
        else:
            self.arrays["value"][at] = values.numbers[rows]

    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        """Add rows, and return accumulators of all rows."""
        values, valid = columns[0], _where_valid(columns[0])
        kept = {name: array[runs.at] for name, array in self.arrays.all.items()}
        if self._last:
            source = runs.latest(valid)
        else:
            source = np.where(kept["arrival"] >= 0, -1, runs.earliest(valid))
        is_new = source >= 0
        given = values.objects if self.is_object else values.numbers
        for name, array in (("value", given), ("arrival", arrivals)):
            kept[name][is_new] = array[source[is_new]]
        made: Accumulator = _after(self, runs, **kept)
        return made

    def merge(self, at: Any, other: Picked) -> None:
        """Add other accumulators."""
        theirs, mine = other.arrays["arrival"][: len(at)], self.arrays["arrival"][at]
        better = theirs > mine if self._last else (theirs >= 0) & ((mine < 0) | (theirs < mine))
        at = at[better]
        for name, array in other.arrays.all.items():
            self.arrays[name][at] = array[: len(better)][better]

    def _empty(self, at: Any) -> Any:
        return self.arrays["arrival"][at] < 0


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

    def resize(self, size: int) -> None:
        """Have at least ``size`` positions."""

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
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

    def merge(self, at: Any, other: Collected) -> None:
        """Add other accumulators."""
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
        order = np.lexsort((arrivals, at))
        self._chunks = [(at[order], arrivals[order], array.take(pa.array(order)))]
        return self._chunks[0]

    def result(self, count: int) -> Any:
        """Return the results."""
        at, _, array = self._sorted()
        return lists_of(at, array, count)

    def state(self, count: int) -> Any:
        """Return the accumulators."""
        at, arrivals, array = self._sorted()
        return lists_of(at, struct_of({"value": array, "arrival": arrivals}), count)

    def restore(self, at: Any, state: Any) -> None:
        """Set empty accumulators."""
        where, values = flat(state)
        if len(where):
            self._append(at[where], values.field("arrival").to_numpy(), values.field("value"))

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(at.nbytes + arrivals.nbytes + array.nbytes for at, arrivals, array in self._chunks)


class Custom(_Plain):
    """Accumulators of a user's aggregate.

    Args:
        function: a :class:`sluiceway.columns.aggregates.ColumnAggregate`.
        name: the aggregate, for errors.
        result_type: type of the results.
    """

    def __init__(self, function: Any, name: str, result_type: Any) -> None:
        self._function, self._name, self._type = function, name, result_type
        self.arrays = Arrays(**function.accumulators())

    def update(self, at: Any, columns: Sequence[Values], arrivals: Any) -> None:
        """Add rows."""
        whole = [values.numbers if values.numbers is not None else values.objects for values in columns]
        valid = np.ones(len(at), bool)
        for values in columns:
            if values.valid is not None:
                valid &= values.valid
        if not valid.all():
            at, whole = at[valid], [column[valid] for column in whole]
        self._function.update(self.arrays.all, at, *whole)

    def merge(self, at: Any, other: Custom) -> None:
        """Add other accumulators."""
        self._function.merge(self.arrays.all, at, {n: array[: len(at)] for n, array in other.arrays.all.items()})

    def result(self, count: int) -> Any:
        """Return the results."""
        found = self._function.result({name: array[:count] for name, array in self.arrays.all.items()})
        if not isinstance(found, pa.Array):
            found = pa.array(found)
        if len(found) != count:
            raise FunctionContractError(
                f"result() of {self._name} returned {len(found)} values for {count} keys: it has to return one "
                "for each element of the accumulators"
            )
        return found if found.type == self._type else found.cast(self._type)
