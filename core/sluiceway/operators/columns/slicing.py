"""Arithmetic of the slices of windows in columns: tumbling, sliding, cumulative, and one window for all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from sluiceway.operators.windows.slice_types import END_OF_TIME
from sluiceway.operators.windows.slices import Slices
from sluiceway.util.overriding import override
from sluiceway.windows import CumulativeEventTimeWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway.windows.base import WindowAssigner

__all__ = ["CumulativeSlices", "OneSlice", "WindowSlices", "rows_by_slice", "slicing_of"]

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

_FEW_SLICES: Final = 8


class WindowSlices(Slices):
    """Slices of windows that begin at regular intervals."""

    def window_start(self, end: int) -> int:
        """Return the start of the window with that end."""
        return end - self.size

    def ends_of(self, start: int, after: int, until: int) -> Iterator[int]:
        """Return the ends of the windows that include a slice and end after ``after``, and not after ``until``."""
        end, last = max(self.first_end(start), self.next_end(after)), min(self.last_end(start), until)
        while end <= last:
            yield end
            end = self.next_end(end)


class CumulativeSlices(WindowSlices):
    """Slices of windows that begin together and end one after the other: each is as long as a step.

    Args:
        step: time from one end to the next, in ms.
        size: length of the longest window, a multiple of ``step``.
        offset: start of a window, in ms since the epoch.
    """

    def __init__(self, step: int, size: int, offset: int) -> None:
        super().__init__(size, step, offset)

    @override
    def next_end(self, timestamp: int) -> int:
        return timestamp + 1 + (self.offset - timestamp - 1) % self.width

    @override
    def first_end(self, start: int) -> int:
        return start + self.width

    @override
    def last_end(self, start: int) -> int:
        return start - (start - self.offset) % self.size + self.size

    @override
    def window_start(self, end: int) -> int:
        return end - 1 - (end - 1 - self.offset) % self.size


class OneSlice(WindowSlices):
    """One slice and one window, which ends with the input."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    @override
    def start_of(self, timestamp: int) -> int:
        return 0

    def next_end(self, timestamp: int) -> int:
        """Return the end of time."""
        return END_OF_TIME

    def last_end(self, start: int) -> int:
        """Return the end of time."""
        return END_OF_TIME

    @override
    def window_start(self, end: int) -> int:
        return 0


def slicing_of(assigner: WindowAssigner | None) -> WindowSlices | None:
    """Return the slices of an assigner; None if it has none that columns can be kept in."""
    kind: Any = type(assigner)  # a subclass may assign in a way of its own
    given: Any = assigner
    if assigner is None:
        return OneSlice()
    if kind is TumblingEventTimeWindows:
        return WindowSlices(given.size_ms, given.size_ms, given.offset_ms)
    if kind is SlidingEventTimeWindows and given.slide_ms <= given.size_ms:
        return WindowSlices(given.size_ms, given.slide_ms, given.offset_ms)
    if kind is CumulativeEventTimeWindows:
        return CumulativeSlices(given.step_ms, given.size_ms, given.offset_ms)
    return None


def rows_by_slice(stamps: Any, slicing: WindowSlices, span: tuple[int, int]) -> list[tuple[int, Any]]:
    """Return for each slice that has rows its start and the rows, in their order.

    Args:
        stamps: the timestamps of the rows.
        slicing: the slices.
        span: the lowest and the highest timestamp.
    """
    width, (least, most) = slicing.width, span
    first = slicing.start_of(least)
    if first < _LEAST or most - first > _MOST:  # beyond 64 bits
        apart = stamps // width - (stamps % width < first % width)
        found, number = np.unique(apart, return_inverse=True)
        return [
            (at * width + first % width, np.flatnonzero(number == place))
            for place, at in enumerate(found.tolist())
        ]
    if most - first < 2 * width:  # two slices, or one, as most batches have: no division
        second = first + width
        later = stamps >= second if second <= _MOST else np.zeros(len(stamps), bool)
        return [
            (start, rows)
            for start, rows in ((first, np.flatnonzero(~later)), (second, np.flatnonzero(later)))
            if len(rows)
        ]
    numbers = (stamps - first) // width
    count = int(numbers.max()) + 1
    each: Iterable[tuple[int, Any]]
    if count <= _FEW_SLICES:  # comparing is faster than sorting
        each = ((number, np.flatnonzero(numbers == number)) for number in range(count))
    else:
        small = np.uint16 if count <= 1 << 16 else np.int64  # those of 16 bits are sorted by their digits
        order = numbers.astype(small).argsort(kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        each = zip(found.tolist(), np.split(order, begins[1:]), strict=True)
    return [(first + number * width, rows) for number, rows in each if len(rows)]
