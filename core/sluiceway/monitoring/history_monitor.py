"""Monitor of jobs that have ended, from their records alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sluiceway.errors import SluicewayError
from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, JobInfo, RescaleInfo
from sluiceway.monitoring.job_history import EndedJob, JobHistory, JobHistoryError
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.util.overriding import override

__all__ = ["MOST_JOBS", "HistoryMonitor"]

MOST_JOBS: Final = 500
"""Jobs that are told of: those that ended last."""
_MOST_PROBLEMS: Final = 20
_IN_STORE: Final = "history"


class HistoryMonitor(Monitor):
    """Monitor of the records of a :class:`~.job_history.JobHistory` or of a job store, and of new ones.

    Whatever would change a job is refused with SluicewayError.

    Args:
        directory: of the records, or a job store.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        given = Path(directory)
        self._history = JobHistory(given / _IN_STORE if (given / _IN_STORE).is_dir() else given)
        # By file: its time of modification and size, with what is told of its job, or why that cannot be read.
        self._known: dict[Path, tuple[tuple[int, int], JobInfo | str]] = {}
        self._places: dict[str, Path] = {}

    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        """Return the jobs, those first that ended first. There are no workers and no figures."""
        try:
            files = self._newest()
        except OSError as error:
            raise SluicewayError(f"{self._history.directory} cannot be read: {error.strerror or error}") from error
        self._known = {file: self._read(file, stamp) for file, stamp in files}
        told = {file: info for file, (_, info) in self._known.items()}
        self._places = {info.job: file for file, info in told.items() if isinstance(info, JobInfo)}
        jobs = [info for info in told.values() if isinstance(info, JobInfo)]
        return ClusterInfo(
            pid=0,
            epoch=0,
            started_ms=0,
            slots=0,
            free_slots=0,
            max_workers=0,
            transport="",
            jobs=sorted(jobs, key=lambda info: (info.ended_ms, info.job)),
            workers=[],
            job_store=str(self._history.directory),
            problems=[info for info in told.values() if isinstance(info, str)][:_MOST_PROBLEMS],
        )

    def _newest(self) -> list[tuple[Path, tuple[int, int]]]:
        stamped = []
        for file in self._history.files():
            try:
                facts = file.stat()
            except FileNotFoundError:
                continue  # it was removed meanwhile
            stamped.append((file, (facts.st_mtime_ns, facts.st_size)))
        stamped.sort(key=lambda one: one[1], reverse=True)
        return stamped[:MOST_JOBS]

    def _read(self, file: Path, stamp: tuple[int, int]) -> tuple[tuple[int, int], JobInfo | str]:
        known = self._known.get(file)
        if known is not None and known[0] == stamp:
            return known
        try:
            return stamp, self._history.read(file).info
        except JobHistoryError as error:
            return stamp, str(error)

    def describe(self, job: str) -> JobDescription:
        """Return the graph, the attempts, the options and the last metrics of a job."""
        return self._find(job).description

    @override
    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        return self._find(job).checkpoints

    def _find(self, job: str) -> EndedJob:
        if job not in self._places:
            self.cluster()
        file = self._places.get(job)
        if file is None:
            raise SluicewayError(f"there is no record of job {job!r} in {self._history.directory}")
        return self._history.read(file)

    @override
    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        raise _ended(job)

    @override
    def sample_keys(self, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
        raise _ended(job)

    @override
    def cancel(self, job: str) -> None:
        raise _ended(job)

    @override
    def stop(self, job: str) -> None:
        raise _ended(job)

    @override
    def checkpoint(self, job: str) -> int:
        raise _ended(job)

    @override
    def savepoint(self, job: str, place: str = "", *, stop: bool = False) -> str:
        raise _ended(job)

    @override
    def rescale(
        self, job: str, parallelism: int | None, steps: Mapping[str, int], *, wait: bool = True
    ) -> RescaleInfo:
        raise _ended(job)


def _ended(job: str) -> SluicewayError:
    return SluicewayError(f"job {job!r} has ended already: these pages show its record")
