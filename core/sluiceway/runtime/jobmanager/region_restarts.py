"""Restarts of regions whose delay has passed: each waits for its checkpoint, and then for slots."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from sluiceway.engine import JobStatus
from sluiceway.errors import NoResourceAvailableError
from sluiceway.graph import ExecutionVertex
from sluiceway.runtime.jobmanager.job_checkpoints import JobCheckpoints
from sluiceway.runtime.jobmanager.job_host import JobHost

__all__ = ["RegionRestarts", "RestartableJob"]


class RestartableJob(Protocol):
    """Interface of a job to the restarts of its regions. Job master's thread."""

    status: JobStatus
    checkpoints: JobCheckpoints

    def allocate(self, region: tuple[ExecutionVertex, ...]) -> None:
        """Allocate slots for all subtasks of a region. Raises NoResourceAvailableError."""

    def restart_region(self, region: tuple[ExecutionVertex, ...]) -> None:
        """Create new attempts of a region, which has its slots, and deploy them."""

    def restart_failed(self, region: tuple[ExecutionVertex, ...], problem: BaseException) -> None:
        """Take the error in reading the checkpoint of a region."""

    def check_end(self) -> None:
        """End the job if nothing of it runs or restarts any more."""


class RegionRestarts:
    """Regions between the end of their delay and their new attempts. From the job master's thread.

    Three steps in this order, so that a failed one has changed nothing: read the checkpoint, take slots, and only
    then create new attempts.

    Args:
        job: the job.
        host: host of the job, which looks for slots.
    """

    def __init__(self, job: RestartableJob, host: JobHost) -> None:
        self._job = job
        self._host = host
        self._loading: list[tuple[ExecutionVertex, ...]] = []
        self._lacking_slots: list[tuple[ExecutionVertex, ...]] = []

    @property
    def pending(self) -> tuple[tuple[ExecutionVertex, ...], ...]:
        """Regions that wait."""
        return (*self._loading, *self._lacking_slots)

    @property
    def waits_for_slots(self) -> bool:
        """True while a region waits for slots."""
        return bool(self._lacking_slots)

    def begin(self, region: tuple[ExecutionVertex, ...]) -> None:
        """Restart a region whose subtasks have all ended, as soon as its checkpoint is read and it has slots."""
        self._load(region, asked=False)

    def slots_came(self) -> None:
        """Retry regions that lack slots."""
        waiting, self._lacking_slots = self._lacking_slots, []
        for region in waiting:
            self._load(region, asked=True)

    def _load(self, region: tuple[ExecutionVertex, ...], asked: bool) -> None:
        """Read the checkpoint of a region; ``asked``: the host has been notified that it lacks slots."""
        if not self._job.status.running:
            self._job.check_end()
            return
        self._loading.append(region)
        # Where a checkpoint has to be read first, the region comes after whoever looks for slots now.
        asked = asked and self._job.checkpoints.is_loaded
        self._job.checkpoints.load(partial(self._loaded, region, asked))

    def _loaded(self, region: tuple[ExecutionVertex, ...], asked: bool, problem: BaseException | None) -> None:
        self._loading.remove(region)
        if not self._job.status.running:
            self._job.check_end()
            return
        if problem is not None:
            self._job.restart_failed(region, problem)
            return
        try:
            self._job.allocate(region)
        except NoResourceAvailableError:
            self._lacking_slots.append(region)
            # When asked, slots were requested already, as the region began to wait.
            if not asked:
                self._host.look_for_slots()
            return
        self._job.restart_region(region)
