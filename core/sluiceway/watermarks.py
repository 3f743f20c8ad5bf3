"""The watermark of a task: the minimum over its active inputs, never going back."""

from __future__ import annotations

from typing import Any

from sluiceway.elements import MIN_WATERMARK, Watermark, WatermarkStatus

__all__ = ["WatermarkValve"]


class WatermarkValve:
    """Merges the watermarks and statuses of several channels into one of each.

    An idle channel does not hold the others back; a channel that becomes active again counts only once its
    watermark has caught up with what was already given out.

    Args:
        channels: number of channels.
    """

    def __init__(self, channels: int) -> None:
        self._marks = [MIN_WATERMARK] * channels
        self._active = [True] * channels
        self._aligned = [True] * channels
        self._given = MIN_WATERMARK
        self._given_active = True

    @property
    def current(self) -> int:
        """The watermark given out last, in ms."""
        return self._given

    def snapshot(self) -> tuple[object, ...]:
        """All that it has heard and given, for :meth:`restore`; picklable."""
        return tuple(self._marks), tuple(self._active), tuple(self._aligned), self._given, self._given_active

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Go on from what one with as many channels has heard."""
        marks, active, aligned, self._given, self._given_active = snapshot
        self._marks, self._active, self._aligned = list(marks), list(active), list(aligned)

    def watermark(self, channel: int, mark: Watermark) -> Watermark | None:
        """Take a channel's watermark; returns the new minimum if it rose."""
        if mark.timestamp <= self._marks[channel]:
            return None
        self._marks[channel] = mark.timestamp
        if not self._active[channel]:
            return None
        if mark.timestamp >= self._given:
            self._aligned[channel] = True
        return self._advance()

    def status(self, channel: int, status: WatermarkStatus) -> tuple[WatermarkStatus | None, Watermark | None]:
        """Take a channel's status; returns the task's new status if it changed, and a watermark if it rose."""
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
                # The last one fell silent: what the fastest had reached is safe to say.
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
