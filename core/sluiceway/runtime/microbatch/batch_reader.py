"""Reader of one batch: reads live input, or replays exactly what an earlier attempt read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sluiceway.clock import Clock, SystemClock
from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, Source, Wait
from sluiceway.connector.products import are_records, checked, listed, wrong_poll
from sluiceway.elements import ROWS_PER_RECORD, Batch
from sluiceway.errors import CheckpointError, ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.runtime.microbatch.batch_log import BatchLog, BatchRead, PollRead
from sluiceway.runtime.microbatch.waiter import Waiter
from sluiceway.util.overriding import override

__all__ = ["BatchReader", "BatchWork", "LiveReader", "ReaderCache", "raise_rejected"]

# Readers of a process that stay open between batches, which bounds files and connections.
_MOST_KEPT: Final = 32

_REPLAY_WAIT_S: Final = 60.0
"""Time that a replay waits for a record. Retention, for example, may have deleted it from an unbounded source."""

_ROWS_IN_LIMIT: Final = 8
"""Rows of columns that count as one record of the limit of a batch. ROWS_PER_RECORD would allow some gigabytes."""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Work of one reader in one batch, sent by the driver to the reader's subtask.

    Attributes:
        batch: number of the batch.
        reader: number of the reader.
        parallelism: number of readers.
        splits: all splits of the reader, at their positions.
        queued: number of splits at the end of ``splits`` that the reader gets later, on request.
        no_more: whether no further splits follow.
        resting: whether the reader reads nothing in this batch.
        time_ms: time of planning, in ms since the epoch; the same for all attempts.
        wait_s: maximum wait for the first record.
        linger_s: maximum wait for more records, after the first one.
        time_s: time after which the reader stops, even if more records are available.
        limit: maximum number of records. Eight rows in columns count as one, and the last poll may exceed it.
        token: token of the reader's record of the previous batch; empty: there is none.
        asked: whether a split request of the reader is unanswered.
        asks: whether the reader has requested a split in an earlier batch.
        stops: whether the reader reads nothing and reaches its end, at any position.
        silent_ms: idle time before the batch, for splits that have no records in it.
        since_ms: time since the batch before was planned: that of splits without records in a batch that runs dry.
        together: ids of queued splits that the reader gets with the one before them.
        pushed: ids of queued splits that were assigned without a request, each the first of such an assignment.
    """

    batch: int
    reader: int
    parallelism: int
    splits: list[Any]
    queued: int
    no_more: bool
    resting: bool
    time_ms: int
    wait_s: float
    linger_s: float
    time_s: float
    limit: int
    token: str = ""
    asked: bool = False
    asks: bool = False
    stops: bool = False
    silent_ms: int = 0
    since_ms: int = 0
    together: frozenset[str] = frozenset()
    pushed: frozenset[str] = frozenset()


class LiveReader:
    """Started reader of a source, with a waiter to sleep on.

    Args:
        source: the source.
        number: number of the reader.
        parallelism: number of readers.
        clock: real time.
        splits: initial splits.
        no_more: whether no further splits follow.

    Attributes:
        reader: the started reader.
        waiter: waiter that the reader wakes.
        asked: number of split requests of the reader that are unanswered.
        asks: whether it has made any.
    """

    def __init__(
        self,
        source: Source[Any],
        number: int,
        parallelism: int,
        clock: Clock,
        splits: Sequence[Any] = (),
        *,
        no_more: bool = False,
    ) -> None:
        # Before the reader is made, which may ask at once.
        self.asked = 0
        self.asks = False
        self.waiter = Waiter(clock)
        self._told = False
        self._metrics = MetricGroup()
        self._reported: dict[str, int] = {}
        try:
            context = ReaderContext(number, parallelism, clock, self.waiter.wake, self._ask, self._metrics)
            self.reader: Reader[Any] = checked(source.create_reader(context), Reader, source, "create_reader")
        except BaseException:
            self.waiter.close()
            raise
        try:
            self.reader.start()
            self.give(splits, len(splits), no_more=no_more)
        except BaseException:
            self.close()
            raise

    def give(self, splits: Sequence[Any], answered: int = 1, *, no_more: bool = False) -> bool:
        """Add splits to the reader, and notify it once that no more follow. Return whether either was done.

        The splits are the answer to ``answered`` requests, if it has made so many.
        """
        if splits:
            self.asked = max(0, self.asked - answered)
            self.reader.add_splits(list(splits))
        is_news = no_more and not self._told
        if is_news:
            self.asked = 0
            self._told = True
            self.reader.no_more_splits()
        return is_news or bool(splits)

    def snapshot(self) -> list[Any]:
        """Return the splits of the reader with their positions. Raises PluginError if it returns no list."""
        return list(listed(self.reader.snapshot(), self.reader, "snapshot", "splits"))

    def report(self, group: MetricGroup) -> None:
        """Add to a group what the reader has counted since the last call, and set its other figures there."""
        for name, counter in list(self._metrics.counters.items()):
            group.counter(name).inc(counter.value - self._reported.get(name, 0))
            self._reported[name] = counter.value
        for name, value in self._metrics.read().items():
            if name not in self._reported:
                group.gauge(name, partial(float, value))

    def close(self) -> None:
        """Close the reader and its waiter."""
        try:
            self.reader.close()
        finally:
            self.waiter.close()

    def _ask(self) -> None:
        self.asked += 1
        self.asks = True


class ReaderCache:
    """Readers of this process that are open between batches.

    One is used again only for the batch that follows the very file that it has left.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[str, LiveReader]] = {}

    def take(self, where: str, reader: int, token: str) -> LiveReader | None:
        """Remove and return the reader that has left the file with this token; None if it was not here."""
        found = self._kept.pop((where, reader), None)
        if found is None or found[0] == token:
            return None if found is None else found[1]
        found[1].close()
        return None

    def keep(self, where: str, reader: int, token: str, live: LiveReader) -> None:
        """Keep a reader that has left the file with this token."""
        self.drop(where, reader)
        self._kept[where, reader] = (token, live)
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))[1].close()

    def drop(self, where: str, reader: int) -> None:
        """Close what is kept for a reader, if anything is."""
        found = self._kept.pop((where, reader), None)
        if found is not None:
            found[1].close()

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._kept.popitem()[1][1].close()


def raise_rejected(reader: Reader[Any]) -> None:
    """Raise the exception of a record that the reader could not decode: nothing here skips any."""
    for _, error, _ in reader.rejected():
        error.add_note(
            "sources that run in micro-batches, or as a data source of Spark, cannot skip records that cannot be "
            "decoded"
        )
        raise error


class BatchReader(Reader[Any]):
    """Reader that returns the records of one reader in one batch, and then a Wait, or the end of the input.

    Where the batch was read before, by an attempt that came as far as :meth:`finish`, it gives the same records in
    the same batches from the same splits; a source whose reader says which split a record is from need only give
    the same records of each split again, any other the same records in all.

    It has its splits from the start and does all the waiting itself. The source's reader receives them as from a
    local enumerator: those of one assignment at a time, on request or when it has none left; what the enumerator
    has pushed, at once if it makes no requests, and otherwise also when it waits.

    Args:
        source: the source.
        work: splits and limits of the batch.
        files: log of this source and run.
        clock: real time; None: the system clock.
        cache: open readers of this process; None: readers are not kept between batches.
        program: text that no other program has; a reader that is kept is used for the same program only.
        given: called with splits when the source's reader receives them in this batch.

    Attributes:
        metrics: group that :meth:`finish` adds the figures of the source's reader in this batch to.
        over: whether the batch has ended.
        ended: whether the input has ended.
        count: number of records returned so far.
        is_replay: whether an earlier attempt has finished this batch.
    """

    def __init__(
        self,
        source: Source[Any],
        work: BatchWork,
        files: BatchLog,
        *,
        clock: Clock | None = None,
        cache: ReaderCache | None = None,
        program: str = "",
        given: Callable[[Sequence[Any]], None] = lambda splits: None,
    ) -> None:
        self._source = source
        self._work = work
        self._given = given
        begun = len(work.splits) - work.queued
        self._begun, self._queue = work.splits[:begun], deque(work.splits[begun:])
        self._unlogged_begun: list[str] = []
        self._files = files
        self._clock = SystemClock() if clock is None else clock
        self._cache = cache
        self._program = program
        self.metrics = MetricGroup()
        self.over = False
        self.ended = False
        self.count = 0
        self.is_replay = False
        self._dry = work.resting
        self._in_columns = False
        self._live: LiveReader | None = None
        self._polls: list[PollRead] = []
        self._finished: list[str] = []  # since the last call of finished_splits()
        self._unlogged: list[str] = []
        self._answers: list[frozenset[str]] = []
        self._began = self._first = 0.0
        self._done: BatchRead | None = None
        self._again: _Again | None = None

    # ---- as a reader -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the source's reader, or the replay of an earlier attempt.

        Raises:
            CheckpointError: the log cannot be read.
            ConnectorError: the source's reader cannot be opened.
        """
        work, cache, where = self._work, self._cache, self._files.where
        self._done = self._files.read(work.batch, work.reader)
        self.is_replay = self._done is not None
        # A replay ends at the recorded positions; a reader that is open stands where another attempt has left it.
        if self._done is not None:
            if cache is not None:
                cache.drop(where, work.reader)
            self._again = _Again(self._source, work, self._done, self._clock, self.metrics)
            return
        if work.stops:
            if cache is not None:
                cache.drop(where, work.reader)
            return
        if work.resting:
            self.over = True
            return
        live = None if cache is None else cache.take(where, work.reader, work.token + self._program)
        if live is None:
            live = LiveReader(self._source, work.reader, work.parallelism, self._clock, self._begun)
        else:
            # Some readers ask whenever they wait, for the same split.
            live.asked = min(live.asked, 1)
        self._live = live
        if self._begun:
            # Batches run one after the other, so the one that has left these positions is complete.
            live.reader.checkpoint_completed(list(self._begun))
        self._feed(live)
        self._log_splits()
        self._began = self._first = self._clock.monotonic()

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Ignored: the batch has its splits."""

    def no_more_splits(self) -> None:
        """Ignored: the batch's work says so."""

    def poll(self, limit: int) -> Poll[Any]:
        """Return records, or Wait or END_OF_INPUT when the batch is over. Blocks while it waits for records."""
        if self.over:
            return END_OF_INPUT if self.ended else Wait()
        if self._again is not None:
            return self._poll_again(self._again)
        if self._work.stops:
            self.ended = True
            return self._end()
        assert self._live is not None, "call start() first"
        return self._poll_live(self._live, limit)

    @override
    def finished_splits(self) -> Sequence[str]:
        finished, self._finished = self._finished, []
        return finished

    def waiting_splits(self) -> Collection[str]:
        """Return the splits that have to wait; in a replay, the recorded ones.

        Recorded because they decide watermarks: a replay must advance event time as the first attempt did.
        """
        if self._again is not None:
            return self._again.answer()
        answer = frozenset(() if self._live is None else self._live.reader.waiting_splits())
        self._answers.append(answer)
        return answer

    @property
    def silent(self) -> frozenset[str]:
        """Ids of the splits from before this batch without a record in it; none unless the reader has run dry."""
        dry, polls = (self._dry, self._polls) if self._done is None else (self._done.dry, self._done.polls)
        if not dry or self._work.resting:
            return frozenset()
        return frozenset(split.split_id for split in self._begun) - {poll.split_id for poll in polls if poll.count}

    def snapshot(self) -> list[Any]:
        """Return the splits with their positions; in a replay, those after the batch."""
        if self._done is not None:
            return self._done.splits[: len(self._done.splits) - self._done.queued]
        return list(self._begun) if self._live is None else self._live.snapshot()

    def close(self) -> None:
        """Close open readers. Idempotent."""
        live, self._live = self._live, None
        again, self._again = self._again, None
        try:
            if live is not None:
                live.close()
        finally:
            if again is not None:
                again.close()

    # ---- the end of a batch -----------------------------------------------------------------------

    def finish(self, payload: bytes = b"") -> BatchRead:
        """Write the record of this batch durably, unless it exists. Nothing is read after this.

        Args:
            payload: data of the engine, stored with the record.

        Returns:
            the stored record.

        Raises:
            ConnectorError: another attempt finished first and has read other records.
            CheckpointError: the record cannot be written.
        """
        work = self._work
        live = self._live
        for each in (live, self._again):
            if each is not None:
                each.report(self.metrics)
        if self._done is not None:
            return self._done
        self._log_splits()
        queued = {split.split_id for split in self._queue}
        mine = BatchRead(
            tuple(self._polls),
            # In this order: `queued` counts from the end.
            [*self.snapshot(), *self._queue],
            work.asked if live is None else live.asked > 0,
            self.ended,
            self._dry,
            tuple(self._answers),
            payload,
            len(self._queue),
            asks=self._asks,
            together=work.together.intersection(queued),
            pushed=work.pushed.intersection(queued),
        )
        # The first attempt to create the file decides what the batch is. A slower one (a speculative copy of the
        # task) may go on only if it has read the same: its records are already on their way downstream.
        if not self._files.create(work.batch, str(work.reader), mine):
            self.close()
            theirs = self._files.read(work.batch, work.reader)
            if theirs is None or theirs.polls != mine.polls or theirs.waiting != mine.waiting:
                raise ConnectorError(
                    f"{self._source.name}: another attempt at batch {work.batch} of reader {work.reader} "
                    "finished first and has read other records; the next attempt repeats that one"
                )
            self._done = theirs
            return theirs
        self._done = mine
        if live is not None and self._cache is not None and not self.ended:
            self._live = None
            self._cache.keep(self._files.where, work.reader, mine.token + self._program, live)
        return mine

    # ---- inside ------------------------------------------------------------------------------------------

    def _poll_live(self, live: LiveReader, limit: int) -> Poll[Any]:
        work = self._work
        while True:
            # Limits are checked before each poll, so that no record is read that the batch has no room for.
            room = self._room()
            if room <= 0 or self._clock.monotonic() >= self._began + work.time_s:
                return self._end()
            result = live.reader.poll(min(limit, room))
            raise_rejected(live.reader)
            finished = live.reader.finished_splits()
            self._finished += finished
            self._unlogged += finished
            if isinstance(result, Wait):
                # Splits first: a reader that gets one has records at once, and need not be waited for.
                if self._feed(live, idle=True):
                    self._log_splits()
                elif not self._may_come(live, result):
                    self._dry = True
                    return self._end()
            elif are_records(result):
                if not self.count:
                    self._first = self._clock.monotonic()
                    self._in_columns = isinstance(result, Batch) and result.columns is not None
                self.current_split_id = live.reader.current_split_id
                self._feed(live)
                self._log(PollRead(self.current_split_id, len(result)))
                return result
            elif result is END_OF_INPUT:
                self.ended = True
                return self._end()
            else:
                raise wrong_poll(result, self._source)

    def _room(self) -> int:
        """Return the number of records that the batch may still have, each of which a reader takes for 64 rows."""
        if not self._in_columns:
            return self._work.limit - self.count
        return -(-(self._work.limit * _ROWS_IN_LIMIT - self.count) // ROWS_PER_RECORD)

    def _feed(self, live: LiveReader, *, idle: bool = False) -> bool:
        """Give the reader the next splits on request, or notify it that no more follow; return whether it did.

        An idle reader without splits gets some without a request: its request was made in an earlier batch.
        """
        queue, work = self._queue, self._work
        if not queue:
            return work.no_more and live.give((), no_more=True)
        is_pushed = queue[0].split_id in work.pushed and (idle or not self._asks)
        if not (live.asked or is_pushed or (idle and not live.snapshot())):
            return False
        # Those that are requested meanwhile are for the next call.
        for _ in range(live.asked or 1):
            if queue:
                self._give(live)
        return True

    def _give(self, live: LiveReader) -> None:
        # All splits of one assignment: the watermark of a reader is the minimum over those that it has.
        queue, work = self._queue, self._work
        joined = work.together if self._asks else work.together | work.pushed
        splits = [queue.popleft()]
        while queue and queue[0].split_id in joined:
            splits.append(queue.popleft())
        self._given(splits)
        self._unlogged_begun += [split.split_id for split in splits]
        live.give(splits, no_more=work.no_more and not queue)

    @property
    def _asks(self) -> bool:
        return self._work.asks or (self._live is not None and self._live.asks)

    def _may_come(self, live: LiveReader, wait: Wait) -> bool:
        """Sleep for the reader. Return whether to poll it again within this batch."""
        work, now = self._work, self._clock.monotonic()
        stop = self._began + work.time_s
        if wait.until is not None and wait.until <= now:
            return True
        if not live.snapshot():  # without splits, and new ones are assigned only with the next batch
            return False
        if not self.count:
            return live.waiter.sleep(wait, min(stop, self._began + work.wait_s))
        if wait.until is not None and wait.fileno is None:
            return False  # records due at a time in the future belong to a later batch
        return live.waiter.sleep(wait, min(stop, self._first + work.linger_s))

    def _poll_again(self, again: _Again) -> Poll[Any]:
        result, self.current_split_id, finished, begun = again.next()
        self._finished += finished
        if begun:
            self._given([split for split in self._work.splits if split.split_id in begun])
        if result is None:
            self.ended = again.read.ended
            return self._end()
        self.count += len(result)
        return result

    def _end(self) -> Poll[Any]:
        self.over = True
        return END_OF_INPUT if self.ended else Wait()

    def _log_splits(self) -> None:
        """Log the splits that have begun or ended since the last records, in front of those that follow."""
        self._log(PollRead(None, 0))

    def _log(self, poll: PollRead) -> None:
        finished, self._unlogged = tuple(self._unlogged), []
        begun, self._unlogged_begun = tuple(self._unlogged_begun), []
        if poll.count or finished or begun:
            self._polls.append(PollRead(poll.split_id, poll.count, finished, begun))
            self.count += poll.count


class _Again:
    """Replay of a recorded batch.

    Each split has its own reader, since one reader may take several splits in another order than before. If the
    recorded polls do not name their splits, one reader gets them as the first one did.
    """

    def __init__(
        self, source: Source[Any], work: BatchWork, read: BatchRead, clock: Clock, metrics: MetricGroup
    ) -> None:
        self.read = read
        self._source = source
        self._work = work
        self._clock = clock
        self._polls = iter(read.polls)
        self._answers = iter(read.waiting)
        self._apart = all(poll.split_id is not None for poll in read.polls if poll.count)
        self._unbegun = sum(len(poll.begun) for poll in read.polls)
        self._open: dict[str | None, _Part] = {}
        self._metrics = metrics

    def next(self) -> tuple[list[Any] | Batch[Any] | None, str | None, list[str], list[str]]:
        """Return records, their split, and splits finished and begun with them; records are None at the end."""
        gone: list[str] = []
        begun: list[str] = []
        # Polls without records only say which splits began and ended: they go with the next records.
        for poll in self._polls:
            gone += poll.finished
            begun += poll.begun
            result = self._part(poll.split_id).take(poll.count) if poll.count else None
            if poll.begun and not self._apart:
                self._begin(poll.begun)
            # A split that was read to its end needs its reader no more.
            if self._apart:
                for split_id in poll.finished:
                    part = self._open.pop(split_id, None)
                    if part is not None:
                        part.report(self._metrics)
                        part.close()
            if result is not None:
                return result, poll.split_id, gone, begun
        return None, None, gone, begun

    def answer(self) -> frozenset[str]:
        """Return the next recorded result of ``waiting_splits``."""
        return next(self._answers, frozenset())

    def report(self, group: MetricGroup) -> None:
        """As :meth:`LiveReader.report`, for the readers that are open."""
        for part in self._open.values():
            part.report(group)

    def close(self) -> None:
        """Close all readers."""
        while self._open:
            self._open.popitem()[1].close()

    def _begin(self, split_ids: Sequence[str]) -> None:
        part = self._part(None)
        self._unbegun -= len(split_ids)
        part.add([s for s in self._work.splits if s.split_id in split_ids], no_more=not self._unbegun)

    def _part(self, split_id: str | None) -> _Part:
        key = split_id if self._apart else None
        part = self._open.get(key)
        if part is None:
            splits = self._work.splits[: len(self._work.splits) - self._work.queued]
            if self._apart:
                splits = [split for split in self._work.splits if split.split_id == split_id]
            if self._apart and not splits:
                raise CheckpointError(
                    f"batch {self._work.batch} of {self._source.name} has records of split {split_id!r}, which "
                    f"reader {self._work.reader} was not given"
                )
            no_more = self._apart or not self._unbegun
            part = self._open[key] = _Part(self._source, self._work, splits, self._clock, no_more=no_more)
        return part


class _Part:
    def __init__(
        self, source: Source[Any], work: BatchWork, splits: list[Any], clock: Clock, *, no_more: bool
    ) -> None:
        self._source = source
        self._work = work
        self._live = LiveReader(source, work.reader, work.parallelism, clock, splits, no_more=no_more)
        self._clock = clock
        self._values: list[Any] = []
        self._stamps: list[int] = []  # of each of these, or none
        self._rows: Batch[Any] | None = None  # of a source in columns, in place of the other two
        self._form = ""  # of what is held

    def add(self, splits: Sequence[Any], *, no_more: bool) -> None:
        """Add splits to the reader, and notify it if no more follow."""
        self._live.give(splits, no_more=no_more)

    def take(self, count: int) -> list[Any] | Batch[Any]:
        """Return the next ``count`` records."""
        reader, monotonic = self._live.reader, self._clock.monotonic
        stop: float | None = None
        while (held := len(self._values if self._rows is None else self._rows)) < count:
            result = reader.poll(count - held)
            raise_rejected(reader)
            if isinstance(result, Wait):
                now = monotonic()
                if stop is None:  # a slow generator names the time of its next record
                    stop = max(now, result.until or now) + _REPLAY_WAIT_S
                if now >= stop:
                    raise self._fewer(held, count, f", and no more within {_REPLAY_WAIT_S:g} s")
                self._live.waiter.sleep(result, min(stop, now + self._work.wait_s))
            elif isinstance(result, list | Batch):
                self._hold(result if isinstance(result, Batch) else Batch(result), held, count)
                stop = None
            else:
                raise self._fewer(held, count)
        if self._rows is not None:
            rows, self._rows = self._rows.part(0, count), self._rows.part(count, None)
            return rows
        values, self._values = self._values[:count], self._values[count:]
        stamps, self._stamps = self._stamps[:count], self._stamps[count:]
        return Batch(values, stamps) if stamps else values

    def _fewer(self, held: int, count: int, waited: str = "") -> ConnectorError:
        return ConnectorError(
            f"{self._source.name} returned fewer records than before when batch {self._work.batch} was "
            f"read again: {held} instead of {count} of {self._about()}{waited}. A source has to "
            "return the same records from the same position"
        )

    def _hold(self, piece: Batch[Any], held: int, count: int) -> None:
        # Polls may cut the records in other places than the first time: what is too much waits for the next take.
        # But what one poll has returned was of one form.
        if not len(piece):
            return
        form = (
            f"{'records' if piece.columns is None else 'rows in columns'} "
            f"with{'out' if piece.timestamps is None else ''} timestamps"
        )
        if held and form != self._form:
            raise ConnectorError(
                f"{self._source.name} returned records in other forms than before when batch {self._work.batch} "
                f"was read again: {held} {self._form}, then {form}, instead of {count} of one form of "
                f"{self._about()}. A source has to return the same records from the same position"
            )
        self._form = form
        if piece.columns is not None:
            self._rows = piece if not held or self._rows is None else _joined(self._rows, piece)
            return
        self._rows = None
        self._values += piece.values
        self._stamps += piece.timestamps or ()

    def report(self, group: MetricGroup) -> None:
        self._live.report(group)

    def close(self) -> None:
        self._live.close()

    def _about(self) -> str:
        return ", ".join(repr(split.split_id) for split in self._work.splits[:3])


def _joined(first: Batch[Any], second: Batch[Any]) -> Batch[Any]:
    from sluiceway.columns.joining import as_one_batch  # where columns are used, and pyarrow is installed

    return as_one_batch([first, second])
