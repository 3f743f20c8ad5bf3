"""A bounded pipeline as one batch job of Spark's."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, Final

from sluiceway.config import Settings
from sluiceway.engine import JobStatus, Services
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.runtime.cluster.shipping import dump, load
from sluiceway.runtime.embedded import EmbeddedChain, EmbeddedPlan
from sluiceway.runtime.microbatch.splits import Dealt, deal_splits
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark import SessionConf
from sluiceway_sparkengine.structured.groups import JobGroup
from sluiceway_sparkengine.structured.job import SparkJob, SparkRun
from sluiceway_sparkengine.structured.local import in_this_process, refuse_speculation
from sluiceway_sparkengine.structured.passes import Pass, passes_of
from sluiceway_sparkengine.structured.rows import SCHEMA, Row, together
from sluiceway_sparkengine.structured.sinkstage import commit_sinks
from sluiceway_sparkengine.structured.stages import Outcome, level_task, ship, source_task

__all__ = ["BatchJob"]

_AT_ONCE: Final = 2
"""Partitions that Spark computes at a time when rows are taken one partition after the other."""


class BatchJob(SparkJob):
    """One run of a bounded pipeline on Spark.

    Args:
        graph: what to run.
        settings: the options of the run.
        services: what plugins give.
        session: what to make a session of where none is active.

    Raises:
        GraphError: it cannot run here, or cannot be sent to Spark's workers; names the steps.
    """

    def __init__(self, graph: StreamGraph, settings: Settings, services: Services, session: SessionConf) -> None:
        super().__init__(graph, settings, services, session)
        self._stream_graph = graph
        services.state_backend(settings.state_backend)
        self._sinks: _LocalSinks | None = None
        self._group: JobGroup | None = None
        self._passes = 1
        self._committing = False
        self._outcomes: list[Outcome] = []

    # ---- the job's face -------------------------------------------------------------------------------------

    def metrics(self) -> JobMetrics:
        """The figures of the subtasks that have ended, as far as Spark has given them."""
        outcomes, plan = list(self._outcomes), self.plan
        sources = set(plan.sources)
        return JobMetrics(
            job_name=self.name,
            status=self.status.value,
            elapsed_s=self.elapsed_s,
            records_in=sum(o.records_in for o in outcomes if plan.who(o.target)[0] in sources),
            records_out=sum(o.records_to_sinks for o in outcomes),
            subtasks=tuple(self._figures(outcome) for outcome in sorted(outcomes, key=lambda o: o.target)),
            doing=self._doing(),
        )

    def _figures(self, outcome: Outcome) -> SubtaskMetrics:
        vertex, subtask = self.plan.who(outcome.target)
        return SubtaskMetrics(
            vertex=self.plan.graph.vertex(vertex).name,
            subtask=subtask,
            state="finished",
            records_in=outcome.records_in,
            records_out=outcome.records_out + outcome.records_to_sinks,
            user={name: value for own in outcome.metrics.values() for name, value in own.items()},
            operators=outcome.metrics,
            vertex_id=vertex,
        )

    def _doing(self) -> str:
        """What is done now, for people."""
        group = self._group
        if self.status not in (JobStatus.RUNNING, JobStatus.CANCELLING):
            return ""
        if self._committing:
            return "committing"
        if group is None:
            return "starting Spark"
        over, done, tasks = group.tasks()
        return f"stage {min(over + 1, self._passes)} of {self._passes}" + (
            f", task {done + 1} of {tasks}" if tasks else ""
        )

    def interrupt(self) -> None:
        """Wait for no sink any more."""
        if self._sinks is not None:
            self._sinks.cancel()

    # ---- in the other thread --------------------------------------------------------------------------------

    def work(self, run: SparkRun) -> None:
        """Translate it, have Spark run it, commit."""
        settings, services = self.settings, self.services
        session = self.session.session(least_cores=settings.parallelism)
        run.group = self._group = group = JobGroup(session, f"sluiceway: {self.name}")
        from pyspark.sql import DataFrame

        self.check_cancelled()
        slots = max(settings.parallelism, _slots(session))
        plan = self.plan = EmbeddedPlan.of(self._stream_graph, settings, services, keyed_subtasks=slots)
        refuse_speculation(session, plan)
        local = in_this_process(plan)
        shipped = ship(plan, services)
        with ExitStack() as kept:  # what sources have put down for their readers
            readers = self._readers(plan, kept)
            self.check_cancelled()
            sinks = self._sinks = _LocalSinks(plan, local, services)
            kept.callback(sinks.close)
            sinks.open()
            passes = passes_of(plan, slots, by_id=hasattr(DataFrame, "repartitionById"))
            self._passes = len(passes)
            rows = _rows(session, plan, shipped, dump(readers), passes, local)
            with group:
                received = rows.toLocalIterator(prefetchPartitions=True) if local else rows.collect()
                for row in received:
                    self._received(Row(*row), sinks)
            self.check_cancelled()
            self._committing = True
            self._commit(plan, sinks)

    def _readers(self, plan: EmbeddedPlan, kept: ExitStack) -> list[tuple[int, Dealt]]:
        """Each target that reads, with its splits."""
        readers: list[tuple[int, Dealt]] = []
        for id_ in plan.sources:
            vertex = plan.graph.vertex(id_)
            step = vertex.head.step
            assert isinstance(step, SourceStep)
            dealt = deal_splits(
                step.source, vertex.parallelism, self.services.clock, cancelled=self.cancelled.is_set, kept=kept
            )
            readers += [(plan.target(id_, subtask), splits) for subtask, splits in enumerate(dealt)]
        return readers

    def _received(self, row: Row, sinks: _LocalSinks) -> None:
        if row.stage <= self.plan.last_stage:
            sinks.feed(row)
            return
        outcome: Outcome = load(bytes(row.payload))
        self._outcomes.append(outcome)

    def _commit(self, plan: EmbeddedPlan, sinks: _LocalSinks) -> None:
        """Everything was processed: now it may be seen."""
        ready: dict[str, list[Any]] = {}
        for outcome in self._outcomes:
            vertex, _ = plan.who(outcome.target)
            ready.setdefault(plan.graph.vertex(vertex).uid, []).extend(outcome.ready)
        commit_sinks(plan, ready, self.services)
        self._outcomes += sinks.finish()


class _LocalSinks:
    """The sinks that give their records to this program."""

    def __init__(self, plan: EmbeddedPlan, vertices: frozenset[int], services: Services) -> None:
        self._plan = plan
        self._services = services
        self._targets = [t for t in plan.targets_of(plan.last_stage) if plan.who(t)[0] in vertices]
        self._chains: dict[int, EmbeddedChain] = {}

    def open(self) -> None:
        """Open them, over what the program holds."""
        for target in self._targets:
            vertex, subtask = self._plan.who(target)
            chain = self._chains[target] = EmbeddedChain(
                self._plan,
                vertex,
                subtask,
                state_backend=self._services.state_backend("memory"),
                clock=self._services.clock,
                services=self._services,
                own=subtask > 0,
            )
            chain.open()

    def feed(self, row: Row) -> None:
        """Records have come."""
        self._chains[row.target].feed(row.sender, self._plan.unpack(row.sender, row.payload))

    def finish(self) -> list[Outcome]:
        """All have come."""
        outcomes = []
        for target, chain in self._chains.items():
            chain.snapshot(1)
            chain.completed(1)
            outcomes.append(Outcome(target, chain.records_in, 0, chain.records_to_sinks, chain.metrics()))
        return outcomes

    def cancel(self) -> None:
        """Wait for nothing any more. From any thread."""
        for chain in list(self._chains.values()):
            chain.cancel()

    def close(self) -> None:
        """Close them."""
        chains, self._chains = self._chains, {}
        for chain in chains.values():
            chain.close()


def _rows(
    session: Any, plan: EmbeddedPlan, shipped: bytes, dealt: bytes, passes: list[Pass], local: frozenset[int]
) -> Any:
    """The query: what its rows are is for the driver."""
    path = list(sys.path)
    given = frozenset(t for t in plan.targets_of(plan.last_stage) if plan.who(t)[0] in local)
    first, *others = passes
    readers = session.range(0, first.parts, 1, first.parts)
    rows = readers.mapInArrow(source_task(path, shipped, dealt, first.stages, given), SCHEMA)
    for each in others:
        targets = {t for stage in each.stages for t in plan.targets_of(stage)}
        if targets <= given and _parts_before(passes, each) <= _AT_ONCE:
            break  # nothing is left to do out there, and the driver takes them as they come
        rows = together(rows, each.parts, each.parts)
        if not targets <= given:
            rows = rows.mapInArrow(level_task(path, shipped, each.stages, given), SCHEMA)
    return rows


def _parts_before(passes: list[Pass], each: Pass) -> int:
    """How many partitions the rows have that come to a pass."""
    return passes[passes.index(each) - 1].parts


def _slots(session: Any) -> int:
    """How many tasks run at a time, as far as Spark says."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # over Connect there is no context
        return 1
