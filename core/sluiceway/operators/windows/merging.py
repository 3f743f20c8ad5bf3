"""Operator of windows that merge, as sessions do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.errors import FunctionContractError
from sluiceway.keygroups import stable_hash
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.windows.contents import Entries
from sluiceway.operators.windows.state_layout import MERGING, Held, had_ended
from sluiceway.operators.windows.window_operator import WindowOperator, timers_of
from sluiceway.record_errors import MISSING, record_loop
from sluiceway.util.overriding import override
from sluiceway.windows.base import MergingWindowAssigner, TimeWindow, Window

__all__ = ["MergingWindowOperator"]


class MergingWindowOperator(WindowOperator):
    """Operator of windows of a merging assigner.

    The contents of a window stay where they were first stored: when windows merge, the earliest of them keeps its
    place, and the contents of the others are added there. A table by key maps windows to places.

    With the default trigger a window has one timer, under the name of its place, that is not moved when
    the window grows, unless there is allowed lateness: when it fires, it is set to the next time.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        assigner = self._assigner
        assert isinstance(assigner, MergingWindowAssigner)
        self._merge = assigner.merge
        # The built-in way to merge concerns only windows that the new window overlaps or touches.
        self._usual = type(assigner).merge is MergingWindowAssigner.merge

    @override
    def open(self) -> None:
        self._sets = self.backend.table(MERGING).entries()
        super().open()

    def _go_on(self) -> None:
        # Timers are named by the places of windows with the default trigger, else by the windows themselves.
        queue = self.event_timers if self._event_time else self.processing_timers
        set_before = timers_of(queue)
        reached = self._found.reached()
        self._reached = {} if self._plain else reached or {}
        over: list[tuple[Any, Held, Window, list[int]]] = []
        for key, held in self._sets.items():
            for window, place in held:
                # The step may have had the default trigger when the snapshot was taken, or another one: its timers
                # then carry the other name.
                last, cleanup = window.max_timestamp, self.cleanup_time(window)
                by_window, by_place = (set_before.get((key, name), []) for name in (window, place))
                # By place there may also be timers that another trigger has left behind when windows merged.
                name, timers = (window, by_window) if by_window else (place, by_place)
                first = min(timers, default=last)
                # Evaluated, and kept for late records. By the watermark, too: the only timer may be that of the
                # cleanup, of a trigger that sets no other.
                ended = first > last and had_ended(key, last, reached)
                if ended and cleanup == last:
                    over.append((key, (window, place), name, timers))
                elif not self._plain:
                    queue.register(cleanup, key, window)
                    # Without a timer of the cleanup: the default trigger had not evaluated it.
                    if max(timers, default=cleanup) <= last:
                        queue.register(last, key, window)
                # A timer by place that fires before the end is set to the end then.
                elif ended or name != place or first >= last:
                    for timestamp in timers:
                        queue.delete(timestamp, key, name)
                    queue.register(cleanup if ended else last, key, place)
        for key, (window, place), name, timers in over:
            for timestamp in timers:
                queue.delete(timestamp, key, name)
            self._drop_ended(key, window, place)
            self._retire(key, window)

    # ---- records ----------------------------------------------------------------------------------------------

    @record_loop
    def _loop(self, values: list[Any], stamps: list[int] | None, given: list[Any] | None) -> None:
        key_of, store, times = self._key, self.store, self._times
        assign, now = self._assign, times.current_processing_time
        event_time, watermark = self._event_time, self.current_watermark
        for index, value in enumerate(values):
            key = key_of(value) if given is None else given[index]
            timestamp = now() if stamps is None else stamps[index]
            store.current_key = key
            skipped = True
            for new in assign(value, timestamp, times):
                if self._add_merging(key, value, timestamp, new, self._of(key)):
                    skipped = False
            if skipped and event_time and timestamp + self._lateness <= watermark:
                self._too_late(value, timestamp)

    def _add_merging(self, key: Any, value: Any, timestamp: int, new: Any, held: list[Held]) -> bool:
        """Add a record to the window that ``new`` becomes part of; return False if that window is over."""
        start, end = new
        # Windows that touch merge, too: hence <=. A custom merge() sees all windows of the key.
        near = [one for one in held if one[0][0] <= end and start <= one[0][1]] if self._usual else held
        if not near:
            window = place = new
        elif self._usual and len(near) == 1:
            window, place = near[0]
            if start < window[0] or window[1] < end:
                old, window = window, window.cover(new)
                self._sets[key] = [one if one[0] is not old else (window, place) for one in held]
                # Without lateness its only timer is moved when it fires, to an end that is no earlier.
                if self._lateness or not self._plain:
                    self._move(key, window, [(old, place)])
        else:
            window, place = self._grow(key, held, near, new)
        # Late is decided after merging: a late record is accepted if it extends a window that is still open.
        if self._event_time and self.cleanup_time(window) <= self.current_watermark:
            self._retire(key, window)
            return False
        if not near:
            self._sets[key] = [*held, (window, place)]
        entries = self._entries_at(place)
        first = self._contents.add(entries, key, value, timestamp)
        if not self._plain:
            self._added(key, value, timestamp, window, entries, first)
        # Within the allowed lateness each record evaluates the window at once.
        elif window.max_timestamp <= self.current_watermark:
            self._evaluate(key, window, entries)
            if not near:
                self.event_timers.register(self.cleanup_time(window), key, place)
        # With lateness also for a window that was evaluated before a restore, which resets the watermark.
        elif self._lateness or not near:
            self.event_timers.register(window.max_timestamp, key, place)
        return True

    # ---- merging ----------------------------------------------------------------------------------------------

    def _of(self, key: Any) -> list[Held]:
        try:
            held = self._sets.get(key)
        except TypeError:
            stable_hash(key)  # says which key is unhashable
            raise
        if held is None:
            stable_hash(key)
            return []
        return held  # type: ignore[no-any-return]

    def _grow(self, key: Any, held: list[Held], near: list[Held], new: TimeWindow) -> Held:
        """Merge ``new`` into the key's windows; return the resulting window and its place."""
        # Sorted by start: the earliest window is the one that keeps its place.
        known = dict(sorted(near))
        if new in known:
            return new, known[new]
        left = dict(held)
        into: TimeWindow | None = None
        for result, parts in self._groups(list(known), new):
            olds = [window for window in known if window in parts]
            if not olds:
                continue
            for old in olds:
                del left[old]
            left[result] = known[olds[0]]
            if olds != [result]:
                self._move(key, result, [(old, known[old]) for old in olds])
            if new in parts:
                into = result
        # A merge() of the user's may leave the new window alone.
        if into is None:
            into = left[new] = new
            if self._plain:
                last = new.max_timestamp  # if that is over, the record that opened it has it evaluated at once
                at = last if last > self.current_watermark else self.cleanup_time(new)
                self.event_timers.register(at, key, new)
        self._sets[key] = list(left.items())
        return into, left[into]

    def _groups(
        self, known: list[TimeWindow], new: TimeWindow
    ) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
        if self._usual:
            cover = new
            for window in known:
                cover = cover.cover(window)
            return [(cover, [*known, new])]
        return self._merge([*known, new])

    def _move(self, key: Any, result: TimeWindow, olds: list[Held]) -> None:
        """Move the contents of ``olds``, which have become ``result``; also of one window that was resized."""
        if self._event_time and self.cleanup_time(result) <= self.current_watermark:
            raise FunctionContractError(
                f"{type(self._assigner).__name__} of step {self.step_name!r} merged windows of key {key!r:.60} to "
                f"{result}, which is over already (watermark {self.current_watermark}): merging must not make a "
                "window end earlier"
            )
        target = olds[0][1]
        if not self._plain:
            self._move_trigger(key, result, [old for old, _ in olds if old != result])
        else:
            self._move_timer(key, olds[0][0], result, target)
        for _, place in olds[1:]:
            others = self._entries_at(place)
            kept = others.pop(key, MISSING)
            if kept is not MISSING:
                self._contents.merge(self._entries_at(target), key, kept)
            self._release(place, others)

    def _move_timer(self, key: Any, old: TimeWindow, result: TimeWindow, place: TimeWindow) -> None:
        """Set the timer of ``result``, which has replaced ``old``, with the default trigger."""
        if self._lateness:
            # The old window may have been evaluated, and wait for its cleanup time; a restore resets the
            # watermark.
            self.event_timers.delete(old.max_timestamp, key, place)
            if result.max_timestamp > self.current_watermark:
                self.event_timers.register(result.max_timestamp, key, place)
        # A timer that fires before the end is set again, so that only an earlier end needs one of its own.
        elif result.max_timestamp < old.max_timestamp:
            self.event_timers.register(result.max_timestamp, key, place)

    def _move_trigger(self, key: Any, result: TimeWindow, windows: list[TimeWindow]) -> None:
        access = self._access
        access.current_key, access.window, access.merged = key, result, windows
        try:
            # Before clear(): it reads the state of the windows that merge.
            self._trigger.on_merge(result, access)
        finally:
            access.merged = None
        timers = self.event_timers if self._event_time else self.processing_timers
        for window in windows:
            access.window = window
            self._trigger.clear(window, access)
            self._trigger_tables.release(window[:], all_keys_done=True)
            timers.delete(self.cleanup_time(window), key, window)
        # Also of windows that merge without the one of the record, as a merge() of the user's may have it.
        self._register_cleanup(key, result)

    def _retire(self, key: Any, window: TimeWindow) -> None:
        held = [one for one in self._sets.get(key, ()) if one[0] != window]
        if held:
            self._sets[key] = held
        else:
            self._sets.pop(key, None)

    # ---- time -------------------------------------------------------------------------------------------------

    def _on_timer(self, event_time: bool, timestamp: int, key: Any, window: Window) -> None:
        for own, place in self._sets.get(key, ()):
            if (place if self._plain else own) == window:
                break
        else:
            return  # the window was merged into another one
        entries = self._entries_at(place)
        if self._plain:
            over = self._on_only_timer(timestamp, key, own, place, entries)
        else:
            self._ask(event_time, timestamp, key, own, entries)
            over = event_time is self._event_time and timestamp == self.cleanup_time(own)
        if over:
            self._clear(key, own, entries)
            self._retire(key, own)
            self._trigger_tables.release(own[:], all_keys_done=True)
        if key not in entries:
            self._release(place, entries)

    def _on_only_timer(
        self, timestamp: int, key: Any, window: TimeWindow, place: TimeWindow, entries: Entries
    ) -> bool:
        """Evaluate and set the next timer, with the default trigger; return whether the window is over."""
        last, cleanup = window.max_timestamp, self.cleanup_time(window)
        if timestamp == last:
            self._evaluate(key, window, entries)
        if timestamp >= cleanup:
            return True
        self.event_timers.register(last if timestamp < last else cleanup, key, place)
        return False
