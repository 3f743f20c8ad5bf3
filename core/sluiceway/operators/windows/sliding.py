"""Operator of sliding windows: a slice belongs to several windows, which share its accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

from sluiceway.elements import MIN_WATERMARK
from sluiceway.functions import AggregateFunction
from sluiceway.isolation import all_unchangeable, copied
from sluiceway.keygroups import stable_hash
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.escape_analysis import attributes_read, keeps_nothing
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.accumulator_copy import merge_of_copies
from sluiceway.operators.windows.slice_types import NEVER, Entries, Item
from sluiceway.operators.windows.sliced_elements import SlidingElements, appended, numbered, owned
from sluiceway.operators.windows.sliced_window_operator import BURST, SlicedWindowOperator
from sluiceway.operators.windows.slices import Slices
from sluiceway.operators.windows.sliding_accumulators import SlidingAccumulators
from sluiceway.operators.windows.state_layout import (
    EVALUATED_UP_TO,
    evaluated_before,
    merge_function,
    slices,
    windows,
)
from sluiceway.record_errors import MISSING, record_loop
from sluiceway.state import StateTable

__all__ = ["SlidingOperator"]


class SlidingOperator(SlicedWindowOperator):
    """Operator of sliding windows of event time, without allowed lateness.

    A window is merged from its slices, the older before the newer; a slice is made of its records in the order
    of their arrival. That is the same as adding record after record wherever the order of records makes no
    difference (sums of floats may be rounded in another way). The keys of a window are in no particular order.
    A function of all elements receives them in the order of their arrival.
    """

    def __init__(self, context: OperatorContext, arithmetic: Slices) -> None:
        super().__init__(context, arithmetic)
        self._window: SlidingAccumulators | SlidingElements
        if self._elements:
            self._window = SlidingElements(self._slices, arithmetic.width, self.step_name)
        else:
            merge = merge_function(self._step)
            self._window = SlidingAccumulators(self._slices, arithmetic.width, merge, None, self.step_name)
        # Only merge() is allowed to change its arguments. It may do so with object-reuse, too, which is about
        # records: those are what a reduce function is given.
        changes = not self.shares or isinstance(self._step.fn, AggregateFunction)
        self._may_share = changes and not self._elements
        # A function that keeps nothing is given accumulators that are nobody else's: so are its results, unless it
        # reads attributes, which may be those of their class.
        result = self._result
        self._makes_its_results = result is not None and keeps_nothing(result) and not attributes_read(result)
        self._starts: list[int] = []
        # Windows that end by this time are over.
        self._over = MIN_WATERMARK
        # Keys whose windows were evaluated before the state was restored, with the end of the last one; and the
        # highest of these ends.
        self._ahead: dict[Any, int] = {}
        self._furthest = MIN_WATERMARK
        # Windows that another operator has stored one by one, by their ends, with their contents at the restore.
        self._inherited: dict[int, Entries] = {}
        # End of the window that is being evaluated, and the number of its results that were emitted.
        # A count is enough: unlike the entries of a backend, the running window keeps its order over a snapshot.
        self._burst: tuple[int, int] | None = None

    # ---- records ----------------------------------------------------------------------------------------------

    def _make(self, start: int) -> Entries:
        heappush(self._starts, start)
        self._due_at = min(self._due_at, self._next_end(start) - 1)
        return super()._make(start)

    def _place(self, start: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        now, end = self.current_watermark, self._arithmetic.last_end(start)
        if end - 1 <= now or self._was_over(end, key):
            self._late[0].append(value)
            self._late[1].append(timestamp)
            return None
        entries = self._slices.get(start)
        if self._arithmetic.first_end(start) - 1 > now:
            if entries is None:
                entries = self._make(start)
                self._close_behind(start)
            return entries
        # Some of its windows are over, others are not.
        if entries is None:
            entries = self._make(start)
            if self._elements:
                return entries
            self._close(start)
        self._check_sharing([self._add(entries, key, value)])
        self._window.touch(key)
        return None

    def _was_over(self, end: int, key: Any) -> bool:
        """Return whether windows up to an end were evaluated for a key before the state was restored."""
        if not self._ahead:
            return False
        stable_hash(key)  # says which key is unhashable
        return end <= self._ahead.get(key, MIN_WATERMARK)

    def _close_behind(self, start: int) -> None:
        """Have each record of a slice checked whose windows are over for some keys, by what was restored."""
        if self._arithmetic.last_end(start) <= self._furthest:
            self._close(start)

    def _expect_changes(self) -> None:
        super()._expect_changes()
        self._window.own = owned

    def _check_sharing(self, accumulators: Iterable[Any]) -> None:
        if self._may_share and not all_unchangeable(list(accumulators)):
            self._may_share = False
            assert isinstance(self._window, SlidingAccumulators)
            self._window.merge = merge_of_copies(self._window.merge)
            self._window.own = copied

    # ---- time -------------------------------------------------------------------------------------------------

    def _next_end(self, start: int) -> int:
        """Return the end of the first window that includes the slice and is not over."""
        return max(self._arithmetic.first_end(start), self._arithmetic.next_end(self._over))

    def _due(self, until: int) -> bool:
        if self._due_at <= until:
            return True
        self._over = until + 1
        return False

    def _fire(self, until: int) -> Iterator[None]:
        arithmetic, window, starts = self._arithmetic, self._window, self._starts
        while self._due_at <= until:
            end = self._due_at + 1
            last = arithmetic.number_of(end)
            if (
                not self._elements
            ):  # slices of elements stay open: nothing is derived from them that would have to change
                # From now on records of these slices go through `_place`, since the running window has their
                # accumulators.
                for number in [number for number in self._open if number < last]:
                    self._check_sharing(self._open.pop(number).values())
            yield from window.move_to(end - arithmetic.size, end)
            self._burst = (end, 0)
            for results in self._results(end):
                self._emit(results, end)
                self._burst = (end, self._burst[1] + len(results))
                yield
            self._burst = None
            self._over = end
            self._end(end, ())
            # Slices that no later window includes.
            while starts and starts[0] < end - arithmetic.size + arithmetic.slide:
                self._drop(heappop(starts))
            self._due_at = min(self._next_end(starts[0]) - 1 if starts else NEVER, self._next_inherited())
        self._over = until + 1

    def _results(self, end: int) -> Iterator[list[Any]]:
        """Yield the results of a window, in parts."""
        wanted = self._wanted(end)
        if end not in self._inherited:
            isolate = None if self._makes_its_results else self.isolate
            yield from self._window.results(self._result, BURST, wanted, with_key=self._with_key, isolate=isolate)
            return
        # Keys with records in slices, then those that have only what was inherited.
        before = self._inherited[end]
        for items in self._window.results(None, BURST, wanted, with_key=True):
            yield self._with_inherited(items, before)
        while items := list(islice(before.items(), BURST)):
            for key, _ in items:
                del before[key]
            yield self._with_inherited(items, {})
        del self._inherited[end]
        self._inherited_table.drop((end - self._arithmetic.size, end))

    @record_loop
    def _with_inherited(self, items: Iterable[Item], before: Entries) -> list[Any]:
        """Return the results for keys whose accumulators may have begun before the restore."""
        merge, result, with_key = self._window.merge, self._result, self._with_key
        out: list[Any] = []
        for key, accumulator in items:
            older = before.pop(key, MISSING)
            if older is not MISSING:
                accumulator = merge(older, accumulator)
            made = accumulator if result is None else result(accumulator)
            made = self.isolate(made)
            out.append((key, made) if with_key else made)
        return out

    def _next_inherited(self) -> int:
        return min(self._inherited, default=NEVER + 1) - 1

    def _wanted(self, end: int) -> Callable[[Any], bool] | None:
        ahead = self._ahead
        if not ahead:
            return None
        # All keys have caught up.
        if self._furthest < end:
            self._ahead = {}
            return None
        return lambda key: ahead.get(key, MIN_WATERMARK) < end

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Restore how far windows were evaluated."""
        super().open()
        if self._elements:
            self._number_arrivals()
        self._evaluated = self.backend.table(EVALUATED_UP_TO).entries()
        self._ahead = dict(self._evaluated)
        self._furthest = max(self._ahead.values(), default=MIN_WATERMARK)
        self._evaluated.clear()
        for start in self._slices:
            self._close_behind(start)

    def _number_arrivals(self) -> None:
        """Continue after the highest arrival number in the state."""
        highest, unchangeable = -1, True
        for entries in self._slices.values():
            for arrivals in entries.values():
                highest = max(highest, arrivals[-1][0])
                unchangeable = unchangeable and (self.shares or all_unchangeable(arrivals))
        if not unchangeable:
            self._expect_changes()
        number = count(highest + 1).__next__
        # The lists of the state are in order of arrival, so that the last number of each is its highest.
        self._fold = numbered(number)
        self._next = lambda value, held: appended((number(), value), held)

    def _find_table(self) -> StateTable:
        kept = self._found.table(windows(self._step))
        if kept is not None:
            self._inherit(kept)
        return self.backend.table(slices(self._step))

    def _inherit(self, kept: StateTable) -> None:
        """Take over windows that were stored one by one; later records are added to slices."""
        self._inherited_table = kept
        evaluated, timers, reached = self._found.evaluated(), self._found.timers(), self._found.reached()
        size, slide, offset = self._arithmetic.size, self._arithmetic.slide, self._arithmetic.offset
        spans: Any = kept.namespaces()
        for window in list(spans):
            if not window or window[1] - window[0] != size or (window[0] - offset) % slide:
                self._refuse_borders()
            entries = kept.entries(window)
            for key in evaluated_before(entries, window, evaluated.get(window, set()), timers, reached):
                del entries[key]
            if entries:
                self._inherited[window[1]] = entries
        self._due_at = self._next_inherited()

    def snapshot(self) -> OperatorSnapshot:
        """Return all slices, and how far each key's windows are evaluated."""
        evaluated = {}
        # Keys that are done for the window of the burst come on top of those that are done for all before it.
        if self._over != MIN_WATERMARK:
            evaluated = dict.fromkeys((key for entries in self._slices.values() for key in entries), self._over)
        if self._burst is not None:
            end, count = self._burst
            keys = (key for key in self._window if self._ahead.get(key, MIN_WATERMARK) < end)
            evaluated.update((key, end) for key in islice(keys, count))
        for key, end in self._ahead.items():
            evaluated[key] = max(end, evaluated.get(key, end))
        self._evaluated.update(evaluated)
        try:
            return super().snapshot()
        finally:
            self._evaluated.clear()
