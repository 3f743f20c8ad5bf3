"""A job that runs in a thread of its own, seen from an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType

from sluiceway.engine import Job, JobFailure, JobResult, JobStatus
from sluiceway.metrics import JobMetrics

__all__ = ["JobHandle"]


class JobHandle:
    """What ``await flow.start()`` returns. Its methods may be called from any thread.

    As a context manager (``async with await flow.start() as handle:``) it cancels the job at the end of the
    block and waits until it has ended.
    """

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self._done: Future[JobResult] = Future()
        # A daemon: a program that ends without waiting for the job must not hang.
        self._thread = threading.Thread(target=self._run, name=f"sluiceway-job-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            result = self._job.run()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life."""
        return self._job.status

    def metrics(self) -> JobMetrics:
        """The job's metrics as of now."""
        return self._job.metrics()

    @property
    def failures(self) -> tuple[JobFailure, ...]:
        """What has gone wrong so far, oldest first, and what the restart strategy made of it."""
        return self._job.failures()

    def cancel(self) -> None:
        """Ask the job to stop soon; :meth:`result` then says CANCELED."""
        self._job.cancel()

    async def result(self) -> JobResult:
        """Wait for the end of the job. May be awaited more than once; giving up waiting does not stop the job.

        Raises:
            BaseException: what made the job fail.
        """
        return await asyncio.shield(asyncio.wrap_future(self._done))

    async def __aenter__(self) -> JobHandle:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        ended = asyncio.wrap_future(self._done)
        await asyncio.wait([ended])
        failure = ended.exception()
        if failure is not None and error is None:
            raise failure

    def __repr__(self) -> str:
        return f"<JobHandle {self._thread.name}: {self.status.value}>"
