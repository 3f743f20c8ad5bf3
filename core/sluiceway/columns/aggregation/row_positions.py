"""Positions of rows that are aggregated, with what the aggregates share of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sluiceway.columns.aggregation.values import Values

__all__ = ["RowPositions", "without_nulls"]

_FULL: Final = 2
"""Positions for each row from which on rows are added one by one, not counted for all positions first."""


class RowPositions:
    """Position of each row.

    Args:
        at: the positions.
        size: how many there are; each of ``at`` is below it.

    Attributes:
        at: as given.
        size: as given.
    """

    __slots__ = ("_counts", "at", "size")

    def __init__(self, at: Any, size: int) -> None:
        self.at, self.size = at, size
        self._counts: Any = None

    @property
    def are_many(self) -> bool:
        """True if there are so many rows that counting them costs less than a step for each."""
        return len(self.at) * _FULL >= self.size

    @property
    def counts(self) -> Any:
        """Number of rows at each position, an array that must not be changed."""
        if self._counts is None:
            self._counts = np.bincount(self.at, minlength=self.size)
        return self._counts

    def present(self, values: Values) -> RowPositions:
        """Return the positions of the rows whose value is not null."""
        present = values.present
        return self if present is None else RowPositions(self.at[present], self.size)


def without_nulls(rows: RowPositions, values: Values) -> tuple[RowPositions, Any]:
    """Return positions and numbers of the rows that are not null."""
    present = values.present
    return rows.present(values), values.numbers if present is None else values.numbers[present]
