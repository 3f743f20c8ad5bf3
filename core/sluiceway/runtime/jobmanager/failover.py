"""Failover: choice of the subtasks to restart after a failure, and of the delay."""

from __future__ import annotations

from bdb import BdbQuit
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from sluiceway.clock import Clock
from sluiceway.engine import JobFailure
from sluiceway.errors import ConfigurationError, GraphError, PluginError, SuppressRestartsError
from sluiceway.graph import ExecutionGraph, ExecutionVertex
from sluiceway.runtime.failures.error_texts import describe, users_traceback
from sluiceway.runtime.failures.explanation import add_note, place_in
from sluiceway.runtime.failures.frames import clear_frames
from sluiceway.runtime.jobmanager.repeated_failures import SKIP_HINT, RepeatedFailures, kind_of, record_of
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.scheduler import RestartStrategy, pipelined_regions

__all__ = ["Failover"]


_KINDS: Final = 100
"""Number of kinds of failures whose traceback is logged, which bounds the log."""

KEPT: Final = 16
"""Number of failures in the history."""

_FINAL: Final = (SuppressRestartsError, ConfigurationError, GraphError, PluginError, ImportError, BdbQuit)
"""Errors that repeat however often a step is opened, and that of a user who quits the debugger."""


class Failover:
    """Failover of a job, which restarts the region of a subtask that has failed.

    A region is all subtasks that records flow between. Its other subtasks are cancelled; once all of it has ended
    and the delay has passed, it is restarted as a whole, since in-flight records between its subtasks are lost. A
    failure of a region that is being restarted already belongs to the failure before it. All calls in the job
    master's thread.

    Attributes:
        history: last failures, oldest first.
        restarts: number of restarts of regions, including pending ones.
        regions: the regions of the job.
        given_up: reason to report for not restarting after the last failure; else empty.

    Args:
        executions: the job.
        strategy: decides on restarts and their delay.
        clock: for time stamps.
        cancel: cancels a subtask that has not ended.
        restart: restarts a region whose subtasks have all ended.
        later: calls an action in this thread after a delay in seconds.
        worker_of: returns the worker on which a subtask runs, or ran.
        completed: returns the number of completed checkpoints.
        on_failure: notified of each failure, with the subtasks that it restarts.
        job: id of the job, for the log.
    """

    def __init__(
        self,
        executions: ExecutionGraph,
        strategy: RestartStrategy,
        clock: Clock,
        *,
        cancel: Callable[[ExecutionVertex], None],
        restart: Callable[[tuple[ExecutionVertex, ...]], None],
        later: Callable[[Callable[[], None], float], Scheduled],
        worker_of: Callable[[ExecutionVertex], str],
        completed: Callable[[], int] = lambda: 0,
        on_failure: Callable[[JobFailure, Iterable[ExecutionVertex]], None] = lambda failure, restarted: None,
        job: str,
    ) -> None:
        self.history: deque[JobFailure] = deque(maxlen=KEPT)
        self.restarts = 0
        self.given_up = ""
        self._counts_once = False
        self._decided: tuple[BaseException, int | None] | None = None
        # Cause of failed restarts, and the delay before the next one, until that begins.
        self._unbegun: tuple[BaseException, int | None] | None = None
        self._worker_of = worker_of
        self._completed = completed
        self._on_failure = on_failure
        self._repeated = RepeatedFailures()
        self._told: set[tuple[str, ...]] = set()
        self._job = job
        self._strategy = strategy
        self._clock = clock
        self._cancel = cancel
        self._restart = restart
        self._later = later
        self.regions = pipelined_regions(executions)
        self._region_of = {v: region for region in self.regions for v in region}
        self._due: dict[tuple[ExecutionVertex, ...], float] = {}
        self._timers: dict[tuple[ExecutionVertex, ...], Scheduled] = {}

    def use(self, executions: ExecutionGraph) -> None:
        """Use the job at another parallelism from now on; no restart is pending."""
        self._release_attempts()
        self.regions = pipelined_regions(executions)
        self._region_of = {v: region for region in self.regions for v in region}

    def note(self, vertex: ExecutionVertex | None, cause: BaseException) -> None:
        """Record a failure after which all subtasks restart without this strategy: the job is being rescaled."""
        if vertex is None:
            now_ms, restarted = self._clock.now_ms(), len(self._region_of)
            self.history.append(JobFailure(now_ms, "", None, None, "", cause, restarted, 0))
        else:
            self._remember(vertex, cause, len(self._region_of), 0)

    @property
    def restarting(self) -> tuple[tuple[ExecutionVertex, ...], ...]:
        """Regions that wait for their restart."""
        return tuple(self._due)

    def region_of(self, vertex: ExecutionVertex) -> tuple[ExecutionVertex, ...]:
        """Return the region of a subtask."""
        return self._region_of[vertex]

    def restarts_region_of(self, vertex: ExecutionVertex) -> bool:
        """Return whether the region of a subtask waits for its restart."""
        return self._region_of[vertex] in self._due

    def failed(self, vertex: ExecutionVertex, cause: BaseException) -> bool:
        """Handle the failure of a subtask; return whether its region will be restarted."""
        region = self._region_of[vertex]
        # A consequence of the failure before it, which costs no further restart. It may have been the last to end.
        if region in self._due:
            self.ended(vertex)
            return True
        delay_ms = self._delay_ms(cause)
        self._remember(vertex, cause, 0 if delay_ms is None else len(region), delay_ms)
        if delay_ms is None:
            return False
        self.restarts += 1
        # Before the cancellations: what ends from here on ends in a region that restarts.
        self._due[region] = self._clock.monotonic() + delay_ms / 1000
        for each in region:
            if not each.state.ended:
                self._cancel(each)
        self.ended(vertex)
        return True

    @contextmanager
    def as_one_failure(self) -> Iterator[None]:
        """Ask the strategy once for all regions that fail within this with the same cause, as a lost worker's."""
        # The first failure decides for all that have the same cause.
        self._counts_once, self._decided = True, None
        try:
            yield
        finally:
            self._counts_once, self._decided = False, None

    def failed_everywhere(self, cause: BaseException) -> bool:
        """Handle a failure of the whole job; return whether all unfinished subtasks will be restarted."""
        # Regions that have finished stay as they are, and those that wait for a restart keep their delay.
        regions = {r for v, r in self._region_of.items() if not v.state.ended and r not in self._due}
        # Without any there is nothing to restart, and no restart is used up.
        return not regions or self._again(regions, cause, self._delay_ms(cause))

    def not_begun(self, region: tuple[ExecutionVertex, ...], cause: BaseException) -> bool:
        """Handle a failed restart of a region; return whether it will be tried again.

        The strategy is asked once for all regions with the same cause: they wait for the same checkpoint.
        """
        if self._unbegun is None or self._unbegun[0] is not cause:
            self._unbegun = cause, self._delay_ms(cause)
        return self._again({region}, cause, self._unbegun[1])

    def _again(
        self, regions: set[tuple[ExecutionVertex, ...]], cause: BaseException, delay_ms: int | None
    ) -> bool:
        now_ms = self._clock.now_ms()
        restarted = 0 if delay_ms is None else sum(map(len, regions))
        failure = JobFailure(now_ms, "", None, None, "", cause, restarted, delay_ms)
        self._note(failure, () if delay_ms is None else (v for region in regions for v in region))
        if delay_ms is None:
            return False
        log(WARNING, "jobs", f"has failed: {describe(cause)}; it restarts in {delay_ms} ms", job=self._job)
        self.restarts += 1
        for region in regions:
            self._due[region] = self._clock.monotonic() + delay_ms / 1000
        for each in [v for region in regions for v in region]:
            if not each.state.ended:
                self._cancel(each)
        for region in regions:
            self.ended(region[0])
        return True

    def _delay_ms(self, cause: BaseException) -> int | None:
        """Return the delay of the restart; None: no restart, and the cause has a note with the reason."""
        if self._counts_once and self._decided is not None and self._decided[0] is cause:
            return self._decided[1]
        delay_ms = self._decide(cause)
        if self._counts_once:
            self._decided = cause, delay_ms
        return delay_ms

    def _decide(self, cause: BaseException) -> int | None:
        if isinstance(cause, _FINAL):
            return None  # the error tells the user what to change
        # Before the strategy is asked, which counts each question as a restart.
        limit = self._strategy.same_record_limit
        if limit is not None and self._repeated.count(cause, self._completed()) >= limit:
            times = "once" if limit == 1 else f"{limit} times"
            about_record = record_of(cause) is not None
            what = "this record has failed" if about_record else "this has happened"
            hint = f". {SKIP_HINT}" if about_record and self._can_skip(cause) else ""
            self.given_up = f"the job is not restarted: {what} {times} without progress{hint}"
            add_note(cause, self.given_up)
            return None
        # Not by the wall clock: once it is set back, failures of long ago would count as recent.
        delay_ms = self._strategy.delay_ms(self._clock.steady_ms())
        if delay_ms is None and self._strategy.reason:
            self.given_up = f"the job is not restarted: {self._strategy.reason}"
            add_note(cause, self.given_up)
        return delay_ms

    def failed_otherwise(self, cause: BaseException) -> None:
        """Record a failure of the job that no subtask has caused, or that no restart may follow."""
        if not any(known.cause is cause for known in self.history):
            self._note(JobFailure(self._clock.now_ms(), "", None, None, "", cause, 0, None), ())

    def _note(self, failure: JobFailure, restarted: Iterable[ExecutionVertex]) -> None:
        self.history.append(failure)
        self._on_failure(failure, restarted)

    def _remember(
        self, vertex: ExecutionVertex, cause: BaseException, restarted: int, delay_ms: int | None
    ) -> None:
        name, attempt = vertex.job_vertex.name, vertex.current.attempt
        worker = self._worker_of(vertex)
        failure = JobFailure(
            self._clock.now_ms(), name, vertex.subtask, attempt, worker, cause, restarted, delay_ms
        )
        self._note(failure, self._region_of[vertex] if restarted else ())
        if delay_ms is not None:
            some = "1 subtask restarts" if restarted == 1 else f"{restarted} subtasks restart"
            where = f"{name!r}, subtask {vertex.subtask + 1}, attempt {attempt}, on {worker}"
            log(
                WARNING,
                "jobs",
                f"{where}, has failed: {describe(cause)}; {some} in {delay_ms} ms{self._details(cause)}",
                job=self._job,
            )

    def _details(self, cause: BaseException) -> str:
        """Return the traceback at the first failure of a kind, with a hint; empty at later ones."""
        kind = kind_of(cause)
        if not kind[1] or kind in self._told or len(self._told) >= _KINDS:  # not raised by a step
            return ""
        self._told.add(kind)
        hint = f"\n{SKIP_HINT}" if record_of(cause) is not None and self._can_skip(cause) else ""
        return f"\n{users_traceback(cause)}{hint}"

    def _can_skip(self, cause: BaseException) -> bool:
        """Return whether the step that has failed takes ``on_error("skip")``."""
        place = kind_of(cause)[1]
        vertices = {v.job_vertex.id: v.job_vertex for v in self._region_of}.values()
        return any(place == place_in(node.name, v.name) for v in vertices for node in v.nodes if node.step.skips)

    def ended(self, vertex: ExecutionVertex) -> None:
        """Handle the end of a subtask: after the last one of a failed region, restart it after the delay."""
        region = self._region_of[vertex]
        due = self._due.get(region)
        if due is not None and all(each.state.ended for each in region):
            before = self._timers.get(region)
            if before is not None:
                before.cancel()  # else it would shorten the delay of the next failure
            due_s = max(0.0, due - self._clock.monotonic())
            self._timers[region] = self._later(lambda: self._begin_anew(region), due_s)

    def stop(self) -> None:
        """Restart nothing any more: the job has ended."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _begin_anew(self, region: tuple[ExecutionVertex, ...]) -> None:
        # Removed from `_due` before the call, in which a failure begins another restart of the region.
        self._timers.pop(region, None)
        self._unbegun = None
        if self._due.pop(region, None) is not None:
            self._release_attempts()
            self._restart(region)

    def _release_attempts(self) -> None:
        """Release the state of failed attempts, which the frames of the failures refer to in one process.

        Not that of a failure that ends the job, which the user may want to inspect.
        """
        for failure in self.history:
            clear_frames(failure.cause)
