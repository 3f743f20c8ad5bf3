"""Slices: the parts that windows of one size share, and the arithmetic between slices and windows.

A slice is as long as the greatest common divisor of a window's size and its slide, so that every window is a
whole number of slices, and a record belongs to one slice however many windows have it in them (J. Li et al.,
"No Pane, No Gain", SIGMOD Record 34(1), 2005).
"""

from __future__ import annotations

from math import gcd

__all__ = ["Slices"]


class Slices:
    """The slices of windows that begin every ``slide`` ms, at ``offset`` for one, and do not leave gaps.

    A slice is named by its start, a window by its end. Slices are also numbered, from the one that begins first
    after the epoch.

    Args:
        size: how long a window is, in ms.
        slide: how long after one window the next one begins; not longer than ``size``.
        offset: where a window begins, in ms since the epoch.

    Attributes:
        width: how long a slice is, in ms.
        first_start: the slice number 0.
    """

    def __init__(self, size: int, slide: int, offset: int = 0) -> None:
        self.size = size
        self.slide = slide
        self.offset = offset
        self.width = gcd(size, slide)
        self.first_start = offset % self.width

    def number_of(self, start: int) -> int:
        """The number of a slice."""
        return (start - self.first_start) // self.width

    def start_at(self, number: int) -> int:
        """The slice with a number."""
        return number * self.width + self.first_start

    def start_of(self, timestamp: int) -> int:
        """The slice to which a timestamp belongs."""
        return timestamp - (timestamp - self.offset) % self.width

    def next_end(self, timestamp: int) -> int:
        """The end of the first window that ends after ``timestamp``."""
        return timestamp + 1 + (self.offset + self.size - timestamp - 1) % self.slide

    def first_end(self, start: int) -> int:
        """The end of the first window that has the slice in it."""
        return self.next_end(start + self.width - 1)

    def last_end(self, start: int) -> int:
        """The end of the last window that has the slice in it."""
        return start - (start - self.offset) % self.slide + self.size
