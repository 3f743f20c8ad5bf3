"""Readings of a cluster: one per second for all clients, only while somebody looks, with a short history."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from sluiceway.errors import ConnectorError, SluicewayError
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, JobInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.rates import RateMeter, SubtaskRates
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import find_job
from sluiceway_web._page_cache import PageCache
from sluiceway_web._process_figures import ProcessSampler
from sluiceway_web._task_functions import TaskFunctions

__all__ = ["HISTORY", "PERIOD_S", "Point", "Reading", "Sampler", "Verdict"]

PERIOD_S: Final = 1.0
HISTORY: Final = 600
"""Readings that are kept for each job."""
_WATCHED_S: Final = 30.0
"""Seconds after the last request for which readings are taken."""
_MOST_JOBS: Final = 200
"""Jobs whose description and checkpoints are cached."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """Figures of one vertex at one moment, in the history of a job. ``lag_ms`` is that of its watermark.

    Later points have later times, even if the clock of the machine is set back.
    """

    at_ms: int
    vertex: int
    in_per_s: float
    out_per_s: float
    busy: float
    blocked: float
    waiting: float
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """State of the cluster at one moment. ``rates`` has those of jobs that run."""

    at: float
    cluster: ClusterInfo
    rates: dict[str, list[SubtaskRates]]

    def job(self, wanted: str) -> JobInfo:
        """Return a job by its id or name. Raises RequestError."""
        found = find_job(self.cluster.jobs, self.cluster.job_store, wanted)
        if found is None:
            raise RequestError(404, f"Job {wanted} not found")
        return found

    def metrics(self, job: str, description: JobDescription) -> JobMetrics:
        """Return the metrics of a job, the last ones of one that has ended; empty ones if they are not known."""
        found = self.cluster.figures.get(job) or description.metrics
        return found or JobMetrics(job, "unknown", 0.0, 0, 0, ())

    def rates_of(self, job: str, description: JobDescription) -> list[SubtaskRates]:
        """Return the rates of a job's subtasks; the means over its life if it has ended."""
        if job in self.cluster.figures or description.metrics is None:
            return self.rates.get(job, [])
        return RateMeter().read(job, description.metrics)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Diagnosis of a job at one moment, for the list of all jobs.

    Attributes:
        at: monotonic time of the diagnosis.
        version: parts of the job's status that have been diagnosed.
        summary: its first sentence.
        healthy: True if nothing was found that limits the job.
        sources: ids of the vertices that are sources.
        checkpoint_ms: time of the trigger of the last completed checkpoint; None: there was none.
    """

    at: float
    version: tuple[object, ...]
    summary: str
    healthy: bool
    sources: frozenset[int]
    checkpoint_ms: int | None


class Sampler:
    """Sampler that asks the monitor in helper threads, once per period for all who want to know.

    Its methods are called in the event loop's thread.

    Args:
        monitor: the cluster.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._meter = RateMeter()
        self._reading: Reading | None = None
        self._asking: asyncio.Task[Reading] | None = None
        self._listing: Reading | None = None
        self._asking_list: asyncio.Task[Reading] | None = None
        self._watched = float("-inf")
        self._cached: dict[tuple[str, str], tuple[float, Any]] = {}
        self._history: dict[str, deque[Point]] = {}
        self._epoch_ms = time.time_ns() // 1_000_000 - _monotonic_ms()
        self.key_samples: OrderedDict[tuple[str, int], tuple[float, list[KeySample]]] = OrderedDict()
        """Last counts of keys by job and vertex, with their monotonic time."""
        self.verdicts: dict[str, Verdict] = {}
        """Last verdicts on jobs that run."""
        self.processes = ProcessSampler(monitor.processes, self.ask)
        self.functions = TaskFunctions(monitor, self.ask)
        self.pages = PageCache(lambda: PERIOD_S / 2)
        """Live pages, for all clients that have one open."""

    async def run(self) -> None:
        """Take readings while somebody looks. Until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if time.monotonic() - self._watched < _WATCHED_S:
                with suppress(RequestError):  # whoever asks is told
                    # Half a period: what a request has read a moment ago is not read again.
                    await self._read(PERIOD_S / 2)
            else:
                self._history.clear()
                self._cached.clear()
                self.functions.clear()
                self.pages.clear()
                self.verdicts.clear()

    async def reading(self) -> Reading:
        """Return a reading that is no older than a period. Raises RequestError."""
        self._watched = time.monotonic()
        return await self._read(PERIOD_S)

    async def listing(self) -> Reading:
        """Return a reading that may lack figures and rates, no older than a period. Raises RequestError.

        Lists of jobs need none: those of a hundred jobs are megabytes.
        """
        for known in (self._reading, self._listing):
            if known is not None and time.monotonic() - known.at < PERIOD_S:
                return known
        if self._asking_list is None or self._asking_list.done():
            self._asking_list = asyncio.create_task(self._list())
        # Shielded: a client that goes away cancels its own wait, not the reading that others wait for.
        return await asyncio.shield(self._asking_list)

    async def _list(self) -> Reading:
        cluster = await self.ask(self.monitor.cluster)
        self._listing = Reading(time.monotonic(), cluster, {})
        return self._listing

    async def fresh(self) -> Reading:
        """Return a reading that is taken now, after a change. Raises RequestError."""
        if self._asking is not None and not self._asking.done():
            with suppress(RequestError):
                await asyncio.shield(self._asking)  # it may have begun before the change
        self._reading = None
        self.pages.clear()
        return await self.reading()

    async def describe(self, job: str) -> JobDescription:
        """Return the description of a job, no older than a period. Raises RequestError."""
        try:
            found: JobDescription = await self._kept("describe", job, lambda: self.monitor.describe(job))
        except RequestError as error:
            if error.status != 404:
                raise
            return JobDescription()  # a job of an earlier job manager, which has left no record
        return found

    async def checkpoints(self, job: str) -> list[CheckpointInfo]:
        """Return the checkpoints of a job, no older than a period. Raises RequestError."""
        found: list[CheckpointInfo] = await self._kept("checkpoints", job, lambda: self.monitor.checkpoints(job))
        return found

    def history(self, job: str) -> list[Point]:
        """Return the points of a job's vertices, oldest first."""
        return list(self._history.get(job, ()))

    def newest(self, job: str) -> Iterator[Point]:
        """Iterate over the points of a job's vertices, newest first."""
        return reversed(self._history.get(job, deque()))

    async def ask(self, question: Callable[[], T]) -> T:
        """Call a method of the monitor in a helper thread. Raises RequestError."""
        try:
            return await asyncio.to_thread(question)
        except ConnectorError as error:
            raise RequestError(503, f"The job manager does not answer: {error}") from error
        except SluicewayError as error:
            raise RequestError(409 if "already" in str(error) else 404, str(error)) from error

    async def ask_change(self, question: Callable[[], T]) -> T:
        """Call a method that changes a job that is there. Raises RequestError, 409 if that is refused."""
        try:
            return await self.ask(question)
        except RequestError as error:
            raise RequestError(409 if error.status == 404 else error.status, str(error)) from error

    async def _kept(self, kind: str, job: str, question: Callable[[], T]) -> T:
        at, known = self._cached.get((kind, job), (float("-inf"), None))
        if time.monotonic() - at < PERIOD_S:
            return cast("T", known)
        found = await self.ask(question)
        if len(self._cached) >= 2 * _MOST_JOBS:
            self._cached.clear()
        self._cached[kind, job] = time.monotonic(), found
        return found

    async def _read(self, max_age_s: float) -> Reading:
        if self._reading is not None and time.monotonic() - self._reading.at < max_age_s:
            return self._reading
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._take())
        # As in listing().
        return await asyncio.shield(self._asking)

    async def _take(self) -> Reading:
        cluster, rates = await self.ask(self._measure)
        self._history = {job: points for job, points in self._history.items() if job in cluster.figures}
        for job, subtasks in rates.items():
            self._remember(job, subtasks)
        self._reading = Reading(time.monotonic(), cluster, rates)
        return self._reading

    def _measure(self) -> tuple[ClusterInfo, dict[str, list[SubtaskRates]]]:
        """Read all figures and their rates. In a helper thread, one at a time: there may be megabytes of them."""
        cluster = self.monitor.cluster(figures=True)
        rates = {
            job: self._meter.read(job, metrics) for job, metrics in cluster.figures.items() if metrics.running
        }
        self._meter.keep(rates)
        return cluster, rates

    def _remember(self, job: str, subtasks: list[SubtaskRates]) -> None:
        by_vertex: dict[int, list[SubtaskRates]] = {}
        for rates in subtasks:
            by_vertex.setdefault(rates.metrics.vertex_id, []).append(rates)
        points = self._history.setdefault(job, deque())
        at_ms = self._epoch_ms + _monotonic_ms()
        for vertex, group in by_vertex.items():
            lags = [r.metrics.watermark_lag_ms for r in group if r.metrics.watermark_lag_ms is not None]
            points.append(
                Point(
                    at_ms,
                    vertex,
                    sum(r.in_per_s for r in group),
                    sum(r.out_per_s for r in group),
                    max(r.busy for r in group),
                    max(r.blocked for r in group),
                    max(r.waiting for r in group),
                    max(lags, default=None),
                )
            )
        while len(points) > HISTORY * len(by_vertex):
            points.popleft()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
