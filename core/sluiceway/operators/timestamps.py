"""Operator of timestamps and watermarks in the middle of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Batch,
    Element,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.operators.watermarking import GeneratorWatch, Stamper
from sluiceway.steps import TimestampsStep

__all__ = ["TimestampsOperator"]


class TimestampsOperator(TimedOperator):
    """Operator that assigns timestamps and emits its own watermarks; of received ones, it keeps the last only.

    The generator is called at the watermark interval, and earlier when a full batch of records has arrived
    since the last time: event time then keeps up with input that is read as fast as possible.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, TimestampsStep)
        self._dead = DeadLetters(context)
        self._stamper = Stamper(step.strategy, self.step_name, self._dead)
        self._watch = GeneratorWatch(step.strategy, self.step_name)
        self._interval_ms = context.settings.auto_watermark_interval_ms
        self._many = context.settings.batch_size
        self._idleness_ms = step.strategy.idleness_ms
        # Times are readings of the clock's steady_ms(). Records since the generator was called, and when it is
        # called next; None: not planned.
        self._unasked = 0
        self._ask_at: int | None = None
        # Since when the input has been empty, and when to look whether it still is.
        self._quiet_since: int | None = None
        self._look_at: int | None = None
        # The idleness timeout is over: the output stays idle until a record arrives, whatever the generator emits.
        self._timed_out = False
        self._active = True
        # Records behind a watermark: the watermark may cause much work downstream, which is done first.
        self._rest: deque[Element] = deque()

    def open(self) -> None:
        """Start the watermark interval for a generator that may emit without records."""
        self._ask_later(even_if_passive=False)

    def process(self, batch: Batch[Any]) -> None:
        """Emit the records with their timestamps, and the watermarks in their places."""
        batch = self._stamper.stamp(batch)
        self._dead.give(self.output)
        if not batch.values:
            return
        rises = self._watch.observe(batch)
        self._quiet_since = self._look_at = None
        self._timed_out = False
        self._set_active(True)
        if rises:
            self._cut(batch, rises)
        else:
            self._emit(batch)
        self._unasked += len(batch.values)
        if self._unasked >= self._many or not self._interval_ms:
            self._ask()
        else:
            self._ask_later(even_if_passive=True)
            self._set_active(not self._watch.idle)

    def control(self, element: Element) -> None:
        """Drop watermarks and statuses from upstream, except the last watermark; emit other elements."""
        if type(element) is Watermark:
            if element.timestamp == MAX_WATERMARK:
                self._rise(MAX_WATERMARK)
        elif type(element) is not WatermarkStatus:
            if type(element) is LatencyMarker:
                self.record_latency(element)
            self._emit(element)

    def finish(self) -> None:
        """Call the generator for the last time: the input has ended."""
        self._ask()

    def kept_time(self) -> Any:
        """Return the generator, its last output, and how long the input has been empty."""
        since = self._quiet_since
        quiet_ms = None if since is None else self.context.clock.steady_ms() - since
        return self._watch.kept(), self.current_watermark, self._active, self._timed_out, quiet_ms

    def go_on_in_time(self, kept: Any) -> None:
        """Restore the generator and emit its last output again."""
        watch, self.current_watermark, self._active, self._timed_out, quiet_ms = kept
        if quiet_ms is not None:
            self._quiet_since = self.context.clock.steady_ms() - quiet_ms
        self._watch.go_on(watch)
        if self.current_watermark > MIN_WATERMARK:
            self._emit(Watermark(self.current_watermark))

    # ---- time ------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Emit what is left up to the next watermark."""
        while self._rest:
            element = self._rest.popleft()
            self._send(element)
            if type(element) is Watermark:
                break
        self.has_work = bool(self._rest)

    def ask(self) -> None:
        """Call the generator now, when no later call is certain."""
        if self._watch.passive and self._ask_at is None:
            return  # it emits nothing new
        self._ask()

    @property
    def idle_at(self) -> int | None:
        """Return when an empty input becomes idle, in ms since the epoch; None: it does not."""
        return None if self._look_at is None else self.in_processing_time(self._look_at)

    def next_processing_time(self) -> int | None:
        """Return when to call the generator, or to check whether the input is still empty."""
        at = self._ask_at
        if at is None or (self._look_at is not None and self._look_at < at):
            at = self._look_at
        return None if at is None else self.in_processing_time(at)

    def on_processing_time(self, now_ms: int) -> None:
        """Call the generator. :meth:`idle`, which the task calls next, finds out whether the input is empty."""
        now = self.in_steady_time(now_ms)
        if self._look_at is not None and self._look_at <= now:
            self._look_at = None
        if self._ask_at is not None and self._ask_at <= now:
            self._ask()

    def idle(self) -> None:
        """Record that the input is empty; after a time it is idle. Time of blocked output does not count."""
        if self._idleness_ms is None or self._timed_out:
            return
        clock = self.context.clock
        held_up_ms = int(self.context.backpressured_s() * 1000)
        now = clock.steady_ms() - held_up_ms
        if self._quiet_since is None:
            self._quiet_since = now
        left = self._quiet_since + self._idleness_ms - now
        if left > 0:
            self._look_at = clock.steady_ms() + left
            return
        self._ask()
        self._timed_out = True
        self._set_active(False)

    def _ask(self) -> None:
        """Call the generator, and emit its output."""
        self._unasked = 0
        self._ask_at = None
        if self._timed_out:
            return
        self._watch.ask()
        self._ask_later(even_if_passive=False)
        self._rise(self._watch.watermark)
        self._set_active(not self._watch.idle)

    def _ask_later(self, *, even_if_passive: bool) -> None:
        if self._ask_at is None and self._interval_ms and (even_if_passive or not self._watch.passive):
            self._ask_at = self.context.clock.steady_ms() + self._interval_ms

    # ---- output ----------------------------------------------------------------------------------------------

    def _cut(self, batch: Batch[Any], rises: Sequence[tuple[int, int]]) -> None:
        first, mark = rises[0]
        self._emit(batch.part(0, first))
        self._rise(mark)
        start = first
        for end, mark in rises[1:]:
            # Set before the mark is emitted: `_rise` compares with the last watermark that is queued.
            self._rest += (batch.part(start, end), Watermark(mark))
            self.current_watermark = mark
            start = end
        if start < len(batch.values):
            self._rest.append(batch.part(start, None))
        self.has_work = bool(self._rest)

    def _rise(self, mark: int) -> None:
        if mark > self.current_watermark:
            self.current_watermark = mark
            self._set_active(True)
            self._emit(Watermark(mark))

    def _set_active(self, active: bool) -> None:
        if active is not self._active:
            self._active = active
            self._emit(WatermarkStatus(active))

    def _emit(self, element: Element) -> None:
        if self._rest:
            self._rest.append(element)
        else:
            self._send(element)

    def _send(self, element: Element) -> None:
        if type(element) is Batch:
            self.output.emit(element)
        else:
            self.output.control(element)
