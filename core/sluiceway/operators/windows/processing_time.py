"""Operators of windows in slices of processing time."""

from __future__ import annotations

from typing import Any

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Watermark
from sluiceway.operators.windows.slice_types import NEVER, Entries
from sluiceway.operators.windows.sliced_window_operator import SlicedWindowOperator
from sluiceway.operators.windows.sliding import SlidingOperator
from sluiceway.operators.windows.tumbling import TumblingOperator
from sluiceway.util.overriding import override

__all__ = ["SlidingProcessingTimeOperator", "TumblingProcessingTimeOperator"]


class _ByProcessingTime(SlicedWindowOperator):
    """Base of windows of processing time: no record is late, and the end of input evaluates what is open."""

    _now = MIN_WATERMARK

    def _timed(self, batch: Batch[Any]) -> Batch[Any]:
        # A batch has one arrival time. If the clock is set back, time stands still here.
        self._now = max(self._now, self.context.clock.now_ms())
        return Batch(batch.values, [self._now] * len(batch.values), batch.keys)

    def _place(self, start: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        return self._make(start)

    def advance(self, watermark: Watermark) -> None:
        """Pass the watermark on, which does not affect processing time."""
        self.output.control(watermark)

    def next_processing_time(self) -> int | None:
        """Return the time after the last ms of the earliest window."""
        return None if self._due_at == NEVER else self._due_at + 1

    def on_processing_time(self, now_ms: int) -> None:
        """Evaluate due windows, in parts."""
        self._now = max(self._now, now_ms)
        # A window is over when its last ms is.
        self._firing = self._fire(now_ms - 1)
        self.has_work = True
        self.work()

    def finish(self) -> None:
        """Evaluate all open windows: the input has ended."""
        for _ in self._fire(MAX_WATERMARK):
            pass


class TumblingProcessingTimeOperator(_ByProcessingTime, TumblingOperator):
    """Operator of tumbling windows of processing time."""


class SlidingProcessingTimeOperator(_ByProcessingTime, SlidingOperator):
    """Operator of sliding windows of processing time."""

    @override
    def open(self) -> None:
        super().open()
        # The clock may be behind the one by which windows were evaluated before a restore: those take no record.
        self._now = max(self._now, self._furthest)
