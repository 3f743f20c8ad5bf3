"""Run of a bounded pipeline as one batch job of Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus, Services
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.runtime.messages.pickling import dump, load
from sluiceway.runtime.microbatch.driven_enumerator import Dealt, deal_splits
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark.session.configuration import SessionConf
from sluiceway_spark.session.context import tasks_at_a_time
from sluiceway_spark.structured.job_group import JobGroup
from sluiceway_spark.structured.job_texts import job_text, steps_text
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.spark_job import SparkJob, SparkRun
from sluiceway_spark.structured.stages.batch_tasks import Outcome, ship
from sluiceway_spark.structured.stages.driver_sinks import in_this_process, refuse_speculation
from sluiceway_spark.structured.stages.sink_stage import commit_sinks
from sluiceway_spark.structured.stages.stage_builder import batch_rows
from sluiceway_spark.structured.stages.stage_grouping import stage_groups

__all__ = ["BatchJob"]

_log: Final = logging.getLogger("sluiceway_spark")


class BatchJob(SparkJob):
    """Run of a bounded pipeline as a batch job.

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
        services.state_backend(settings.state_backend)
        self._sinks: _LocalSinks | None = None
        self._group: JobGroup | None = None
        self._stage_count = 1
        self._committing = False
        self._outcomes: list[Outcome] = []

    # ---- the job's face -------------------------------------------------------------------------------------

    def metrics(self) -> JobMetrics:
        """Return the metrics of the subtasks whose results have arrived."""
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
        """Current activity, for messages."""
        group = self._group
        if self.status not in (JobStatus.RUNNING, JobStatus.CANCELLING):
            return ""
        if self._committing:
            return "committing"
        if group is None:
            return "starting Spark"
        over, done, tasks = group.tasks()
        return f"stage {min(over + 1, self._stage_count)} of {self._stage_count}" + (
            f", task {done + 1} of {tasks}" if tasks else ""
        )

    def interrupt(self) -> None:
        """Cancel the waits of sinks in this process."""
        if self._sinks is not None:
            self._sinks.cancel()

    # ---- in the other thread --------------------------------------------------------------------------------

    def work(self, run: SparkRun) -> None:
        """Build the job, run it on Spark, and commit."""
        settings, services = self.settings, self.services
        session = self.open_session()
        text = job_text(self.name, steps_text(self.plan))
        run.group = self._group = group = JobGroup(session, text)
        from pyspark.sql import DataFrame

        self.check_cancelled()
        slots = max(settings.parallelism, tasks_at_a_time(session, 1, self.cancelled.is_set))
        plan = self.plan = self.plan_with(slots)
        refuse_speculation(session, plan)
        local = in_this_process(plan)
        shipped = ship(plan, services)
        with ExitStack() as kept:  # what sources have put down for their readers
            readers = self._readers(plan, kept)
            self.check_cancelled()
            sinks = self._sinks = _LocalSinks(plan, local, services)
            kept.callback(sinks.close)
            sinks.open()
            groups = stage_groups(plan, slots, by_id=hasattr(DataFrame, "repartitionById"))
            self._stage_count = len(groups)
            rows = batch_rows(session, plan, shipped, dump(readers), groups, local)
            with group:
                # Rows for sinks of this process may be many, and are taken partition by partition. Otherwise there
                # are outcomes alone, which are few.
                received = rows.toLocalIterator(prefetchPartitions=True) if local else rows.collect()
                for row in received:
                    self._received(Row(*row), sinks)
            self.check_cancelled()
            # All tasks have ended: until here nothing of a job that fails is committed.
            self._committing = True
            self._commit(plan, sinks)
            self._publish(plan, readers)

    def _readers(self, plan: SteppedPlan, kept: ExitStack) -> list[tuple[int, Dealt]]:
        """Return each target that reads, with its splits."""
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

    def _commit(self, plan: SteppedPlan, sinks: _LocalSinks) -> None:
        """Commit the output of all sinks."""
        ready: dict[str, list[Any]] = {}
        for outcome in self._outcomes:
            vertex, _ = plan.who(outcome.target)
            ready.setdefault(plan.graph.vertex(vertex).uid, []).extend(outcome.ready)
        commit_sinks(plan, ready, self.services)
        self._outcomes += sinks.finish()

    def _publish(self, plan: SteppedPlan, readers: Sequence[tuple[int, Dealt]]) -> None:
        """Notify sources that publish positions. Nothing depends on these, and the output is committed."""
        for id_ in plan.sources:
            step = plan.graph.vertex(id_).head.step
            assert isinstance(step, SourceStep)
            if not step.source.commits_positions:
                continue
            splits = [split for target, dealt in readers if plan.who(target)[0] == id_ for split in dealt.splits]
            try:
                step.source.batch_completed(splits)
            except Exception:
                _log.warning("positions of %s were not published", step.source.name, exc_info=True)


class _LocalSinks:
    """Sinks that run in this process."""

    def __init__(self, plan: SteppedPlan, vertices: frozenset[int], services: Services) -> None:
        self._plan = plan
        self._services = services
        self._targets = [t for t in plan.targets_of(plan.last_stage) if plan.who(t)[0] in vertices]
        self._chains: dict[int, SteppedTask] = {}

    def open(self) -> None:
        """Open the sinks."""
        for target in self._targets:
            vertex, subtask = self._plan.who(target)
            chain = self._chains[target] = SteppedTask(
                self._plan,
                vertex,
                subtask,
                state_backend=self._services.state_backend("memory"),
                clock=self._services.clock,
                services=self._services,
                # Subtasks of one process must not share function objects; the first has the originals.
                own=subtask > 0,
            )
            chain.open()

    def feed(self, row: Row) -> None:
        """Pass a row to its sink."""
        self._chains[row.target].feed(row.sender, self._plan.unpack(row.sender, row.payload))

    def finish(self) -> list[Outcome]:
        """Finish the sinks and return their outcomes."""
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
