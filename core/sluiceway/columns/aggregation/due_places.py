"""Places in arrays by time, in sorted runs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sluiceway.elements import MAX_WATERMARK

__all__ = ["DuePlaces"]

_NONE: Final = np.zeros(0, np.int64)


class DuePlaces:
    """Places by a time, taken in the order of time.

    Taking costs as much as is taken, and adding as much as is added, each times the logarithm of the number of
    places: they are in sorted runs, each at least twice as long as the next one when that was added.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._runs)

    @property
    def nbytes(self) -> int:
        """Memory of the runs, in bytes, of what was taken at the most as much as of what is left."""
        return sum(2 * times.nbytes + 2 * places.nbytes for times, places in self._runs)

    @property
    def earliest(self) -> int:
        """Time of the earliest place, in ms; without places the end of time."""
        return min((int(times[0]) for times, _ in self._runs), default=MAX_WATERMARK)

    def clear(self) -> None:
        """Remove all places."""
        self._runs = []

    def add(self, times: Any, places: Any) -> None:
        """Add places, each with its time in ms."""
        if not len(times):
            return
        order = times.argsort(kind="stable")
        times, places = times[order], places[order]
        runs = self._runs
        while runs and 2 * len(times) > len(runs[-1][0]):
            before_times, before_places = runs.pop()
            times = np.concatenate([before_times, times])
            # Two sorted runs are merged by a stable sort in one pass.
            order = times.argsort(kind="stable")
            times, places = times[order], np.concatenate([before_places, places])[order]
        runs.append((times, places))

    def take(self, until: int) -> Any:
        """Remove the places whose time is ``until`` or earlier, and return them."""
        taken, left = [], []
        for times, places in self._runs:
            count = int(times.searchsorted(until, "right"))
            if count:
                # Copied: a view would keep the whole run in memory.
                taken.append(places[:count].copy())
                times, places = _rest(times, count), _rest(places, count)
            if len(times):
                left.append((times, places))
        self._runs = left
        return np.concatenate(taken) if taken else _NONE


def _rest(array: Any, count: int) -> Any:
    rest = array[count:]
    whole = array if array.base is None else array.base
    return rest.copy() if 2 * len(rest) < len(whole) else rest
