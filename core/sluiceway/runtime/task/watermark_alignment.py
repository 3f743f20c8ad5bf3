"""Watermark alignment of a reader: it pauses while it is too far ahead of the slowest of its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Reader
from sluiceway.elements import MIN_WATERMARK
from sluiceway.eventtime import WatermarkAlignment
from sluiceway.runtime.task.source_watermarks import SourceTime

__all__ = ["AlignedReader"]


class AlignedReader:
    """Aligned reader: reports its watermark, receives that of the slowest, and pauses splits.

    A reader that cannot pause single splits is paused as a whole: when its own watermark, that of its slowest
    split, is too far ahead. Whoever pauses has reported where it stands: of a group in which all pause, the
    slowest would hear that it need not, so no group comes to a standstill. A reader that is idle, or that has
    no watermark yet or no split to read, holds nobody up.

    Args:
        alignment: the group, and how far ahead of it a split may be.
        time: the reader's watermarks.
        reader: the reader.
        clock: the runtime's clock.
        report: takes the reader's watermark in ms, or None when it does not count.
    """

    def __init__(
        self,
        alignment: WatermarkAlignment,
        time: SourceTime,
        reader: Reader[Any],
        clock: Clock,
        report: Callable[[int | None], None],
    ) -> None:
        self._drift_ms = alignment.max_drift_ms
        self._interval_ms = alignment.update_interval_ms
        self._time = time
        self._reader = reader
        self._monotonic = clock.monotonic
        self._send = report
        self._limit: int | None = None
        self._reported: int | None = None
        self._report_at = 0
        self._splits_pause = True
        self._pausing: frozenset[str] = frozenset()

    def announced(self, mark: int | None) -> None:
        """Receive the watermark of the slowest of the group; None: no reader counts."""
        self._limit = None if mark is None else mark + self._drift_ms

    def may_read(self) -> bool:
        """Report the watermark, pause and resume splits; return whether the reader may be polled."""
        time, limit = self._time, self._limit
        mark = self._mark
        ahead = limit is not None and mark is not None and mark > limit
        if mark != self._reported:
            counts = mark is not None and self._reported is not None
            # A reader between two splits continues soon: no report before the time of the next one.
            at_once = ahead or not (counts or time.without_splits)
            if at_once or self._clock_ms() >= self._report_at:
                self._report(mark)
        if limit is None and not self._pausing:
            return True
        if self._splits_pause and not time.one_for_all:
            pausing = frozenset() if limit is None else time.ahead_of(limit)
            if pausing != self._pausing:
                # False once the reader cannot pause single splits: from then on it is paused as a whole.
                self._splits_pause = self._reader.pause_splits(pausing)
                self._pause(pausing)
        if self._splits_pause and not time.one_for_all:
            return True
        self._pause(time.split_ids() if ahead else frozenset())
        return not ahead

    @property
    def again_at(self) -> float | None:
        """Return the time of the next report without records, in monotonic seconds."""
        return self._report_at / 1000 if self._mark != self._reported else None

    @property
    def _mark(self) -> int | None:
        """Return the watermark that the others of the group wait for; None: none."""
        time = self._time
        counts = time.active and not time.without_splits and time.watermark != MIN_WATERMARK
        return time.watermark if counts else None

    @property
    def drift_ms(self) -> int | None:
        """Return how far this reader is ahead of the slowest, in ms; None: no reader counts."""
        limit, mark = self._limit, self._time.watermark
        return None if limit is None or mark == MIN_WATERMARK else mark - (limit - self._drift_ms)

    def leave(self) -> None:
        """Leave the group: the reader has reached its end."""
        if self._reported is not None:
            self._report(None)

    def _clock_ms(self) -> int:
        return round(self._monotonic() * 1000)

    def _report(self, mark: int | None) -> None:
        self._reported = mark
        self._report_at = self._clock_ms() + self._interval_ms
        self._send(mark)

    def _pause(self, split_ids: frozenset[str]) -> None:
        if split_ids != self._pausing:
            self._pausing = split_ids
            self._time.pause(split_ids)
