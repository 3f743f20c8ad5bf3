"""Stable order of rows by integers."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["order_of"]


def order_of(major: Any, minor: Any = None) -> Any:
    """Return the indices that sort by one array of int64, then by another one, then by themselves.

    Where the values fit, with the index, in one word, the words are sorted: that is several times as fast as to
    sort indices.

    Args:
        major: the first array, without negative values.
        minor: the second one, or None.
    """
    count = len(major)
    if not count:
        return np.zeros(0, np.int64)
    bits = count.bit_length()
    top, width, low = int(major.max()) + 1, 1, 0
    if minor is not None:
        low = int(minor.min())
        width = int(minor.max()) - low + 1
    # Both values and the index have to fit in 63 bits together, so that no word is negative.
    if top * width >= 1 << (63 - bits):
        return major.argsort(kind="stable") if minor is None else np.lexsort((minor, major))
    words = major if minor is None else major * width + (minor - low)
    words = (words << bits) | np.arange(count)
    words.sort()
    return words & ((1 << bits) - 1)
