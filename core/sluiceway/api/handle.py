"""Handle of a job that runs in a thread of its own, for use from an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from sluiceway.api.job_thread import start_job_thread
from sluiceway.engine import Job, JobFailure, JobResult, JobStatus
from sluiceway.errors import CheckpointError, NotBuiltYetError, RescaleError, SluicewayError
from sluiceway.metrics import JobMetrics
from sluiceway.util.name_hints import Hinting
from sluiceway.windows.durations import Duration, positive_milliseconds

if TYPE_CHECKING:
    from sluiceway.monitoring.diagnosis import Diagnosis
    from sluiceway.monitoring.infos import RescaleInfo
    from sluiceway.monitoring.key_samples import KeySample, StepKeys
    from sluiceway.monitoring.stack_samples import StackSamples

__all__ = ["JobHandle"]

_SAMPLED_S = 1.0
"""Time for which keys are counted where they are skewed, and stacks of the task that is the cause are sampled."""


class JobHandle(Hinting):
    """Handle of a running job; returned by ``await flow.start()``. Its methods may be called from any thread.

    As a context manager (``async with await flow.start() as handle:``) it cancels the job at the end of the
    block and waits until it has ended.
    """

    def __init__(self, job: Job, name: str, ended: Callable[[], None] = lambda: None) -> None:
        self._job = job
        self._name = name
        self._ended = ended
        self._done: Future[JobResult] = Future()
        self._thread = start_job_thread(job, self._run, name)

    def _run(self) -> None:
        from sluiceway.api.tracebacks import without_engine_frames

        try:
            result = self._job.run()
        except BaseException as error:
            self._ended()
            self._done.set_exception(without_engine_frames(error))
        else:
            self._ended()
            self._done.set_result(result)

    @property
    def status(self) -> JobStatus:
        """Return the job's status."""
        return self._job.status

    def metrics(self) -> JobMetrics:
        """Return a snapshot of the job's metrics."""
        return self._job.metrics()

    async def diagnose(self, over: Duration = "2s") -> Diagnosis:
        """Find what limits the job's throughput or holds back its event time, as ``sluiceway why-slow`` does.

        Of a task that is the cause it names the function, after another second, and of skewed keys the hottest.

        Args:
            over: time to measure; a job that does not run is not measured.

        Raises:
            ConfigurationError: ``over`` is no duration, or none that is positive.
        """
        from sluiceway.monitoring.diagnosis import diagnose, limiting_task, with_function, with_key
        from sluiceway.monitoring.rates import RateMeter
        from sluiceway.monitoring.stack_samples import hottest_function
        from sluiceway.runtime.jobmanager.job_description import failure_info

        seconds = positive_milliseconds("diagnose(over=)", over) / 1000
        meter = RateMeter()
        metrics = self.metrics()
        meter.read("", metrics)
        if metrics.running:
            await asyncio.sleep(seconds)
            metrics = self.metrics()
        failures = [failure_info(failure) for failure in self.failures]
        found = diagnose(self._job.describe(), metrics, meter.read("", metrics), self._job.checkpoints(), failures)
        # The first finding is the cause: keys or stacks are sampled for that alone.
        first = found.findings[0]
        if first.kind == "skew" and first.vertex is not None:
            with suppress(SluicewayError, NotBuiltYetError):  # it stays without the name of the key
                samples = await self._sample_keys([first.vertex], _SAMPLED_S)
                found = with_key(found, lambda vertex: samples)
        if limiting_task(found) is not None:
            with suppress(SluicewayError, NotBuiltYetError):  # it stays without the name of the function
                stacks = await self.sample_stacks(_SAMPLED_S)
                found = with_function(found, lambda vertex: hottest_function(stacks, vertex))
        return found

    async def sample_stacks(self, seconds: float = 5.0, rate: float = 50.0) -> list[StackSamples]:
        """Take samples of the Python stacks of the job's processes, for a flame graph.

        Args:
            seconds: time to take them, at most 60.
            rate: samples per second, 1 to 250.

        Returns:
            list[StackSamples]: one per process; ``sluiceway.monitoring.flame_svg.flame_svg`` draws them.

        Raises:
            ConfigurationError: ``seconds`` or ``rate`` is out of range.
            SluicewayError: no process gave samples, as when the job has ended.
            NotBuiltYetError: the job's engine cannot do that.
        """
        # `done` is called by a thread of the job. If the wait was cancelled, so was the future, which then takes
        # no result.
        answer: Future[list[StackSamples]] = Future()

        def done(processes: list[StackSamples], problems: list[str]) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            if processes:
                answer.set_result(processes)
            else:
                answer.set_exception(SluicewayError(f"no stacks were sampled: {'; '.join(problems)}"))

        self._job.sample_stacks(seconds, rate, done)
        return await asyncio.wrap_future(answer)

    async def hottest_keys(self, seconds: float = 5.0, step: str | None = None) -> list[StepKeys]:
        """Count the keys of the records that come to keyed steps.

        Args:
            seconds: time to count, at most 60.
            step: name or uid of a step; None: all keyed steps.

        Returns:
            list[StepKeys]: one per step, with the keys that have most of its records.

        Raises:
            ConfigurationError: ``seconds`` is out of range.
            UnknownNameError: there is no such step; says which there are.
            SluicewayError: nothing was counted, as when the job has ended or no step is keyed.
            NotBuiltYetError: the job's engine cannot do that.
        """
        from sluiceway.monitoring.key_samples import step_keys, vertices_of

        return step_keys(await self._sample_keys(vertices_of(self._job.describe(), step), seconds))

    async def _sample_keys(self, vertices: list[int], seconds: float) -> list[KeySample]:
        answer: Future[list[KeySample]] = Future()

        def done(samples: list[KeySample], problems: list[str]) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            if samples:
                answer.set_result(samples)
            else:
                why = "; ".join(problems) or "no task that runs has keys"
                answer.set_exception(SluicewayError(f"no keys were counted: {why}"))

        self._job.sample_keys(vertices, seconds, done)
        return await asyncio.wrap_future(answer)

    @property
    def failures(self) -> tuple[JobFailure, ...]:
        """Return the failures so far, oldest first, each with the decision of the restart strategy."""
        return self._job.failures()

    def cancel(self) -> None:
        """Cancel the job without waiting; :meth:`result` then returns status CANCELED."""
        self._job.cancel()

    async def checkpoint(self) -> int:
        """Take a checkpoint now, besides those at the job's interval, and wait until it is complete.

        Returns:
            int: its number.

        Raises:
            CheckpointError: it could not be taken, the job takes none, or it has ended.
            NotBuiltYetError: the job's engine cannot do that.
        """
        answer: Future[int] = Future()

        def done(checkpoint_id: int, problem: BaseException | None) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            if problem is None:
                answer.set_result(checkpoint_id)
            else:
                answer.set_exception(problem)

        self._job.checkpoint(done)
        return await asyncio.wrap_future(answer)

    async def rescale(
        self, parallelism: int | None = None, *, steps: Mapping[str, int] | None = None
    ) -> RescaleInfo:
        """Change the parallelism while the job runs, and wait until it runs again.

        The job takes a checkpoint, its tasks end, and restart from it with their state divided by key groups.
        Its output is what it would have been without.

        Args:
            parallelism: of all steps for which the program chose none, as the option of a run; a source or sink
                that cannot have as many subtasks gets as many as it can. None: they keep theirs.
            steps: of single steps, by name or uid. The chain that a step runs in gets it as a whole.

        Returns:
            RescaleInfo: ``before`` and ``after`` have the parallelism by uid.

        Raises:
            RescaleError: the job has the parallelism that it had; says why.
            NotBuiltYetError: the job's engine cannot do that.
        """
        answer: Future[RescaleInfo] = Future()

        def done(info: RescaleInfo | None, problem: BaseException | None) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            if info is not None:
                answer.set_result(info)
            elif isinstance(problem, RescaleError):
                answer.set_exception(problem)
            else:
                answer.set_exception(RescaleError(f"not rescaled: {problem}"))

        if parallelism is None and not steps:
            raise RescaleError("nothing to change: give a parallelism, or steps with theirs")
        self._job.rescale(parallelism, dict(steps or {}), done)
        return await asyncio.wrap_future(answer)

    async def savepoint(self, place: str | os.PathLike[str] | None = None) -> str:
        """Take a savepoint, from which another run can start, while the job continues.

        What sinks have made ready for it is not committed by it, and a failure goes back to the last checkpoint:
        the savepoint belongs to whoever asked for it.

        Args:
            place: path or URL of the directory in which it gets one of its own; None: the job's ``checkpoints``.

        Returns:
            str: the savepoint's path or URL, for ``from_checkpoint``.

        Raises:
            ConfigurationError: there is no place for it.
            CheckpointError: it could not be taken, or the job has ended.
            GraphError: the job has a feedback loop.
        """
        return await asyncio.wrap_future(self._ask_savepoint(place, stop=False))

    async def stop(self, savepoint: str | os.PathLike[str] | None = None) -> str:
        """Stop the job and wait for its end.

        Without a savepoint the sources end where they are, and what was read is finished as if there were no
        more: windows that are open fire. With one, nothing is finished: tasks stand still behind it, what sinks
        have made ready for it is committed, and :meth:`result` says FINISHED. If it cannot be taken, the job goes
        on.

        Args:
            savepoint: path or URL of the directory in which it gets one of its own; None: take none.

        Returns:
            str: the savepoint's path or URL; empty, where there is none.

        Raises:
            CheckpointError: it could not be taken, or the job has ended.
            GraphError: the job has a feedback loop.
            BaseException: what made the job fail.
        """
        location = ""
        if savepoint is None:
            self._job.stop()
        else:
            try:
                location = await asyncio.wrap_future(self._ask_savepoint(savepoint, stop=True))
            except CheckpointError:
                if not self.status.running:
                    await self.result()  # raises the failure that is the reason why there is no savepoint
                raise
        await self.result()
        return location

    def _ask_savepoint(self, place: str | os.PathLike[str] | None, *, stop: bool) -> Future[str]:
        answer: Future[str] = Future()

        def done(location: str, problem: BaseException | None) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            if problem is None:
                answer.set_result(location)
            else:
                answer.set_exception(problem)

        self._job.savepoint(None if place is None else os.fspath(place), done, stop=stop)
        return answer

    async def result(self) -> JobResult:
        """Wait for the end of the job. May be awaited repeatedly; cancelling the wait does not stop the job.

        Raises:
            BaseException: what made the job fail.
        """
        # Without the shield, cancelling one wait would cancel the future of all.
        return await asyncio.shield(asyncio.wrap_future(self._done))

    async def __aenter__(self) -> JobHandle:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        ended = asyncio.wrap_future(self._done)
        # wait() neither raises what the job failed with nor cancels the future.
        await asyncio.wait([ended])
        failure = ended.exception()
        if failure is not None and error is None:
            raise failure

    def _ipython_display_(self) -> None:
        from sluiceway.api.notebook import LiveView, in_notebook

        if in_notebook():
            LiveView(self._job, self._name)  # until the job ends
        else:
            print(repr(self))

    def _repr_html_(self) -> str:
        from sluiceway.api.notebook import job_html
        from sluiceway.monitoring.rates import RateMeter

        return job_html(self._job, self._name, RateMeter())[0]

    def __repr__(self) -> str:
        return f"<JobHandle {self._thread.name}: {self.status.value}>"
