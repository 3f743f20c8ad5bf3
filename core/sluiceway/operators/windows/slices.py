"""Slices: the parts that windows of one size share, and the arithmetic between slices and windows.

A slice is as long as the greatest common divisor of a window's size and its slide, so that every window is a
whole number of slices, and a record belongs to one slice however many windows it belongs to (J. Li et al.,
"No Pane, No Gain", SIGMOD Record 34(1), 2005).
"""

from __future__ import annotations

from math import gcd

__all__ = ["Slices"]


class Slices:
    """Slices of windows that begin every ``slide`` ms, at ``offset`` for one, and leave no gaps.

    A slice is named by its start, a window by its end. Slices are also numbered, from the one that begins first
    after the epoch.

    Args:
        size: length of a window, in ms.
        slide: time from the start of one window to that of the next, in ms; not longer than ``size``.
        offset: start of a window, in ms since the epoch.

    Attributes:
        width: length of a slice, in ms.
        first_start: start of slice number 0.
    """

    def __init__(self, size: int, slide: int, offset: int = 0) -> None:
        self.size = size
        self.slide = slide
        self.offset = offset
        self.width = gcd(size, slide)
        self.first_start = offset % self.width

    def number_of(self, start: int) -> int:
        """Return the number of a slice."""
        return (start - self.first_start) // self.width

    def start_at(self, number: int) -> int:
        """Return the slice with a number."""
        return number * self.width + self.first_start

    def start_of(self, timestamp: int) -> int:
        """Return the slice to which a timestamp belongs."""
        return timestamp - (timestamp - self.offset) % self.width

    def next_end(self, timestamp: int) -> int:
        """Return the end of the first window that ends after ``timestamp``."""
        return timestamp + 1 + (self.offset + self.size - timestamp - 1) % self.slide

    def first_end(self, start: int) -> int:
        """Return the end of the first window that includes the slice."""
        return self.next_end(start + self.width - 1)

    def last_end(self, start: int) -> int:
        """Return the end of the last window that includes the slice."""
        return start - (start - self.offset) % self.slide + self.size
