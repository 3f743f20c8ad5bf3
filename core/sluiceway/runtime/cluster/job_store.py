"""Job store: persisted jobs of a job manager, for recovery by the next one.

Each job has its own directory, with ``job.json``, which makes it visible, and ``program``, its graph and
options as submitted. A job is in the store before its submission is acknowledged. When it has ended, its
program is deleted and its summary kept; ``history`` has its record.

``lock`` is held by the job manager that leads, and ``epoch`` is the number of its leadership. ``workers`` has a
file for each of its workers, which is locked as long as the worker lives: so a job manager knows whether any of
those before it still have tasks.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from sluiceway.election import LeaderElection, LeadershipLostError
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, JobStoreError
from sluiceway.monitoring.infos import FailureInfo, JobInfo, RescaleInfo
from sluiceway.monitoring.job_history import JobHistory
from sluiceway.runtime.cluster.election import FileLeaderElection
from sluiceway.runtime.cluster.private_places import check_private
from sluiceway.util.durable_files import sync_directory, write_file
from sluiceway.util.file_names import file_name_of_id
from sluiceway.util.private_files import make_private_directory
from sluiceway.util.surrogates import json_bytes

__all__ = ["JobStore", "StoredJob", "prepare_store"]

_VERSION: Final = 1
_TOLD: Final = "job.json"
_PROGRAM: Final = "program"


class StoredJob(msgspec.Struct, kw_only=True):
    """Stored entry of a job.

    Attributes:
        job: its id.
        name: name of the pipeline.
        number: number of the submission, ascending.
        submitted_ms: time of the submission, ms since the epoch.
        path: ``sys.path`` of the submitting process.
        needs_slots: number of slots.
        crc32: checksum of the program.
        checkpoints: directory of its checkpoints, relative to their place; empty: none are kept.
        begun: whether any of its tasks may have been started.
        wanted: requested end: ``cancel``, or ``stop`` to end its sources; empty: none.
        savepoint: place of the savepoint that it is to be stopped with; empty: none.
        saved: path of that savepoint, once complete.
        since: savepoints that were taken since the last checkpoint; some may be older.
        key: the client's key of the submission, which identifies a repeated request.
        restarts: number of restarts.
        failures: failures, oldest first.
        parallelism: parallelism by uid of a vertex after a rescale; empty: that of the program.
        rescales: last rescales, oldest first.
        ended: summary, if it has ended.
        version: version of this format.
    """

    job: str
    name: str
    number: int
    submitted_ms: int
    path: list[str]
    needs_slots: int
    crc32: int = 0
    checkpoints: str = ""
    begun: bool = False
    wanted: str = ""
    savepoint: str = ""
    saved: str = ""
    since: list[str] = []
    key: str = ""
    restarts: int = 0
    failures: list[FailureInfo] = []
    parallelism: dict[str, int] = {}
    rescales: list[RescaleInfo] = []
    ended: JobInfo | None = None
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Content of the store.

    Attributes:
        jobs: jobs in the order of their submission.
        problems: errors of unreadable entries; each names the file.
    """

    jobs: list[StoredJob]
    problems: list[str]


def prepare_store(directory: str | os.PathLike[str]) -> Path:
    """Create the directory of a job store unless it exists; return its absolute path.

    Raises:
        ConfigurationError: it cannot be created, or others may write to it.
    """
    store = Path(directory).absolute()
    try:
        make_private_directory(store)
    except OSError as error:
        raise ConfigurationError(f"the job store {store} cannot be made: {error.strerror}") from error
    check_private(store, "the job store", "programs in it are run")
    return store


class JobStore:
    """Store of the jobs of one job manager, in a directory that no other user may write to. Methods may block.

    Methods that write raise :class:`~.election.LeadershipLostError` if another job manager leads by now.

    Args:
        directory: created if it does not exist.
        election: the election that this process has won; None: it campaigns here.
        epoch: the lowest epoch of that leadership.

    Attributes:
        directory: absolute.
        election: by which this process leads.
        workers: directory of the files that workers lock.
        checkpoints: for those of jobs that do not say where theirs are to be.
        history: records of jobs that have ended.

    Raises:
        ConfigurationError: others may write to the directory, this process may not, or a job manager uses it
            already.
    """

    def __init__(
        self, directory: str | os.PathLike[str], election: LeaderElection | None = None, epoch: int = 1
    ) -> None:
        self.directory = prepare_store(directory)
        self.election = FileLeaderElection(self.directory, epoch) if election is None else election
        self.workers = self.directory / "workers"
        self.checkpoints = self.directory / "checkpoints"
        self.history = JobHistory(self.directory / "history")
        try:
            leads = self.election.campaign()
            if leads:
                self.workers.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self.election.close()
            raise ConfigurationError(
                f"the job store {self.directory} cannot be written: {error.strerror}"
            ) from error
        if not leads:
            raise ConfigurationError(f"another job manager uses the job store {self.directory}")

    def __enter__(self) -> JobStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the store."""
        self.election.close()

    def check_leadership(self) -> None:
        """Raise LeadershipLostError if this process does not lead any more."""
        if not self.election.is_leader():
            raise LeadershipLostError(f"another job manager leads the jobs in {self.directory} by now")

    def load(self) -> _Loaded:
        """Return all jobs. Unreadable entries are reported, and do not affect the others."""
        jobs, problems = [], []
        for place in sorted(self.directory.iterdir()):
            if not place.name.startswith("job-"):
                continue
            try:
                jobs.append(self._load(place))
            except FileNotFoundError:
                shutil.rmtree(place, ignore_errors=True)  # it was never acknowledged
            except (OSError, msgspec.MsgspecError, ValueError, RecursionError, JobStoreError) as error:
                problems.append(f"{place / _TOLD} cannot be read, and is left alone: {error}")
        jobs.sort(key=lambda job: job.number)
        return _Loaded(jobs, problems)

    def _load(self, place: Path) -> StoredJob:
        job = msgspec.json.decode((place / _TOLD).read_bytes(), type=StoredJob)
        if job.version != _VERSION:
            raise JobStoreError(f"it is of version {job.version}, and this Sluiceway knows version {_VERSION}")
        if self._place(job.job) != place:
            raise JobStoreError(f"it is about job {job.job!r}, and was moved or copied here")
        return job

    def program(self, job: StoredJob) -> bytes:
        """Return the submitted program.

        Raises:
            JobStoreError: it cannot be read, or is damaged; names the file.
        """
        file = self._place(job.job) / _PROGRAM
        try:
            program = file.read_bytes()
        except OSError as error:
            raise JobStoreError(f"{file} cannot be read: {error.strerror}") from error
        if crc32(program) != job.crc32:
            raise JobStoreError(f"{file} is damaged: its checksum is wrong")
        return program

    def add(self, job: StoredJob, program: bytes) -> None:
        """Store a job before its submission is acknowledged.

        Raises:
            JobStoreError: it cannot be written.
        """
        self.check_leadership()
        job.crc32 = crc32(program)
        place = self._place(job.job)
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            # The entry last, as it makes the job visible. Then the directory, so that its name is on disk, too.
            write_file(place / _PROGRAM, program)
            self.update(job)
            sync_directory(self.directory)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise JobStoreError(f"the job cannot be written into the job store {place}: {error}") from error

    def update(self, job: StoredJob) -> None:
        """Store a changed entry. Raises OSError."""
        self.check_leadership()
        write_file(self._place(job.job) / _TOLD, json_bytes(job))

    def end(self, job: StoredJob) -> None:
        """Store the summary of an ended job, and delete everything else. Raises OSError.

        Its checkpoints in the store are kept only if it has failed, for a restart with the option ``from``.
        """
        assert job.ended is not None
        try:
            # The entry first: it needs no program once it says that the job has ended.
            self.update(job)
        except OSError:
            # On a full disk, what is deleted makes room. A job without its program is not run a second time.
            self._delete_all_but_entry(job)
            self.update(job)
        else:
            self._delete_all_but_entry(job)

    def _delete_all_but_entry(self, job: StoredJob) -> None:
        (self._place(job.job) / _PROGRAM).unlink(missing_ok=True)
        if job.ended is not None and job.ended.status != JobStatus.FAILED.value:
            self.drop_checkpoints(job)

    def drop_checkpoints(self, job: StoredJob) -> None:
        """Delete the checkpoints of a job that are in the store, if any."""
        self.check_leadership()
        if job.checkpoints:
            shutil.rmtree(self.checkpoints / job.checkpoints, ignore_errors=True)

    def forget(self, job: StoredJob) -> None:
        """Delete the entry of a job."""
        self.drop_checkpoints(job)
        place = self._place(job.job)
        with suppress(OSError):
            self.history.forget(job.job)
        # The entry first: a directory without one is removed when the store is loaded.
        with suppress(OSError):
            (place / _TOLD).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def _place(self, job: str) -> Path:
        return self.directory / f"job-{file_name_of_id(job)}"
