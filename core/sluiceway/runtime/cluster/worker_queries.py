"""Requests for samples that all workers of a job take for some seconds."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Generic, TypeVar

from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages.base import Message

__all__ = ["Sampled", "WorkerQueries"]

_LATE_S: Final = 10.0

T = TypeVar("T")

Sampled = Callable[[list[T], list[str]], None]
"""Callback with the samples of the workers that answered, and the problems of the others."""


@dataclass(slots=True)
class _Query(Generic[T]):
    done: Sampled[T]
    deadline: Scheduled
    waiting: set[str]
    samples: list[T] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class WorkerQueries(Generic[T]):
    """Open requests for samples of one job. In the job manager's loop.

    Args:
        workers: workers that run tasks of the job; read at each request.
        send: function that sends a message to a worker.
        loop: loop of the job manager.
    """

    def __init__(self, workers: Set[str], send: Callable[[str, Message], None], loop: TaskletLoop) -> None:
        self._workers = workers
        self._send = send
        self._loop = loop
        self._numbers = count(1)
        self._open: dict[int, _Query[T]] = {}

    def ask(self, make: Callable[[int], Message], seconds: float, done: Sampled[T]) -> None:
        """Send a request to all workers of the job.

        Args:
            make: function that makes the message with the number of the request.
            seconds: time for which samples are taken.
            done: called once, at the latest ten seconds after the last sample.
        """
        workers = sorted(self._workers)
        if not workers:
            done([], ["no worker runs a task of the job"])
            return
        number = next(self._numbers)
        deadline = self._loop.post(lambda: self._end(number), seconds + _LATE_S)
        self._open[number] = _Query(done, deadline, set(workers))
        for worker in workers:
            self._send(worker, make(number))

    def answered(self, number: int, worker: str, samples: T | None, problem: str) -> None:
        """Process the answer of a worker: samples, or None and the problem."""
        query = self._open.get(number)
        # Late, or from a worker that was counted as gone.
        if query is None or worker not in query.waiting:
            return
        query.waiting.discard(worker)
        if samples is None:
            query.problems.append(f"{worker}: {problem}")
        else:
            query.samples.append(samples)
        if not query.waiting:
            self._end(number)

    def lost(self, worker: str) -> None:
        """Stop waiting for a lost worker."""
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
