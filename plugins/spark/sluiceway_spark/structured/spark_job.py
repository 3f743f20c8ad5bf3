"""Base of jobs on Spark: one thread calls Spark, the calling thread handles signals meanwhile."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.engine import Job, JobResult, JobStatus, Services
from sluiceway.errors import JobCancelledError
from sluiceway.monitoring.infos import ExecutionInfo, JobDescription
from sluiceway.runtime.jobmanager.job_description import describe_job
from sluiceway.runtime.jobmanager.job_metrics import Reporting
from sluiceway.runtime.logging.engine_log import job_logging
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import Presence, TaskletLoop
from sluiceway.runtime.messages.pickling import check_shippable
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.streamgraph import StreamGraph
from sluiceway.util.overriding import override
from sluiceway_spark.session.application import STOPPED, Application, SparkStoppedError, fails_of_stop
from sluiceway_spark.session.configuration import SessionConf
from sluiceway_spark.structured.job_group import JobGroup, users_error

__all__ = ["SparkJob", "SparkRun"]

_BATCH: Final = 4096
"""Records at a time where nobody says how many: nobody waits for them, and each batch has its price."""

_USUAL: Final = Settings().batch_size

_INTERRUPT_AGAIN_S: Final = 0.5
_LAST_WAIT_S: Final = 10.0

_OF_STOPPED: Final = ("stopped SparkContext", "[DATA_SOURCE_NOT_FOUND]")
"""Parts of Spark's messages if it is called after its context was stopped, with which it forgets data sources."""


class SparkJob(Job):
    """Run of a job on Spark. The calling thread waits, handles signals and reports; another one calls Spark.

    Args:
        graph: what to run.
        settings: the options of the run.
        services: what plugins give.
        session: what to make a session of where none is active.

    Raises:
        GraphError: it cannot run here, or cannot be sent to Spark's workers; names the steps.
    """

    def __init__(self, graph: StreamGraph, settings: Settings, services: Services, session: SessionConf) -> None:
        self.name = graph.job_name
        self.settings = replace(settings, batch_size=_BATCH) if settings.batch_size == _USUAL else settings
        self.services = services
        self.session = session
        # What cannot run is told before Spark is started.
        self._graph = graph
        self.plan = self.plan_with(None)
        check_shippable(self.plan.graph)
        self._given = settings
        self._ui = ""
        self._opened: Any = None
        self._began_ms = 0
        self._reporters = services.metrics_reporters(settings.metrics)
        self._status = JobStatus.CREATED
        self._loop: TaskletLoop | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self.cancelled = threading.Event()
        self._run: SparkRun | None = None
        self._failure: BaseException | None = None

    def plan_with(self, keyed_subtasks: int | None) -> SteppedPlan:
        """Return the plan whose keyed vertices have so many subtasks or more; None: one for each key group."""
        return SteppedPlan.of(self._graph, self.settings, self.services, keyed_subtasks=keyed_subtasks)

    @abstractmethod
    def work(self, run: SparkRun) -> None:
        """Have Spark do it all. In a thread of its own."""

    def interrupt(self) -> None:
        """End whatever :meth:`work` waits for soon: the job was cancelled. Called several times, in the loop."""

    # ---- the job's face -------------------------------------------------------------------------------------

    @override
    def run(self) -> JobResult:
        if self._loop is not None:
            raise RuntimeError("a job runs once: prepare another one")
        with job_logging(self.settings):
            return self._lead()

    def _lead(self) -> JobResult:
        clock = self.services.clock
        self._began = clock.monotonic()
        self._began_ms = clock.now_ms()
        poller = SelectorPoller()
        loop = self._loop = TaskletLoop(clock, poller)
        reporting = Reporting(
            self._reporters, loop, clock, self.settings.metrics_interval_ms, lambda: self.metrics()
        )
        run = self._run = SparkRun(self, loop)
        try:
            reporting.open(self.name)
            self._set_status(JobStatus.RUNNING)
            loop.add(run.presence)
            run.start()
            if self.cancelled.is_set():
                self._interrupt()
            loop.run(lambda: run.over)
        except BaseException:
            # Nothing that Spark still does is to be waited for: who ends a program wants it to end.
            self.cancelled.set()
            self.interrupt()
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
        return JobResult(self.name, self._status, self.metrics(), self.failures())

    def cancel(self) -> None:
        """Cancel the stage. From any thread, and from signal handlers."""
        self.cancelled.set()
        loop = self._loop
        if loop is not None:
            loop.mail(self._interrupt)

    @property
    @override
    def status(self) -> JobStatus:
        return self._status

    @property
    def elapsed_s(self) -> float:
        """Run time so far, or in total, in seconds."""
        return 0.0 if self._began is None else (self._ended or self.services.clock.monotonic()) - self._began

    def check_cancelled(self) -> None:
        """Raise JobCancelledError if it was cancelled."""
        if self.cancelled.is_set():
            raise JobCancelledError(f"job {self.name!r} was cancelled")

    def describe(self) -> JobDescription:
        """Return the graph, the state of each subtask, and the address of Spark's own pages."""
        described = describe_job(self.plan.graph, self._given, None)
        return msgspec.structs.replace(
            described,
            executions=self._executions(),
            engine_url="" if self._status.ended else self._ui,
        )

    def _executions(self) -> list[ExecutionInfo]:
        told = {(m.vertex_id, m.subtask): m.state for m in self.metrics().subtasks}
        usual = self._status.value if self._status.ended else "running" if told else "created"
        found = []
        for vertex in self.plan.graph.vertices:
            for subtask in range(vertex.parallelism):
                state = usual if self._status.ended else told.get((vertex.id, subtask), usual)
                found.append(ExecutionInfo(vertex.id, subtask, 0, state, {state: self._began_ms}))
        return found

    def open_session(self) -> Any:
        """Return the session, and note the address of Spark's own pages, of which Spark Connect has none."""
        session = self._opened = self.session.session(least_cores=self.settings.parallelism, name=self.name)
        with suppress(Exception):
            self._ui = str(session.sparkContext.uiWebUrl or "")
        return session

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the exception of a subtask from an error of Spark; else what Spark says, in short."""
        session, cause = self._opened, users_error(error)
        # Of a stage that fails Spark gives a reason, which is kept.
        is_of_call = cause is error or any(sign in str(cause) for sign in _OF_STOPPED)
        if is_of_call and session is not None and fails_of_stop(session, error):
            cause = SparkStoppedError(f"job {self.name!r} {Application(session).why_ended(STOPPED)}")
            cause.__cause__ = error
        return cause

    # ---- in the loop's thread -------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        if self._status is JobStatus.RUNNING:
            self._set_status(JobStatus.CANCELLING)
        run, loop = self._run, self._loop
        if run is not None and loop is not None and not run.over:
            self.interrupt()
            run.interrupt()
            # What Spark is asked to do from now on would not hear of it.
            loop.at(self.services.clock.monotonic() + _INTERRUPT_AGAIN_S, self._interrupt)

    def ended(self, failure: BaseException | None) -> None:
        """Spark has ended."""
        if self.cancelled.is_set() and (failure is None or self._status is JobStatus.CANCELLING):
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
        self.services.listener.job_status_changed(self.name, old, new)


class SparkRun(threading.Thread):
    """Thread that calls Spark.

    Attributes:
        group: of the Spark jobs that it starts, as soon as there is one.
        over: whether it has ended.
    """

    def __init__(self, job: SparkJob, loop: TaskletLoop) -> None:
        super().__init__(name="sluiceway-spark", daemon=True)
        self.group: JobGroup | None = None
        self.over = False
        self.presence = Presence(lambda: self.over)
        self._job = job
        self._mail = loop.mail
        self._wake = loop.wake

    def run(self) -> None:
        """Work, then tell."""
        self._mail(partial(self._ended, self._work()))

    def _work(self) -> BaseException | None:
        """Return what the work failed with.

        The error is in no variable of a frame that its traceback leads to, the caller's included. That would be a
        cycle, which keeps what Spark has opened, such as the socket that results come by, until the garbage
        collector passes.
        """
        try:
            self._job.work(self)
        except BaseException as error:
            try:
                return self._job.cause_of(error)
            except Exception:
                return error  # the loop waits for this thread, whatever fails
        return None

    def interrupt(self) -> None:
        """Have Spark stop what it does. From another thread."""
        if self.group is not None and self.is_alive():
            self.group.cancel()

    def _ended(self, failure: BaseException | None) -> None:
        self.over = True
        self._job.ended(failure)
        self._wake(self.presence)
