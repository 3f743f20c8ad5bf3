"""Index of integers that lie close together: an array with an element for each integer between the ends.

Serial numbers, the usual keys, are found by one look-up in it. A hash table needs two, of the slot and of the key
in it, in other places of the memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["DirectIndex", "number_new"]

_SPREAD: Final = 8
"""Elements for each integer that is there, at most. A hash table has up to four slots for it."""

_SMALLEST: Final = 1 << 12
"""Elements that are allowed in any case."""


def number_new(numbers: Any, at: Any, size: int) -> tuple[Any, Any]:
    """Give the next numbers to the places that have none, in the order of their first appearance.

    Args:
        numbers: number by place, an array of int32 which is changed; -1 where there is none.
        at: the places to find.
        size: how many places have a number.

    Returns:
        the number of each place, as int64, and the indices in ``at`` of those that got one, ascending.
    """
    found = numbers.take(at)
    rows = np.flatnonzero(found < 0)
    if len(rows):
        missing = at[rows]
        # The first row of a place stays, as it is written last.
        marks = np.arange(len(rows), dtype=np.int32)
        numbers[missing[::-1]] = marks[::-1]
        first = np.flatnonzero(numbers.take(missing) == marks)
        numbers[missing[first]] = np.arange(size, size + len(first), dtype=np.int32)
        found[rows] = numbers.take(missing)
        rows = rows[first]
    return found.astype(np.int64), rows


class DirectIndex:
    """Numbers of integers by the integers themselves.

    Args:
        low: the lowest integer that has an element.
        elements: how many have one.
    """

    def __init__(self, low: int, elements: int) -> None:
        self._low = low
        self._numbers = np.full(elements, -1, np.int32)

    @classmethod
    def of(cls, words: Any) -> DirectIndex | None:
        """Return an index of integers, numbered from 0; None: they are too far from each other.

        Args:
            words: the integers, each once, as an array of uint64.
        """
        signed = words.view(np.int64)
        low, high = int(signed.min()), int(signed.max()) + 1
        most = _most(len(words))
        if high - low > most:
            return None
        low = _begin(low, high, most)
        made = cls(low, high - low)
        made._numbers[made._places(words)] = np.arange(len(words), dtype=np.int32)
        return made

    @property
    def nbytes(self) -> int:
        """Memory of the array, in bytes."""
        return int(self._numbers.nbytes)

    def find(self, words: Any, size: int) -> tuple[Any, Any] | None:
        """Return the number of each row, and the indices of the rows that got a new number, ascending.

        Args:
            words: the rows, at least one, as an array of uint64.
            size: how many integers are there.

        Returns:
            None, and nothing has changed, if the index would be too large for the integers that are there.
        """
        places = self._places(words)
        # A place below 0 is beyond the end as an unsigned number.
        if int(places.view(np.uint64).max()) >= len(self._numbers):
            if not self._reaches(words, size):
                return None
            places = self._places(words)
        return number_new(self._numbers, places, size)

    def _places(self, words: Any) -> Any:
        if not self._low:
            return words.view(np.int64)
        return (words - np.uint64(self._low & 0xFFFFFFFFFFFFFFFF)).view(np.int64)

    def _reaches(self, words: Any, size: int) -> bool:
        """Enlarge the array so that it has elements for these; False: it would be too large."""
        old, signed = self._numbers, words.view(np.int64)
        low, high = min(self._low, int(signed.min())), max(self._low + len(old), int(signed.max()) + 1)
        most = _most(size)
        if high - low > most:
            return False
        low = _begin(low, high, most)
        # Upwards by half as much again, as serial numbers grow: each element is copied a few times only.
        elements = min(most, (high - low) * 3 // 2)
        self._numbers = np.full(elements, -1, np.int32)
        begin = self._low - low
        self._numbers[begin : begin + len(old)] = old
        self._low = low
        return True


def _begin(low: int, high: int, most: int) -> int:
    """Return the integer to begin with: 0 where there is room for it, so that integers are places themselves."""
    return 0 if low >= 0 and high <= most else low


def _most(integers: int) -> int:
    return max(_SMALLEST, _SPREAD * integers)
