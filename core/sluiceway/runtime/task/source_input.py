"""Input of a task from a source: batches of the reader, and the watermarks, markers and barriers between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.connector import END_OF_INPUT, Boundedness, Reader, Source, Wait
from sluiceway.connector.products import listed, wrong_poll
from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BarrierAnnouncement,
    Batch,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    Rejected,
    Watermark,
)
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.metrics import SplitTimes
from sluiceway.runtime.task.source_watermarks import SourceTime
from sluiceway.runtime.task.task_input import NOTHING, TaskInput
from sluiceway.runtime.task.watermark_alignment import AlignedReader
from sluiceway.util.overriding import override

__all__ = ["SourceInput"]

_SECONDS_PER_SPLIT = 0.0005
"""Seconds per split for which a summary of the splits is valid: examining one takes about 1/1000 of that."""


class SourceInput(TaskInput):
    """Input from a source: the reader's batches, watermarks and latency markers between them, and the end.

    Args:
        source: the source.
        reader: creates the reader.
        clock: the runtime's clock.
        uid: uid of the source, for latency markers.
        subtask: index of the reader.
        settings: the options of the run.
        restored: restored splits.
        strategy: watermark strategy of the step, or None.
        step: name of the source's step, for messages.
        backpressured_s: returns the seconds for which the output was blocked so far.
        report: sends the reader's watermark to its alignment group; None: it does not count.
        skips: whether records on which the timestamp assigner raises are skipped.

    Attributes:
        paused: True while nothing more is read; elements read already are still returned.
        limit: approximate number of records per read.
    """

    def __init__(
        self,
        source: Source[Any],
        reader: Callable[[], Reader[Any]],
        clock: Clock,
        *,
        uid: str,
        subtask: int,
        settings: Settings,
        restored: Sequence[Any] = (),
        strategy: WatermarkStrategy[Any] | None = None,
        step: str = "source",
        backpressured_s: Callable[[], float] = float,
        report: Callable[[int | None], None] = lambda mark: None,
        skips: bool = False,
    ) -> None:
        self._source = source
        self._make_reader = reader
        self._reader: Reader[Any] | None = None
        self._clock = clock
        self._uid = uid
        self._subtask = subtask
        self._settings = settings
        self.limit = settings.batch_size
        self._interval_s = settings.latency_interval_ms / 1000
        self._next_marker = 0.0
        # Elements of one poll of the reader. They precede a barrier, as the reader's positions include them.
        self._out: deque[Element] = deque()
        self._ending: deque[Element] = deque()
        self._watermark = MIN_WATERMARK
        self._strategy = strategy
        self._step = step
        self._backpressured_s = backpressured_s
        self._report = report
        self._skips = skips
        self._time: SourceTime | None = None
        self._member: AlignedReader | None = None
        self._split_times: SplitTimes | None = None
        self._split_times_due = 0.0
        self._before_open: list[Callable[[Reader[Any]], None]] = []
        self._restored = restored
        self.paused = False
        self._stopped = False
        self._over = False
        # Barriers to return, and messages of the enumerator that arrived after them, in order. The messages wait
        # until the snapshot of that barrier is taken: the enumerator's snapshot still has their splits.
        self._marks: deque[CheckpointBarrier | Callable[[Reader[Any]], None]] = deque()
        self._taking = False
        self._snapshots: dict[int, tuple[Any, ...]] = {}
        self._announced: Callable[[BarrierAnnouncement], None] = lambda announcement: None
        self._begins: Callable[[CheckpointBarrier], None] = lambda barrier: None

    def open(self) -> None:
        """Create the reader and start it."""
        reader = self._reader = self._make_reader()
        strategy = self._strategy
        if strategy is not None:
            self._time = SourceTime(
                strategy,
                self._step,
                self._clock,
                self._settings,
                self._backpressured_s,
                reader.waiting_splits,
                bounded=self._source.boundedness is Boundedness.BOUNDED,
                skips=self._skips,
            )
            if strategy.alignment is not None:
                self._member = AlignedReader(strategy.alignment, self._time, reader, self._clock, self._report)
        reader.start()
        if self._restored:
            try:
                self._add(reader, self._restored)
            except (AttributeError, TypeError) as error:
                self._note_restored(error)
                raise
        for action in self._before_open:
            action(self._reader)
        self._before_open.clear()

    def call_reader(self, action: Callable[[Reader[Any]], None]) -> None:
        """Call ``action`` with the reader, once it exists."""
        if self._reader is None:
            self._before_open.append(action)
        elif self._taking or self._marks:
            # Behind the barrier: the reader's snapshot must not have splits that the enumerator's still has.
            self._marks.append(action)
        else:
            action(self._reader)

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Add splits to the reader, once it exists."""
        self.call_reader(lambda reader: self._add(reader, splits))

    def start_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """Queue the barrier behind elements read so far; the enumerator's later messages come after it."""
        self._marks.append(barrier)
        if barrier.aligned_ms == 0:
            self.overtake(barrier)
        elif barrier.aligned_ms > 0:
            id_, at = barrier.checkpoint_id, barrier.timestamp_ms
            self._announced(BarrierAnnouncement(id_, at, barrier.aligned_ms))

    def watch_checkpoints(
        self,
        announced: Callable[[BarrierAnnouncement], None],
        begins: Callable[[CheckpointBarrier], None],
        alignment: Callable[[], None],
    ) -> None:
        """Register the callbacks for :meth:`start_checkpoint`; a source aligns nothing."""
        self._announced, self._begins = announced, begins

    def overtake(self, barrier: CheckpointBarrier) -> None:
        """Queue the barrier ahead, as the task cannot continue; see :meth:`read_before` for elements read."""
        mark = self._marks[0] if self._marks else None
        if isinstance(mark, CheckpointBarrier) and mark.checkpoint_id == barrier.checkpoint_id:
            self._marks.popleft()
            self._taking = True
            self._begins(barrier)

    def look_ahead(self) -> CheckpointBarrier | None:
        """Return the barrier if it is next; reads nothing."""
        element = self.poll() if self._marks and not self._out else None
        assert element is None or isinstance(element, CheckpointBarrier)
        return element

    @property
    def reads_ahead(self) -> bool:
        """True if elements were read from the reader and not returned."""
        return bool(self._out)

    def read_before(self) -> Element | None:
        """Return an element read ahead, to be processed before state is taken; None: none is left."""
        return self._out.popleft() if self._out else None

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Drop the barrier unless it was returned, and the splits that were kept for the checkpoint."""
        self._snapshots.pop(checkpoint_id, None)
        # Messages stay queued and are applied by `_apply_marks`: aborting a checkpoint must not lose splits.
        given_up = [
            m for m in self._marks if isinstance(m, CheckpointBarrier) and m.checkpoint_id == checkpoint_id
        ]
        for barrier in given_up:
            self._marks.remove(barrier)
        self._apply_marks()

    def checkpoint_taken(self) -> None:
        """Run the actions that waited for the snapshot."""
        self._taking = False
        self._apply_marks()

    def _apply_marks(self) -> None:
        while self._marks and not self._taking:
            action = self._marks[0]
            if isinstance(action, CheckpointBarrier):
                return
            self._marks.popleft()
            if self._reader is not None:
                action(self._reader)

    def end(self) -> None:
        """Start at the end of the input, in place of :meth:`open`: everything was read before."""
        self._watermark = MAX_WATERMARK
        self._over = True

    def stop(self) -> None:
        """Stop reading: elements read so far are the whole input, as if the source had ended."""
        self._stopped = True

    def announced(self, mark: int | None) -> None:
        """Receive the watermark of the slowest reader of the alignment group (ms); None: no reader counts."""
        if self._member is not None:
            self._member.announced(mark)

    def poll(self) -> Element | Wait:
        """Return the reader's next batch, a watermark, a marker, the end, or a wait."""
        if self._out:
            return self._out.popleft()
        if self._marks:
            barrier = self._marks.popleft()
            # The first mark is a barrier: `call_reader` queues actions only behind one, and `_apply_marks` runs
            # those in front. The task does not poll between a barrier and its snapshot.
            assert isinstance(barrier, CheckpointBarrier)
            self._taking = True
            return barrier
        if self.paused:
            return NOTHING
        if self._ending:
            return self._ending.popleft()
        if self._over:
            return NOTHING
        if self._interval_s and (now := self._clock.monotonic()) >= self._next_marker:
            self._next_marker = now + self._interval_s
            return LatencyMarker(now, self._uid, self._subtask)
        if self._stopped:
            return self._end()
        assert self._reader is not None
        if self._member is not None and not self._member.may_read():
            return self._wait(NOTHING, self._member.again_at)
        try:
            polled = self._reader.poll(self.limit)
        except (AttributeError, TypeError) as error:
            self._note_restored(error)
            raise
        # Also with a wait: a reader may have found nothing but unreadable records.
        if rejected := self._reader.rejected():
            self._out.append(Rejected([(*each, None) for each in rejected], undecoded=True))
        if type(polled) is list:
            if polled:
                return self._take(Batch(polled))
        elif type(polled) is Batch:
            stamps = polled.timestamps
            if polled.values and (stamps is None or len(stamps) == len(polled.values)):
                return self._take(polled)
        elif isinstance(polled, Wait):
            return self._nothing_read(polled)
        elif polled is END_OF_INPUT:
            return self._end()
        raise wrong_poll(polled, self._source)

    @property
    def drift_ms(self) -> int | None:
        """Lead over the slowest reader of the alignment group, in ms; None if not known."""
        return None if self._member is None else self._member.drift_ms

    @property
    def idle_at(self) -> float | None:
        """Time at which a split becomes idle, in monotonic seconds; None if not known."""
        return None if self._time is None else self._time.idle_at

    def _add(self, reader: Reader[Any], splits: Sequence[Any]) -> None:
        if self._time is not None:
            self._time.add(split.split_id for split in splits)
        reader.add_splits(splits)

    def _note_restored(self, error: Exception) -> None:
        """Add to an error of the reader that its splits may be those of another source."""
        if self._restored:
            kinds = " and ".join(sorted({type(split).__name__ for split in self._restored}))
            error.add_note(
                f"the snapshot that the job goes on from has splits of type {kinds} under the uid {self._uid!r}: "
                "give this source another uid if it is another one than that of the snapshot"
            )

    def _take(self, batch: Batch[Any]) -> Element:
        self._restored = ()
        if self._time is None:
            self._out.append(batch)
            return self._out.popleft()
        assert self._reader is not None
        split, finished = self._reader.current_split_id, self._reader.finished_splits()
        # The split of this batch is removed after the batch: its records still count towards its watermark, while
        # other finished splits must not hold the watermark back.
        if finished:
            self._out.extend(self._time.remove(id_ for id_ in finished if id_ != split))
        self._out.extend(self._time.take(batch, split))
        if split is not None and split in finished:
            self._out.extend(self._time.remove((split,)))
        return self._out.popleft()

    def _nothing_read(self, wait: Wait) -> Element | Wait:
        if self._time is not None:
            assert self._reader is not None
            self._out.extend(self._time.remove(self._reader.finished_splits()))
            self._out.extend(self._time.dry())
            if self._out:
                return self._out.popleft()
            return self._wait(wait, self._time.again_at, None if self._member is None else self._member.again_at)
        return self._out.popleft() if self._out else self._wait(wait)

    def _wait(self, wait: Wait, *others: float | None) -> Wait:
        """Limit a wait by the next deadline of this input."""
        marker = self._next_marker if self._interval_s else None
        until = min((at for at in (wait.until, marker, *others) if at is not None), default=None)
        return wait if until == wait.until else Wait(wait.fileno, wait.write, until)

    def _end(self) -> Element:
        # A barrier may come between the last records and the end of data: `_ending` is returned behind `_marks`.
        self._watermark = MAX_WATERMARK
        self._over = True
        if self._member is not None:
            self._member.leave()
        self._out.extend((Watermark(MAX_WATERMARK),) if self._time is None else self._time.end())
        self._ending.extend((EndOfData(), EndOfPartition()))
        return self._out.popleft()

    def queued(self) -> int:
        """Return the number of elements read and not returned."""
        return len(self._out)

    def split_times(self) -> SplitTimes | None:
        """Return the event time of the reader's splits, not older than half a millisecond for each of them."""
        time, now = self._time, self._clock.monotonic()
        if time is not None and now >= self._split_times_due:
            found = self._split_times = time.split_times()
            # A frequent caller pays the same for many splits as for few: with many, they are examined less often.
            self._split_times_due = now + (found.splits * _SECONDS_PER_SPLIT if found is not None else 0.0)
        return self._split_times

    def snapshot(self, checkpoint_id: int = 0) -> tuple[Any, ...]:
        """Return the reader's splits with positions, and keep them until the checkpoint completes; 0: none."""
        reader = self._reader
        splits = tuple(
            self._restored if reader is None else listed(reader.snapshot(), reader, "snapshot", "splits")
        )
        if checkpoint_id:
            self._snapshots[checkpoint_id] = splits
        return splits

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Notify the reader, and drop the splits kept for earlier checkpoints."""
        splits = self._snapshots.pop(checkpoint_id, None)
        # An older checkpoint cannot complete any more: this one has subsumed it.
        self._snapshots = {id_: s for id_, s in self._snapshots.items() if id_ > checkpoint_id}
        if splits is not None and self._reader is not None:
            self._reader.checkpoint_completed(splits)

    def kept_time(self) -> tuple[Any, ...] | None:
        """Return the state of event time, for :meth:`go_on_in_time`; None: it has none."""
        return None if self._time is None else self._time.kept()

    def go_on_in_time(self, kept: tuple[Any, ...] | None) -> None:
        """Restore the event time of an earlier reader, after :meth:`open`."""
        if self._time is not None and kept is not None:
            self._time.go_on(kept)

    def were_silent(self, split_ids: Iterable[str], ms: int) -> None:
        """Add time to that for which some splits have given no record."""
        if self._time is not None:
            self._time.were_silent(split_ids, ms)

    @property
    def watermark(self) -> int:
        """Highest watermark emitted, in ms."""
        return self._watermark if self._time is None else self._time.watermark

    @override
    def close(self) -> None:
        reader, self._reader = self._reader, None
        self._restored = ()
        if reader is not None:
            reader.close()
