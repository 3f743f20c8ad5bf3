"""Failover: which subtasks begin anew after a failure, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from sluiceway.clock import Clock
from sluiceway.engine import JobFailure
from sluiceway.errors import ConfigurationError, GraphError, PluginError, SuppressRestartsError
from sluiceway.graph import ExecutionGraph, ExecutionVertex
from sluiceway.runtime.failures.error_texts import describe, users_traceback
from sluiceway.runtime.failures.explanation import add_note
from sluiceway.runtime.jobmanager.repeated_failures import SKIP_HINT, RepeatedFailures, kind_of, record_of
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.scheduler import RestartStrategy, pipelined_regions

__all__ = ["Failover"]


_KINDS: Final = 100
"""Kinds of failures whose traceback is logged, so that a log does not grow with each failure."""

KEPT: Final = 16
"""Failures that are remembered, the last ones."""

_HOPELESS: Final = (SuppressRestartsError, ConfigurationError, GraphError, PluginError, ImportError)
"""What would go wrong again however often a step is opened."""


class Failover:
    """Restarts the region of a subtask that has failed: all subtasks that records flow between.

    First the rest of the region is cancelled; when all of it has ended and the delay has passed, it begins anew
    as a whole, since what was under way between its subtasks is lost. A failure of a region that is being
    restarted already belongs to the failure before it. All calls in the job master's thread.

    Attributes:
        history: what has gone wrong, oldest first; of many, the last ones.
        restarts: how often a region was restarted, or is about to be.
        regions: the regions of the job.
        given_up: why there is no restart after the last failure, where that is to be told; else empty.

    Args:
        executions: the job.
        strategy: whether, and after which delay.
        clock: for time stamps.
        cancel: cancels a subtask that has not ended.
        restart: begins a region anew; all of it has ended.
        later: has something called in this thread after a delay in seconds.
        worker_of: on which worker a subtask runs, or did.
        completed: how many checkpoints the job has completed.
        on_failure: told of each failure, with the subtasks that are restarted because of it.
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
        """Watch the job at another parallelism from now on; nothing is being restarted."""
        self.regions = pipelined_regions(executions)
        self._region_of = {v: region for region in self.regions for v in region}

    def note(self, vertex: ExecutionVertex | None, cause: BaseException) -> None:
        """Remember a failure after which all begins anew without this strategy: the job is being rescaled."""
        if vertex is None:
            now_ms, restarted = self._clock.now_ms(), len(self._region_of)
            self.history.append(JobFailure(now_ms, "", None, None, "", cause, restarted, 0))
        else:
            self._remember(vertex, cause, len(self._region_of), 0)

    @property
    def restarting(self) -> bool:
        """Whether any region is on its way from failure to restart."""
        return bool(self._due)

    def restarts_region_of(self, vertex: ExecutionVertex) -> bool:
        """Whether the region of a subtask is on its way from failure to restart."""
        return self._region_of[vertex] in self._due

    def failed(self, vertex: ExecutionVertex, cause: BaseException) -> bool:
        """A subtask has failed; whether its region will be restarted."""
        region = self._region_of[vertex]
        if region in self._due:
            self.ended(vertex)
            return True
        now_ms = self._clock.now_ms()
        delay_ms = self._delay_ms(now_ms, cause)
        self._remember(vertex, cause, 0 if delay_ms is None else len(region), delay_ms)
        if delay_ms is None:
            return False
        self.restarts += 1
        self._due[region] = self._clock.monotonic() + delay_ms / 1000
        for each in region:
            if not each.state.ended:
                self._cancel(each)
        self.ended(vertex)
        return True

    def failed_everywhere(self, cause: BaseException) -> bool:
        """The job has failed as a whole; whether all that has not finished will be restarted."""
        return self._again(
            {r for v, r in self._region_of.items() if not v.state.ended and r not in self._due}, cause
        )

    def not_begun(self, region: tuple[ExecutionVertex, ...], cause: BaseException) -> bool:
        """A region that was to begin anew cannot; whether that will be tried again."""
        return self._again({region}, cause)

    def _again(self, regions: set[tuple[ExecutionVertex, ...]], cause: BaseException) -> bool:
        now_ms = self._clock.now_ms()
        delay_ms = self._delay_ms(now_ms, cause)
        restarted = 0 if delay_ms is None else sum(map(len, regions))
        failure = JobFailure(now_ms, "", None, None, "", cause, restarted, delay_ms)
        self._note(failure, () if delay_ms is None else (v for region in regions for v in region))
        if delay_ms is None:
            return False
        log(WARNING, "jobs", f"has failed: {describe(cause)}; it begins anew in {delay_ms} ms", job=self._job)
        self.restarts += 1
        for region in regions:
            self._due[region] = self._clock.monotonic() + delay_ms / 1000
        for each in [v for region in regions for v in region]:
            if not each.state.ended:
                self._cancel(each)
        for region in regions:
            self.ended(region[0])
        return True

    def _delay_ms(self, now_ms: int, cause: BaseException) -> int | None:
        """After how long to begin anew; None: not at all, and the cause has a note that says why."""
        if isinstance(cause, _HOPELESS):
            return None  # the message says what to change
        limit = self._strategy.same_record_limit
        if limit is not None and self._repeated.count(cause, self._completed()) >= limit:
            times = "once" if limit == 1 else f"{limit} times"
            about_record = record_of(cause) is not None
            what = "this record has failed" if about_record else "this has happened"
            hint = f". {SKIP_HINT}" if about_record else ""
            self.given_up = f"the job is not restarted: {what} {times} without progress{hint}"
            add_note(cause, self.given_up)
            return None
        delay_ms = self._strategy.delay_ms(now_ms)
        if delay_ms is None and self._strategy.reason:
            self.given_up = f"the job is not restarted: {self._strategy.reason}"
            add_note(cause, self.given_up)
        return delay_ms

    def failed_otherwise(self, cause: BaseException) -> None:
        """The job fails with something that no subtask has done, or that no subtask may get over."""
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
            some = "1 subtask begins" if restarted == 1 else f"{restarted} subtasks begin"
            where = f"{name!r}, subtask {vertex.subtask + 1}, attempt {attempt}, on {worker}"
            log(
                WARNING,
                "jobs",
                f"{where}, has failed: {describe(cause)}; {some} anew in {delay_ms} ms{self._details(cause)}",
                job=self._job,
            )

    def _details(self, cause: BaseException) -> str:
        """The traceback at the first failure of a kind, and what can be done; empty at the next ones."""
        kind = kind_of(cause)
        if not kind[1] or kind in self._told or len(self._told) >= _KINDS:  # no step's: its message says it all
            return ""
        self._told.add(kind)
        hint = f"\n{SKIP_HINT}" if record_of(cause) is not None else ""
        return f"\n{users_traceback(cause)}{hint}"

    def ended(self, vertex: ExecutionVertex) -> None:
        """A subtask has ended: if it was the last one of a failed region, restart the region when it is time."""
        region = self._region_of[vertex]
        due = self._due.get(region)
        if due is not None and all(each.state.ended for each in region):
            before = self._timers.get(region)
            if before is not None:
                before.cancel()  # else it would cut short the delay of the failure after this one
            due_s = max(0.0, due - self._clock.monotonic())
            self._timers[region] = self._later(lambda: self._begin_anew(region), due_s)

    def stop(self) -> None:
        """Restart nothing any more: the job has ended."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _begin_anew(self, region: tuple[ExecutionVertex, ...]) -> None:
        self._timers.pop(region, None)
        if self._due.pop(region, None) is not None:
            self._restart(region)
