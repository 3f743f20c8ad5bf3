"""Positions of a slice that have changed since the slice was written to the state."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Unwritten", "grown"]

_SMALLEST = 64


def grown(marks: Any, size: int) -> Any:
    """Return an array of at least so many elements: those of ``marks``, and zeros behind them."""
    if size <= len(marks):
        return marks
    found = np.zeros(max(size, len(marks) * 3 // 2, _SMALLEST), marks.dtype)
    found[: len(marks)] = marks
    return found


class Unwritten:
    """Positions that have changed since they were written: all, until that is for the first time.

    A window that ends between two checkpoints is never written, and costs nothing here.
    """

    def __init__(self) -> None:
        self._marks: Any = None  # by position; None: all, as where nothing has been written

    @property
    def nbytes(self) -> int:
        """Memory of the array, in bytes."""
        return 0 if self._marks is None else int(self._marks.nbytes)

    def add(self, at: Any, size: int) -> None:
        """Note that positions change, of which there are so many now."""
        if self._marks is not None:
            self._marks = grown(self._marks, size)
            self._marks[at] = True

    def discard(self, at: Any, size: int) -> None:
        """Note that positions are as they are in the state."""
        if self._marks is None:
            self._marks = np.ones(size, bool)
        self._marks[at] = False

    def all(self) -> None:
        """Note that nothing is as it is in the state."""
        self._marks = None

    def clear(self) -> None:
        """Note that all of it has been written."""
        self._marks = np.zeros(0, bool)

    def keep(self, at: Any, size: int) -> None:
        """Forget all of so many positions but some, which get the first numbers."""
        if self._marks is not None:
            self._marks = grown(self._marks, size)[at]

    def positions(self, size: int) -> Any:
        """Return the positions, ascending, of so many that there are."""
        return np.arange(size) if self._marks is None else np.flatnonzero(self._marks[:size])
