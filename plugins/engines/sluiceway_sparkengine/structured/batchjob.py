"""A bounded pipeline as one batch job of Spark's."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any, Final

from sluiceway.config import Settings
from sluiceway.engine import Job, JobResult, JobStatus, Services
from sluiceway.errors import JobCancelledError
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.runtime.cluster.shipping import check_shippable, dump, load
from sluiceway.runtime.embedded import EmbeddedChain, EmbeddedPlan
from sluiceway.runtime.enginelog import job_logging
from sluiceway.runtime.microbatch.splits import plan_splits
from sluiceway.runtime.poller import SelectorPoller
from sluiceway.runtime.reporting import Reporting
from sluiceway.runtime.worker import Progress, Tasklet, Worker
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark import SessionConf
from sluiceway_sparkengine.structured.groups import JobGroup, users_error
from sluiceway_sparkengine.structured.local import in_this_process, refuse_speculation
from sluiceway_sparkengine.structured.passes import Pass, passes_of
from sluiceway_sparkengine.structured.rows import SCHEMA, Row
from sluiceway_sparkengine.structured.stages import Outcome, level_task, ship, source_task

__all__ = ["BatchJob", "together"]

_BATCH: Final = 4096
"""Records at a time where nobody says how many: nobody waits for them, and each batch has its price."""

_USUAL: Final = Settings().batch_size
_AT_ONCE: Final = 2
"""Partitions that Spark computes at a time when rows are taken one partition after the other."""

_INTERRUPT_AGAIN_S: Final = 0.5
_LAST_WAIT_S: Final = 10.0


class BatchJob(Job):
    """One run of a bounded pipeline on Spark.

    The calling thread waits, hears signals and tells reporters; another one has Spark do the work.

    Args:
        graph: what to run.
        settings: the options of the run.
        services: what plugins give.
        session: what to make a session of where none is active.

    Raises:
        GraphError: it cannot run here, or cannot be sent to Spark's workers; names the steps.
    """

    def __init__(self, graph: StreamGraph, settings: Settings, services: Services, session: SessionConf) -> None:
        self._stream_graph = graph
        self._settings = replace(settings, batch_size=_BATCH) if settings.batch_size == _USUAL else settings
        self._services = services
        self._conf = session
        # What cannot run is told before Spark is started.
        plan = EmbeddedPlan.of(graph, self._settings, services)
        check_shippable(plan.graph)
        services.state_backend(settings.state_backend)
        self._reporters = services.metrics_reporters(settings.metrics)
        self._status = JobStatus.CREATED
        self._name = graph.job_name
        self._loop: Worker | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self._cancelled = threading.Event()
        self._run: _Run | None = None
        self._failure: BaseException | None = None
        self._outcomes: list[Outcome] = []
        self.plan = plan

    # ---- the job's face -------------------------------------------------------------------------------------

    def run(self) -> JobResult:
        """Have Spark run it, and wait."""
        if self._loop is not None:
            raise RuntimeError("a job runs once: prepare another one")
        with job_logging(self._settings):
            return self._lead()

    def _lead(self) -> JobResult:
        clock = self._services.clock
        self._began = clock.monotonic()
        poller = SelectorPoller()
        loop = self._loop = Worker(clock, poller)
        reporting = Reporting(
            self._reporters, loop, clock, self._settings.metrics_interval_ms, lambda: self.metrics()
        )
        run = self._run = _Run(self, loop)
        try:
            reporting.open(self._name)
            self._set_status(JobStatus.RUNNING)
            loop.add(run.presence)
            run.start()
            if self._cancelled.is_set():
                self._interrupt()
            loop.run(lambda: run.over)
        except BaseException:
            # Nothing that Spark still does is to be waited for: who ends a program wants it to end.
            self._cancelled.set()
            run.interrupt()
            run.join(_LAST_WAIT_S)
            self._end(JobStatus.CANCELED)
            raise
        finally:
            self._ended = clock.monotonic()
            reporting.close()
            poller.close()
        if self._failure is not None:
            raise self._failure
        return JobResult(self._name, self._status, self.metrics())

    def cancel(self) -> None:
        """Have Spark end it. From any thread, and from signal handlers."""
        self._cancelled.set()
        loop = self._loop
        if loop is not None:
            loop.mail(self._interrupt)

    @property
    def status(self) -> JobStatus:
        """Its status."""
        return self._status

    def metrics(self) -> JobMetrics:
        """The figures of the subtasks that have ended, as far as Spark has given them."""
        clock = self._services.clock
        elapsed = 0.0 if self._began is None else (self._ended or clock.monotonic()) - self._began
        outcomes, plan = list(self._outcomes), self.plan
        sources = set(plan.sources)
        return JobMetrics(
            job_name=self._name,
            status=self._status.value,
            elapsed_s=elapsed,
            records_in=sum(o.records_in for o in outcomes if plan.who(o.target)[0] in sources),
            records_out=sum(o.records_to_sinks for o in outcomes),
            subtasks=tuple(self._figures(outcome) for outcome in sorted(outcomes, key=lambda o: o.target)),
            doing="" if self._status.ended or self._run is None else self._run.doing(),
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

    # ---- in the loop's thread -------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        if self._status is JobStatus.RUNNING:
            self._set_status(JobStatus.CANCELLING)
        run, loop = self._run, self._loop
        if run is not None and loop is not None and not run.over:
            run.interrupt()
            # What Spark is asked to do from now on would not hear of it.
            loop.at(self._services.clock.monotonic() + _INTERRUPT_AGAIN_S, self._interrupt)

    def ended(self, failure: BaseException | None) -> None:
        """Spark has ended."""
        if self._cancelled.is_set() and (failure is None or self._status is JobStatus.CANCELLING):
            self._end(JobStatus.CANCELED if failure is not None else JobStatus.FINISHED)
        elif failure is not None:
            self._failure = failure
            self._set_status(JobStatus.FAILING)
            self._end(JobStatus.FAILED)
        else:
            self._end(JobStatus.FINISHED)

    def _end(self, status: JobStatus) -> None:
        if not self._status.ended:
            self._set_status(status)

    def _set_status(self, new: JobStatus) -> None:
        old, self._status = self._status, new
        self._services.listener.job_status_changed(self._name, old, new)

    # ---- in the other thread --------------------------------------------------------------------------------

    def work(self, run: _Run) -> None:
        """Translate it, have Spark run it, commit."""
        settings, services = self._settings, self._services
        session = self._conf.session(least_cores=settings.parallelism)
        run.group = group = JobGroup(session, f"sluiceway: {self._name}")
        from pyspark.sql import DataFrame

        self._check_cancelled()
        slots = max(settings.parallelism, _slots(session))
        plan = self.plan = EmbeddedPlan.of(self._stream_graph, settings, services, keyed_subtasks=slots)
        refuse_speculation(session, plan)
        local = in_this_process(plan)
        shipped = ship(plan, services)
        readers = self._readers(plan)
        self._check_cancelled()
        sinks = _LocalSinks(plan, local, services)
        run.sinks = sinks
        try:
            sinks.open()
            passes = passes_of(plan, slots, by_id=hasattr(DataFrame, "repartitionById"))
            run.stages = len(passes)
            rows = _rows(session, plan, shipped, dump(readers), passes, local)
            with group:
                received = rows.toLocalIterator(prefetchPartitions=True) if local else rows.collect()
                for row in received:
                    self._received(Row(*row), sinks)
            self._check_cancelled()
            run.committing = True
            self._commit(plan, sinks)
        finally:
            sinks.close()

    def _readers(self, plan: EmbeddedPlan) -> list[tuple[int, list[Any]]]:
        """Each target that reads, with its splits."""
        readers = []
        for id_ in plan.sources:
            vertex = plan.graph.vertex(id_)
            step = vertex.head.step
            assert isinstance(step, SourceStep)
            dealt = plan_splits(
                step.source, vertex.parallelism, self._services.clock, cancelled=self._cancelled.is_set
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
        for outcome in self._outcomes:
            if outcome.ready:
                chain = sinks.chain(outcome.target)
                try:
                    chain.open(outcome.ready)
                finally:
                    chain.close()
        self._outcomes += sinks.finish()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise JobCancelledError(f"job {self._name!r} was cancelled")


class _Presence(Tasklet):
    """Keeps the loop going until Spark has ended."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._of = run

    def step(self) -> Progress:
        return Progress.DONE if self._of.over else Progress.IDLE


class _Run(threading.Thread):
    """The thread that talks to Spark."""

    def __init__(self, job: BatchJob, loop: Worker) -> None:
        super().__init__(name="sluiceway-spark-batch", daemon=True)
        self.group: JobGroup | None = None
        self.sinks: _LocalSinks | None = None
        self.over = False
        self.committing = False
        self.stages = job.plan.last_stage + 1
        self.presence = _Presence(self)
        self._job = job
        self._mail = loop.mail
        self._wake = loop.wake

    def run(self) -> None:
        """Work, then tell."""
        failure: BaseException | None = None
        try:
            self._job.work(self)
        except BaseException as error:
            failure = users_error(error)
        self._mail(lambda: self._ended(failure))

    def interrupt(self) -> None:
        """Have Spark stop what it does. From another thread."""
        group, sinks = self.group, self.sinks
        if sinks is not None:
            sinks.cancel()
        if group is not None and self.is_alive():
            group.cancel()

    def doing(self) -> str:
        """What is done now, for people. From any thread."""
        group = self.group
        if self.committing:
            return "committing"
        if group is None:
            return "starting Spark"
        over, done, tasks = group.tasks()
        return f"stage {min(over + 1, self.stages)} of {self.stages}" + (
            f", task {done + 1} of {tasks}" if tasks else ""
        )

    def _ended(self, failure: BaseException | None) -> None:
        self.over = True
        self._job.ended(failure)
        self._wake(self.presence)


class _LocalSinks:
    """The sinks that give their records to this program, and the commits of the others."""

    def __init__(self, plan: EmbeddedPlan, vertices: frozenset[int], services: Services) -> None:
        self.plan = plan
        self._services = services
        self._targets = [t for t in plan.targets_of(plan.last_stage) if plan.who(t)[0] in vertices]
        self._chains: dict[int, EmbeddedChain] = {}

    def chain(self, target: int) -> EmbeddedChain:
        """A subtask of a sink, not opened yet, that works on what the program holds."""
        vertex, subtask = self.plan.who(target)
        return EmbeddedChain(
            self.plan,
            vertex,
            subtask,
            state_backend=self._services.state_backend("memory"),
            clock=self._services.clock,
            services=self._services,
            own=subtask > 0,
        )

    def open(self) -> None:
        """Open those of this process."""
        for target in self._targets:
            chain = self._chains[target] = self.chain(target)
            chain.open()

    def feed(self, row: Row) -> None:
        """Records have come."""
        self._chains[row.target].feed(row.sender, self.plan.unpack(row.sender, row.payload))

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


def together(rows: Any, targets: int, slots: int) -> Any:
    """The rows of each target in one partition, behind one another; its senders take turns."""
    parts = min(targets, slots)
    apart = rows.repartitionById if hasattr(rows, "repartitionById") else rows.repartition
    return apart(parts, "target").sortWithinPartitions("target", "seq", "sender")


def _slots(session: Any) -> int:
    """How many tasks run at a time, as far as Spark says."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # over Connect there is no context
        return 1
