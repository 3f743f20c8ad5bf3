"""Base of windows in slices: one accumulator, or one list of records, per key and slice.

A record costs one look-up, however many windows it belongs to, and no timer: when time has reached the end of
a window, the window is evaluated for all of its keys. The results are those of the general operator, in the
order of the windows' ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NoReturn

from sluiceway.elements import MAX_WATERMARK, Batch, Watermark
from sluiceway.errors import MisusedStateError
from sluiceway.functions import ReduceFunction
from sluiceway.isolation import all_unchangeable
from sluiceway.keygroups import stable_hash
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.folds import begin_of, calling, fold_of
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.late_records import give_late
from sluiceway.operators.results import check_results
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.contexts import FunctionContext, namespace_of
from sluiceway.operators.windows.slice_types import END_OF_TIME, NEVER, Entries, Item, Partial
from sluiceway.operators.windows.sliced_elements import LISTED, appended
from sluiceway.operators.windows.slices import Slices
from sluiceway.operators.windows.slicing_loop import slicing_loop
from sluiceway.operators.windows.state_layout import Kept, merge_function
from sluiceway.operators.windows.window_functions import WindowCall, caller, clear_of, wants_context
from sluiceway.operators.windows.window_state import WindowTables
from sluiceway.record_errors import MISSING, record_loop
from sluiceway.state import StateTable
from sluiceway.steps import WindowContents, WindowStep, without_timestamps
from sluiceway.util.overriding import override
from sluiceway.windows.base import TimeWindow

__all__ = ["BURST", "SlicedWindowOperator"]

BURST: Final = 1024
"""Results that are computed before mails are processed."""

_FEW: Final = 64
"""Largest number of slices that are looked up once for a whole batch."""


class SlicedWindowOperator(KeyedOperator, TimedOperator):
    """Base of tumbling and sliding windows: the assignment of records to slices, and evaluation in parts.

    Args:
        context: context of the operator.
        slices: the windows' arithmetic.
    """

    interruptible = True

    def __init__(self, context: OperatorContext, slices: Slices) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, WindowStep)
        self._step = step
        self._arithmetic = slices
        fn: Any = step.fn
        self._window_fn = step.window_fn
        self._call: WindowCall | None = None
        self._clear: Callable[[FunctionContext], None] | None = None
        self._with_key = step.with_key or step.window_fn is not None
        self._lateness = step.allowed_lateness_ms
        self._late_tag = step.late_tag
        self._late: tuple[list[Any], list[int]] = ([], [])
        # All slices, by start; in `_open`, by number, those that accept records without a check. The loop over
        # records looks in `_open` alone, and calls `_place` on a miss: for a new slice or a late record.
        self._slices: dict[int, Entries] = {}
        self._open: dict[int, Entries] = {}
        # Next time at which a window is due.
        self._due_at = NEVER
        self._firing: Iterator[None] = iter(())
        self._held: Watermark | None = None
        aggregates = step.contents is WindowContents.AGGREGATED
        self._elements = step.contents is WindowContents.ELEMENTS
        # Whether windows may return the records in the state themselves, as none of them can be changed. Checked
        # once, when a record arrives, and not for each of its windows.
        self._unchangeable = True
        # The loop over records is generated: the text of a built-in function replaces a call per record.
        self._fold = LISTED if self._elements else fold_of(fn, aggregates=aggregates)
        self._merging = calling(merge_function(step))
        self._result = self._fold.result
        self._first: Callable[[], Any] | None = fn.create_accumulator if aggregates else None
        self._begin = begin_of(fn)
        self._next: Callable[[Any, Any], Any]
        if self._elements:
            self._first, self._next = list, appended
        elif aggregates:
            self._next = fn.add
        else:
            self._next = fn.reduce if isinstance(fn, ReduceFunction) else fn

    # ---- state ------------------------------------------------------------------------------------------------

    @override
    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        super().initialize_state(restored)
        self._found = Kept(self._step, self.step_name, restored, self.backend)

    def open(self) -> None:
        """Bind the slices that are in the state."""
        super().open()
        if self._window_fn is not self._fn:
            self._opened.open(self._window_fn, self.context, self.store)
        self._function_tables = WindowTables(self.store, "window")
        self._ctx = FunctionContext(self, self._function_tables)
        self._call = caller(self._window_fn, self._ctx, self._step.all_windows)
        self._clear = clear_of(self._window_fn)
        self._found.check(merging=False)
        self._table = self._find_table()
        arithmetic = self._arithmetic
        spans: Any = self._table.namespaces()
        for span in sorted(spans):
            # State of other slices cannot be divided: an accumulator does not tell the times of its records.
            if not span or span[1] - span[0] != arithmetic.width or span[0] != arithmetic.start_of(span[0]):
                self._refuse_borders()
            self._make(span[0])

    def _refuse_borders(self) -> NoReturn:
        self._found.refuse(f"they have borders at other times than those of {self._step.assigner!r}")

    @abstractmethod
    def _find_table(self) -> StateTable:
        """Return the table of slices."""

    def _make(self, start: int) -> Entries:
        entries = self._table.entries((start, start + self._arithmetic.width))
        self._slices[start] = self._open[self._arithmetic.number_of(start)] = entries
        return entries

    def _close(self, start: int) -> None:
        self._open.pop(self._arithmetic.number_of(start), None)

    def _drop(self, start: int) -> None:
        self._table.drop((start, start + self._arithmetic.width))
        del self._slices[start]
        self._close(start)

    # ---- records ----------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Add the records to their slices, or merge what their producer has combined."""
        batch = self._timed(batch)
        arithmetic, fold = self._arithmetic, self._fold
        if self._elements and self._unchangeable and not (self.shares or all_unchangeable(batch.values)):
            self._expect_changes()
        # A producer sends partial results and records in batches of their own, so the first value tells.
        if batch.values and type(batch.values[0]) is Partial:
            keys, accumulators = map(list, zip(*batch.values, strict=True))
            batch = Batch(accumulators, batch.timestamps, keys)
            fold = self._merging
        form, slices = self._where(batch)
        loop = slicing_loop(
            arithmetic.width,
            arithmetic.first_start,
            with_keys=batch.keys is not None,
            text=fold.text,
            slices=form,
        )
        stamps, place = batch.timestamps, self._place_at
        loop(self, batch.values, stamps, batch.keys, slices, place, self._key, fold.first, fold.add)
        if self._late[0]:
            self._give_late()

    def _expect_changes(self) -> None:
        """Pass copies to window functions from now on."""
        self._unchangeable = False

    def _timed(self, batch: Batch[Any]) -> Batch[Any]:
        """Return the batch with the times that assign its records to windows."""
        if batch.timestamps is None:
            raise MisusedStateError(without_timestamps(repr(self.step_name)))
        return batch

    def _where(self, batch: Batch[Any]) -> tuple[Literal["any", "one", "two", "few"], Any]:
        """Return the open slices that the records belong to; for few slices the loop is shorter."""
        low, high = batch.span()
        arithmetic = self._arithmetic
        first, last = arithmetic.number_of(low), arithmetic.number_of(high)
        if last - first < _FEW:
            row = [self._open.get(number) for number in range(first, last + 1)]
            if None not in row:
                if first == last:
                    return "one", row
                if first + 1 == last:
                    return "two", (*row, arithmetic.start_at(last))
                return "few", (arithmetic.start_at(first), row)
        return "any", self._open

    def _place_at(self, number: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        return self._place(self._arithmetic.start_at(number), key, value, timestamp)

    @abstractmethod
    def _place(self, start: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        """Return the slice for a record outside the open ones; None: the record is processed already."""

    def _give_late(self) -> None:
        late, self._late = self._late, ([], [])
        give_late(self, self._late_tag, *late)

    def _add(self, entries: Entries, key: Any, value: Any) -> Any:
        """Add one record to a slice; return its accumulator."""
        stable_hash(key)
        held = entries.get(key, MISSING)
        if self._first is not None:
            held = self._next(value, self._first() if held is MISSING else held)
        else:
            held = self._begin(value) if held is MISSING else self._next(held, value)
        entries[key] = held
        return held

    # ---- time -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _fire(self, until: int) -> Iterator[None]:
        """Evaluate the windows that end by ``until``, in parts."""

    @abstractmethod
    def _due(self, until: int) -> bool:
        """Return whether :meth:`_fire` has work."""

    def advance(self, watermark: Watermark) -> None:
        """Evaluate due windows in parts; the watermark is emitted after the last of them."""
        until = watermark.timestamp if watermark.timestamp < MAX_WATERMARK else END_OF_TIME
        if self._due(until):
            self._held = watermark
            self._firing = self._fire(until)
            self.has_work = True
            self.work()
        else:
            self.output.control(watermark)

    @override
    def work(self) -> None:
        # One step of the generator per call; between them mails are processed and barriers may come.
        for _ in self._firing:
            return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(held)

    def _last_word(self, results: list[Any], end: int) -> list[Any]:
        """Return the window function's results for pairs of key and result; the pairs themselves without one."""
        if self._call is None:
            return results
        try:
            window = self._ctx.current_window = TimeWindow(end - self._arithmetic.size, end)
            return self._evaluate(self._call, results, window)
        finally:
            self.store.clear_current_key()

    @record_loop
    def _evaluate(self, call: WindowCall, results: list[Item], window: TimeWindow) -> list[Any]:
        store, ctx = self.store, self._ctx
        # With allowed lateness the window may be evaluated again: `_end` clears its state.
        clear = None if self._lateness else self._clear
        out: list[Any] = []
        kind: type = list
        extend, elements = self.extend, self._elements
        for key, result in results:
            store.current_key = key
            returned = call(key, window, result if elements else [result])
            if returned is not None:
                if type(returned) is not kind:
                    kind = check_results(f"the window function of step {self.step_name!r}", returned)
                extend(out, returned)  # a generator runs here
            if clear is not None:
                clear(ctx)
        return out

    def _end(self, end: int, keys: Iterable[Any]) -> None:
        """Clear the function's state of a window that is over for good, for its ``keys``."""
        if not wants_context(self._window_fn):
            return
        window = self._ctx.current_window = TimeWindow(end - self._arithmetic.size, end)
        if self._clear is not None and self._lateness:
            self._clear_keys(self._clear, keys)
        self._function_tables.release(namespace_of(window), all_keys_done=True)

    @record_loop
    def _clear_keys(self, clear: Callable[[FunctionContext], None], keys: Iterable[Any]) -> None:
        try:
            for key in keys:
                self.store.current_key = key
                clear(self._ctx)
        finally:
            self.store.clear_current_key()
        self._ctx.emit_sides()

    def _emit(self, results: list[Any], end: int) -> None:
        """Emit results of the window with that end."""
        results = self._last_word(results, end)
        if results:
            self.output.emit(Batch(results, [min(end - 1, MAX_WATERMARK)] * len(results)))
        if self._ctx.sides:
            self._ctx.emit_sides()
