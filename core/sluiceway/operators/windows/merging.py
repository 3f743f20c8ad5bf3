"""Windows that grow together, as sessions do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sluiceway.errors import FunctionContractError
from sluiceway.faults import MISSING, record_loop
from sluiceway.keygroups import stable_hash
from sluiceway.operators.base import OperatorContext
from sluiceway.operators.windows.general import WindowOperator
from sluiceway.state import ValueStateDescriptor
from sluiceway.windowing import MergingWindowAssigner, TimeWindow, Window

__all__ = ["MergingWindowOperator"]


class _Held(NamedTuple):
    """A window of a key, and the window under whose name its contents are kept."""

    start: int
    end: int
    place_start: int
    place_end: int

    @property
    def window(self) -> TimeWindow:
        return TimeWindow(self[0], self[1])

    @property
    def place(self) -> TimeWindow:
        return TimeWindow(self[2], self[3])


_WINDOWS: Final = ValueStateDescriptor("merging windows", list[_Held])


class MergingWindowOperator(WindowOperator):
    """Windows of a merging assigner.

    What a window has stays where it was put first: when windows merge, the earliest of them keeps its place,
    and the contents of the others are added there. Which window has its contents where is in a table by key.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        assigner = self._assigner
        assert isinstance(assigner, MergingWindowAssigner)
        self._merge = assigner.merge
        # The usual way to merge has to do with no others than those that the new window overlaps or touches.
        self._usual = type(assigner).merge is MergingWindowAssigner.merge

    def open(self) -> None:
        """Bind the table of windows."""
        super().open()
        self._sets = self.backend.table(_WINDOWS).entries()

    # ---- records ----------------------------------------------------------------------------------------------

    @record_loop
    def _loop(self, values: list[Any], stamps: list[int] | None, given: list[Any] | None) -> None:
        key_of, store, times = self._key, self.store, self._times
        assign, now = self._assigner.assign, times.current_processing_time
        event_time, watermark = self._event_time, self.current_watermark
        for index, value in enumerate(values):
            key = key_of(value) if given is None else given[index]
            timestamp = now() if stamps is None else stamps[index]
            store.current_key = key
            skipped = True
            for new in assign(value, timestamp, times):
                if self._add_merging(key, value, timestamp, new):
                    skipped = False
            if skipped and event_time and timestamp + self._lateness <= watermark:
                self._too_late(value, timestamp)

    def _add_merging(self, key: Any, value: Any, timestamp: int, new: Any) -> bool:
        """Add a record to the window that ``new`` becomes part of; False: that is over."""
        held = self._of(key)
        start, end = new
        near = [one for one in held if one[0] <= end and start <= one[1]] if self._usual else held
        grown = False
        if near:
            first = near[0]
            if self._usual and len(near) == 1 and first[0] <= start and end <= first[1]:
                into = first
            else:
                into, grown = self._grow(key, held, near, TimeWindow(start, end))
        else:
            into = _Held(start, end, start, end)
        window = into.window
        if self._event_time and self.cleanup_time(window) <= self.current_watermark:
            self._retire(key, window)
            return False
        if not near:
            self._sets[key] = [*held, into]
        entries = self._entries_at(into.place)
        is_first = self._contents.add(entries, key, value, timestamp)
        self._added(key, value, timestamp, window, entries, is_first or grown)
        return True

    # ---- merging ----------------------------------------------------------------------------------------------

    def _of(self, key: Any) -> list[_Held]:
        try:
            held = self._sets.get(key)
        except TypeError:
            stable_hash(key)  # says which key is unhashable
            raise
        if held is None:
            stable_hash(key)
            return []
        return held  # type: ignore[no-any-return]

    def _grow(self, key: Any, held: list[_Held], near: list[_Held], new: TimeWindow) -> tuple[_Held, bool]:
        """Merge ``new`` with what the key has; the window that it has become part of, and whether that is new."""
        known = {one.window: one for one in sorted(near)}
        if new in known:
            return known[new], False
        left = {one.window: one for one in held}
        into: _Held | None = None
        grown = False
        for result, parts in self._groups(list(known), new):
            olds = [known[window] for window in known if window in parts]
            if not olds:
                continue
            for old in olds:
                del left[old.window]
            merged = left[result] = _Held(*result, *olds[0].place)
            if olds != [known.get(result)]:
                self._move(key, result, olds)
                grown = grown or new in parts
            if new in parts:
                into = merged
        if into is None:
            into = left[new] = _Held(*new, *new)
        self._sets[key] = list(left.values())
        return into, grown

    def _groups(
        self, known: list[TimeWindow], new: TimeWindow
    ) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
        if self._usual:
            cover = new
            for window in known:
                cover = cover.cover(window)
            return [(cover, [*known, new])]
        return self._merge([*known, new])

    def _move(self, key: Any, result: TimeWindow, olds: list[_Held]) -> None:
        """Several windows have become ``result``, or one has changed its size."""
        if self._event_time and self.cleanup_time(result) <= self.current_watermark:
            raise FunctionContractError(
                f"{type(self._assigner).__name__} of step {self.step_name!r} merged windows of key {key!r:.60} to "
                f"{result}, which is over already (watermark {self.current_watermark}): merging must not make a "
                "window end earlier"
            )
        windows = [old.window for old in olds if old.window != result]
        self._move_trigger(key, result, windows)
        timers = self.event_timers if self._event_time else self.processing_timers
        for window in windows:
            timers.delete(self.cleanup_time(window), key, window)
        target = olds[0].place
        for place in (old.place for old in olds[1:]):
            others = self._entries_at(place)
            kept = others.pop(key, MISSING)
            if kept is not MISSING:
                self._contents.merge(self._entries_at(target), key, kept)
            self._release(place, others)

    def _move_trigger(self, key: Any, result: TimeWindow, windows: list[TimeWindow]) -> None:
        if self._plain:
            for window in windows:
                self.event_timers.delete(window.max_timestamp, key, window)
            return
        access = self._access
        access.current_key, access.window, access.merged = key, result, windows
        try:
            self._trigger.on_merge(result, access)
        finally:
            access.merged = None
        for window in windows:
            access.window = window
            self._trigger.clear(window, access)
            self._trigger_tables.release(window[:], all_keys_done=False)

    def _retire(self, key: Any, window: TimeWindow) -> None:
        held = [one for one in self._sets.get(key, ()) if one.window != window]
        if held:
            self._sets[key] = held
        else:
            self._sets.pop(key, None)

    # ---- time -------------------------------------------------------------------------------------------------

    def _on_timer(self, event_time: bool, timestamp: int, key: Any, window: Window) -> None:
        assert isinstance(window, TimeWindow)
        held = next((one for one in self._sets.get(key, ()) if one.window == window), None)
        if held is None:
            return  # it has become part of another one
        place = held.place
        entries = self._entries_at(place)
        self._ask(event_time, timestamp, key, window, entries)
        if event_time is self._event_time and timestamp == self.cleanup_time(window):
            self._clear(key, window, entries)
            self._retire(key, window)
            self._trigger_tables.release(window[:], all_keys_done=False)
        if key not in entries:
            self._release(place, entries)
