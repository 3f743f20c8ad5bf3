"""State of a Python worker between micro-batches: plan, services, clock and subtasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluiceway.clock import Clock, SystemClock
from sluiceway.engine import Services
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.batch_tasks import RecentPlans
from sluiceway_spark.structured.stages.chained_sinks import ChainedSinks
from sluiceway_spark.structured.stages.chained_sinks_spec import ChainedSinksSpec
from sluiceway_spark.structured.stages.large_plans import PlanFile
from sluiceway_spark.structured.state.subtask_cache import Cache, Kept

__all__ = ["BatchClock", "open_sinks", "work"]


class BatchClock(Clock):
    """Clock that stands still within a micro-batch, so that a repeated batch fires the same timers.

    What sinks have written of a micro-batch that was noted stays as it is, and state has to go with that.
    """

    def __init__(self) -> None:
        self._system = SystemClock()
        self._now_ms: int | None = None

    def stand_at(self, now_ms: int | None) -> None:
        """Set the time in ms since the epoch; None: the time of the system."""
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time of the micro-batch."""
        return self._system.now_ms() if self._now_ms is None else self._now_ms

    def monotonic(self) -> float:
        """Seconds that do go on, for what is waited for."""
        return self._system.monotonic()

    def steady_ms(self) -> int:
        """Return the time of the micro-batch: watermarks of a repeated batch have the same places."""
        return self._system.steady_ms() if self._now_ms is None else self._now_ms


class _Process:
    """State of this Python worker between micro-batches.

    Attributes:
        plans: the last ones; Spark makes a new processor for each task.
        services: what plugins give, for the plan that was taken last.
        clock: that of the subtasks.
        cache: the subtasks at work here.
    """

    def __init__(self) -> None:
        self.plans = RecentPlans()
        self.services: Services
        self.clock = BatchClock()
        self.cache = Cache(self.clock, lambda: self.services)

    def take(self, path: Sequence[str], shipped: bytes | PlanFile) -> SteppedPlan:
        import sys

        sys.path += [entry for entry in path if entry not in sys.path]
        plan, self.services = self.plans.take(shipped)
        return plan


_process: Final = _Process()


def work(
    path: Sequence[str],
    shipped: bytes | PlanFile,
    run: str,
    target: int,
    batch: int,
    now_ms: int | None,
    rows: Iterable[Row],
    kept: Kept,
    sinks: ChainedSinks | None = None,
) -> Iterator[Row]:
    """Process the rows of a micro-batch for a subtask.

    Args:
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        shipped: the plan.
        run: the query's run.
        target: number of the subtask.
        batch: number of the micro-batch.
        now_ms: what time it is in that, ms since the epoch; None: as the system says.
        rows: for this subtask, in any order.
        kept: what Spark keeps of it.
        sinks: those that are chained to the stage; None: none are.

    Returns:
        rows for later stages, and outcomes of chained sinks.

    Raises:
        Exception: what a user's function has raised, with notes.
    """
    plan = _process.take(path, shipped)
    _process.clock.stand_at(now_ms)
    yield from _process.cache.process(run, plan, target, batch, rows, kept, sinks)
    if sinks is not None:
        yield from sinks.done(target)


def open_sinks(
    path: Sequence[str], shipped: bytes | PlanFile, chaining: ChainedSinksSpec, batch: int, after: str
) -> ChainedSinks:
    """Return the chained sinks for a task of a micro-batch; arguments as above and of :class:`ChainedSinks`."""
    plan = _process.take(path, shipped)
    return ChainedSinks(plan, _process.services, chaining, batch, after)
