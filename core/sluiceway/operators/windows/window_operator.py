"""General window operator: any assigner, trigger and evictor; state per key and window, and timers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from sluiceway.elements import MAX_WATERMARK, Batch
from sluiceway.errors import FunctionContractError, MisusedStateError
from sluiceway.functions import TimeDomain
from sluiceway.isolation import all_unchangeable, copied
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.operators.late_records import LATE_RECORDS
from sluiceway.operators.results import check_results
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.timer_queue import Timer, TimerQueue
from sluiceway.operators.windows.checked_assigners import assign_by
from sluiceway.operators.windows.contents import Entries, contents_for
from sluiceway.operators.windows.contexts import FunctionContext, Times, TriggerAccess, namespace_of
from sluiceway.operators.windows.state_layout import REACHED, Kept, had_ended, windows
from sluiceway.operators.windows.window_functions import caller, clear_of
from sluiceway.operators.windows.window_state import WindowTables
from sluiceway.record_errors import MISSING, record_loop
from sluiceway.steps import WindowContents, WindowStep, without_timestamps
from sluiceway.util.overriding import override
from sluiceway.windows import EventTimeTrigger
from sluiceway.windows.base import GLOBAL_WINDOW, MergingWindowAssigner, TimeWindow, TriggerResult, Window

__all__ = ["WindowOperator", "timers_of"]

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE
PURGE, FIRE_AND_PURGE = TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE


class WindowOperator(TimedKeyedOperator):
    """Operator of windows that do not merge.

    The contents of a window are in a table whose namespaces are the windows. A key's window ends by a timer at its
    cleanup time, which is also that of its trigger where there is no allowed lateness.
    """

    own_tables = TimedKeyedOperator.own_tables | {REACHED.name}

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, WindowStep)
        self._step = step
        self._assigner = step.assigner
        self._assign = assign_by(step.assigner, self.step_name)
        self._event_time = step.assigner.event_time
        self._lateness = step.allowed_lateness_ms
        self._trigger = step.trigger or step.assigner.default_trigger()
        # Fires at the end, and for each record after it, without calls of a trigger.
        self._plain = type(self._trigger) is EventTimeTrigger and self._event_time
        self._late_tag = step.late_tag
        self._late = context.metrics.counter(LATE_RECORDS)
        self._times = Times(self)
        self._contents = contents_for(step, self._times, shares=self.shares)
        self._evicts = step.evictor is not None
        self._with_key = step.with_key
        self._windows: dict[Window, Entries] = {}
        self._reached: Mapping[Any, int] = {}  # how far the watermark was before a restore, which resets it
        # Type of the function's last result: each type is checked once, not each result.
        self._kind: type = list
        self._values: list[Any] = []
        self._stamps: list[int] = []

    @override
    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        super().initialize_state(restored)
        self._found = Kept(self._step, self.step_name, restored, self.backend)

    def open(self) -> None:
        """Open the functions, bind the table, and continue with the windows that are open in the state."""
        super().open()
        window_fn = self._step.window_fn
        if window_fn is not self._fn:
            self._opened.open(window_fn, self.context, self.store)
        merging = isinstance(self._assigner, MergingWindowAssigner)
        self._found.check(merging=merging)
        if not merging:
            self._found.make_windows()
        self._table = self.backend.table(windows(self._step))
        self._trigger_tables = WindowTables(self.store, "trigger")
        self._function_tables = None if merging else WindowTables(self.store, "window")
        self._access = TriggerAccess(self, self._trigger_tables, self.ends_at)
        self._ctx = FunctionContext(self, self._function_tables)
        self._call = caller(window_fn, self._ctx, self._step.all_windows)
        self._clear_function = clear_of(window_fn)
        if self._found:
            self._go_on()

    def _go_on(self) -> None:
        """Set the timers of every window in the state, whatever its trigger and lateness were before."""
        evaluated, reached = self._found.evaluated(), self._found.reached()
        self._reached = {} if self._plain else reached or {}
        queue = self.event_timers if self._event_time else self.processing_timers
        set_before = timers_of(queue)
        for namespace in list(self._table.namespaces()):
            window, entries = _window(namespace), self._table.entries(namespace)
            last, done = window.max_timestamp, evaluated.get(namespace, ())
            over = self.cleanup_time(window) == last
            for key in list(entries):
                timers = set_before.get((key, window))
                kept = timers is not None and min(timers) > last and had_ended(key, last, reached)
                # Evaluated before the snapshot: marked by the operator of slices, or the timer of its last ms has
                # fired.
                if key in done or kept:
                    if over:
                        for timestamp in timers or ():
                            queue.delete(timestamp, key, window)
                        self._drop_ended(key, window, window)
                        continue
                # Of an operator without timers, or of a trigger that need not set one at the end.
                elif (self._plain or timers is None) and not over:
                    queue.register(last, key, window)
                self._register_cleanup(key, window)

    def _drop_ended(self, key: Any, window: Window, place: Window) -> None:
        """Clear a window that was evaluated before the snapshot and is over by the lateness of now."""
        entries = self._entries_at(place)
        self.store.current_key = key
        self._access.current_key, self._access.window = key, window
        try:
            self._clear(key, window, entries)
        finally:
            self.store.clear_current_key()
        self._release(place, entries)

    @override
    def snapshot(self) -> OperatorSnapshot:
        """Return all windows; where timers need not tell which of them have ended, also the watermark."""
        if self._plain or not (self._event_time and self._lateness):
            return super().snapshot()
        until = self.current_watermark
        before = {key: was for key, was in self._reached.items() if was > until}
        # Kept whole while timers of a restored snapshot fire: their watermark is forgotten behind them.
        if not (self.has_work and self._held is None):
            self._reached = before
        # Copied now: a backend may call the function in another thread.
        event = self.event_timers.copy()
        taken = self.backend.table(REACHED).set_aside(lambda: {key: before.get(key, until) for _, key, _ in event})
        try:
            return super().snapshot()
        finally:
            taken()

    # ---- records ----------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Add the records to their windows, and evaluate those for which the trigger fires."""
        stamps = batch.timestamps
        if stamps is None and self._event_time:
            raise MisusedStateError(without_timestamps(repr(self.step_name)))
        try:
            self._loop(batch.values, stamps, batch.keys)
        finally:
            self.store.clear_current_key()
        self._flush()

    @record_loop
    def _loop(self, values: list[Any], stamps: list[int] | None, given: list[Any] | None) -> None:
        if self._plain and stamps is not None:
            self._plain_loop(values, stamps, given)
            return
        key_of, store, times = self._key, self.store, self._times
        assign, now = self._assign, times.current_processing_time
        event_time, watermark = self._event_time, self.current_watermark
        for index, value in enumerate(values):
            key = key_of(value) if given is None else given[index]
            timestamp = now() if stamps is None else stamps[index]
            store.current_key = key
            windows = assign(value, timestamp, times)
            skipped = True
            for window in windows:
                if event_time and self.cleanup_time(window) <= watermark:
                    continue
                skipped = False
                self._add(key, value, timestamp, window)
            # A record without a window is late only by its own time: an assigner may have given it none.
            if skipped and event_time and timestamp + self._lateness <= watermark:
                self._too_late(value, timestamp)

    @record_loop
    def _plain_loop(self, values: list[Any], stamps: list[int], given: list[Any] | None) -> None:
        """Add the records that are not late, with the default trigger."""
        key_of, store, times, assign = self._key, self.store, self._times, self._assign
        add, opened, watermark, lateness = (
            self._contents.add,
            self._windows,
            self.current_watermark,
            self._lateness,
        )
        for index, value in enumerate(values):
            key = key_of(value) if given is None else given[index]
            timestamp = stamps[index]
            store.current_key = key
            skipped = True
            for window in assign(value, timestamp, times):
                last = window.max_timestamp
                # The general way decides; else the timer of the last ms does all that the default trigger would.
                if last <= watermark or lateness:
                    if self.cleanup_time(window) <= watermark:
                        continue
                    skipped = False
                    self._add(key, value, timestamp, window)
                    continue
                skipped = False
                entries = opened.get(window)
                if entries is None:
                    entries = self._entries_at(window)
                if add(entries, key, value, timestamp):
                    self.event_timers.register(last, key, window)
            if skipped and timestamp + lateness <= watermark:
                self._too_late(value, timestamp)

    def _add(self, key: Any, value: Any, timestamp: int, window: Window) -> None:
        entries = self._entries_at(window)
        first = self._contents.add(entries, key, value, timestamp)
        self._added(key, value, timestamp, window, entries, first)

    def _added(self, key: Any, value: Any, timestamp: int, window: Window, entries: Entries, first: bool) -> None:
        """Call the trigger for an added record; the first of a key in a window sets the timer of its end."""
        if not self._plain:
            access = self._access
            access.current_key, access.window = key, window
            result = self._trigger.on_element(value, timestamp, window, access)
            if result is not CONTINUE:
                self._act(result, key, window, entries)
        elif window.max_timestamp <= self.current_watermark:
            self._evaluate(key, window, entries)
        elif self._lateness:
            # Not only for the first record: the window may have been evaluated before a restore, which resets the
            # watermark.
            self.event_timers.register(window.max_timestamp, key, window)
        if first:
            self._register_cleanup(key, window)

    def _too_late(self, value: Any, timestamp: int) -> None:
        if self._late_tag is None:
            self._late.inc()
        else:
            self._ctx.aside(self._late_tag.name, value, timestamp)

    # ---- windows ----------------------------------------------------------------------------------------------

    def _entries_at(self, window: Window) -> Entries:
        entries = self._windows.get(window)
        if entries is None:
            entries = self._windows[window] = self._table.entries(namespace_of(window))
        return entries

    def cleanup_time(self, window: Window) -> int:
        """Return when a window is over for good, in ms; MAX_WATERMARK: never."""
        last = window.max_timestamp
        if not self._event_time:
            return last
        last += self._lateness
        return last if last < MAX_WATERMARK else MAX_WATERMARK

    def ends_at(self, window: Window, *, event_time: bool) -> int | None:
        """Return when a window is over for good, in ms, if it ends in that time domain."""
        return self.cleanup_time(window) if event_time is self._event_time else None

    def _register_cleanup(self, key: Any, window: Window) -> None:
        at = self.cleanup_time(window)
        # A window that never ends has no timer; with the default trigger the end of the input evaluates it.
        if at < MAX_WATERMARK or self._plain:
            (self.event_timers if self._event_time else self.processing_timers).register(at, key, window)

    def _act(self, result: TriggerResult, key: Any, window: Window, entries: Entries) -> None:
        """Apply a trigger result."""
        if result is FIRE or result is FIRE_AND_PURGE:
            self._evaluate(key, window, entries)
        elif result is not PURGE and result is not CONTINUE:
            raise FunctionContractError(
                f"{type(self._trigger).__name__} of step {self.step_name!r} gave {result!r:.60} "
                f"({type(result).__name__}); a trigger's methods must return a TriggerResult, as in "
                "TriggerResult.CONTINUE"
            )
        if result is PURGE or result is FIRE_AND_PURGE:
            entries.pop(key, None)

    @record_loop
    def _evaluate(self, key: Any, window: Window, entries: Entries) -> None:
        kept = entries.get(key, MISSING)
        if kept is MISSING:
            return
        timestamp = window.max_timestamp
        values = self._values
        elements = self._contents.evaluate(kept, window)
        if not self.shares and not all_unchangeable(elements):
            # Stored contents are evaluated again, or shared with other windows.
            elements = list(map(copied, elements))
        if self._call is None:
            values += [(key, element) for element in elements] if self._with_key else elements
        elif elements or self._step.contents is WindowContents.ELEMENTS:
            self._ctx.current_window = window
            returned = self._call(key, window, elements)
            if returned is not None:
                self._take(returned)
        self._stamps += [timestamp] * (len(values) - len(self._stamps))
        if self._evicts:
            self._contents.after(entries, key, window)

    def _take(self, returned: Any) -> None:
        if type(returned) is not self._kind:
            self._kind = check_results(f"the window function of step {self.step_name!r}", returned)
        self.extend(self._values, returned)  # the generator runs here

    def _clear(self, key: Any, window: Window, entries: Entries) -> None:
        """Clear a window that is over for a key; its trigger was called just before."""
        entries.pop(key, None)
        if not self._plain:
            self._trigger.clear(window, self._access)
        if self._clear_function is not None:
            self._ctx.current_window = window
            self._clear_function(self._ctx)

    def _release(self, window: Window, entries: Entries) -> None:
        """Drop a window in which no key has contents any more."""
        done = not entries
        namespace = namespace_of(window)
        if done:
            self._table.drop(namespace)
            self._windows.pop(window, None)
        self._trigger_tables.release(namespace, all_keys_done=done)
        if self._function_tables is not None:
            self._function_tables.release(namespace, all_keys_done=done)

    # ---- time -------------------------------------------------------------------------------------------------

    def next_processing_time(self) -> int | None:
        """Return the time after the earliest timer: a window's last ms must be over before the window is."""
        first = super().next_processing_time()
        return None if first is None else first + 1

    @override
    def on_processing_time(self, now_ms: int) -> None:
        super().on_processing_time(now_ms - 1)

    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
        """Call the trigger, and end windows that are over."""
        try:
            self._timer_loop(domain is TimeDomain.EVENT_TIME, timers)
        finally:
            self.store.clear_current_key()
        self._flush()

    @record_loop
    def _timer_loop(self, event_time: bool, timers: Iterator[Timer]) -> None:
        store = self.store
        for timestamp, key, namespace in timers:
            store.current_key = key
            self._on_timer(event_time, timestamp, key, _window(namespace))

    def _on_timer(self, event_time: bool, timestamp: int, key: Any, window: Window) -> None:
        entries = self._entries_at(window)
        self._ask(event_time, timestamp, key, window, entries)
        if event_time is self._event_time and timestamp == self.cleanup_time(window):
            self._clear(key, window, entries)
        if key not in entries:
            self._release(window, entries)

    def _ask(self, event_time: bool, timestamp: int, key: Any, window: Window, entries: Entries) -> None:
        """Call the trigger for a timer."""
        if self._plain:
            if timestamp == window.max_timestamp:
                self._evaluate(key, window, entries)
            return
        access = self._access
        access.current_key, access.window = key, window
        on_time = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        result = on_time(timestamp, window, access)
        if result is not CONTINUE:
            self._act(result, key, window, entries)

    def _flush(self) -> None:
        """Emit the results of a batch, or of a burst of timers."""
        if self._ctx.sides:
            self._ctx.emit_sides()
        if self._values:
            values, self._values = self._values, []
            stamps, self._stamps = self._stamps, []
            self.output.emit(Batch(values, stamps))


def timers_of(queue: TimerQueue) -> dict[tuple[Any, Hashable], list[int]]:
    """Return the timestamps of the timers of a queue, by key and window."""
    found: dict[tuple[Any, Hashable], list[int]] = {}
    for timestamp, key, namespace in queue.timers():
        found.setdefault((key, _window(namespace)), []).append(timestamp)
    return found


def _window(namespace: Any) -> Window:
    """Return the window of a timer or namespace, which snapshots may store as a plain tuple."""
    if type(namespace) is TimeWindow or namespace is GLOBAL_WINDOW:
        return namespace
    return TimeWindow(*namespace) if namespace and isinstance(namespace, tuple) else GLOBAL_WINDOW
