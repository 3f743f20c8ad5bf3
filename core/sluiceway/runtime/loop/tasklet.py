"""Worker loop: one thread that runs tasklets in turn and sleeps when none has work.

A tasklet does a small step at a time and reports its progress. A tasklet that is parked
is woken by a channel with data or credit, a file, a deadline or a mail. Nothing here takes a lock;
mails are the only way in from other threads.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import count
from threading import get_ident

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.runtime.logging.context import stepping
from sluiceway.runtime.logging.engine_log import ERROR, log
from sluiceway.runtime.loop.forked_children import generation, leave_if_forked
from sluiceway.runtime.loop.poller import Poller
from sluiceway.util.overriding import override

__all__ = ["Presence", "Progress", "Scheduled", "Tasklet", "TaskletLoop", "acting_for"]

# Turns of all ready tasklets between two looks at files, each of which is a system call.
_ROUNDS_BETWEEN_POLLS = 16
_PATIENCE_S = 0.002
"""Seconds after which mails and files are checked, even if not all tasklets have had their turn."""
_SHORT_TURN_S = 0.001
"""Seconds after which a turn of a tasklet ends."""
_CANCELLED_KEPT = 64
"""Number of cancelled calls below which the heap is not rebuilt."""


class Progress(Enum):
    """Progress of a tasklet after a step."""

    AGAIN = "again"
    """There is more to do at once."""
    IDLE = "idle"
    """Nothing to do until somebody wakes it."""
    BLOCKED = "blocked"
    """Something to do, but nowhere to put the result until somebody wakes it."""
    DONE = "done"
    """It will not run again."""


class Scheduled:
    """Scheduled call of a loop, which may be cancelled before.

    A cancelled call holds neither its action nor anything that the action refers to: a timeout of minutes must not
    keep alive what it was to watch.

    Args:
        action: what is called.
    """

    __slots__ = ("_action", "_loop")

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._loop: TaskletLoop | None = None

    @property
    def pending(self) -> bool:
        """True until the call is made or cancelled."""
        return self._action is not None

    def cancel(self) -> None:
        """Cancel the call. From the loop's thread; harmless twice, and after the call."""
        self._action = None
        loop, self._loop = self._loop, None
        if loop is not None:
            loop._one_cancelled()

    def call(self) -> None:
        """Make the call, unless it was cancelled. From the loop's thread."""
        action, self._action, self._loop = self._action, None, None
        if action is not None:
            action()


class Tasklet(ABC):
    """Unit of work that a worker runs step by step.

    Attributes:
        scheduled: whether it is in the worker's queue; set by the worker only.
        busy_s: seconds spent in steps.
        blocked_s: seconds parked because its output was blocked.
        idle_s: seconds parked because it had no input.
        steps_a_turn: largest number of short steps in a turn.
    """

    steps_a_turn = 1

    def __init__(self) -> None:
        self.scheduled = False
        self.busy_s = 0.0
        self.blocked_s = 0.0
        self.idle_s = 0.0
        self.rest_since = 0.0
        self.rest = Progress.AGAIN
        self.deadline: float | None = None
        self.alarm: Scheduled | None = None

    @abstractmethod
    def step(self) -> Progress:
        """Do one step, in the worker's thread. Must neither block nor raise."""

    def goes_on(self) -> bool:
        """Return whether another step may follow in the same turn; an estimate."""
        return True


@contextmanager
def acting_for(tasklet: Tasklet) -> Iterator[None]:
    """Attribute actions in this context, outside of steps, to ``tasklet``."""
    before = stepping.set(tasklet)
    try:
        yield
    finally:
        stepping.reset(before)


class Presence(Tasklet):
    """Tasklet that keeps the loop running while something needs it, which wakes it when that has ended.

    Args:
        ended: returns whether it has; called in the loop's thread.
    """

    def __init__(self, ended: Callable[[], bool]) -> None:
        super().__init__()
        self._ended = ended

    @override
    def step(self) -> Progress:
        return Progress.DONE if self._ended() else Progress.IDLE


class TaskletLoop:
    """Loop that runs tasklets until none is left.

    Attributes:
        passed_on: exceptions of users' functions of these kinds end the loop; all others end a task.
        thread: identity of the thread that created it and runs it.

    Args:
        clock: for deadlines and for the time that tasklets take.
        poller: poller in which it sleeps.
    """

    # Ctrl-C may arrive as one, if a program has its own signal handler.
    passed_on: tuple[type[BaseException], ...] = (KeyboardInterrupt,)

    def __init__(self, clock: Clock, poller: Poller) -> None:
        self.thread = get_ident()
        self._generation = generation()
        self._clock = clock
        self._monotonic = clock.monotonic
        self._poller = poller
        self._ready: deque[Tasklet] = deque()
        self._alive: set[Tasklet] = set()
        self._deadlines: list[tuple[float, int, Scheduled]] = []  # the first one is never a cancelled one
        self._cancelled = 0
        self._order = count()
        self._mails: deque[Callable[[], None]] = deque()

    # ---- from any thread ------------------------------------------------------------------------------------

    def mail(self, action: Callable[[], None]) -> None:
        """Call ``action`` in the worker's thread, between steps. From any thread."""
        # Appended before the wake-up, and append is atomic: a loop that wakes up finds the mail.
        self._mails.append(action)
        self._poller.wake()

    def post(self, action: Callable[[], None], after_s: float) -> Scheduled:
        """Call ``action`` in the worker's thread, after a delay in seconds. From any thread.

        Returns:
            the call, which may be cancelled in the worker's thread.
        """
        scheduled = Scheduled(action)
        if after_s > 0:
            # The heap belongs to the worker's thread.
            self.mail(lambda: self._schedule(self._monotonic() + after_s, scheduled))
        else:
            self.mail(scheduled.call)
        return scheduled

    # ---- from the worker's thread ---------------------------------------------------------------------------

    def soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` between steps, after earlier ones."""
        self._mails.append(action)

    def add(self, tasklet: Tasklet) -> None:
        """Add a tasklet and run it soon."""
        self._alive.add(tasklet)
        tasklet.rest_since = self._monotonic()
        self.wake(tasklet)

    def wake(self, tasklet: Tasklet) -> None:
        """Run a tasklet soon."""
        if not tasklet.scheduled:
            tasklet.scheduled = True
            self._ready.append(tasklet)

    def at(self, deadline: float, action: Callable[[], None]) -> Scheduled:
        """Call ``action`` at a reading of the clock's monotonic seconds; return the call."""
        scheduled = Scheduled(action)
        self._schedule(deadline, scheduled)
        return scheduled

    def _schedule(self, deadline: float, scheduled: Scheduled) -> None:
        if scheduled.pending:
            scheduled._loop = self
            heapq.heappush(self._deadlines, (deadline, next(self._order), scheduled))

    def _one_cancelled(self) -> None:
        """Drop cancelled calls that are due first, and all of them if they are the larger part of the heap."""
        self._cancelled += 1
        self._drop_cancelled()
        # Rebuilt when most of it is cancelled, so that a cancelled call costs a constant share of it.
        if self._cancelled > _CANCELLED_KEPT and self._cancelled * 2 > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if entry[2].pending]
            heapq.heapify(self._deadlines)
            self._cancelled = 0

    def _drop_cancelled(self) -> None:
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].pending:
            heapq.heappop(deadlines)
            self._cancelled -= 1

    def wait(self, tasklet: Tasklet, wait: Wait) -> None:
        """Wake a tasklet when its wait is over."""
        if wait.fileno is not None:
            self._poller.watch(tasklet, wait, lambda: self.wake(tasklet))
        # One deadline per tasklet is enough: after it, the tasklet returns its next wait.
        if wait.until is not None and (tasklet.deadline is None or wait.until < tasklet.deadline):
            if tasklet.alarm is not None:
                tasklet.alarm.cancel()  # else each short wait followed by a long one leaves an entry
            tasklet.deadline = wait.until
            tasklet.alarm = self.at(wait.until, lambda: self._wake_at(tasklet))

    def _wake_at(self, tasklet: Tasklet) -> None:
        tasklet.deadline = tasklet.alarm = None
        self.wake(tasklet)

    def forget(self, tasklet: Tasklet) -> None:
        """Stop watching files for a tasklet; it may close them now."""
        self._poller.forget(tasklet)

    def defect(self, where: str, error: Exception) -> None:
        """Log an exception that was contained where it was raised, so that nothing else ends."""
        log(ERROR, "workers", f"{type(error).__name__} {where}", error=error)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline in monotonic seconds, or None."""
        return self._deadlines[0][0] if self._deadlines else None

    def alive(self) -> bool:
        """Return whether any tasklet is not done."""
        return bool(self._alive)

    def run(self, ended: Callable[[], bool] = lambda: True) -> None:
        """Run until all tasklets are done and all mails are read.

        Args:
            ended: while it says False, what is due later is waited for, too: there may be tasklets again.
        """
        while self._alive or self._mails or (self._deadlines and not ended()):
            # Files are looked at even if tasklets are always ready, but not in each round: that is a system call.
            self.run_ready(_ROUNDS_BETWEEN_POLLS)
            if not self._alive and (self._mails or not self._deadlines or ended()):
                continue
            if self._ready or self._mails:
                if self._poller.watching():
                    self._poller.poll(0)
            else:
                deadline = self.next_deadline()
                self._poller.poll(None if deadline is None else max(0.0, deadline - self._monotonic()))

    def run_ready(self, rounds: int | None = None) -> bool:
        """Run what is ready, without sleeping.

        Args:
            rounds: how many times each tasklet may have its turn, unless they take long: who has sent something
                is waiting to be heard then. None: until none is ready.

        Returns:
            whether anything ran.
        """
        ran = False
        began = self._monotonic()
        while rounds is None or rounds > 0:
            while self._mails:
                ran = True
                self._mails.popleft()()
                leave_if_forked(self._generation)
            if self._deadlines:
                self._fire_deadlines()
            ready = self._ready
            if not ready:
                if self._mails:
                    continue  # tasklets whose deadline has just passed
                return ran
            ran = True
            # Only those ready at the beginning of the round: a tasklet that is ready at once again has its turn
            # behind all others.
            for _ in range(len(ready)):
                self._step(ready.popleft())
                if self._mails and self._monotonic() - began >= _PATIENCE_S:
                    break  # messages of a step to others must not wait for all the other steps
            if rounds is not None:
                rounds -= 1
                if self._monotonic() - began >= _PATIENCE_S:
                    break
        return ran

    def _step(self, tasklet: Tasklet) -> None:
        # Woken between its last step and now.
        if tasklet not in self._alive:
            return
        started = self._monotonic()
        if tasklet.rest is Progress.IDLE:
            tasklet.idle_s += started - tasklet.rest_since
        elif tasklet.rest is Progress.BLOCKED:
            tasklet.blocked_s += started - tasklet.rest_since
        tasklet.rest = Progress.AGAIN
        # Cleared before the step: a wake-up during it counts.
        tasklet.scheduled = False
        before = stepping.set(tasklet)
        try:
            progress = tasklet.step()
            ended = self._monotonic()
            for _ in range(1, tasklet.steps_a_turn):
                if progress is not Progress.AGAIN or ended - started >= _SHORT_TURN_S or self._mails:
                    break
                if not tasklet.goes_on():
                    break  # polling and waking it again would take longer than the other tasklets' turn
                progress = tasklet.step()
                ended = self._monotonic()
        finally:
            leave_if_forked(self._generation)
            stepping.reset(before)
        tasklet.busy_s += ended - started
        tasklet.rest_since = ended
        tasklet.rest = progress
        if progress is Progress.AGAIN:
            self.wake(tasklet)
        elif progress is Progress.DONE:
            self._alive.discard(tasklet)
            self._poller.forget(tasklet)
            if tasklet.alarm is not None:
                tasklet.alarm.cancel()
                tasklet.deadline = tasklet.alarm = None

    def _fire_deadlines(self) -> None:
        now = self._monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            scheduled = heapq.heappop(self._deadlines)[2]
            self._drop_cancelled()  # before the call: what it raises must not leave a cancelled one first
            scheduled.call()
