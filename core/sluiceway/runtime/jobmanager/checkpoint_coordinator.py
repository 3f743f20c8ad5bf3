"""Checkpoint coordinator: triggers checkpoints, completes them, and aborts those that fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Final, Protocol

import msgspec

from sluiceway.clock import Clock
from sluiceway.elements import CheckpointBarrier
from sluiceway.errors import CheckpointFailedError
from sluiceway.runtime.failures.error_texts import describe
from sluiceway.runtime.failures.explanation import add_note
from sluiceway.runtime.jobmanager.checkpoint_records import (
    CheckpointPolicy,
    CheckpointRecord,
    CompletedCheckpoint,
    Participants,
    SavepointRequest,
    Subtask,
)
from sluiceway.runtime.jobmanager.notification_retry import NotificationRetry
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.runtime.task.snapshot import TaskSnapshot

__all__ = [
    "CheckpointCoordinator",
    "CheckpointPolicy",
    "CheckpointRecord",
    "CompletedCheckpoint",
    "CoordinatedJob",
    "Participants",
    "SavepointRequest",
    "Subtask",
]

# Checkpoints in the history, and those whose acknowledgements are remembered.
_HISTORY: Final = 32
_AGAIN_MS: Final = 1000
"""Longest time before a failed final checkpoint is tried again; the interval, if that is shorter."""


class CoordinatedJob(Protocol):
    """Interface of a job to its coordinator. Calls return at once."""

    def participants(self) -> Participants | None:
        """Return the participants of a checkpoint that begins now; None: not all tasks are running."""

    def empty_final_snapshot(self, where: Subtask) -> TaskSnapshot | None:
        """Snapshot recorded for a finished subtask that is in no checkpoint; None if it held state."""

    def enumerators(self, checkpoint_id: int) -> dict[str, Any]:
        """Return the snapshots of the sources' enumerators; called just before the sources are triggered."""

    def trigger(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        """Trigger a checkpoint in a task."""

    def store(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Store a checkpoint; ``stored`` is called in this thread, now or later, with None or the error."""

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Discard a completed checkpoint that is not needed any more."""

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Discard what a task has written for a checkpoint that was aborted."""

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        """Discard what tasks have written for an aborted checkpoint or savepoint without acknowledging it."""

    def completed(self, checkpoint: CompletedCheckpoint, record: CheckpointRecord) -> None:
        """Notify all tasks of a completed checkpoint, except of a savepoint that the job continues after."""

    def aborted(self, checkpoint_id: int, cause: BaseException, failures: int) -> None:
        """Notify all tasks of an aborted checkpoint; ``failures``: number in a row, 0: it does not count."""

    def notify(self, attempt_ids: list[str], checkpoint_id: int, completed: bool) -> None:
        """Notify these tasks again that a checkpoint is complete, or was aborted."""

    def fail(self, cause: BaseException) -> None:
        """Fail the job: too many checkpoints have failed."""


class _Pending:
    """Checkpoint that was triggered, until it is completed or aborted.

    Attributes:
        id: id of the checkpoint.
        record: its entry in the history.
        timestamp_ms: time of the trigger, in ms since the epoch.
        began: the same in monotonic seconds.
        attempts: the tasks that it was triggered for.
        waits_for: those that have not acknowledged it.
        tasks: acknowledgements.
        finished: the subtasks that had finished before.
        drained: attempts that have acknowledged the end of their input with it.
        enumerators: snapshots of the sources' enumerators, by uid.
        storing: whether all have acknowledged it, and its store has begun.
        savepoint_request: the request, if it is a savepoint or suspends the job.
        requests: requests that it answers.
        savepoint: path or URL of the savepoint; empty for a checkpoint.
        expiry: timer of its timeout.
    """

    def __init__(self, checkpoint_id: int, timestamp_ms: int, began: float, who: Participants) -> None:
        self.id = checkpoint_id
        self.record = CheckpointRecord(checkpoint_id, timestamp_ms)
        self.timestamp_ms = timestamp_ms
        self.began = began
        self.attempts = frozenset(who.running)
        self.waits_for = dict(who.running)
        self.tasks: dict[Subtask, TaskSnapshot] = {}
        self.finished = who.finished
        self.drained: set[str] = set()
        self.enumerators: Mapping[str, Any] = {}
        self.storing = False
        self.savepoint_request: SavepointRequest | None = None
        self.requests: list[_Request] = []
        self.savepoint = ""
        self.expiry: Scheduled | None = None


class _Request:
    """Request of a client for a checkpoint that begins after the request."""

    def __init__(self, done: Callable[[int, BaseException | None], None]) -> None:
        self.done = done
        self.deadline: Scheduled | None = None

    def begin(self) -> None:
        """Stop the request's timer: the checkpoint has its own."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def answer(self, checkpoint_id: int, problem: BaseException | None) -> None:
        self.begin()
        self.done(checkpoint_id, problem)


class CheckpointCoordinator:
    """Coordinator of one job's checkpoints: a state machine, without threads or timers of its own.

    From the job master's thread only.

    A checkpoint is pending until every running subtask has acknowledged it. Once stored, it is completed:
    older pending ones are aborted, and completed ones beyond those to be retained are discarded. It fails
    when a task declines it, at its timeout, and when it cannot be stored. A task that fails
    aborts pending checkpoints, too, but that does not count as a failure of theirs.

    Before a rescale the job takes a checkpoint with which all tasks end, as with the last
    savepoint of a job. No other checkpoint begins before :meth:`start`.

    A savepoint is taken on request, while no checkpoint is pending. It is never restored after
    a failure, since its owner may delete it; its failure is no failure of the job; and sinks commit
    nothing for it, unless the job is stopped with it.

    When all running tasks have reached the end of their input, a checkpoint is taken at once: the tasks
    wait for it in order to finish.

    Args:
        policy: interval, timeout and limits.
        clock: for time stamps and durations.
        random: draws the time of the first checkpoint.
        job: the job.
        later: calls an action in this thread after a delay in seconds, unless it is cancelled.
        first_id: id of the first checkpoint.

    Attributes:
        history: the last checkpoints, oldest first.
        late: number of acknowledgements of checkpoints that were over.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        clock: Clock,
        random: Random,
        job: CoordinatedJob,
        later: Callable[[Callable[[], None], float], Scheduled],
        first_id: int = 1,
    ) -> None:
        self.history: deque[CheckpointRecord] = deque(maxlen=_HISTORY)
        self.late = 0
        self._policy = policy
        self._clock = clock
        self._random = random
        self._job = job
        self._later = later
        self._next_id = first_id
        self._pending: dict[int, _Pending] = {}
        # Complete checkpoints, oldest first. The last one is restored.
        self._retained: list[CompletedCheckpoint] = []
        self._wanted = False
        self._savepoint_requests: deque[tuple[SavepointRequest, Scheduled]] = deque()
        self._requests: list[_Request] = []
        self._stopped = True
        self._over = False
        self._resized_after = 0
        self._forgotten = False
        # No checkpoint begins before this time, in monotonic seconds: the minimum pause, or the delay after a
        # failure.
        self._earliest = 0.0
        self._interval: Scheduled | None = None
        self._retry: Scheduled | None = None
        self._failures = 0
        # Attempts that wait for a checkpoint with their end, and those that were notified of it and are about to
        # finish.
        self._drained: set[str] = set()
        self._leaving: set[str] = set()
        self._reminders = NotificationRetry(later, job.notify)
        self._answered: dict[int, set[str]] = {}

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """Checkpoint that the job would be restored from; None: the job starts empty."""
        return self._retained[-1] if self._retained else None

    @property
    def pending(self) -> tuple[int, ...]:
        """Ids of the pending checkpoints."""
        return tuple(self._pending)

    def adopt(self, completed: Iterable[CompletedCheckpoint], next_id: int) -> None:
        """Adopt the completed checkpoints of an earlier coordinator, oldest first; call before :meth:`start`."""
        self._retained = list(completed)
        self._next_id = next_id

    def resized(self) -> None:
        """Record that the job is restored from :attr:`latest` at another parallelism, with other subtasks."""
        self._resized_after = 0 if self.latest is None else self.latest.checkpoint_id

    def _known(self) -> Mapping[Subtask, TaskSnapshot]:
        """Return the acknowledgements of the last checkpoint from subtasks of the present parallelism."""
        latest = self.latest
        return {} if latest is None or latest.checkpoint_id <= self._resized_after else latest.tasks

    def _last_snapshot(self, where: Subtask) -> TaskSnapshot | None:
        """Return the snapshot of a finished subtask; None: it held state, and is in no checkpoint."""
        return self._known().get(where) or self._job.empty_final_snapshot(where)

    def _finished(self, pending: _Pending) -> dict[Subtask, TaskSnapshot]:
        """Return the snapshots of the subtasks that had finished before a checkpoint that is stored now.

        Those of the checkpoint that is the latest now: the one that was it at the trigger may be deleted since.
        """
        if pending.savepoint_request is not None:
            left = {where: self._last_snapshot(where) for where in pending.finished}
            return {where: snapshot for where, snapshot in left.items() if snapshot is not None}
        known = self._known()
        return {where: known[where].without_in_flight() for where in pending.finished if where in known}

    # ---- triggering -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start periodic checkpoints; the first one after a random part of the interval."""
        self._stopped = False
        if self._policy.interval_ms:
            self._call_at_interval(self._policy.interval_ms * self._random.random())

    def pause(self) -> None:
        """Begin no checkpoint until :meth:`start` is called again. Requests wait."""
        self._stopped = True
        for timer in (self._interval, self._retry):
            if timer is not None:
                timer.cancel()

    def stop(self) -> None:
        """Stop for good. A checkpoint that all tasks have acknowledged is still completed."""
        self.pause()
        self._over = True
        # One that is being stored cannot be recalled: its files are written, so it completes instead.
        for pending in list(self._pending.values()):
            if not pending.storing:
                self._abort(pending, CheckpointFailedError("the job has ended"), counts=False)
        while self._savepoint_requests:
            self._next_savepoint_request().done("", CheckpointFailedError("the job has ended"))
        requests, self._requests = self._requests, []
        for each in requests:
            each.answer(0, CheckpointFailedError("the job has ended"))

    def forget(self) -> None:
        """Release the completed checkpoints, now or once a pending store ends: the job has ended."""
        self._forgotten = True
        self._reminders.stop()
        self.maybe_trigger()

    def _call_at_interval(self, delay_ms: float) -> None:
        self._interval = self._later(self._due, delay_ms / 1000)

    def _due(self) -> None:
        if not self._stopped:
            self._wanted = True
            self._call_at_interval(self._policy.interval_ms)
            self.maybe_trigger()

    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint as soon as all tasks are running, whatever the minimum pause.

        Args:
            done: called once, with the id of the first completed checkpoint that began after this call, or
                with 0 and the error.
        """
        if self._over:
            done(0, CheckpointFailedError("the job has ended"))
            return
        request = _Request(done)
        request.deadline = self._later(lambda: self._request_timed_out(request), self._policy.timeout_ms / 1000)
        self._requests.append(request)
        self._wanted = True
        self.maybe_trigger()

    def _request_timed_out(self, request: _Request) -> None:
        if request in self._requests:
            self._requests.remove(request)
            request.answer(0, self._never_begun())

    def _never_begun(self) -> CheckpointFailedError:
        why = f"not all tasks were running for {self._policy.timeout_ms / 1000:g} s, or others were under way"
        return CheckpointFailedError(why)

    def savepoint(self, request: SavepointRequest) -> None:
        """Take a savepoint, as soon as no checkpoint is pending and all tasks are running."""
        if self._over:
            request.done("", CheckpointFailedError("the job has ended"))
            return
        deadline = self._later(lambda: self._savepoint_request_timed_out(request), self._policy.timeout_ms / 1000)
        self._savepoint_requests.append((request, deadline))
        self.maybe_trigger()

    def _next_savepoint_request(self) -> SavepointRequest:
        request, deadline = self._savepoint_requests.popleft()
        deadline.cancel()
        return request

    def _savepoint_request_timed_out(self, request: SavepointRequest) -> None:
        self._savepoint_requests = deque(
            waiting for waiting in self._savepoint_requests if waiting[0] is not request
        )
        request.done("", self._never_begun())
        self.maybe_trigger()

    def _maybe_trigger_savepoint(self) -> None:
        # A savepoint is never pending beside another checkpoint: maybe_trigger() begins none while one is.
        who = self._job.participants()
        if self._pending or who is None or not self._may_take(who):
            return
        request = self._next_savepoint_request()
        # A savepoint stands alone, so a finished subtask must be in it: with its last snapshot, or without state.
        if any(self._last_snapshot(where) is None for where in who.finished):
            gone = "a task has finished, and its state is in no checkpoint: give the job a checkpoint-interval"
            request.done("", CheckpointFailedError(gone))
            self.maybe_trigger()
        else:
            self._trigger(who, self._clock.monotonic(), request)

    def _may_take(self, who: Participants) -> bool:
        # A task in `_leaving` was notified of its final checkpoint and is about to end: it answers no barrier.
        return bool(who.running) and not any(attempt in self._leaving for attempt in who.running)

    def maybe_trigger(self) -> None:
        """Trigger requested checkpoints as soon as they can begin; call after every change."""
        if self._forgotten and not self._pending:
            self._retained.clear()
            self._answered.clear()
        if self._stopped or any(p.savepoint_request for p in self._pending.values()):
            return
        if self._savepoint_requests:
            self._maybe_trigger_savepoint()
            return
        if len(self._pending) >= self._policy.max_concurrent:
            return
        if not self._wanted and not self._drained:
            return
        who = self._job.participants()
        if who is None or not self._may_take(who):
            return
        # With all input processed, tasks wait for this checkpoint alone: neither the interval nor, the first time,
        # the minimum pause delays it.
        last = not self._pending and all(attempt in self._drained for attempt in who.running)
        if not last and not self._wanted:
            return
        now = self._clock.monotonic()
        if now < self._earliest and not self._requests and not (last and self._failures == 0):
            # A retry that is pending comes no later: `_earliest` only grows.
            if self._retry is None or not self._retry.pending:
                self._retry = self._later(self.maybe_trigger, self._earliest - now)
            return
        self._trigger(who, now, aligned_ms=-1 if last else self._policy.aligned_ms)

    def _trigger(
        self,
        who: Participants,
        now: float,
        request: SavepointRequest | None = None,
        aligned_ms: int = -1,
    ) -> None:
        pending = _Pending(self._next_id, self._clock.now_ms(), now, who)
        # Requests that came before this moment are answered by this checkpoint.
        if request is None:
            self._wanted = False
            pending.requests, self._requests = self._requests, []
            for each in pending.requests:
                each.begin()
        else:
            pending.savepoint_request = request
            pending.savepoint = request.location(pending.id, pending.timestamp_ms)
        self._next_id += 1
        self._pending[pending.id] = pending
        # Attempts that have acknowledged, of the last checkpoints: tells a late acknowledgement, whose files are
        # deleted, from a repeated one, whose files may be in use.
        self._answered[pending.id] = set()
        self._answered.pop(pending.id - _HISTORY, None)
        pending.record.savepoint = pending.savepoint
        self.history.append(pending.record)
        # Enumerators before the barriers: splits assigned from here on reach the readers after their barriers, so
        # each split is in exactly one of the two snapshots.
        try:
            pending.enumerators = self._job.enumerators(pending.id)
        except Exception as error:
            self._abort(pending, error, counts=True)
            return
        stops = request is not None and (request.stops or request.suspends)
        barrier = CheckpointBarrier(pending.id, pending.timestamp_ms, pending.savepoint, stops, aligned_ms)
        pending.expiry = self._later(lambda: self._timed_out(pending), self._policy.timeout_ms / 1000)
        # All other tasks receive the barrier from their producers.
        for attempt_id in who.first:
            self._job.trigger(attempt_id, barrier)

    # ---- messages of tasks ----------------------------------------------------------------------------------

    def acknowledge(self, attempt_id: str, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Process an acknowledgement. A late one is discarded, a repeated one ignored."""
        self._reminders.heard_from(attempt_id, checkpoint_id)
        pending = self._pending.get(checkpoint_id)
        where = None if pending is None else pending.waits_for.pop(attempt_id, None)
        # Files of checkpoints no longer in `_answered` may be part of retained ones: the collection of orphans
        # decides about them.
        answered = self._answered.get(checkpoint_id)
        if pending is None or where is None or answered is None:
            self.late += 1
            if answered is not None and attempt_id not in answered:
                answered.add(attempt_id)
                self._job.discard_part(checkpoint_id, snapshot)
            return
        answered.add(attempt_id)
        pending.tasks[where] = snapshot
        pending.record.tasks[where] = _without_state(snapshot)
        if snapshot.drained:
            pending.drained.add(attempt_id)
        if not pending.waits_for:
            self._store(pending)

    def decline(self, attempt_id: str, checkpoint_id: int, cause: BaseException) -> None:
        """Process a task's refusal of a checkpoint."""
        pending = self._pending.get(checkpoint_id)
        if pending is not None and attempt_id in pending.waits_for:
            self._abort(pending, cause, counts=True)

    def drained(self, attempt_id: str) -> None:
        """Record that a task has reached the end of its input and waits for a checkpoint."""
        self._drained.add(attempt_id)
        self.maybe_trigger()

    def task_ended(self, attempt_id: str, *, failed: bool) -> None:
        """Record the end of a task; if it failed, checkpoints that it has not acknowledged cannot complete."""
        self._drained.discard(attempt_id)
        self._leaving.discard(attempt_id)
        self._reminders.heard_from(attempt_id)
        # A checkpoint that all have acknowledged is stored to its end in spite of a failure: nothing in it depends
        # on the task any more.
        ended = CheckpointFailedError("a task has ended before it was complete")
        for pending in list(self._pending.values()):
            # A savepoint that is being stored now is newer than the checkpoint that the job is restored from.
            vain = failed and (pending.savepoint_request is not None or not pending.storing)
            if vain or attempt_id in pending.waits_for:
                self._abort(pending, ended, counts=False)
        self.maybe_trigger()

    def restarting(self) -> None:
        """Abort all pending checkpoints: tasks are restarted from :attr:`latest`."""
        for pending in list(self._pending.values()):
            self._abort(pending, CheckpointFailedError("tasks restarted before it was stored"), counts=False)

    # ---- completion and abort -------------------------------------------------------------------------------

    def _store(self, pending: _Pending) -> None:
        pending.storing = True
        pending.record.acknowledged_ms = self._ms_since(pending.began)
        tasks = {**self._finished(pending), **pending.tasks}
        stops = pending.savepoint_request is not None and pending.savepoint_request.stops
        checkpoint = CompletedCheckpoint(
            pending.id,
            pending.timestamp_ms,
            tasks,
            pending.enumerators,
            pending.savepoint,
            stops,
            tuple(record.entry() for record in self.history if record.checkpoint_id < pending.id),
        )
        self._job.store(checkpoint, lambda problem: self._stored(pending, checkpoint, problem))

    def _stored(self, pending: _Pending, checkpoint: CompletedCheckpoint, problem: BaseException | None) -> None:
        if pending.id not in self._pending:
            # Aborted while it was being stored: only now can it be deleted.
            if problem is None:
                self._job.discard(checkpoint)
            else:
                self._discard_parts(pending)
            return
        if problem is not None:
            pending.storing = False
            self._abort(pending, problem, counts=True)
            return
        if pending.savepoint_request is not None and not pending.savepoint_request.suspends:
            self._complete_savepoint(pending, pending.savepoint_request, checkpoint)
        else:
            self._complete(pending, checkpoint)

    def _complete(self, pending: _Pending, checkpoint: CompletedCheckpoint) -> None:
        """Complete a stored checkpoint, from which the job is restored from now on."""
        # Requests of subsumed checkpoints are served by this one: it is newer than what they asked for.
        subsumed = CheckpointFailedError(f"checkpoint {pending.id} was complete before it")
        for older in [p for p in self._pending.values() if p.id < pending.id]:
            pending.requests += older.requests
            older.requests = []
            self._abort(older, subsumed, counts=False)
        self._drop(pending)
        self._failures = 0
        self._leaving |= pending.drained
        # Before tasks are notified: sinks commit with it, so that no failure from here on may restore an older
        # one.
        self._retained.append(checkpoint)
        self._begin_pause()
        record = self._record(pending, "completed")
        # Only a request that suspends the tasks arrives here: no checkpoint may begin while they end.
        request = pending.savepoint_request
        if request is not None:
            self.pause()
        self._job.completed(checkpoint, record)
        self._reminders.expect(
            pending.drained if request is None else pending.attempts, pending.id, completed=True
        )
        while len(self._retained) > self._policy.retained:
            self._job.discard(self._retained.pop(0))
        for each in pending.requests:
            each.answer(pending.id, None)
        if request is not None:
            request.done("", None)
        self.maybe_trigger()

    def _complete_savepoint(
        self, pending: _Pending, request: SavepointRequest, checkpoint: CompletedCheckpoint
    ) -> None:
        # Not appended to `_retained`: its owner may delete it, so the job is never restored from it.
        self._drop(pending)
        self._job.completed(checkpoint, self._record(pending, "completed"))
        request.done(pending.savepoint, None)
        if request.stops:
            self._reminders.expect(pending.attempts, pending.id, completed=True)
            self.stop()
        self.maybe_trigger()

    def _drop(self, pending: _Pending) -> None:
        """Remove a checkpoint that has ended, and cancel its timer, which refers to its snapshots."""
        del self._pending[pending.id]
        if pending.expiry is not None:
            pending.expiry.cancel()

    def _timed_out(self, pending: _Pending) -> None:
        late = len(pending.waits_for)
        missing = f"{late} of {late + len(pending.tasks)} subtasks had not acknowledged it"
        if pending.storing:
            missing = "it was not stored"
        timeout_s = self._policy.timeout_ms / 1000
        self._abort(pending, CheckpointFailedError(f"after {timeout_s:g} s {missing}"), counts=True)

    def _abort(self, pending: _Pending, cause: BaseException, *, counts: bool) -> None:
        self._drop(pending)
        # While it is being stored its files are in use; `_stored` discards them.
        if not pending.storing:
            self._discard_parts(pending)
        self._begin_pause()
        self._record(pending, "failed", _reason(cause))
        counts = counts and pending.savepoint_request is None
        self._failures += counts
        self._job.aborted(pending.id, cause, self._failures if counts else 0)
        for each in pending.requests:
            each.answer(0, cause)
        if pending.savepoint_request is not None:
            if pending.savepoint_request.stops or pending.savepoint_request.suspends:
                # The tasks are suspended behind its barrier, and continue only when they are notified.
                self._reminders.expect(pending.attempts, pending.id, completed=False)
            pending.savepoint_request.done("", cause)
        elif counts:
            again_ms = min(self._policy.interval_ms, _AGAIN_MS)
            self._earliest = max(self._earliest, self._clock.monotonic() + again_ms / 1000)
            if self._failures > self._policy.tolerated_failures and not self._stopped:
                self._fail(pending.id, cause)
        self.maybe_trigger()

    def _discard_parts(self, pending: _Pending) -> None:
        for snapshot in pending.tasks.values():
            self._job.discard_part(pending.id, snapshot)
        self._job.discard_rest(pending.id, pending.savepoint)

    def _fail(self, checkpoint_id: int, cause: BaseException) -> None:
        failures, self._failures = self._failures, 0
        error = CheckpointFailedError(
            f"checkpoint {checkpoint_id} has failed: {_reason(cause)}. That makes {failures} in a row, and "
            f"checkpoint-tolerated-failures is {self._policy.tolerated_failures}"
        )
        error.__cause__ = cause
        for note in getattr(cause, "__notes__", ()):
            add_note(error, note)
        self._job.fail(error)

    def _begin_pause(self) -> None:
        pause_s = self._policy.min_pause_ms / 1000
        self._earliest = max(self._earliest, self._clock.monotonic() + pause_s)

    def _ms_since(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)

    def _record(self, pending: _Pending, status: str, reason: str = "") -> CheckpointRecord:
        record = pending.record
        record.duration_ms = self._ms_since(pending.began)
        record.reason = reason
        record.size = sum(snapshot.size for snapshot in pending.tasks.values())
        # The status last: threads of clients take a record that has ended for complete.
        record.status, record.info = status, None
        return record


def _reason(cause: BaseException) -> str:
    """Return the text of a failure, or its class if it has none or cannot tell it."""
    return describe(cause).removeprefix(f"{type(cause).__qualname__}: ")


def _without_state(snapshot: TaskSnapshot) -> TaskSnapshot:
    return msgspec.structs.replace(snapshot, operators=(), entry=None, in_flight=(), size_alone=snapshot.size)
