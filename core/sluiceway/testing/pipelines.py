"""Whole pipelines under a test's control: virtual time, a step at a time, snapshots and restores."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Unpack

from sluiceway.api import Pipeline
from sluiceway.api.run_options import RunOptions
from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings, resolve
from sluiceway.engine import JobResult, JobStatus
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import JobMetrics
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.checkpoint_places import check_place
from sluiceway.runtime.jobmanager.restore import restore_from
from sluiceway.runtime.jobmanager.state_compatibility import check_states, restored_job
from sluiceway.runtime.local.engine import LocalJob, job_graph_of
from sluiceway.runtime.loop.blocking_io import Inline
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.streamgraph import StreamGraph
from sluiceway.testing.programs import check_restored, clock_step, whole_ms
from sluiceway.testing.virtual_loop import VirtualEventLoop

__all__ = ["PipelineHarness", "run_pipeline"]

_ROUNDS_AT_A_TIME = 64


def _check_options(settings: Settings, restored: JobSnapshot | None) -> None:
    defaults = Settings()
    for name in ("engine", "workers", "hosted"):
        given = getattr(settings, name)
        if given != getattr(defaults, name):
            raise ConfigurationError(
                f"{name}={given!r}: the harness runs all of the job in this thread, in virtual time; leave it "
                "out, or run the pipeline with its run()"
            )
    if restored is not None and (settings.from_checkpoint is not None or settings.resume):
        other = "resume" if settings.from_checkpoint is None else "from_checkpoint"
        raise ConfigurationError(f"a job begins with one snapshot: give the harness restored or {other}, not both")


class PipelineHarness:
    """Harness that runs a pipeline in the test's own thread, with a clock that only the test moves.

    A context manager: leaving it closes the job, whatever it was doing. What the job fails with is raised by
    the method during which it failed. Handles of ``collect()`` are cleared at the start.

    Args:
        flow: the pipeline.
        restored: go on from this snapshot, taken of a pipeline with the same uids at any parallelism.
        start_ms: the first reading of the clock, ms since the epoch.
        patience_s: real seconds to wait for something outside the test (a socket, a helper thread).
            Coroutines run in the test's thread and in virtual time.
        most_rounds: how often each task may have its turn before :meth:`run` gives up waiting for rest.
        options: those of ``Pipeline.run``, apart from those that choose another engine or worker processes.
            Neither the environment nor a file is looked at.

    Attributes:
        clock: the job's clock.

    Raises:
        CheckpointError: the place for checkpoints cannot be written, or there is none to begin with.
        ConfigurationError: an option that the harness does not have, or ``restored`` beside a checkpoint to begin
            with.
        GraphError: the pipeline cannot become a job.
        StateError: the snapshot has state that no step goes by, or that is of another step than now.
    """

    def __init__(
        self,
        flow: Pipeline,
        *,
        restored: JobSnapshot | None = None,
        start_ms: int = 0,
        patience_s: float = 2.0,
        most_rounds: int = 100_000,
        **options: Any,
    ) -> None:
        if not isinstance(flow, Pipeline):
            raise TypeError(
                f"the harness runs a Pipeline, not {type(flow).__name__}: end the stream in a sink, as collect(), "
                "and pass the pipeline that it belongs to"
            )
        check_restored("a PipelineHarness", restored)
        self.clock = VirtualClock(whole_ms("start_ms", start_ms))
        self._patience_s = patience_s
        self._most_rounds = most_rounds
        self._result: JobResult | None = None
        self._closed = False
        settings = resolve({"seed": 0, **options}, environ={}, directory="/").settings
        _check_options(settings, restored)
        self._poller = SelectorPoller()
        self._event_loop = VirtualEventLoop(self.clock, patience_s)
        # Later threads are helpers of the job, which may bring something before time goes on.
        self._known_threads = set(threading.enumerate())

        def make(graph: StreamGraph, settings: Settings) -> LocalJob:
            services = default_manager().services(self.clock)
            job_graph = job_graph_of(graph, services)
            begun = restored
            if begun is None:
                begun = restore_from(settings, job_graph, services)
            else:
                check_states(restored_job(begun), job_graph, settings, services)
            check_place(settings, services)
            return LocalJob(
                job_graph,
                settings,
                services,
                lambda: self._poller,
                begun,
                lambda: self._event_loop,
                lambda worker: Inline(worker.soon),
            )

        try:
            self._job = flow._make_job(make, settings)
        except BaseException:
            self._poller.close()
            raise
        self._job.begin()

    def __enter__(self) -> PipelineHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def status(self) -> JobStatus:
        """State of the job in its life cycle."""
        return self._job.status

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self._job.status.ended

    @property
    def under_way(self) -> bool:
        """Return whether records wait between steps, as before a step that accepts no input for now."""
        return any(task.under_way() for task in self._job.tasks)

    def metrics(self) -> JobMetrics:
        """Return the job's metrics as of now."""
        return self._job.metrics()

    def run(self) -> PipelineHarness:
        """Let the job do all that it can do without time going on.

        Raises:
            AssertionError: it does not come to rest, as with a source that never ends and has no rate.
            BaseException: what the job failed with.
        """
        for _ in range(max(1, self._most_rounds // _ROUNDS_AT_A_TIME)):
            if self._poller.watching():
                self._poller.poll(0)
            ran = self._turns(_ROUNDS_AT_A_TIME)
            if not self._event_loop.run() and not ran:
                break
        else:
            raise AssertionError(
                f"the job does not come to rest within {self._most_rounds} rounds: does a source never end? "
                "Give it a count, a rate or a PAUSE"
            )
        self._check_end()
        return self

    def run_once(self, rounds: int = 1) -> bool:
        """Give each task that is ready its turn; whether anything ran."""
        ran = self._turns(rounds)
        self._check_end()
        return ran

    def _turns(self, rounds: int) -> bool:
        """Run tasklets one by one: the worker cuts many rounds short if they take long, and rounds are counted."""
        ran = False
        for _ in range(rounds):
            if not self._job.worker.run_ready(1):
                break
            ran = True
        return ran

    def advance(self, ms: int) -> PipelineHarness:
        """Let time go on by ``ms``, stopping at everything that is due in between."""
        target = self.clock.now_ms() + clock_step(ms)
        self.run()
        while (due := self._due_ms()) is not None and due <= target:
            self.clock.advance(max(due - self.clock.now_ms(), 0))
            self.run()
        self.clock.advance(target - self.clock.now_ms())
        return self.run()

    def run_until(self, condition: Callable[[], bool]) -> PipelineHarness:
        """Run the job, time going on as it must, until ``condition()`` holds while the job is at rest.

        Raises:
            AssertionError: the job has ended, or is at rest and nothing will wake it.
            BaseException: what the job failed with.
        """
        self.run()
        while not condition():
            assert not self.ended, "the job has ended, and what was waited for has not come"
            due = self._due_ms()
            helpers = set(threading.enumerate()) - self._known_threads
            if self._event_loop.waits_outside and self._event_loop.wait_outside():
                pass  # a socket of a coroutine, or a thread that it waits for
            elif due is None or helpers or self._poller.watching():
                self._wait_outside(due)
                self._known_threads |= helpers  # one that has not brought anything by now is not waited for again
            else:
                self.clock.advance(max(due - self.clock.now_ms(), 0))
            self.run()
        return self

    def run_to_end(self) -> JobResult:
        """Run the job to its end, time going on as it must.

        Raises:
            AssertionError: the job is at rest and nothing will wake it: a PAUSE, a script without EOF, a sink
                that is blocked.
            BaseException: what the job failed with.
        """
        self.run_until(lambda: self.ended)
        assert self._result is not None, (
            "the harness was closed before the job's end: run it inside the with block"
        )
        return self._result

    def cancel(self) -> JobResult:
        """Cancel the job and run it to that end."""
        self._job.cancel()
        return self.run_to_end()

    def snapshot(self) -> JobSnapshot:
        """Return the job's state, once every record that was read has gone through. The job goes on after it.

        Raises:
            AssertionError: the job has ended.
            StateError: records cannot go through, as before a sink that is blocked.
        """
        assert not self.ended, "the job has ended: there is nothing to take a snapshot of"
        if not self._job.tasks:
            self.run_once()
        self._job.pause_sources(True)
        try:
            self.run()
            taken = self._job.snapshot()
        finally:
            self._job.pause_sources(False)
        # As it would come back from a file.
        copied: JobSnapshot = pickle.loads(pickle.dumps(taken))
        return copied

    def close(self) -> None:
        """End the job at once, if it has not ended. Harmless a second time."""
        if not self._closed:
            self._closed = True
            if self._result is None:
                self._job.abandon()

    def _check_end(self) -> None:
        if self._job.worker.alive() or not self.ended or self._result is not None or self._closed:
            return
        self._closed = True
        self._result = self._job.end()

    def _due_ms(self) -> int | None:
        due = self._job.worker.next_deadline()
        in_loop = self._event_loop.next_due()
        if due is None:
            return in_loop
        # Deadlines are in seconds since the clock's start; whole ms later they have certainly come.
        now_ms, now = self.clock.now_ms(), self.clock.monotonic()
        due_ms = now_ms + max(math.ceil(round((due - now) * 1000, 6)), 0)
        if due_ms == now_ms and due > now:  # by less than counts, but the worker counts exactly
            due_ms += 1
        return due_ms if in_loop is None else min(due_ms, in_loop)

    def _wait_outside(self, due: int | None) -> None:
        self._poller.poll(self._patience_s)
        if self._job.worker.run_ready(1):
            return
        if due is not None:
            self.clock.advance(max(due - self.clock.now_ms(), 0))
            return
        states = ", ".join(
            f"{t.deployment.vertex.name!r}[{t.deployment.subtask}] {t.rest.value}" for t in self._job.tasks
        )
        raise AssertionError(
            "the job is at rest, has not ended, and nothing will wake it. Does a TestSource wait at a PAUSE or "
            f"for an EOF, or is a CollectingSink blocked? Tasks: {states}"
        )


def run_pipeline(flow: Pipeline, **options: Unpack[RunOptions]) -> JobResult:
    """Run a pipeline to its end in virtual time: what waits, waits no real time.

    Arguments and errors are those of :class:`PipelineHarness`.
    """
    with PipelineHarness(flow, **options) as harness:
        return harness.run_to_end()
