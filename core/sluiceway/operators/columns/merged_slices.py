"""Merged slices: intervals of them, so that a window of many slices is not merged of each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from sluiceway.columns.aggregation.slices import AggregateSlice

__all__ = ["MergedSlices"]

_BITS: Final = 4
"""An interval is made of 2**4 of the next smaller ones."""

_Interval: TypeAlias = tuple[int, int]
"""Level, and number since the epoch: an interval of level n has the time of 2**(4 * n) slices."""


class MergedSlices:
    """Windows merged of slices by way of intervals, of which they share those that lie in them as a whole.

    Base intervals (A. Arasu, J. Widom, "Resource Sharing in Continuous Sliding-Window Aggregates", VLDB 2004,
    section 4) of 16, 256, ... slices. An interval is merged when a window includes it for the first time, so
    that a window of n slices costs about 16 * log16(n) merges. Intervals begin at fixed times: how a sum of
    floats is rounded does not depend on the windows before it, nor on a restart.

    Intervals are made of the slices alone, and can be forgotten at any time.

    Args:
        slices: the slices by start.
        new: makes an empty slice.
        width: width of a slice, in ms.
        room: bytes that intervals may take; those beyond are merged anew for each window. None: no bound.
    """

    def __init__(
        self,
        slices: Mapping[int, AggregateSlice],
        new: Callable[[], AggregateSlice],
        width: int,
        room: int | None = None,
    ) -> None:
        self._slices, self._new, self._width, self._room = slices, new, width, room
        self._intervals: dict[_Interval, AggregateSlice] = {}
        # The highest level of an interval so far.
        self._top = 0
        self._sizes: dict[_Interval, int] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the intervals, in bytes."""
        return sum(self._sizes.values())

    def intervals(self) -> Iterable[AggregateSlice]:
        """Return all intervals."""
        return self._intervals.values()

    def window(self, inside: Sequence[int], start: int, end: int) -> AggregateSlice:
        """Return a window for reading: a slice or interval itself, if it has no other one.

        Args:
            inside: the starts of the slices in it, at least one, ascending.
            start: of the window, in ms.
            end: of the window, in ms, which is not in it.
        """
        return self._merged(self._largest(inside, start // self._width, end // self._width))

    def forget(self, start: int) -> None:
        """Forget the intervals that a slice is part of: it changes."""
        number = start // self._width
        for level in range(1, self._top + 1):
            name = level, number >> _BITS * level
            if self._intervals.pop(name, None) is not None:
                del self._sizes[name]

    def clear(self) -> None:
        """Forget all intervals."""
        self._intervals.clear()
        self._sizes.clear()

    def _largest(self, inside: Sequence[int], first: int, end: int) -> Iterator[AggregateSlice]:
        """Yield the largest intervals from slice number ``first`` on and before ``end``, in their order."""
        while inside:
            level = 0
            while first <= self._first_of(inside[0], level + 1) and self._end_of(inside[0], level + 1) <= end:
                level += 1
            interval, inside = self._cut(inside, level)
            yield self._interval(level, interval)

    def _interval(self, level: int, inside: Sequence[int]) -> AggregateSlice:
        """Return the interval of the slices that begin ``inside``, which are all that it has."""
        if len(inside) == 1:
            return self._slices[inside[0]]
        while self._first_of(inside[0], level - 1) == self._first_of(inside[-1], level - 1):
            level -= 1
        name = level, inside[0] // self._width >> _BITS * level
        interval = self._intervals.get(name)
        if interval is None:
            interval = self._merged(self._intervals_in(inside, level - 1))
            if self._room is None or self.nbytes + interval.nbytes <= self._room:
                self._intervals[name] = interval
                self._sizes[name] = interval.nbytes
                self._top = max(self._top, level)
        return interval

    def _intervals_in(self, inside: Sequence[int], level: int) -> Iterator[AggregateSlice]:
        while inside:
            interval, inside = self._cut(inside, level)
            yield self._interval(level, interval)

    def _cut(self, inside: Sequence[int], level: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the slices of the interval of a level that has the first of them, and the others."""
        behind = bisect_left(inside, self._end_of(inside[0], level) * self._width)
        return inside[:behind], inside[behind:]

    def _first_of(self, start: int, level: int) -> int:
        """Return the number of the first slice of the interval of a level that a slice is part of."""
        return start // self._width >> _BITS * level << _BITS * level

    def _end_of(self, start: int, level: int) -> int:
        return self._first_of(start, level) + (1 << _BITS * level)

    def _merged(self, parts: Iterator[AggregateSlice]) -> AggregateSlice:
        """Merge parts one by one, as some may be read from the state; the only one is not copied."""
        first, merged = next(parts), None
        for part in parts:
            if merged is None:
                merged = self._new()
                merged.merge(first)
            merged.merge(part)
        return first if merged is None else merged
