"""Figures of processes, kept for a second, and their names as metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from sluiceway.monitoring.processes import JOB_MANAGER, ProcessFigures, ProcessMonitor, ProcessReadings
from sluiceway_web import _answers as a
from sluiceway_web._errors import RequestError

__all__ = ["HISTORY", "LOCAL", "ProcessSampler", "chosen", "figures_of", "metrics_of"]

LOCAL: Final = "local"
"""Id of the one process of a job without workers, in place of a worker."""
HISTORY: Final = 60
"""Figures of a process that are kept."""
_FRESH_S: Final = 1.0
_STALE_S: Final = 30.0
_PATIENCE_S: Final = 0.3
_HEAP: Final = "Status.JVM.Memory.Heap."
_COLLECTOR: Final = "Status.JVM.GarbageCollector."


class ProcessSampler:
    """Sampler that asks for the figures of all processes at most once a second. In the event loop's thread.

    Args:
        monitor: the cluster.
        ask: calls a method of it in a helper thread.
    """

    def __init__(
        self,
        monitor: ProcessMonitor,
        ask: Callable[[Callable[[], ProcessReadings]], Awaitable[ProcessReadings]],
    ) -> None:
        self._monitor = monitor
        self._ask = ask
        self._history: dict[str, deque[ProcessFigures]] = {}
        self._last: ProcessReadings | None = None
        self._taken = float("-inf")
        self._asking: asyncio.Task[ProcessReadings] | None = None

    async def readings(self) -> ProcessReadings:
        """Return figures of the last second; older ones if a process takes its time. Raises RequestError."""
        age = time.monotonic() - self._taken
        if self._last is not None and age < _FRESH_S:
            return self._last
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._take())
        # One process that answers late does not hold up the page: it shows the last reading meanwhile.
        if self._last is not None and age < _STALE_S:
            await asyncio.wait([self._asking], timeout=_PATIENCE_S)
            if not self._asking.done():
                return self._last
        return await asyncio.shield(self._asking)

    async def close(self) -> None:
        """End an open question."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _take(self) -> ProcessReadings:
        self._last = await self._ask(self._monitor.figures)
        self._taken = time.monotonic()
        before = self._history
        self._history = {f.process: before.get(f.process) or deque(maxlen=HISTORY) for f in self._last.figures}
        for figures in self._last.figures:
            self._history[figures.process].append(figures)
        return self._last

    def history(self, process: str) -> list[ProcessFigures]:
        """Return the last figures of a process, oldest first, taken while somebody looked."""
        return list(self._history.get(process, ()))


def figures_of(readings: ProcessReadings, name: str) -> ProcessFigures | None:
    """Return the figures of a worker or of JOB_MANAGER; None: it gave none."""
    wanted = JOB_MANAGER if name == LOCAL else name
    return next((figures for figures in readings.figures if figures.process == wanted), None)


def metrics_of(figures: ProcessFigures | None) -> dict[str, float]:
    """Return figures under Flink's names and under our own; those that were not measured are left out."""
    if figures is None:
        return {}
    passes = figures.collections or []
    cpu_load = None if figures.cpu_share is None else figures.cpu_share / (figures.cpus or 1)
    found: dict[str, float | None] = {
        "Status.JVM.CPU.Load": cpu_load,
        "Status.JVM.CPU.Time": None if figures.cpu_s is None else figures.cpu_s * 1e9,
        _HEAP + "Used": figures.rss,
        _HEAP + "Committed": figures.rss,
        _HEAP + "Max": figures.memory,
        "Status.JVM.Threads.Count": figures.threads,
        _COLLECTOR + "All.Count": sum(passes) if passes else None,
        _COLLECTOR + "All.Time": figures.pause_ms,
        **{f"{_COLLECTOR}Generation{number}.Count": count for number, count in enumerate(passes)},
        "process.cpuShare": figures.cpu_share,
        "process.cpuSeconds": figures.cpu_s,
        "process.rss": figures.rss,
        "process.peakRss": figures.peak_rss,
        "process.threads": figures.threads,
        "process.openFiles": figures.open_files,
        "process.maxOpenFiles": figures.most_open_files,
        "process.gcPauses": figures.pauses,
        "process.gcPauseMs": figures.pause_ms,
        "process.gcLongestPauseMs": figures.longest_pause_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def chosen(metrics: dict[str, float], wanted: str | None) -> Sequence[a.Metric]:
    """Return names, or with names separated by commas the values of those that exist.

    Raises:
        RequestError: too many names are wanted.
    """
    if wanted is None:
        return [a.Metric(name) for name in metrics]
    names = wanted.split(",")
    if len(names) > 200:
        raise RequestError(400, "At most 200 metrics are returned at a time")
    return [a.Metric(name, str(metrics[name])) for name in names if name in metrics]
