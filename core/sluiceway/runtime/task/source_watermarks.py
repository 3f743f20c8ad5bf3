"""Event time at a source: timestamps, and watermarks per split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Element, Rejected, Watermark, WatermarkStatus
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.metrics import SplitTimes
from sluiceway.operators import GeneratorWatch, Stamper
from sluiceway.runtime.task.split_times import split_times

__all__ = ["SourceTime"]


class _Split:
    """Watermark generator of one split.

    Attributes:
        heard: when the split last gave a record, by the clock that stands still while output is blocked.
        timed_out: whether that is too long ago.
    """

    __slots__ = ("heard", "timed_out", "watch")

    def __init__(self, watch: GeneratorWatch, now: int) -> None:
        self.watch = watch
        self.heard = now
        self.timed_out = False

    @property
    def idle(self) -> bool:
        return self.timed_out or self.watch.idle


class _Rejects:
    """Records that were skipped since the last batch."""

    skipping = True

    def __init__(self) -> None:
        self.records: list[tuple[Any, Exception, int | None, str | None]] = []

    def take(
        self, error: Exception, value: Any, timestamp: int | None, key: Any = None, text: str | None = None
    ) -> bool:
        self.records.append((value, error, timestamp, text))
        return True


class SourceTime:
    """Event time of one reader: timestamps, and watermarks with a generator per split.

    The reader's watermark is the lowest of its splits' that are not idle, and never goes back. Splits count
    from when they are given to the reader to when they are read to their end. The generator of a split that ends
    is asked once more. While no split is left that is not idle, the watermark is the highest of those that ended:
    the same, whichever ended first. Between two splits of a source that ends by itself, it stays where it is: the
    next split may begin earlier, and the end of the source is the end of time in any case. A reader that does not
    say which split a record is from has one generator for all.

    What methods return is to be sent in that order.

    Args:
        strategy: what the user said.
        step: name of the source's step, for messages.
        clock: the runtime's clock.
        settings: the options of the run.
        backpressured_s: for how long the output was blocked so far: no split is idle because of that.
        waiting: the splits that the reader has not come to; these are not idle, either.
        bounded: whether the source ends by itself.
        skips: whether records on which the assigner raises are skipped, and given out as Rejected.

    Attributes:
        watermark: the highest that was given out, in ms.
        active: whether the reader counts.
        paused: splits that may not give records now.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy[Any],
        step: str,
        clock: Clock,
        settings: Settings,
        backpressured_s: Callable[[], float] = float,
        waiting: Callable[[], Collection[str]] = tuple,
        *,
        bounded: bool = False,
        skips: bool = False,
    ) -> None:
        self.watermark = MIN_WATERMARK
        self.active = True
        self.paused: frozenset[str] = frozenset()
        self._strategy = strategy
        self._step = step
        self._rejects = _Rejects() if skips else None
        self._stamper = Stamper(strategy, step, self._rejects)
        self._monotonic = clock.monotonic
        self._held_up_s = backpressured_s
        self._waiting = waiting
        self._bounded = bounded
        self._interval_ms = settings.auto_watermark_interval_ms
        self._many = settings.batch_size
        self._idleness_ms = strategy.idleness_ms
        self._splits: dict[str, _Split] = {}
        self._all: _Split | None = None  # for a reader that does not say
        self._earlier: dict[str, tuple[Any, ...]] = {}  # splits that were not added yet, as they were elsewhere
        self._ended_at = MIN_WATERMARK  # the highest watermark of splits that were read to their end
        self._without_splits_since = self._now()
        self._without_splits_too_long = False
        self._unasked = 0
        self._ask_at: int | None = None
        self._look_at: int | None = None
        self._changed = False

    # ---- splits ----------------------------------------------------------------------------------------------

    def add(self, split_ids: Iterable[str]) -> None:
        """Add splits that were assigned to the reader."""
        if self._all is None:
            for split_id in split_ids:
                self._splits[split_id] = self._new_split(split_id)
                self._changed = True

    def kept(self) -> tuple[Any, ...]:
        """Return the generators and their output, for :meth:`go_on` in another process."""
        now = self._now()
        splits = {id_: (s.watch.kept(), now - s.heard, s.timed_out) for id_, s in self._splits.items()}
        without_ms = None if self._splits else now - self._without_splits_since
        return (
            self.watermark,
            self.active,
            {**self._earlier, **splits},
            self._all is not None,
            self._ended_at,
            without_ms,
        )

    def go_on(self, kept: tuple[Any, ...]) -> None:
        """Restore an earlier reader's generators, after adding its unfinished splits; the gap does not count."""
        self.watermark, self.active, self._earlier, one_for_all, *since = kept
        self._ended_at = since[0] if since else MIN_WATERMARK  # an earlier version has no such entry
        if len(since) > 1 and since[1] is not None:
            self._without_splits_since = self._now() - since[1]
        self._earlier = dict(self._earlier)
        if one_for_all:
            self._all = self._new_split("")
            self._splits = {"": self._all}
        else:
            for split_id in self._splits:
                self._splits[split_id] = self._new_split(split_id)
            # The other reader had read these to their end, and had not called their generators since.
            for split_id in tuple(self._earlier):
                self._retire(self._new_split(split_id))

    def remove(self, split_ids: Iterable[str]) -> list[Element]:
        """Remove finished splits after a last call of their generators; they hold back the watermark no longer."""
        out: list[Element] = []
        gone = [split for split_id in split_ids if (split := self._splits.pop(split_id, None)) is not None]
        if gone:
            for split in gone:
                self._retire(split)
            self._without_splits_since = self._now()
            self._without_splits_too_long = False
            self._settle(out)
        return out

    def were_silent(self, split_ids: Iterable[str], ms: int) -> None:
        """Add time to that for which some splits have given no record, and look at them at the next chance."""
        for split_id in split_ids:
            if (split := self._splits.get(split_id)) is not None:
                split.heard -= ms
        self._look_at = None

    def pause(self, split_ids: frozenset[str]) -> None:
        """Stop the idle time of these splits until the next call."""
        now = self._now()
        for split_id in self.paused - split_ids:
            if split_id in self._splits:
                self._splits[split_id].heard = now
        self.paused = split_ids

    def ahead_of(self, limit: int) -> frozenset[str]:
        """Return the splits whose watermark is above ``limit`` (ms)."""
        return frozenset(id_ for id_, split in self._splits.items() if split.watch.watermark > limit)

    @property
    def one_for_all(self) -> bool:
        """True if the reader does not identify the split of its records."""
        return self._all is not None

    @property
    def without_splits(self) -> bool:
        """True if the reader has no split to read."""
        return not self._splits

    def split_ids(self) -> frozenset[str]:
        """Return all known splits."""
        return frozenset(self._splits)

    def split_times(self) -> SplitTimes | None:
        """Return the event time of the splits; None: there are none, or the reader does not say. Any thread."""
        if self._all is not None:
            return None
        now, paused = self._now(), self.paused
        return split_times(
            (split_id, split.watch.watermark, split.idle, 0 if split_id in paused else now - split.heard)
            for split_id, split in list(self._splits.items())
        )

    # ---- what the reader gives -------------------------------------------------------------------------------

    def take(self, batch: Batch[Any], split_id: str | None) -> list[Element]:
        """Process records of a split; None: the reader does not identify it."""
        batch = self._stamper.stamp(batch)
        out: list[Element] = []
        if self._rejects is not None and self._rejects.records:
            out.append(Rejected(self._rejects.records))
            self._rejects.records = []
            if not batch.values:
                return out
        split = self._split_of(split_id)
        # Before the batch: what splits that came or went have changed.
        if self._changed:
            self._settle(out)
        split.heard = self._now()
        split.timed_out = False
        rises = split.watch.observe(batch)
        self._set_active(True, out)
        if rises:
            self._cut(batch, split, rises, out)
        else:
            out.append(batch)
        if split.watch.idle:
            self._settle(out)
        self._unasked += len(batch.values)
        # Also after each full batch: input that is read as fast as possible closes its windows steadily.
        if self._unasked >= self._many or not self._interval_ms:
            self._ask(out)
        elif self._ask_at is None:
            self._ask_soon()
        elif self._clock_ms() >= self._ask_at:
            self._ask(out)
        return out

    def dry(self) -> list[Element]:
        """Record that the reader has no records now. Call it again at :attr:`again_at` at the latest."""
        out: list[Element] = []
        now = self._clock_ms()
        if self._ask_at is not None and now >= self._ask_at:
            self._ask(out)
        elif self._changed or (self._idleness_ms and (self._look_at is None or now >= self._look_at)):
            self._look(out)
        return out

    @property
    def idle_at(self) -> float | None:
        """Return when a split becomes idle, in monotonic seconds; None: not known."""
        return None if self._look_at is None else self._look_at / 1000

    @property
    def again_at(self) -> float | None:
        """Return the time of the next change without records, in monotonic seconds."""
        at = [ms for ms in (self._ask_at, self._look_at) if ms is not None]
        return min(at) / 1000 if at else None

    def end(self) -> list[Element]:
        """Handle the end of the reader."""
        out: list[Element] = []
        self._set_active(True, out)
        self._rise(MAX_WATERMARK, out)
        return out

    # ---- inside ----------------------------------------------------------------------------------------------

    def _clock_ms(self) -> int:
        return round(self._monotonic() * 1000)

    def _now(self) -> int:
        """Return the time of a clock that stops while the output is blocked."""
        return self._clock_ms() - round(self._held_up_s() * 1000)

    def _new_split(self, split_id: str | None) -> _Split:
        split = _Split(GeneratorWatch(self._strategy, self._step), self._now())
        earlier = self._earlier.pop(split_id, None) if split_id is not None else None
        if earlier is not None:
            watch, silent_ms, split.timed_out = earlier
            split.watch.go_on(watch)
            split.heard -= silent_ms
        if not split.watch.passive:
            self._ask_soon()
        return split

    def _split_of(self, split_id: str | None) -> _Split:
        if self._all is not None:
            return self._all
        if split_id is None:
            self._all = self._new_split(None)
            self._splits = {"": self._all}
            return self._all
        split = self._splits.get(split_id)
        if split is None:
            split = self._splits[split_id] = self._new_split(split_id)
        return split

    def _retire(self, split: _Split) -> None:
        """Call the generator of a removed split for the last time."""
        # One that has timed out was asked when it became idle, and has had no record since.
        if not split.timed_out:
            split.watch.ask()
        self._ended_at = max(self._ended_at, split.watch.watermark)
        self._changed = True

    def _cut(self, batch: Batch[Any], split: _Split, rises: Iterable[tuple[int, int]], out: list[Element]) -> None:
        # A generator that looks at single records raises the watermark within the batch. The batch is cut there,
        # so that the watermark keeps its place between the records.
        others = min(
            (s.watch.watermark for s in self._splits.values() if s is not split and not s.idle),
            default=MAX_WATERMARK,
        )
        start = 0
        for end, mark in rises:
            if min(mark, others) > self.watermark:
                out.append(batch.part(start, end))
                self._rise(min(mark, others), out)
                start = end
        if start < len(batch.values):
            out.append(batch.part(start, None))

    def _ask_soon(self) -> None:
        if self._ask_at is None and self._interval_ms:
            self._ask_at = self._clock_ms() + self._interval_ms

    def _ask(self, out: list[Element]) -> None:
        """Call all generators."""
        self._unasked = 0
        self._ask_at = None
        for split in self._splits.values():
            if not split.timed_out:
                split.watch.ask()
                if not split.watch.passive:
                    self._ask_soon()
        self._look(out)

    def _look(self, out: list[Element]) -> None:
        """Find splits that have become idle, and emit the resulting changes."""
        self._changed = False
        timeout_ms = self._idleness_ms
        if timeout_ms is not None:
            silent = self._silent(timeout_ms)
            if silent:
                # Their pending watermarks are emitted before they become idle.
                for split in silent:
                    split.watch.ask()
                self._settle(out)
                for split in silent:
                    split.timed_out = True
        self._settle(out)

    def _silent(self, timeout_ms: int) -> list[_Split]:
        silent: list[_Split] = []
        self._look_at = None
        now = self._now()
        next_look: int | None = None
        # A reader without splits becomes idle as a silent split does.
        if not self._splits:
            next_look = self._without_splits_since + timeout_ms
            self._without_splits_too_long = next_look <= now
        waiting: Collection[str] | None = None
        for split_id, split in self._splits.items():
            if split.timed_out or split_id in self.paused:
                continue
            due = split.heard + timeout_ms
            if due <= now:
                if waiting is None:
                    waiting = self._waiting()
                # Its turn has not come: it is not silent.
                if split_id in waiting:
                    split.heard = now
                    due = now + timeout_ms
                else:
                    silent.append(split)
                    continue
            next_look = due if next_look is None else min(next_look, due)
        # The next look in the machine's time; that of the splits stands still while the output is blocked.
        if next_look is not None and next_look > now:
            self._look_at = self._clock_ms() + next_look - now
        return silent

    def _settle(self, out: list[Element]) -> None:
        """Emit changes of the combined watermark and status."""
        marks = [split.watch.watermark for split in self._splits.values() if not split.idle]
        if marks:
            self._set_active(True, out)
            self._rise(min(marks), out)
            return
        # As if the furthest of the finished splits had been the last one to end.
        if self._splits or not self._bounded:
            self._rise(self._ended_at, out)
        if self._splits or self._without_splits_too_long:
            self._set_active(False, out)

    def _rise(self, mark: int, out: list[Element]) -> None:
        if mark > self.watermark:
            # Active first: consumers ignore the watermarks of idle channels.
            self._set_active(True, out)
            self.watermark = mark
            out.append(Watermark(mark))

    def _set_active(self, active: bool, out: list[Element]) -> None:
        if active is not self.active:
            self.active = active
            out.append(WatermarkStatus(active))
