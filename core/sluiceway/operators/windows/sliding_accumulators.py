"""Accumulators per key of a window that slides over slices, without merging all slices at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sluiceway.elements import MIN_WATERMARK
from sluiceway.isolation import ATOMS
from sluiceway.operators.windows.slice_types import Item
from sluiceway.record_errors import MISSING, record_loop

__all__ = ["SlidingAccumulators"]

_PART: Final = 16_384
"""Accumulators that are merged before mails are processed."""


class SlidingAccumulators:
    """Contents of a sliding window by key, updated as the window moves.

    Two stacks (K. Tangwongsan, M. Hirzel, S. Schneider, "Low-Latency Sliding-Window Aggregation in Worst-Case
    Constant Time", DEBS 2017, section 2), turned over for all keys at once. The *front* is the older part of
    the window: for each key the accumulators from the window's start to the turning point in one, and beneath
    it the same for every later start, so that nothing is merged when a slice leaves. The *back* is what was
    added since, in one accumulator per key. Once the front is used up, the whole window is made into a new one.
    So an accumulator is merged when its slice is added, when the stacks are turned over, and once per window,
    however many slices a window has.

    It is derived from the slices alone and can be built from them again at any time.

    Args:
        slices: the slices by their start, each a mapping from key to accumulator; read, never changed.
        width: length of a slice, in ms.
        merge: ``merge(older, newer)``; must not change either.
        own: copies an accumulator for a function; None: no copy is needed.
        step_name: name of the step, for messages.
    """

    def __init__(
        self,
        slices: Mapping[int, Mapping[Any, Any]],
        width: int,
        merge: Callable[[Any, Any], Any],
        own: Callable[[Any], Any] | None,
        step_name: str,
    ) -> None:
        self.merge = merge
        self.own = own
        self.step_name = step_name
        self._slices = slices
        self._width = width
        # The first window of the first records there can be begins before them, at most 2**62 ms.
        self._start = self._turned = self._end = 2 * MIN_WATERMARK
        self._front: dict[Any, Any] = {}
        self._back: dict[Any, Any] = {}
        # Per slice of the front: the top of its keys once the slice has left, and the keys that leave with it.
        self._beneath: dict[int, tuple[dict[Any, Any], set[Any]]] = {}
        # Keys of the back that are not in the front, in order.
        self._alone: dict[Any, None] = {}
        self._stale: set[Any] = set()

    def touch(self, key: Any) -> None:
        """Record that a slice that may be part of the window already has changed for a key."""
        self._stale.add(key)

    def move_to(self, start: int, end: int) -> Iterator[None]:
        """Move to the window from ``start`` to ``end``, in parts. Both must not be earlier than before."""
        # The front is used up: make the whole window into a new one, newest slice first.
        if start > self._turned or start >= self._end:
            self._front, self._back, self._beneath, self._alone = {}, {}, {}, {}
            self._turned = end
            for at in range(end - self._width, start - 1, -self._width):
                # A copied dict is allocated for all of its keys at once.
                beneath = self._beneath[at] = (dict(self._slices.get(at, ())), set())
                for items in self._parts_of(at):
                    self._lay_upon(items, *beneath)
                    yield
        else:
            # New slices are added to the back, then old ones leave the front.
            for at in range(self._end, end, self._width):
                for items in self._parts_of(at):
                    self._take_in(items)
                    yield
            for at in range(self._start, start, self._width):
                self._leave(at)
        self._start, self._end = start, end
        # Last, as it works on the window's new bounds.
        for key in self._stale:
            self._make_anew(key)
        self._stale.clear()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the window's keys, in the order of :meth:`results`."""
        yield from self._front
        yield from self._alone

    def results(
        self,
        result: Callable[[Any], Any] | None,
        size: int,
        wanted: Callable[[Any], bool] | None = None,
        *,
        with_key: bool = False,
        isolate: Callable[..., Any] | None = None,
    ) -> Iterator[list[Any]]:
        """Yield the results of the window, at most ``size`` at a time.

        Args:
            result: makes a result of an accumulator; None: the accumulator is the result.
            size: the number of results at a time.
            wanted: returns false for keys to leave out.
            with_key: True for pairs of key and result.
            isolate: makes a record of a result: see :func:`sluiceway.isolation.isolated`; None: results are passed
                on as they are.
        """
        back = self._back
        alone = ((key, back[key]) for key in self._alone)
        for items, newer in ((self._front.items(), back), (alone, {})):
            rest = iter(items) if wanted is None else (item for item in items if wanted(item[0]))
            while part := self._results(islice(rest, size), newer, result, with_key, isolate):
                yield part

    # ---- inside -------------------------------------------------------------------------------------------

    def _parts_of(self, at: int) -> Iterator[Iterable[Item]]:
        # Iterators instead of lists: an iterator over a dict reuses its pair.
        entries = self._slices.get(at)
        if entries is not None:
            rest = iter(entries.items())
            for _ in range(0, len(entries), _PART):
                yield islice(rest, _PART)

    @record_loop
    def _lay_upon(self, items: Iterable[Item], beneath: dict[Any, Any], last: set[Any]) -> None:
        front, merge, missing = self._front, self.merge, MISSING
        get = front.get
        for key, older in items:
            newer = get(key, missing)
            if newer is missing:
                last.add(key)
                front[key] = older
            else:
                beneath[key] = newer
                front[key] = merge(older, newer)

    @record_loop
    def _take_in(self, items: Iterable[Item]) -> None:
        back, merge, missing = self._back, self.merge, MISSING
        get = back.get
        for key, newer in items:
            older = get(key, missing)
            if older is missing:
                back[key] = newer
                if key not in self._front:
                    self._alone[key] = None
            else:
                back[key] = merge(older, newer)

    def _leave(self, at: int) -> None:
        beneath, last = self._beneath.pop(at, ({}, ()))
        self._front.update(beneath)
        for key in last:
            del self._front[key]
            # The key has no slice left in the front, which hid it.
            if key in self._back:
                self._alone[key] = None

    @record_loop
    def _results(
        self,
        items: Iterable[Item],
        back: Mapping[Any, Any],
        result: Callable[[Any], Any] | None,
        with_key: bool,
        isolate: Callable[..., Any] | None,
    ) -> list[Any]:
        merge, own, missing, get, atoms = self.merge, self.own, MISSING, back.get, ATOMS
        if result is None and own is None:
            isolate = None  # the accumulators themselves are the results, and cannot be changed
        out: list[Any] = []
        for key, accumulator in items:
            newer = get(key, missing)
            if newer is not missing:
                accumulator = merge(accumulator, newer)
            # A merged accumulator is new; this one may be that of a slice.
            elif own is not None:
                accumulator = own(accumulator)
            made = accumulator if result is None else result(accumulator)
            if isolate is not None and type(made) not in atoms:
                made = isolate(made, 1 if made is accumulator else 0)
            out.append((key, made) if with_key else made)
        return out

    def _make_anew(self, key: Any) -> None:
        """Build both stacks of one key from the slices."""
        self._front.pop(key, None)
        self._back.pop(key, None)
        self._alone.pop(key, None)
        for at in range(self._turned - self._width, self._start - 1, -self._width):
            entries = self._slices.get(at)
            if entries is None:
                continue
            beneath, last = self._beneath.setdefault(at, ({}, set()))
            beneath.pop(key, None)
            last.discard(key)
            accumulator = entries.get(key, MISSING)
            if accumulator is not MISSING:
                self._lay_upon([(key, accumulator)], beneath, last)
        for at in range(self._turned, self._end, self._width):
            entries = self._slices.get(at)
            accumulator = MISSING if entries is None else entries.get(key, MISSING)
            if accumulator is not MISSING:
                self._take_in([(key, accumulator)])
