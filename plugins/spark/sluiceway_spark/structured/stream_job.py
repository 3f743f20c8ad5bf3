"""Run of a pipeline in micro-batches: starts queries, restarts after failures, resumes earlier runs."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.config.settings import Settings
from sluiceway.engine import JobFailure, JobResult, JobStatus, Services
from sluiceway.errors import (
    CheckpointError,
    ConfigurationError,
    GraphError,
    NotBuiltYetError,
    PluginError,
    SuppressRestartsError,
)
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import JobDescription
from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place
from sluiceway.runtime.jobmanager.job_requests import JobRequests
from sluiceway.runtime.jobmanager.repeated_failures import RepeatedFailures
from sluiceway.runtime.microbatch.run_directory import (
    Run,
    check_same,
    find_runs,
    keyed_subtasks_of,
    new_run,
)
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.scheduler import restart_strategy
from sluiceway.streamgraph import StreamGraph
from sluiceway.util.overriding import override
from sluiceway.util.raising import raise_again
from sluiceway_spark.session.application import Application, SparkStoppedError
from sluiceway_spark.session.configuration import SessionConf
from sluiceway_spark.session.context import need_context, tasks_at_a_time
from sluiceway_spark.structured.microbatch.control_files import stop_sources
from sluiceway_spark.structured.microbatch.metrics import StreamFigures
from sluiceway_spark.structured.microbatch.moved_run import refuse_moved
from sluiceway_spark.structured.microbatch.progress import QueryProgress
from sluiceway_spark.structured.query_settings import apply_settings
from sluiceway_spark.structured.spark_job import SparkJob, SparkRun
from sluiceway_spark.structured.state.placement import MOST_TARGETS
from sluiceway_spark.structured.streaming_query import StreamQuery

__all__ = ["StreamJob"]

_ENGINE: Final = "spark"
_FAILURES: Final = 16
"""Failures that are remembered, the last ones."""

_KEYED_A_SLOT: Final = 2
"""Keyed subtasks for each task that Spark runs at a time. Each has its price in each micro-batch."""

_NO_CONTEXT: Final = (
    "run the program by spark-submit, or stop that session first; a pipeline whose sources end runs without "
    "checkpoints, and transform() between two streaming DataFrames"
)

HOPELESS: Final = (
    SuppressRestartsError,
    ConfigurationError,
    GraphError,
    PluginError,
    ImportError,
    SparkStoppedError,
)
"""Errors that no restart helps."""


class StreamJob(SparkJob):
    """Run of a pipeline in micro-batches.

    Args:
        graph: what to run.
        settings: the options of the run.
        services: what plugins give.
        session: what to make a session of where none is active.

    Raises:
        GraphError: it cannot run here, or cannot be sent to Spark's workers; names the steps.
        CheckpointError: there is no run to go on from.
        StateError: the job is another one by now.
    """

    def __init__(self, graph: StreamGraph, settings: Settings, services: Services, session: SessionConf) -> None:
        super().__init__(graph, settings, services, session)
        self._restarts = restart_strategy(settings.restart)
        self._repeated = RepeatedFailures()
        self._figures = StreamFigures(self.plan)
        self._progress = QueryProgress()
        self._failures: deque[JobFailure] = deque(maxlen=_FAILURES)  # with their causes, which may be large
        self._restarted = 0
        self._stopping = False
        self._pausing = threading.Event()
        self._savepoints: JobRequests[StreamJob] = JobRequests()
        self._asked: list[Callable[[str, BaseException | None], None]] = []
        self._here: CheckpointStorage | None = None
        # What cannot go on is told before Spark is started.
        self._place, self._found = self._look(settings)

    def _look(self, settings: Settings) -> tuple[str | None, Run | None]:
        """Return the place of runs, and the run to resume."""
        place = settings.from_checkpoint or settings.checkpoints
        if place is None:
            return None, None
        storage = self.services.checkpoint_storage(place)
        if settings.from_checkpoint is None and not settings.resume:
            return place, None
        runs = [run for run in find_runs(storage) if run.engine == _ENGINE]
        if settings.from_checkpoint is None:
            runs = [run for run in runs if run.job == self.name]
            if not runs:
                return place, None
        if not runs:
            raise CheckpointError(
                f"there is no run of engine 'spark' in {place}: name the directory of one, or that with several. "
                "What other engines have left there, or runs with --hosted, only those go on from"
            )
        mine = [run for run in runs if run.job == self.name] or runs
        run = mine[-1]
        self._use(self.plan_with(keyed_subtasks_of(run)))
        check_same(run, self.plan, storage.shown(run.directory) if run.directory else place)
        refuse_moved(storage, run)
        return place, run

    def _use(self, plan: SteppedPlan) -> None:
        self.plan = plan
        self._figures = StreamFigures(plan)

    def metrics(self) -> JobMetrics:
        """Return the metrics of the committed micro-batches."""
        now_ms = self.services.clock.now_ms()
        found = self._figures.metrics(self.name, self.status.value, self.elapsed_s, self._restarted, now_ms)
        if self.status is not JobStatus.RUNNING or found.micro_batches:
            return found
        return replace(found, doing="starting Spark" if self._here is None else "the first micro-batch")

    @override
    def describe(self) -> JobDescription:
        return msgspec.structs.replace(super().describe(), micro_batches=self._progress.infos())

    def failures(self) -> tuple[JobFailure, ...]:
        """Return the failures after which the job restarted."""
        return tuple(self._failures)

    @override
    def run(self) -> JobResult:
        self._savepoints.begin(self, lambda action: action())
        try:
            return super().run()
        finally:
            self._savepoints.close()

    def stop(self) -> None:
        """Ask it to end its sources with the micro-batch after the one that is running. From any thread."""
        self._stopping = True
        here = self._here
        if here is not None:
            stop_sources(here)

    def savepoint(
        self, place: str | None, done: Callable[[str, BaseException | None], None], *, stop: bool = False
    ) -> None:
        """Ask it to end behind the running micro-batch: the run's directory is what goes on from there.

        Raises:
            ConfigurationError: another place is asked for, or the run has none that stays.
            NotBuiltYetError: the job is to go on.
        """
        if not stop:
            raise NotBuiltYetError(
                "micro-batches on Spark leave no savepoints behind while they go on: stop the job with one, or "
                "run it with --hosted"
            )
        if place is not None:
            self.check_savepoint(place)
        savepoint_place(None, self._place)
        self._savepoints.ask(StreamJob._pause, done, "")

    def check_savepoint(self, place: str) -> None:
        """Check that a savepoint is asked for in the place of the run.

        Raises:
            ConfigurationError: it is another one, or the run has none that stays.
        """
        own, asked = self._place, savepoint_place(place, None)
        if own is None:
            raise ConfigurationError(
                "what micro-batches on Spark go on from is in the directory of the run, and this one has none "
                f"that stays: name {asked} with --checkpoints, too, or run it with --hosted"
            )
        if asked != savepoint_place(own, None):
            raise ConfigurationError(
                f"what micro-batches on Spark go on from is in the directory of the run, in {own}, and cannot be "
                f"put in {asked}: name {own}, or run it with --hosted"
            )

    def _pause(self, done: Callable[[str, BaseException | None], None]) -> None:
        self._asked.append(done)
        self._pausing.set()

    # ---- in the other thread --------------------------------------------------------------------------------

    def work(self, run: SparkRun) -> None:
        """Run queries until one completes or the restart strategy gives up."""
        session = self.open_session()
        context = need_context(session, "micro-batches need", _NO_CONTEXT)
        slots = max(self.settings.parallelism, tasks_at_a_time(session, 1, self.cancelled.is_set))
        # With settings of its own; the program's keep theirs.
        users, session = session, session.newSession()
        self.check_cancelled()
        place, temporary = self._place, ""
        if place is None:
            master = str(context.master)
            if not master.startswith("local"):
                raise ConfigurationError(
                    f"the executors of {master} need a place that all of them see, for what they have read and "
                    "written: name a directory or URL with --checkpoints"
                )
            place = temporary = tempfile.mkdtemp(prefix="sluiceway-spark-")
        try:
            storage = self.services.checkpoint_storage(place)
            found = self._found or self._new(storage, slots)
            shown = storage.shown(found.directory) if found.directory else storage.location
            apply_settings(session, users, partitions=found.partitions, location=shown)
            self._work_on(session, slots, storage, found)
        finally:
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)

    def _new(self, storage: CheckpointStorage, slots: int) -> Run:
        self._use(self.plan_with(_KEYED_A_SLOT * slots))
        most = max(len(self.plan.targets_of(stage)) for stage in range(self.plan.last_stage + 1))
        spread = self.plan.targets <= MOST_TARGETS
        run = new_run(self.plan, _ENGINE, self.services.clock.now_ms(), min(most, slots), spread=spread)
        run.write(storage)
        return run

    def _work_on(self, session: Any, slots: int, storage: CheckpointStorage, run: Run) -> None:
        location = storage.shown(run.directory) if run.directory else storage.location
        here = self.services.checkpoint_storage(location)
        stop_sources(here, False)  # an earlier run was asked, and did not come to it
        # stop() leaves its mark before it looks for this place: one of the two sees what the other has set.
        self._here = here
        if self._stopping:
            stop_sources(here)
        query = StreamQuery(
            session,
            self.plan,
            run,
            location,
            self.services,
            slots=slots,
            interval_ms=self.settings.checkpoint_interval_ms,
            figures=self._figures,
            progress=self._progress,
            cancelled=self.cancelled,
            pausing=self._pausing,
        )
        while True:
            try:
                has_ended = query.run()
            except BaseException as error:
                cause = self.cause_of(error)
                if not isinstance(cause, Exception) or not self._go_on_after(cause, session):
                    raise_again(cause)  # without Spark's error around it
                continue
            if has_ended:
                run.finish(storage, self.services.clock.now_ms())
            # Also where the input has ended meanwhile: the directory of the run is what they have asked for.
            for done in self._asked:
                done(location, None)
            return

    def _go_on_after(self, cause: Exception, session: Any) -> bool:
        """Return whether to restart after a failure, and wait for the delay of the restart strategy before."""
        clock = self.services.clock
        self.check_cancelled()
        if isinstance(cause, HOPELESS):
            return False
        application = Application(session)
        if application.ended:
            cause.add_note(f"job {self.name!r} {application.why_ended(str(cause))}")
            return False
        limit = self._restarts.same_record_limit
        if limit is not None and self._repeated.count(cause, self.metrics().micro_batches) >= limit:
            cause.add_note(
                f"job {self.name!r} has given up: this record has failed {limit} times without progress"
            )
            return False
        delay_ms = self._restarts.delay_ms(clock.steady_ms())
        if delay_ms is None:
            if self._restarts.reason:
                cause.add_note(f"job {self.name!r} has given up: {self._restarts.reason}")
            return False
        self._restarted += 1
        self._failures.append(JobFailure(clock.now_ms(), "", None, None, "", cause, len(self._figures), delay_ms))
        if not self.cancelled.wait(delay_ms / 1000):
            return True
        self.check_cancelled()
        return False
