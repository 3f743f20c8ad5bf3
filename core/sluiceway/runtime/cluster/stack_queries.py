"""Samples of the stacks of a job's workers: job manager to workers, and back."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.workers import SampleStacks, StacksSampled

__all__ = ["Sampled", "StackQueries"]

_LATE_S: Final = 10.0

Sampled = Callable[[list[StackSamples], list[str]], None]
"""Called with the samples of those workers that gave some, and with the problems of the others."""


@dataclass(slots=True)
class _Query:
    done: Sampled
    deadline: Scheduled
    waiting: set[str]
    samples: list[StackSamples] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class StackQueries:
    """Open requests for samples of one job. In the job manager's loop.

    Args:
        job: id of the job.
        epoch: of the leader of the job.
        workers: those that run tasks of the job; looked up at each request.
        send: sends a message to a worker.
        loop: the job manager's.
    """

    def __init__(
        self, job: str, epoch: int, workers: Set[str], send: Callable[[str, Message], None], loop: TaskletLoop
    ) -> None:
        self._job = job
        self._epoch = epoch
        self._workers = workers
        self._send = send
        self._loop = loop
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}

    def ask(self, seconds: float, rate: float, done: Sampled) -> None:
        """Ask all workers of the job. ``done`` is called once, at the latest ten seconds after the last sample."""
        workers = sorted(self._workers)
        if not workers:
            done([], ["no worker runs a task of the job"])
            return
        number = next(self._numbers)
        deadline = self._loop.post(lambda: self._end(number), seconds + _LATE_S)
        self._open[number] = _Query(done, deadline, set(workers))
        for worker in workers:
            message = SampleStacks(self._job, self._epoch, number, seconds, rate)
            self._send(worker, message)

    def answered(self, message: StacksSampled) -> None:
        """Take the answer of a worker."""
        query = self._open.get(message.number)
        if query is None or message.worker not in query.waiting:
            return
        query.waiting.discard(message.worker)
        if message.samples is None:
            query.problems.append(f"{message.worker}: {message.problem}")
        else:
            query.samples.append(message.samples)
        if not query.waiting:
            self._end(message.number)

    def lost(self, worker: str) -> None:
        """Wait no longer for a worker that is gone."""
        for number, query in list(self._open.items()):
            if worker in query.waiting:
                query.waiting.discard(worker)
                query.problems.append(f"{worker} is gone")
                if not query.waiting:
                    self._end(number)

    def _end(self, number: int) -> None:
        query = self._open.pop(number, None)
        if query is not None:
            query.deadline.cancel()
            query.problems += [f"{worker} has not answered" for worker in sorted(query.waiting)]
            query.done(query.samples, query.problems)
