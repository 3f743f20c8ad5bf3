"""Accumulator of a user's aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Arrays, PlainAccumulator
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.exact import converts_exactly
from sluiceway.errors import FunctionContractError
from sluiceway.util.overriding import override

__all__ = ["Custom"]


class Custom(PlainAccumulator):
    """Accumulators of a user's aggregate.

    Args:
        function: a :class:`sluiceway.columns.aggregation.aggregates.ColumnAggregate`.
        name: the aggregate, for errors.
        result_type: type of the results.
    """

    def __init__(self, function: Any, name: str, result_type: Any) -> None:
        self._function, self._name, self._type = function, name, result_type
        self.arrays = Arrays(**function.accumulators())

    @override
    def update(self, rows: RowPositions, columns: Sequence[Values], arrivals: Any) -> None:
        whole = [values.numbers if values.numbers is not None else values.objects for values in columns]
        at, valid = rows.at, np.ones(len(rows.at), bool)
        for values in columns:
            if values.valid is not None:
                valid &= values.valid
        if not valid.all():
            at, whole = at[valid], [column[valid] for column in whole]
        self._function.update(self.arrays.all, _read_only(at), *map(_read_only, whole))

    @override
    def merge(self, at: Any, other: Custom) -> None:
        self._function.merge(self.arrays.all, at, {n: array[: len(at)] for n, array in other.arrays.all.items()})

    @override
    def result(self, count: int) -> Any:
        found = self._function.result({name: array[:count] for name, array in self.arrays.all.items()})
        if not isinstance(found, pa.Array):
            found = pa.array(found)
        if len(found) != count:
            raise FunctionContractError(
                f"result() of {self._name} returned {len(found)} values for {count} keys: it has to return one "
                "for each element of the accumulators"
            )
        if not converts_exactly(found.type, self._type, as_records=True):
            raise FunctionContractError(
                f"result() of {self._name} returned {found.type}, where it is said to have {self._type}: cast it "
                "there, as values could change"
            )
        return found if found.type == self._type else found.cast(self._type)


def _read_only(array: Any) -> Any:
    """Return an array that cannot be changed: other aggregates read the same one."""
    view = array.view()
    view.flags.writeable = False
    return view
