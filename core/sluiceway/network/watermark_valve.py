"""Watermark of a task: the minimum over its active inputs, which never decreases."""

from __future__ import annotations

from typing import Any, TypeAlias

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark, WatermarkStatus

__all__ = ["WatermarkValve"]

_Changes: TypeAlias = "tuple[WatermarkStatus | None, Watermark | None]"


class WatermarkValve:
    """Merge of the watermarks and statuses of several channels into one of each.

    An idle channel does not hold the others back. A channel that becomes active again counts only once its
    watermark has reached the one that was emitted last (the algorithm of Flink's ``StatusWatermarkValve``).
    Nor does a channel whose watermark is the end of time, and it is no reason to go there: while all others are
    idle, the task is idle, as their next records would be late for good. From the task's thread only.

    Args:
        channels: number of channels.
    """

    def __init__(self, channels: int) -> None:
        self._marks = [MIN_WATERMARK] * channels
        self._active = [True] * channels
        # Aligned channels count for the minimum: those that are active and not behind the emitted watermark.
        self._aligned = [True] * channels
        self._given = MIN_WATERMARK
        self._given_active = True
        # Highest watermark before the end of time of the channels that are there.
        self._ended_at = MIN_WATERMARK

    @property
    def current(self) -> int:
        """Watermark that was emitted last, in ms."""
        return self._given

    def snapshot(self) -> tuple[object, ...]:
        """Return the watermarks and statuses of all channels, picklable, for :meth:`restore`."""
        lists = tuple(self._marks), tuple(self._active), tuple(self._aligned)
        return *lists, self._given, self._given_active, self._ended_at

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Replace the state by a snapshot of a valve with the same number of channels."""
        marks, active, aligned, self._given, self._given_active, *since = snapshot
        self._ended_at = since[0] if since else MIN_WATERMARK  # an earlier version has no such entry
        self._marks, self._active, self._aligned = list(marks), list(active), list(aligned)

    # Both return the task's new status if it has changed, and the new watermark if it has risen; else None. The
    # watermark is to be sent first if the task has become idle: consumers ignore the watermarks of idle channels.

    def watermark(self, channel: int, mark: Watermark) -> _Changes:
        """Record a channel's watermark; return what has changed for the task."""
        before = self._marks[channel]
        if mark.timestamp <= before:
            return None, None
        self._marks[channel] = mark.timestamp
        if mark.timestamp == MAX_WATERMARK:
            self._ended_at = max(self._ended_at, before)
        if not self._active[channel]:
            return None, None
        # A channel that was idle counts again only from here: its old watermark would hold back the minimum, which
        # others have passed meanwhile and which must not decrease.
        if mark.timestamp >= self._given:
            self._aligned[channel] = True
        return self._settle()

    def status(self, channel: int, status: WatermarkStatus) -> _Changes:
        """Record a channel's status; return what has changed for the task."""
        if self._active[channel] == status.active:
            return None, None
        self._active[channel] = status.active
        self._aligned[channel] = status.active and self._marks[channel] >= self._given
        return self._settle()

    def _settle(self) -> _Changes:
        marks, channels = self._marks, range(len(self._marks))
        going_on = [i for i in channels if marks[i] < MAX_WATERMARK]
        any_active = any(self._active[i] for i in going_on or channels)
        if not going_on:
            lowest = MAX_WATERMARK
        elif any_active:
            lowest = min((marks[i] for i in going_on if self._aligned[i]), default=self._given)
        else:
            # None of the idle channels holds back the one that is furthest ahead any more.
            lowest = max(self._ended_at, *(marks[i] for i in going_on))
        risen = changed = None
        if lowest > self._given:
            self._given = lowest
            risen = Watermark(lowest)
        if any_active != self._given_active:
            self._given_active = any_active
            changed = WatermarkStatus(any_active)
        return changed, risen
