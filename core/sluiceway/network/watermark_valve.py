"""Watermark of a task: the minimum over its active inputs, which never decreases."""

from __future__ import annotations

from typing import Any

from sluiceway.elements import MIN_WATERMARK, Watermark, WatermarkStatus

__all__ = ["WatermarkValve"]


class WatermarkValve:
    """Merge of the watermarks and statuses of several channels into one of each.

    An idle channel does not hold the others back. A channel that becomes active again counts only once its
    watermark has reached the one that was emitted last (the algorithm of Flink's ``StatusWatermarkValve``).
    From the task's thread only.

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

    @property
    def current(self) -> int:
        """Watermark that was emitted last, in ms."""
        return self._given

    def snapshot(self) -> tuple[object, ...]:
        """Return the watermarks and statuses of all channels, picklable, for :meth:`restore`."""
        return tuple(self._marks), tuple(self._active), tuple(self._aligned), self._given, self._given_active

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Replace the state by a snapshot of a valve with the same number of channels."""
        marks, active, aligned, self._given, self._given_active = snapshot
        self._marks, self._active, self._aligned = list(marks), list(active), list(aligned)

    def watermark(self, channel: int, mark: Watermark) -> Watermark | None:
        """Record a channel's watermark; return the new minimum if it has risen, else None."""
        if mark.timestamp <= self._marks[channel]:
            return None
        self._marks[channel] = mark.timestamp
        if not self._active[channel]:
            return None
        # A channel that was idle counts again only from here: its old watermark would hold back the minimum, which
        # others have passed meanwhile and which must not decrease.
        if mark.timestamp >= self._given:
            self._aligned[channel] = True
        return self._advance()

    def status(self, channel: int, status: WatermarkStatus) -> tuple[WatermarkStatus | None, Watermark | None]:
        """Record a channel's status.

        Returns:
            the task's new status if it has changed, and the new watermark if it has risen; else None.
        """
        if self._active[channel] == status.active:
            return None, None
        self._active[channel] = status.active
        self._aligned[channel] = status.active and self._marks[channel] >= self._given
        mark = None
        any_active = any(self._active)
        if not status.active:
            if any_active:
                mark = self._advance()
            else:
                # All channels are idle: none of them holds back the one that is furthest ahead any more.
                top = max(self._marks)
                if top > self._given:
                    self._given = top
                    mark = Watermark(top)
        changed = None
        if any_active != self._given_active:
            self._given_active = any_active
            changed = WatermarkStatus(any_active)
        return changed, mark

    def _advance(self) -> Watermark | None:
        marks = [m for m, aligned in zip(self._marks, self._aligned, strict=True) if aligned]
        if not marks:
            return None
        lowest = min(marks)
        if lowest <= self._given:
            return None
        self._given = lowest
        return Watermark(lowest)
