"""Failover: which subtasks begin anew after a failure, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluiceway.clock import Clock
from sluiceway.graph import ExecutionGraph, ExecutionVertex, RestartStrategy, pipelined_regions

__all__ = ["Failover", "Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure in the history of a job.

    Attributes:
        at_ms: when, in ms since the epoch.
        task: the subtask that failed.
        cause: why.
        restarted: how many subtasks began anew because of it; 0: the job gave up.
    """

    at_ms: int
    task: str
    cause: BaseException
    restarted: int


class Failover:
    """Restarts the region of a subtask that has failed: all subtasks that records flow between.

    First the rest of the region is cancelled; when all of it has ended and the delay has passed, it begins anew
    as a whole, since what was under way between its subtasks is lost. A failure of a region that is being
    restarted already belongs to the failure before it. All calls in the job master's thread.

    Args:
        executions: the job.
        strategy: whether, and after which delay.
        clock: for time stamps.
        cancel: cancels a subtask that has not ended.
        restart: begins a region anew; all of it has ended.
        later: has something called in this thread after a delay in seconds.
    """

    def __init__(
        self,
        executions: ExecutionGraph,
        strategy: RestartStrategy,
        clock: Clock,
        *,
        cancel: Callable[[ExecutionVertex], None],
        restart: Callable[[tuple[ExecutionVertex, ...]], None],
        later: Callable[[Callable[[], None], float], None],
    ) -> None:
        self.history: list[Failure] = []
        self._strategy = strategy
        self._clock = clock
        self._cancel = cancel
        self._restart = restart
        self._later = later
        self._region_of = {v: region for region in pipelined_regions(executions) for v in region}
        self._due: dict[tuple[ExecutionVertex, ...], float] = {}

    @property
    def restarting(self) -> bool:
        """Whether any region is on its way from failure to restart."""
        return bool(self._due)

    @property
    def restarts(self) -> int:
        """How often a region was restarted, or is about to be."""
        return sum(1 for failure in self.history if failure.restarted)

    def failed(self, vertex: ExecutionVertex, cause: BaseException) -> bool:
        """A subtask has failed; whether its region will be restarted."""
        region = self._region_of[vertex]
        if region in self._due:
            self.ended(vertex)
            return True
        now_ms = self._clock.now_ms()
        delay_ms = self._strategy.delay_ms(now_ms)
        restarted = 0 if delay_ms is None else len(region)
        self.history.append(Failure(now_ms, f"{vertex.job_vertex.name} [{vertex.subtask}]", cause, restarted))
        if delay_ms is None:
            if self._strategy.reason:
                cause.add_note(f"the job is not restarted: {self._strategy.reason}")
            return False
        self._due[region] = self._clock.monotonic() + delay_ms / 1000
        for each in region:
            if not each.state.ended:
                self._cancel(each)
        self.ended(vertex)
        return True

    def ended(self, vertex: ExecutionVertex) -> None:
        """A subtask has ended: if it was the last one of a failed region, restart the region when it is time."""
        region = self._region_of[vertex]
        due = self._due.get(region)
        if due is not None and all(each.state.ended for each in region):
            self._later(lambda: self._begin_anew(region), max(0.0, due - self._clock.monotonic()))

    def _begin_anew(self, region: tuple[ExecutionVertex, ...]) -> None:
        if self._due.pop(region, None) is not None:
            self._restart(region)
