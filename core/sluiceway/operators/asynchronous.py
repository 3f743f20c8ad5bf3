"""Operator of asynchronous functions: many coroutines at a time, with results in order or as they complete.

The operator decides which call is made when. The worker's event loop makes the calls and returns in batches those
that have ended. A record is under way from its first call until its results are emitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, NoReturn

from sluiceway.connector import Wait
from sluiceway.elements import Batch, CancelCheckpointMarker, CheckpointBarrier, Element, Watermark
from sluiceway.errors import FunctionContractError
from sluiceway.functions import AsyncFunction
from sluiceway.functions.life import note_closed, note_opened
from sluiceway.isolation import copied
from sluiceway.operators.async_calls import Call, CallCancelledError, Calls
from sluiceway.operators.async_queues import Entry, OrderedQueue, Queue, UnorderedQueue
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.results import is_one_record
from sluiceway.operators.runtime_context import OperatorRuntimeContext
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.record_errors import record_loop
from sluiceway.steps import AsyncStep

__all__ = ["AsyncOperator"]

_UNTIL_WOKEN: Final = Wait()
_OPEN: Final = "open"


class _Expiry:
    """Token for the call of ``timeout`` for a record."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


class _Failed:
    """Marker in place of the results of a skipped record; it keeps the record's place in the queue."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Kept(list[Any]):
    """Results of a call, each with nothing in it that the function can still change."""


class _NotCopiedError(Exception):
    """A result has to be copied and cannot be: no failure of the call, so it is not made again.

    Args:
        error: says so to the user.
    """

    def __init__(self, error: FunctionContractError) -> None:
        super().__init__(error)
        self.error = error


class AsyncOperator(TimedOperator):
    """Operator that calls a coroutine function for each record."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, AsyncStep)
        self._fn = step.fn
        self._invoke: Any = step.fn.async_invoke if isinstance(step.fn, AsyncFunction) else step.fn
        self._single = not isinstance(step.fn, AsyncFunction)
        self._timeout_ms = step.timeout_ms
        self._capacity = step.capacity
        self._retry = step.retry
        self._queue: Queue = OrderedQueue() if step.ordered else UnorderedQueue()
        # Records whose call has not begun: a batch or a restore may bring more than the capacity.
        self._unstarted: deque[Entry] = deque()
        # Records whose call has begun and whose results were not emitted: these take up the capacity.
        self._active = 0
        # By deadline without sorting, as all records have the same timeout. Done ones stay until they come first,
        # or outnumber the others.
        self._deadlines: deque[Entry] = deque()
        # Heap by due time; the counter breaks ties, since entries cannot be compared.
        self._retries: list[tuple[int, int, Entry]] = []
        self._turn = count()
        self._calls: Calls | None = None
        # The function's open() is running; and whether its close() is due, also after an open() that has failed.
        self._opening = False
        self._opened = False
        # The queue has more to release, though no call has ended since.
        self._more = False
        self._dead = DeadLetters(context)
        # Number of _Failed in the queue: while there is none, results are emitted without a look at each.
        self._failed = 0

    # ---- life ----------------------------------------------------------------------------------------------

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Restore the in-flight records: the subtask's own under the same parallelism as before, else a share."""
        subtask, parallelism = self.context.subtask, self.context.node.parallelism
        if len(restored) == parallelism:
            self._accept(restored[subtask].pending)
        # Without keys, so any subtask may take any record.
        else:
            everything = [record for snapshot in restored for record in snapshot.pending]
            self._accept(everything[subtask::parallelism])

    def open(self) -> None:
        """Start to open the function; the operator is blocked until it is open."""
        self._calls = self.context.calls(self.context.wake)
        if isinstance(self._fn, AsyncFunction):
            self._opening = self._opened = True
            note_opened(self._fn)
            self._calls.start([Call(_OPEN, self._fn.open, OperatorRuntimeContext(self.context, None))])
        else:
            self._start()

    def close(self) -> None:
        """Cancel all calls and close the function."""
        calls, self._calls = self._calls, None
        if calls is not None:
            opened, self._opened = self._opened, False
            note_closed(self._fn)
            calls.close(self._fn.close if opened and isinstance(self._fn, AsyncFunction) else None)

    def snapshot(self) -> OperatorSnapshot:
        """Return the in-flight records, which are processed again after a restore."""
        pending = tuple((entry.value, entry.timestamp) for entry in self._queue.entries())
        return OperatorSnapshot(self.context.node.uid, pending=pending)

    # ---- in ------------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Start a call for each record, up to the capacity."""
        stamps: Iterable[int | None] = batch.timestamps or [None] * len(batch.values)
        self._accept(zip(batch.values, stamps, strict=True))
        self._start()

    def control(self, element: Element) -> None:
        """Queue a control element among the records. Barriers pass at once, as the snapshot holds the records."""
        if isinstance(element, CheckpointBarrier | CancelCheckpointMarker):
            self.output.control(element)
            return
        if type(element) is Watermark:
            self.current_watermark = element.timestamp
        self._queue.put_control(element)
        self._drain()

    def blocked(self) -> Wait | None:
        """Return the wait of a full queue, or of a function that is not open yet; else None."""
        if self._opening or self._active >= self._capacity:
            return _UNTIL_WOKEN
        return None

    def draining(self) -> Wait | None:
        """Return the wait for the in-flight records; None if no record is in flight."""
        return _UNTIL_WOKEN if self._opening or self._queue else None

    def _accept(self, records: Iterable[tuple[Any, int | None]]) -> None:
        put, unstarted = self._queue.put, self._unstarted
        for value, timestamp in records:
            entry = Entry(value, timestamp)
            put(entry)
            unstarted.append(entry)

    def _start(self) -> None:
        room = min(self._capacity - self._active, len(self._unstarted))
        # Restored records wait here until the function is open.
        if room <= 0 or self._opening:
            return
        started = [self._unstarted.popleft() for _ in range(room)]
        self._active += room
        if self._timeout_ms is not None:
            deadline = self.context.clock.steady_ms() + self._timeout_ms
            for entry in started:
                entry.deadline = deadline
            self._deadlines.extend(started)
            # No more than the capacity are not done.
            if len(self._deadlines) > 2 * self._capacity:
                self._deadlines = deque(entry for entry in self._deadlines if not entry.done)
        self._call(started)

    def _call(self, entries: list[Entry]) -> None:
        assert self._calls is not None
        invoke = self._invoke
        for entry in entries:
            entry.attempts += 1
        # The record itself is kept for retries and for checkpoints: the function must not change it.
        keep = self._keep if self._single else self._keep_all
        self._calls.start([Call(entry, invoke, self._lent(entry), keep) for entry in entries])

    def _lent(self, entry: Entry) -> Any:
        return entry.value if self.shares else copied(entry.value)

    # In the event loop's thread. A result is what it is when its call returns: a call that goes on there may fill
    # the same object with its own result before the task has taken this one.

    def _keep(self, value: Any) -> Any:
        try:
            return self.isolate(value)
        except FunctionContractError as error:
            raise _NotCopiedError(error) from error

    def _keep_all(self, returned: Any) -> Any:
        # Generators make their results when the task asks for them, and what is no list of results is told there.
        if type(returned) is not list:
            return returned
        kept = _Kept()
        try:
            self.extend(kept, returned)
        except FunctionContractError as error:
            raise _NotCopiedError(error) from error
        return kept

    # ---- out -----------------------------------------------------------------------------------------------

    @property
    # A property over an attribute: calls end in the event loop's thread, which only wakes the task.
    def has_work(self) -> bool:  # type: ignore[override]
        """True if calls have ended, or results can be emitted."""
        return self._more or (self._calls is not None and self._calls.ready)

    def work(self) -> None:
        """Process ended calls, emit what the queue releases, and start calls up to the capacity."""
        assert self._calls is not None
        for token, result, error in self._calls.take():
            if type(token) is Entry:
                # A call may still end after its timeout. Its record belongs to timeout() from then on.
                if not token.expired:
                    self._ended(token, result, error)
            elif token is _OPEN:
                if error is not None:
                    raise error
                self._opening = False
            else:
                assert isinstance(token, _Expiry)
                self._timed_out(token.entry, result, error)
        self._drain()
        self._start()

    def _ended(self, entry: Entry, result: Any, error: BaseException | None) -> None:
        try:
            self._take_result(entry, result, error)
        except Exception as failure:
            if not self._dead.skipping:
                raise
            self._give_up(entry, failure)

    def _take_result(self, entry: Entry, result: Any, error: BaseException | None) -> None:
        retry = self._retry
        if error is None:
            if not self._single:
                result = self._list(entry, result)
            if retry is not None and self._tries_again(entry, result, None):
                return
            entry.result = result
            self._queue.done(entry)
        # A cancelled call is not repeated: that of an expired record was sorted out before, so the user's own code
        # has cancelled this one.
        elif (
            retry is None
            or type(error) in (CallCancelledError, _NotCopiedError)
            or not self._tries_again(entry, None, error)
        ):
            self._fail(entry, error)

    def _timed_out(self, entry: Entry, result: Any, error: BaseException | None) -> None:
        try:
            if error is not None:
                self._fail(entry, error)
            entry.result = self._list(entry, result)
        except Exception as failure:
            if not self._dead.skipping:
                raise
            self._give_up(entry, failure)
            return
        self._queue.done(entry)

    def _give_up(self, entry: Entry, failure: Exception) -> None:
        """Skip a record when its turn comes."""
        entry.result = _Failed(failure)
        self._failed += 1
        self._queue.done(entry)

    def _drain(self) -> None:
        """Emit results up to the first control element; everything behind it waits for its turn."""
        # One control element per part: a watermark may leave work or a wait in the operators behind, which the
        # task looks at before it asks for the next part.
        gone, element = self._queue.take()
        if gone:
            self._active -= len(gone)
            self._emit(self._without_failed(gone) if self._failed else gone)
            self._dead.give(self.output)
        if element is not None:
            self.output.control(element)
        self._more = element is not None and self._queue.has_ready

    @record_loop
    def _without_failed(self, entries: list[Entry]) -> list[Entry]:
        kept = []
        for entry in entries:
            if type(entry.result) is not _Failed:
                kept.append(entry)
                continue
            value, timestamp, error = entry.value, entry.timestamp, entry.result.error
            self._failed -= 1
            if not self._dead.take(error, value, timestamp):
                raise error
        return kept

    def _emit(self, entries: list[Entry]) -> None:
        values: list[Any]
        stamps: list[int | None]
        if self._single:
            values = [entry.result for entry in entries]
            stamps = [entry.timestamp for entry in entries]
        else:
            values, stamps = [], []
            for entry in entries:
                values.extend(entry.result)
                stamps.extend([entry.timestamp] * len(entry.result))
        if not values:
            return
        # A batch has timestamps for all of its records or for none: cut where that changes.
        first = stamps[0] is None
        start = 0
        for index, stamp in enumerate(stamps):
            if (stamp is None) is not first:
                self.output.emit(_batch(values[start:index], stamps[start:index]))
                start, first = index, not first
        self.output.emit(_batch(values[start:], stamps[start:]) if start else _batch(values, stamps))

    @record_loop
    def _list(self, entry: Entry, result: Any) -> list[Any]:
        value, timestamp = entry.value, entry.timestamp  # noqa: F841 (for the message, by their names)
        if type(result) is _Kept:
            return result
        if result is None:
            return []
        if not isinstance(result, Iterable) or is_one_record(result):
            raise FunctionContractError(
                f"the async function of step {self.step_name!r} returned {result!r:.100} "
                f"({type(result).__name__}); async_invoke() and timeout() return a list of results, also where "
                "there is but one, or another iterable, or None"
            )
        results: list[Any] = []
        self.extend(results, result)
        return results

    @record_loop
    def _fail(self, entry: Entry, error: BaseException) -> NoReturn:
        value, timestamp = entry.value, entry.timestamp  # noqa: F841 (for the message, by their names)
        if type(error) is _NotCopiedError:
            raise error.error
        if type(error) is CallCancelledError:
            raise FunctionContractError(
                f"a coroutine of step {self.step_name!r} was cancelled, and not by the job: if it awaits "
                "something that may be cancelled, it must catch asyncio.CancelledError"
            )
        if entry.attempts > 1:
            error.add_note(f"in attempt {entry.attempts}")
        raise error

    # ---- time ----------------------------------------------------------------------------------------------

    @record_loop
    def _tries_again(self, entry: Entry, result: Any, error: BaseException | None) -> bool:
        value, timestamp = entry.value, entry.timestamp  # noqa: F841 (for the message, by their names)
        retry = self._retry
        assert retry is not None
        again = retry.retry_on_result(result) if error is None else retry.retry_on_exception(error)
        if not again or not retry.can_retry(entry.attempts):
            return False
        due = self.context.clock.steady_ms() + retry.get_backoff_time_millis(entry.attempts)
        heappush(self._retries, (due, next(self._turn), entry))
        return True

    def next_processing_time(self) -> int | None:
        """Return the time of the next deadline or retry."""
        deadlines, retries = self._deadlines, self._retries
        while deadlines and deadlines[0].done:
            deadlines.popleft()
        due = deadlines[0].deadline if deadlines else None
        if retries and (due is None or retries[0][0] < due):
            due = retries[0][0]
        return None if due is None else self.in_processing_time(due)

    def on_processing_time(self, now_ms: int) -> None:
        """Time out the records whose deadline has passed, and start due retries."""
        expired = []
        now = self.in_steady_time(now_ms)
        while self._deadlines and (self._deadlines[0].done or self._deadlines[0].deadline <= now):
            entry = self._deadlines.popleft()
            if not entry.done:
                entry.expired = True
                expired.append(entry)
        if expired:
            # Their timeout decides about them, not another call.
            self._retries = [waiting for waiting in self._retries if not waiting[2].expired]
            heapify(self._retries)
            self._expire(expired)
        again = []
        while self._retries and self._retries[0][0] <= now:
            again.append(heappop(self._retries)[2])
        if again:
            self._call(again)

    def _expire(self, entries: list[Entry]) -> None:
        assert self._calls is not None
        # Whatever a cancelled call still returns is ignored, as its record is marked as expired.
        self._calls.cancel(entries)
        if not isinstance(self._fn, AsyncFunction):
            for entry in entries:
                error = TimeoutError(
                    f"step {self.step_name!r} has got no result within {self._timeout_ms} ms: allow it more "
                    "with timeout=, or give it an AsyncFunction with a timeout(value) that returns other results"
                )
                self._timed_out(entry, None, error)
            # A record that waits for its retry has no call whose end would release its place in the queue.
            self._drain()
            self._start()
            return
        self._calls.start(
            [Call(_Expiry(entry), self._fn.timeout, self._lent(entry), self._keep_all) for entry in entries]
        )


def _batch(values: list[Any], stamps: list[Any]) -> Batch[Any]:
    return Batch(values, None if stamps[0] is None else stamps)
