"""Accumulators of counts, sums and means."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import (
    Accumulator,
    Arrays,
    PlainAccumulator,
    after,
    arrays_of,
    some_so_far,
    struct_of,
)
from sluiceway.columns.aggregation.row_positions import RowPositions, without_nulls
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.values import Values, where_valid
from sluiceway.columns.keys.key_columns import decimal_halves
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.errors import SluicewayError
from sluiceway.util.overriding import override

__all__ = ["AggregateOverflowError", "Averaged", "Counted", "Summed", "decimals", "limbs_of"]

_LIMB: Final = np.int64(0xFFFFFFFF)


class AggregateOverflowError(SluicewayError, OverflowError):
    """The result of an aggregate does not fit in the type of its column."""


class Counted(PlainAccumulator):
    """Numbers of rows, or of values that are not null."""

    def __init__(self) -> None:
        self.arrays = Arrays(count=np.int64(0))

    @property
    @override
    def combines(self) -> bool:
        return True

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        rows = rows.present(columns[0]) if columns else rows
        counts = self.arrays["count"]
        if rows.are_many:
            counts[: rows.size] += rows.counts
        else:
            np.add.at(counts, rows.at, 1)

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        counted = where_valid(columns[0]) if columns else np.ones(len(runs), bool)
        made: Accumulator = after(self, runs, count=runs.sums(self.arrays["count"][runs.positions], counted))
        return made

    @override
    def merge(self, at: Any, other: Counted) -> None:
        self.arrays["count"][at] += other.arrays["count"][: len(at)]

    @override
    def result(self, count: int) -> Any:
        return array_of(self.arrays["count"][:count])


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


class Summed(PlainAccumulator):
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

    @property
    @override
    def depends_on_order(self) -> bool:
        return self._is_float

    @property
    @override
    def combines(self) -> bool:
        return not self._is_float

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        values = columns[0]
        if self._is_float:
            rows, numbers = without_nulls(rows, values)
            with np.errstate(all="ignore"):  # infinity and NaN are results as in IEEE 754
                np.add.at(self.arrays["total"], rows.at, numbers.astype(np.float64, copy=False))
        else:
            if not self._limbs and not self._fits(values):
                self._widen()
            if self._limbs:
                rows = rows.present(values)
                self._add_limbs(rows.at, values)
            else:
                rows, numbers = without_nulls(rows, values)
                np.add.at(self.arrays["total"], rows.at, numbers.astype(np.int64, copy=False))
        self.arrays.mark("some", rows)

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        values = columns[0]
        valid = where_valid(values)
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
        rows["some"] = some_so_far(runs, self.arrays["some"], valid)
        made: Accumulator = after(self, runs, **rows)
        return made

    def _fits(self, values: Values) -> bool:
        # A bound for any position: as if all rows of a batch had one key and the largest size.
        self._bound += values.largest * len(values)
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
        present = values.present
        for number, limb in enumerate(limbs_of(values)):
            np.add.at(self.arrays[f"limb{number}"], at, limb if present is None else limb[present])

    def _settle(self, rows: int) -> None:
        """Carry, before the parts could leave 64 bits."""
        # A part of 32 bits grows by less than 2**32 with each row: 2**30 rows keep it below 2**62.
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

    @override
    def merge(self, at: Any, other: Summed) -> None:
        # The other one may be widened as well, which changes the form of its sums and not their values: a slice
        # that is merged into a window is used again.
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
                with np.errstate(all="ignore"):
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

    @override
    def result(self, count: int) -> Any:
        empty = ~self.arrays["some"][:count]
        if self._is_float:
            return array_of(self.arrays["total"][:count], mask=empty)
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
            return array_of(totals.view(np.uint64), mask=empty)
        found = array_of(totals, mask=empty)
        return found if found.type == self._type else found.view(self._type)

    def _check(self, outside: Any) -> None:
        if outside.any():
            # Casts that no value fails: integers beyond 2**53 have none to a float, durations one to int64 alone.
            wider = "a float" if self._is_decimal else "a decimal"
            if pa.types.is_duration(self._kind):
                wider = f"int64 and then to {wider}"
            raise AggregateOverflowError(
                f"{self._name} does not fit in {self._type}: {int(outside.sum())} of {len(outside)} results "
                f"computed together are larger. Cast the column to {wider} before the aggregate"
            )

    def _decimals(self, count: int, empty: Any) -> Any:
        self._carry()
        limbs = [self.arrays[f"limb{number}"][:count] for number in range(4)]
        outside = (limbs[3] < -(1 << 31)) | (limbs[3] >= 1 << 31)
        halves = np.empty((count, 2), np.int64)
        halves[:, 0] = limbs[0] | limbs[1] << np.int64(32)
        halves[:, 1] = limbs[2] | limbs[3] << np.int64(32)
        high = halves[:, 1]
        # 128 bits hold more than 38 digits. Python's integers decide for the few sums near the limit.
        for row in np.flatnonzero((high >= _LARGE_HIGH) | (high <= -_LARGE_HIGH)):
            low = int(halves[row, 0]) & 0xFFFFFFFFFFFFFFFF
            outside[row] |= abs((int(high[row]) << 64) + low) >= 10**38
        self._check(outside & ~empty)
        packed = np.packbits(~empty, bitorder="little")
        buffers: Any = [pa.py_buffer(packed.tobytes()), pa.py_buffer(halves.tobytes())]
        return pa.Array.from_buffers(self._type, count, buffers)

    @override
    def part(self, at: Any) -> Any:
        if self._limbs:
            self._carry()
        return super().part(at)

    @override
    def restore(self, at: Any, state: Any) -> None:
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

    @override
    def resize(self, size: int) -> None:
        self._sum.resize(size)
        self._count.resize(size)

    @property
    @override
    def depends_on_order(self) -> bool:
        return self._sum.depends_on_order

    @property
    @override
    def combines(self) -> bool:
        return self._sum.combines

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        self._sum.update(rows, columns, arrivals)
        self._count.update(rows, columns, arrivals)

    @override
    def running(self, runs: Runs, columns: Sequence[Values], arrivals: Any) -> Accumulator:
        made: Any = copy.copy(self)
        made._sum = self._sum.running(runs, columns, arrivals)
        made._count = self._count.running(runs, columns, arrivals)
        return made  # type: ignore[no-any-return]

    @override
    def merge(self, at: Any, other: Averaged) -> None:
        self._sum.merge(at, other._sum)
        self._count.merge(at, other._count)

    @override
    def result(self, count: int) -> Any:
        counts = self._count.arrays["count"][:count]
        if not pa.types.is_decimal(self._type):
            with np.errstate(all="ignore"):
                return array_of(self._sum.totals(count) / counts, mask=counts == 0)
        # Integers up to the one division, which rounds halves away from zero.
        raised = 10 ** (self._type.scale - self._kind.scale)
        return decimals(
            (None if not n else _half_up(total * raised, n))
            for total, n in zip(self._sum.exact(count), counts.tolist(), strict=True)
        )(self._type, self._name)

    @override
    def state(self, count: int) -> Any:
        return self.part(slice(count))

    @override
    def part(self, at: Any) -> Any:
        return struct_of({"sum": self._sum.part(at), "count": self._count.part(at)})

    @override
    def restore(self, at: Any, state: Any) -> None:
        self._sum.restore(at, state.field("sum"))
        self._count.restore(at, state.field("count"))

    @property
    @override
    def nbytes(self) -> int:
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
