"""Functions in which tasks that limit a job spend their time: sampled for a second while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from sluiceway.monitoring.diagnosis import Diagnosis, limiting_task, with_function
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.stack_samples import StackSamples, hottest_function
from sluiceway_web._errors import RequestError

__all__ = ["TaskFunctions"]

SAMPLE_S: Final = 1.0
_RATE: Final = 50.0
RENEW_S: Final = 30.0
"""Age in seconds from which the stacks of a task are sampled again, so one second in thirty has that cost."""
_GOOD_S: Final = 120.0
_AT_ONCE: Final = 2
"""Jobs that are sampled at a time."""
_MOST_KEPT: Final = 64


class TaskFunctions:
    """Names of functions in diagnoses, of tasks that are the cause. In the event loop's thread.

    A diagnosis does not wait for the samples: the first ones of a task are without its function.

    Args:
        monitor: the cluster.
        ask: calls a method of it in a helper thread.
    """

    def __init__(
        self,
        monitor: Monitor,
        ask: Callable[[Callable[[], list[StackSamples]]], Awaitable[list[StackSamples]]],
    ) -> None:
        self._monitor = monitor
        self._ask = ask
        self._known: OrderedDict[tuple[str, int], tuple[float, tuple[str, float] | None]] = OrderedDict()
        self._sampling: dict[str, asyncio.Task[None]] = {}

    def name(self, job: str, found: Diagnosis) -> Diagnosis:
        """Name the function in which the task that limits a job spends its time, if it was sampled lately."""
        vertex = limiting_task(found)
        if vertex is None:
            return found
        at, hottest = self._known.get((job, vertex), (float("-inf"), None))
        age = time.monotonic() - at
        if age >= RENEW_S and job not in self._sampling and len(self._sampling) < _AT_ONCE:
            self._sampling[job] = asyncio.create_task(self._sample(job, vertex))
        return found if age >= _GOOD_S else with_function(found, lambda vertex: hottest)

    def clear(self) -> None:
        """Forget all functions, when nobody looks any more."""
        self._known.clear()

    async def close(self) -> None:
        """End all sampling."""
        tasks = list(self._sampling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample(self, job: str, vertex: int) -> None:
        hottest = None
        try:
            processes = await self._ask(lambda: self._monitor.sample_stacks(job, SAMPLE_S, _RATE))
            hottest = hottest_function(processes, vertex)
        except RequestError:
            pass  # the sentence stays without the function, until the next attempt
        finally:
            del self._sampling[job]
        self._known[job, vertex] = time.monotonic(), hottest
        self._known.move_to_end((job, vertex))
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
