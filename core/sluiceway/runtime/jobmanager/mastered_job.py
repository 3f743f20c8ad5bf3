"""Base of jobs whose job master runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluiceway.config.settings import Settings
from sluiceway.engine import Job, Services
from sluiceway.monitoring.infos import RescaleInfo
from sluiceway.runtime.jobmanager.checkpoint_places import check_savepoint_place, savepoint_place
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.jobmanager.job_requests import JobRequests
from sluiceway.util.overriding import override

__all__ = ["MasteredJob"]


class MasteredJob(Job):
    """Job whose job master runs in this process: requests to it may come from any thread, also before it starts.

    A subclass calls ``_requests.begin()`` when the job master has started, and ``_requests.close()`` at the end.

    Args:
        settings: options of the run.
        services: factories of the plugins.
    """

    def __init__(self, settings: Settings, services: Services) -> None:
        self.services = services
        self._settings = settings
        self._requests: JobRequests[JobMaster] = JobRequests()

    @override
    def stop(self) -> None:
        self._requests.tell(JobMaster.stop)

    @override
    def check_savepoint(self, place: str) -> None:
        check_savepoint_place(place, self.services)

    @override
    def savepoint(
        self, place: str | None, done: Callable[[str, BaseException | None], None], *, stop: bool = False
    ) -> None:
        where = savepoint_place(place, self._settings.checkpoints)
        self._requests.ask(lambda master, answer: master.savepoint(where, stop, answer), done, "")

    @override
    def rescale(
        self,
        parallelism: int | None,
        steps: Mapping[str, int],
        done: Callable[[RescaleInfo | None, BaseException | None], None],
        accepted: Callable[[RescaleInfo], None] | None = None,
    ) -> None:
        nothing: RescaleInfo | None = None
        self._requests.ask(
            lambda master, answer: master.rescale(parallelism, steps, answer, accepted), done, nothing
        )

    @override
    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        self._requests.ask(JobMaster.checkpoint, done, 0)
