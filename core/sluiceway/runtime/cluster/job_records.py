"""Records of the dispatcher's jobs, running and ended; persisted in the job store if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, JobStoreError, SluicewayError
from sluiceway.graph import slots_required
from sluiceway.graph.rescaling import parallelism_of
from sluiceway.monitoring.infos import RESCALES_KEPT, FailureInfo, JobInfo, RescaleInfo
from sluiceway.monitoring.job_history import EndedJob, JobHistoryError
from sluiceway.runtime.cluster.epoch_fence import EpochFence
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.job_store import JobStore, StoredJob
from sluiceway.runtime.failures.error_texts import format_error
from sluiceway.runtime.jobmanager.job_description import failure_info, told_error
from sluiceway.runtime.logging.engine_log import ERROR, log

__all__ = ["JobManagerLostError", "JobRecords"]


_FAILURES: Final = 16


class JobManagerLostError(SluicewayError):
    """The job manager of a job has ended before the job."""


class JobRecords:
    """Records of all jobs. From the job manager's loop only.

    Args:
        store: store for the records; None: memory only.

    Attributes:
        went_on: recovered jobs of an earlier job manager.
        problems: errors in reading the store.
    """

    def __init__(self, store: JobStore | None) -> None:
        self._store = store
        self._jobs: dict[str, StoredJob] = {}
        self._told: dict[str, JobInfo] = {}
        self._before: dict[str, tuple[int, list[FailureInfo]]] = {}
        self._rescaled_before: dict[str, list[RescaleInfo]] = {}
        self._ended: dict[str, EndedJob] = {}
        # Requests to stop a job with a savepoint that are under way.
        self._stops: Counter[str] = Counter()
        # Jobs whose end is not in the store.
        self._unwritten: set[str] = set()
        self._last = 0
        self.went_on: list[str] = []
        self.problems: list[str] = []

    def close(self) -> None:
        """Release the store."""
        if self._store is not None:
            self._store.close()

    def fence(self) -> EpochFence | None:
        """Return the fence against workers of earlier job managers of the store."""
        return None if self._store is None else EpochFence(self._store.workers)

    def settled(self, settings: Settings) -> Settings:
        """Return the settings with a checkpoint directory in the store, if the job sets none.

        Without an interval, too: the next job manager continues the job from the checkpoint of its rescale, with
        which sinks have committed.
        """
        if self._store is None or settings.checkpoints is not None:
            return settings
        return replace(settings, checkpoints=str(self._store.checkpoints))

    def place_of(self, settings: Settings) -> str | None:
        """Return the checkpoint place that the job has set."""
        own = self._store is not None and settings.checkpoints == str(self._store.checkpoints)
        return None if own else settings.checkpoints

    # ---- what was there ------------------------------------------------------------------------------------

    def load(self) -> list[StoredJob]:
        """Return the jobs that had not ended, and load the records of the others."""
        if self._store is None:
            return []
        loaded = self._store.load()
        for problem in loaded.problems:
            log(ERROR, "jobs", f"job store: {problem}")
        self.problems += loaded.problems
        for stored in loaded.jobs:
            self._jobs[stored.job] = stored
            self._last = max(self._last, stored.number)
            if stored.ended is not None:
                self._told[stored.job] = stored.ended
        return [stored for stored in loaded.jobs if stored.ended is None]

    def program(self, stored: StoredJob) -> bytes:
        """Return the submitted program. Raises JobStoreError."""
        assert self._store is not None
        return self._store.program(stored)

    def recovered(self, stored: StoredJob, now_ms: int) -> None:
        """Record that a job is recovered; it counts as a restart if any of its tasks had started."""
        self.went_on.append(stored.job)
        if stored.begun:
            stored.restarts += 1
            lost = JobManagerLostError("the job manager ended while it ran")
            stored.failures.append(_of_job(now_ms, lost, restarted=stored.needs_slots, delay_ms=0))
        del stored.failures[:-_FAILURES]
        self._before[stored.job] = stored.restarts, list(stored.failures)
        self._rescaled_before[stored.job] = list(stored.rescales)
        self._write(stored)

    def lost(self, stored: StoredJob, status: JobStatus, now_ms: int, why: JobManagerLostError) -> None:
        """Record that a job has ended for good, without being recovered."""
        if status is JobStatus.FAILED:
            stored.failures.append(_of_job(now_ms, why))
        self.ended(_info(stored, status, now_ms, why if status is JobStatus.FAILED else None))

    def stuck(self, stored: StoredJob, now_ms: int, why: Exception) -> None:
        """Record that a job cannot be recovered now; the next job manager tries again."""
        assert self._store is not None
        why.add_note(
            f"it stays in the job store {self._store.directory}, for the next time that a cluster is started; "
            "sluiceway cancel gives it up"
        )
        self.problems.append(f"job {stored.job!r} cannot be recovered: {told_error(why)}")
        self._told[stored.job] = _info(stored, JobStatus.FAILED, now_ms, why)

    # ---- what happens --------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the number of a new job."""
        self._last += 1
        return self._last

    def submitted(self, stored: StoredJob, program: bytes) -> None:
        """Record a new job. Raises JobStoreError if it cannot be written."""
        if self._store is not None:
            self._store.add(stored, program)
        self._jobs[stored.job] = stored

    def of(self, job: str) -> StoredJob:
        """Return the record of a job."""
        return self._jobs[job]

    def changed(self, job: str, run: JobRun) -> None:
        """Update the record of a running job."""
        stored = self._jobs[job]
        before, _ = self._before.get(job, (0, []))
        begun = stored.begun or run.status is not JobStatus.CREATED
        restarts = before + run.master.restarts
        # Called in each turn of the loop; written to disk only with news.
        if (begun, restarts) != (stored.begun, stored.restarts):
            stored.begun, stored.restarts = begun, restarts
            stored.failures = self.failures(job, run)
            self._write(stored)

    def rescaled(self, job: str, run: JobRun) -> None:
        """Record the parallelism of a job, with which the next job manager recovers it.

        Checkpoints fit any parallelism, so it is harmless if the job has started at the new one already, and
        a rescale that was undone is never written.
        """
        stored = self._jobs[job]
        stored.parallelism = parallelism_of(run.graph)
        stored.needs_slots = sum(slots_required(run.graph).values())
        stored.rescales = self.rescales(job, run.master.rescales)
        self._write(stored)

    def rescales(self, job: str, now: Sequence[RescaleInfo]) -> list[RescaleInfo]:
        """Return the last rescales of a job, including those under earlier job managers."""
        return [*self._rescaled_before.get(job, ()), *now][-RESCALES_KEPT:]

    def cancels(self, job: str) -> None:
        """Record that a job is cancelled. A store that cannot be written does not keep a job from that."""
        self._jobs[job].wanted = "cancel"
        self._write(self._jobs[job])

    def stops(self, job: str) -> None:
        """Record that the sources of a job are stopped. Raises JobStoreError if it cannot be written."""
        stored = self._jobs[job]
        before, stored.wanted = stored.wanted, "stop"
        try:
            self._write_request(stored)
        except BaseException:
            stored.wanted = before
            raise

    def ends_with(self, job: str, place: str) -> None:
        """Record the place of the savepoint that a job is stopped with.

        Raises:
            JobStoreError: it cannot be written.
        """
        stored = self._jobs[job]
        before, stored.savepoint = stored.savepoint, place
        try:
            self._write_request(stored)
        except BaseException:
            stored.savepoint = before
            raise
        self._stops[job] += 1

    def stop_failed(self, job: str) -> None:
        """Record that a job is not stopped with a savepoint, unless another request for that is under way."""
        self._stops[job] -= 1
        stored = self._jobs.get(job)
        if not self._stops[job] and stored is not None and stored.ended is None:
            stored.savepoint = ""
            self._write(stored)

    def saved(self, job: str, location: str) -> None:
        """Record that the savepoint that ends a job is complete."""
        self._jobs[job].saved = location
        self._write(self._jobs[job])

    def savepoint_taken(self, job: str, run: JobRun) -> None:
        """Record the savepoints that the job goes back to before if it is recovered now."""
        self._jobs[job].since = list(run.master.checkpoints.since)
        self._write(self._jobs[job])

    def last_savepoint(self, job: str) -> str:
        """Return the savepoint that a job has ended with; empty: none, or it has not ended."""
        stored = self._jobs.get(job)
        done = stored is not None and stored.ended is not None and stored.ended.status == JobStatus.FINISHED.value
        return stored.saved if stored is not None and done else ""

    def submitted_with(self, key: str) -> str:
        """Return the job of an earlier submission with that key; empty: none."""
        return next((stored.job for stored in self._jobs.values() if key and stored.key == key), "")

    def ended(self, told: JobInfo) -> None:
        """Record the end of a job."""
        stored = self._jobs[told.job]
        self._told[told.job] = told
        stored.ended = told
        self._stops.pop(told.job, None)
        if self._store is not None:
            try:
                self._store.end(stored)
            except OSError as error:
                log(ERROR, "jobs", "its end cannot be written into the job store", job=told.job, error=error)
                self._unwritten.add(told.job)

    def write_ends(self) -> None:
        """Write the ends of jobs that could not be written before: else the next job manager recovers the jobs."""
        for job in sorted(self._unwritten):
            assert self._store is not None
            with suppress(OSError):
                self._store.end(self._jobs[job])
                self._unwritten.discard(job)

    def remember(self, ended: EndedJob) -> None:
        """Store the record of an ended job: in the history of the job store, or else in memory."""
        if self._store is not None:
            try:
                self._store.history.add(ended)
            except OSError as error:
                log(ERROR, "jobs", "its record cannot be written", job=ended.info.job, error=error)
            else:
                return
        self._ended[ended.info.job] = ended

    def find_ended(self, job: str) -> EndedJob | None:
        """Return the record of an ended job, perhaps from an earlier job manager; None: there is none."""
        if job in self._ended or self._store is None or not self._store.history.has(job):
            return self._ended.get(job)
        try:
            return self._store.history.find(job)
        except JobHistoryError as error:
            log(ERROR, "jobs", "its record cannot be read", job=job, error=error)
            return None

    def restarts_before(self, job: str) -> int:
        """Return the number of restarts of a job under earlier job managers."""
        return self._before.get(job, (0, []))[0]

    def failures(self, job: str, run: JobRun) -> list[FailureInfo]:
        """Return the last failures of a job, including those under earlier job managers."""
        _, before = self._before.get(job, (0, []))
        return [*before, *(failure_info(failure) for failure in run.master.failures)][-_FAILURES:]

    def status(self, job: str) -> str:
        """Return the final status of a job; empty: it has not ended, or is not known."""
        return self._told[job].status if job in self._told else ""

    def running(self, job: str, run: JobRun | None) -> JobRun:
        """Return the run of a job. Raises ConfigurationError if it does not run, or is not known."""
        if how := self.status(job):
            raise ConfigurationError(f"job {job!r} is {how} already")
        if run is None:
            raise ConfigurationError(f"there is no job {job!r}")
        if run.status.ended:
            raise ConfigurationError(f"job {job!r} is {run.status.value} already")
        return run

    def give_up(self, job: str, now_ms: int, *, anyway: bool = False) -> bool:
        """Cancel a job that could not be recovered, or was not yet if ``anyway``; return whether it is one."""
        stored = self._jobs.get(job)
        if stored is None or stored.ended is not None or not (anyway or job in self._told):
            return False
        self.ended(_info(stored, JobStatus.CANCELED, now_ms, None))
        return True

    def told(self, running: Mapping[str, JobInfo], recovering: Iterable[str]) -> list[JobInfo]:
        """Return all jobs, in the order of their submission."""
        created = {job: _info(self._jobs[job], JobStatus.CREATED, 0, None) for job in recovering}
        every = {**self._told, **created, **running}
        return [every[job] for job in self._jobs if job in every]

    def drop_oldest(self, most: int) -> None:
        """Remove the jobs that ended first, except ``most`` of them."""
        # Jobs that could not be recovered have not ended: they stay in the store.
        ended = [job for job in self._told if self._store is None or self._jobs[job].ended is not None]
        gone = ended[: max(0, len(ended) - most)]
        for job in gone:
            stored = self._jobs.pop(job)
            self._unwritten.discard(job)
            del self._told[job]
            self._ended.pop(job, None)
            self._before.pop(job, None)
            self._rescaled_before.pop(job, None)
            if self._store is not None:
                self._store.forget(stored)

    def _write_request(self, stored: StoredJob) -> None:
        if self._store is not None:
            try:
                self._store.update(stored)
            except OSError as error:
                raise JobStoreError(
                    f"job {stored.job!r} is not stopped: that cannot be written into the job store "
                    f"{self._store.directory}: {error.strerror}. Make it writable again, or cancel the job"
                ) from error

    def _write(self, stored: StoredJob) -> None:
        if self._store is not None:
            try:
                self._store.update(stored)
            except OSError as error:
                log(ERROR, "jobs", "cannot be written into the job store", job=stored.job, error=error)


def _of_job(now_ms: int, error: BaseException, restarted: int = 0, delay_ms: int | None = None) -> FailureInfo:
    return FailureInfo(now_ms, "", None, None, "", told_error(error), format_error(error), restarted, delay_ms)


def _info(stored: StoredJob, status: JobStatus, now_ms: int, why: Exception | None) -> JobInfo:
    return JobInfo(
        job=stored.job,
        name=stored.name,
        status=status.value,
        submitted_ms=stored.submitted_ms,
        ended_ms=now_ms,
        needs_slots=stored.needs_slots,
        records_in=0,
        records_out=0,
        failure="" if why is None else told_error(why),
        restarts=stored.restarts,
        failures=stored.failures[-_FAILURES:],
    )
