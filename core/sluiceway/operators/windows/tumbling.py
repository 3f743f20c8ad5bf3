"""Operator of tumbling windows: a slice is a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from sluiceway.elements import Batch
from sluiceway.isolation import ATOMS, all_unchangeable
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.slice_types import NEVER, Entries, Item
from sluiceway.operators.windows.sliced_elements import owned
from sluiceway.operators.windows.sliced_window_operator import BURST, SlicedWindowOperator
from sluiceway.operators.windows.slices import Slices
from sluiceway.operators.windows.state_layout import EVALUATED, evaluated_before, windows
from sluiceway.record_errors import record_loop
from sluiceway.state import StateTable

__all__ = ["TumblingOperator"]


class TumblingOperator(SlicedWindowOperator):
    """Operator of tumbling windows of event time, with or without allowed lateness.

    The keys of a window are in the order of their first records.
    """

    def __init__(self, context: OperatorContext, slices: Slices) -> None:
        super().__init__(context, slices)
        self._size = slices.size
        # Windows that were evaluated and are kept for late records.
        self._kept: set[int] = set()
        # Keys for which a window was evaluated before the state was restored.
        self._done: dict[int, set[Any]] = {}
        # The window that is being evaluated, and the keys whose results were emitted.
        self._burst: tuple[int, list[Any]] | None = None
        # Whether a snapshot was taken during that evaluation.
        self._taken = False
        # Results of windows that a late record has evaluated again, and their timestamps.
        self._again: tuple[list[Any], list[int]] = ([], [])

    # ---- records ----------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Add the records to their windows; an allowed late record evaluates its window at once."""
        super().process(batch)
        if self._done:
            self._expect_again(batch)
        if self._again[0]:
            again, self._again = self._again, ([], [])
            self.output.emit(Batch(*again))
        if self._ctx.sides:
            self._ctx.emit_sides()

    def _make(self, start: int) -> Entries:
        self._due_at = min(self._due_at, start + self._size - 1)
        return super()._make(start)

    def _place(self, start: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        last, now = start + self._size - 1, self.current_watermark
        # Three cases: the window is open, over for good, or evaluated and kept for late records.
        if last > now:
            return self._make(start)
        if last + self._lateness <= now:
            self._late[0].append(value)
            self._late[1].append(timestamp)
            return None
        entries = self._slices.get(start)
        if entries is None:
            entries = self._make(start)
            self._keep(start)
        made = self._made([(key, self._add(entries, key, value))], lambda key: None)
        results = self._last_word(made, start + self._size)
        self._again[0].extend(results)
        self._again[1].extend([last] * len(results))
        return None

    def _keep(self, start: int) -> None:
        self._close(start)
        self._kept.add(start)

    def _expect_again(self, batch: Batch[Any]) -> None:
        """Schedule another evaluation for a key whose window was evaluated before the restore."""
        assert batch.timestamps is not None
        keys = batch.keys or [self._key(value) for value in batch.values]
        for key, timestamp in zip(keys, batch.timestamps, strict=True):
            self._done.get(self._arithmetic.start_of(timestamp), set()).discard(key)

    # ---- time -------------------------------------------------------------------------------------------------

    def _due(self, until: int) -> bool:
        return self._due_at <= until

    def _fire(self, until: int) -> Iterator[None]:
        size, lateness = self._size, self._lateness
        kept = self._kept
        # All in the order of time: clear() and the window function may share state of a key.
        for start in sorted(start for start in self._slices if start + size - 1 <= until and start not in kept):
            self._end_kept(start + size - 2)
            entries = self._slices[start]
            done = self._done.get(start, ())
            rest = iter(entries.items()) if not done else (item for item in entries.items() if item[0] not in done)
            given: list[Any] = []
            self._burst = (start, given)
            while results := self._made(islice(rest, BURST), given.append):
                self._emit(results, start + size)
                yield
                if self._taken:
                    # A snapshot was taken meanwhile, after which a backend may not continue an older iterator.
                    self._taken = False
                    rest = self._looked_up(start, given)
            self._burst = None
            self._done.pop(start, None)
            if lateness:
                self._keep(start)
            else:
                self._end(start + size, ())
                self._drop(start)
        self._end_kept(until)
        dues = (start + size - 1 + (lateness if start in kept else 0) for start in self._slices)
        self._due_at = min(dues, default=NEVER)

    def _end_kept(self, until: int) -> None:
        """Drop the windows whose allowed lateness is over by ``until``."""
        last = until - self._lateness - self._size + 1
        for start in sorted(start for start in self._kept if start <= last):
            self._kept.remove(start)
            self._end(start + self._size, self._slices[start])
            self._drop(start)

    def _looked_up(self, start: int, given: Iterable[Any]) -> Iterator[Item]:
        """Yield the rest of a window's entries, each value looked up when its turn comes.

        Keys may be in another order than before, depending on the backend: the number of evaluated keys
        does not identify them.
        """
        entries, done = self._slices[start], self._done.get(start, set()).union(given)
        return ((key, entries[key]) for key in entries if key not in done)

    def _made(self, items: Iterable[Item], note: Callable[[Any], None]) -> list[Any]:
        return self._listed(items, note) if self._elements else self._results(items, note)

    @record_loop
    def _listed(self, items: Iterable[Item], note: Callable[[Any], None]) -> list[Item]:
        """Return the keys with lists of their records; pass the keys to ``note``."""
        unchangeable = self._unchangeable
        out: list[Item] = []
        for key, held in items:
            values = held.copy()  # the window may be evaluated again
            out.append((key, values if unchangeable else owned(values)))
            note(key)
        return out

    @record_loop
    def _results(self, items: Iterable[Item], note: Callable[[Any], None]) -> list[Any]:
        """Return the results for keys with their accumulators; pass the keys to ``note``."""
        result, with_key, atoms, isolate = self._result, self._with_key, ATOMS, self.isolate
        out: list[Any] = []
        for key, accumulator in items:
            made = accumulator if result is None else result(accumulator)
            if type(made) not in atoms:
                made = isolate(made)  # the window may be evaluated again
            out.append((key, made) if with_key else made)
            note(key)
        return out

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Restore which windows were evaluated."""
        super().open()
        if self._elements and not self.shares:
            lists = (held for entries in self._slices.values() for held in entries.values())
            if not all(map(all_unchangeable, lists)):
                self._expect_changes()
        evaluated, timers, reached = self._found.evaluated(), self._found.timers(), self._found.reached()
        self._evaluated = self.backend.table(EVALUATED)
        for start, entries in self._slices.items():
            window = (start, start + self._size)
            done = evaluated_before(entries, window, evaluated.get(window, set()), timers, reached)
            # With lateness the contents stay for late records; without, keys that were evaluated are done.
            if self._lateness:
                self._done[start] = done
            else:
                for key in done:
                    entries.pop(key, None)

    def _find_table(self) -> StateTable:
        self._found.make_windows()
        return self.backend.table(windows(self._step))

    def snapshot(self) -> OperatorSnapshot:
        """Return all windows, and the keys for which they are evaluated."""
        evaluated: list[tuple[int, Iterable[Any]]] = [(start, self._slices[start]) for start in self._kept]
        evaluated += self._done.items()
        if self._burst is not None:
            self._taken = True
            evaluated.append(self._burst)
        # The table has these marks only while the snapshot is taken.
        for start, keys in evaluated:
            self._evaluated.entries((start, start + self._size)).update((key, True) for key in keys)
        try:
            return super().snapshot()
        finally:
            for start, _ in evaluated:
                self._evaluated.drop((start, start + self._size))
