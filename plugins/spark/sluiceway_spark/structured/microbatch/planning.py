"""Planning of micro-batches, in the driver: what each reader is to read in the next one."""

from __future__ import annotations

import logging
from typing import Any, Final

from sluiceway.clock import SystemClock
from sluiceway.runtime.microbatch.planner import BatchPlanner, PlanWhen
from sluiceway.steps import SourceStep
from sluiceway_spark.structured.microbatch.control_files import note_ended, read_due, stops
from sluiceway_spark.structured.microbatch.source_spec import SourcePart, SourceStage, batch_files

__all__ = ["SourcePlanning", "publish_ends"]

_log: Final = logging.getLogger("sluiceway_spark")

_LOOK_S: Final = 0.05
"""So long a planner waits for its source before others are asked."""


def publish_ends(planner: BatchPlanner, batch: int) -> None:
    """Notify a source that publishes positions of the splits that ended in a complete batch.

    A reader that has ended hears of no later batch, nor does one that another process goes on with. Failures are
    logged: nothing depends on what is published.
    """
    source = planner.source
    if not source.commits_positions:
        return
    try:
        if ended := planner.finished(batch):
            source.batch_completed(ended)
    except Exception:
        _log.warning("ends of splits of %s were not published", source.name, exc_info=True)


class SourcePlanning:
    """Planner of the micro-batches of all sources, in the driver; of one run of the query."""

    def __init__(self, stage: SourceStage, run: str) -> None:
        self.plan, _, self._storage = stage.open()
        self._run = run
        self._wait_s = stage.limits.planning_s
        self._clock = SystemClock()
        self._is_first = True
        self._published = 0
        self._planners: dict[int, BatchPlanner] = {}
        for vertex in self.plan.sources:
            head = self.plan.graph.vertex(vertex)
            assert isinstance(head.head.step, SourceStep)
            files = batch_files(self._storage, self.plan, vertex, run)
            source = head.head.step.source
            self._planners[vertex] = BatchPlanner(source, files, head.parallelism, limits=stage.limits)

    def next(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset after the next batch; the given one if there is no further batch."""
        batch = int(start["batch"])
        if batch > self._published:  # Spark has committed it
            for planner in self._planners.values():
                publish_ends(planner, batch)
            self._published = batch
        if all(planner.ended(batch) for planner in self._planners.values()):
            note_ended(self._storage, self._run, batch)
            return start
        stopping = stops(self._storage)
        if not stopping and not self._is_wanted(batch + 1):
            return start
        self._is_first = False
        for planner in self._planners.values():
            if stopping:
                planner.plan_last(batch + 1)
            else:
                planner.plan(batch + 1, PlanWhen.ALWAYS, wait_s=0.0)
        return {"run": self._run, "batch": batch + 1}

    def _is_wanted(self, batch: int) -> bool:
        """Return whether there is work for a batch, waiting briefly for some.

        The first of a query tells when subtasks will have something to do without any input, so it is always.
        """
        until = self._clock.monotonic() + self._wait_s
        look_s = min(_LOOK_S, self._wait_s)
        while not self._is_first:
            for planner in self._planners.values():
                if planner.plan(batch, PlanWhen.NEWS, wait_s=look_s) is not None:
                    return True
            due_ms = read_due(self._storage)
            if due_ms is not None and due_ms <= self._clock.now_ms():
                return True
            if self._clock.monotonic() >= until:
                return False
        return True

    def partitions(self, batch: int) -> list[SourcePart]:
        """Return the part of each reader, those that have ended included."""
        parts = []
        for vertex, planner in self._planners.items():
            works = {work.reader: work for work in planner.work(batch)}
            parts += [SourcePart(vertex, r, self._run, works.get(r)) for r in range(planner.readers)]
        return parts

    def committed(self, batch: int) -> None:
        """Spark has committed a batch."""
        for planner in self._planners.values():
            planner.committed(batch)

    def close(self) -> None:
        """Close the enumerators."""
        for planner in self._planners.values():
            planner.close()
