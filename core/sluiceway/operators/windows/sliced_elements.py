"""Elements of windows in slices: each record is kept once, however many windows it belongs to.

A tumbling window stores the list of a key's records. A slice of a sliding window stores *arrivals*, pairs of an
arrival number and a record, because a window returns the records of several slices in the order in which they
arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sluiceway.isolation import all_unchangeable, copied
from sluiceway.operators.folds import Fold, Text
from sluiceway.operators.windows.slice_types import Item
from sluiceway.record_errors import record_loop

__all__ = ["LISTED", "Arrival", "SlidingElements", "appended", "in_order", "numbered", "owned"]

Arrival: TypeAlias = tuple[int, Any]
"""Arrival number, and record. Numbers of one key are unique and ascend."""

LISTED: Final = Fold(Text("[value]", "held.append(value)\n"), None)
"""Fold of tumbling windows."""

_NUMBERED: Final = Text("[(add(), value)]", "held.append((add(), value))\n")
_PART: Final = 16_384
"""Keys that are collected before mails are processed."""

_number: Final = itemgetter(0)


def appended(value: Any, held: list[Any]) -> list[Any]:
    """Append a record to a key's list, and return the list."""
    held.append(value)
    return held


def numbered(number: Callable[[], int]) -> Fold:
    """Return the fold of sliding windows. ``number`` returns the next arrival number."""
    return Fold(_NUMBERED, number)


def in_order(parts: list[list[Arrival]]) -> list[Any]:
    """Return the records of several slices, in the order of their arrival."""
    arrivals: list[Arrival] = []
    for part in parts:
        arrivals += part
    # One pass if the slices' records arrived slice after slice.
    arrivals.sort(key=_number)
    return [value for _, value in arrivals]


def owned(values: list[Any]) -> list[Any]:
    """Return records that a window function may change: copies of those that the state still refers to."""
    return values if all_unchangeable(values) else list(map(copied, values))


class SlidingElements:
    """Elements of a sliding window, looked up in its slices when the window is evaluated.

    It has the methods of :class:`~.sliding_accumulators.SlidingAccumulators`, and stores nothing between
    two windows: a running list for each key would be as large as all windows together.

    Args:
        slices: the slices by their start, each a mapping from key to arrivals; read, never changed.
        width: length of a slice in ms.
        step_name: the step, for messages.

    Attributes:
        own: copies records of the state for a function that may change them; None while none can be changed.
    """

    def __init__(self, slices: Mapping[int, Mapping[Any, list[Arrival]]], width: int, step_name: str) -> None:
        self.own: Callable[[list[Any]], list[Any]] | None = None
        self.step_name = step_name
        self._slices = slices
        self._width = width
        # Starts of the slices that have records of a key, ascending.
        self._found: dict[Any, list[int]] = {}

    def merge(self, older: list[Any], newer: list[Any]) -> list[Any]:
        """Return the records of both lists in a new list."""
        return older + newer

    def touch(self, key: Any) -> None:
        """Do nothing: slices are looked up anew for each window."""

    def move_to(self, start: int, end: int) -> Iterator[None]:
        """Collect the keys of the window from ``start`` to ``end``, in parts."""
        found: dict[Any, list[int]] = {}
        for at in range(start, end, self._width):
            rest = iter(self._slices.get(at, ()))
            while keys := list(islice(rest, _PART)):
                for key in keys:
                    starts = found.get(key)
                    if starts is None:
                        found[key] = [at]
                    else:
                        starts.append(at)
                yield
        self._found = found

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the window's keys, in the order of :meth:`results`."""
        return iter(self._found)

    def results(
        self,
        result: Callable[[Any], Any] | None,
        size: int,
        wanted: Callable[[Any], bool] | None = None,
        *,
        with_key: bool = True,
        isolate: object = None,
    ) -> Iterator[list[Item]]:
        """Return pairs of a key and its records, at most ``size`` at a time.

        Args:
            result: None.
            size: largest number of pairs in a list.
            wanted: returns false for keys to leave out.
            with_key: True.
            isolate: is not used: these are no results yet, but what a window function is called with.
        """
        assert result is None
        assert with_key
        items: Iterable[tuple[Any, list[int]]] = self._found.items()
        rest = iter(items) if wanted is None else (item for item in items if wanted(item[0]))
        while part := self._gathered(islice(rest, size)):
            yield part

    @record_loop
    def _gathered(self, items: Iterable[tuple[Any, list[int]]]) -> list[Item]:
        slices, own = self._slices, self.own
        out: list[Item] = []
        for key, starts in items:
            if len(starts) == 1:
                values = [value for _, value in slices[starts[0]][key]]
            else:
                values = in_order([slices[at][key] for at in starts])
            out.append((key, values if own is None else own(values)))
        return out
