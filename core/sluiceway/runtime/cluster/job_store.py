"""The job store: what a job manager writes down of its jobs, so that the next one can go on with them.

Each job has a directory of its own, with ``job.json``, which makes it known, and ``program``, its graph and
options as they were submitted. A job is in the store before its submission is acknowledged. When it has ended its
program goes, and what is to be told of it stays; ``history`` has the record of how it went.

``lock`` is held by the job manager that leads, and ``epoch`` is the number of its leadership. ``workers`` has a
file for each of its workers, which is locked as long as that lives: so a job manager knows whether any of those
before it still have tasks.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from sluiceway.election import LeaderElection, LeadershipLostError
from sluiceway.errors import ConfigurationError, SluicewayError
from sluiceway.monitoring.infos import FailureInfo, JobInfo, RescaleInfo
from sluiceway.monitoring.job_history import JobHistory
from sluiceway.runtime.cluster.election import FileLeaderElection
from sluiceway.util.durable_files import sync_directory, write_file
from sluiceway.util.private_files import check_private, make_private_directory

__all__ = ["JobStore", "JobStoreError", "StoredJob", "prepare_store"]

_VERSION: Final = 1
_TOLD: Final = "job.json"
_PROGRAM: Final = "program"


class JobStoreError(SluicewayError):
    """An entry of the job store cannot be read or written; names the file."""


class StoredJob(msgspec.Struct, kw_only=True):
    """What is written down of a job.

    Attributes:
        job: its id.
        name: the pipeline's.
        number: of the submission; those of later ones are higher.
        submitted_ms: when, ms since the epoch.
        path: the ``sys.path`` of whoever submitted it.
        needs_slots: how many.
        crc32: checksum of the program.
        checkpoints: the directory of its checkpoints, in their place; empty: they are not kept anywhere.
        begun: whether any of its tasks may have been started.
        wanted: what it was asked for: ``cancel``, or ``stop`` to end its sources; empty: to run.
        savepoint: the place of a savepoint with which it is to end; empty: it is not.
        saved: that savepoint, when it is complete.
        key: the client's own for the submission, by which it finds the job when it asks again.
        restarts: how often it was begun anew.
        failures: what has gone wrong, oldest first.
        parallelism: by uid of a vertex, that with which it goes on; empty: that of the program.
        rescales: the last changes of it, oldest first.
        ended: what is to be told of it, if it has ended.
        version: of this form.
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
    key: str = ""
    restarts: int = 0
    failures: list[FailureInfo] = []
    parallelism: dict[str, int] = {}
    rescales: list[RescaleInfo] = []
    ended: JobInfo | None = None
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the store has.

    Attributes:
        jobs: in the order of their submission.
        problems: what cannot be read, and why; each names the file.
    """

    jobs: list[StoredJob]
    problems: list[str]


def prepare_store(directory: str | os.PathLike[str]) -> Path:
    """Make the directory of a job store if it is not there; returns its absolute path.

    Raises:
        ConfigurationError: it cannot be made, or others may write to it.
    """
    store = Path(directory).absolute()
    try:
        make_private_directory(store)
    except OSError as error:
        raise ConfigurationError(f"the job store {store} cannot be made: {error.strerror}") from error
    check_private(store, "the job store", "programs in it are run")
    return store


class JobStore:
    """The jobs of one job manager, in a directory that nobody else may write to. Methods may block.

    Methods that write raise :class:`~.election.LeadershipLostError` where another job manager leads by now.

    Args:
        directory: made if it is not there.
        election: by which this process leads; None: it becomes the leader here.
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
        """Leave it to others."""
        self.election.close()

    def check_leadership(self) -> None:
        """Raise LeadershipLostError if this process does not lead any more."""
        if not self.election.is_leader():
            raise LeadershipLostError(f"another job manager leads the jobs in {self.directory} by now")

    def load(self) -> _Loaded:
        """All that is there. What cannot be read is told of, and keeps nothing else from being read."""
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
        """What was submitted.

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
        """Write down a job that is about to be acknowledged.

        Raises:
            JobStoreError: that is not possible.
        """
        self.check_leadership()
        job.crc32 = crc32(program)
        place = self._place(job.job)
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            write_file(place / _PROGRAM, program)
            self.update(job)
            sync_directory(self.directory)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise JobStoreError(f"the job cannot be written into the job store {place}: {error}") from error

    def update(self, job: StoredJob) -> None:
        """Something has changed. Raises OSError."""
        self.check_leadership()
        write_file(self._place(job.job) / _TOLD, msgspec.json.encode(job))

    def end(self, job: StoredJob, told: JobInfo) -> None:
        """It has ended: nothing but what is to be told of it stays. Raises OSError."""
        job.ended = told
        self.update(job)
        (self._place(job.job) / _PROGRAM).unlink(missing_ok=True)

    def drop_checkpoints(self, job: StoredJob) -> None:
        """A job needs those no more that it has in the store, if any."""
        self.check_leadership()
        if job.checkpoints:
            shutil.rmtree(self.checkpoints / job.checkpoints, ignore_errors=True)

    def forget(self, job: StoredJob) -> None:
        """Nothing is to be told of it any more."""
        self.drop_checkpoints(job)
        place = self._place(job.job)
        with suppress(OSError):
            self.history.forget(job.job)
        with suppress(OSError):
            (place / _TOLD).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def _place(self, job: str) -> Path:
        safe = re.sub(r"[^\w.-]+", "-", job, flags=re.ASCII)
        return self.directory / f"job-{safe[-120:]}"
