"""Queries of worker processes: job manager to their inspectors, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from sluiceway.clock import Clock
from sluiceway.monitoring.processes import ProcessFigures, ProcessReadings, ThreadDump
from sluiceway.runtime.cluster.connection import BrokenProtocolError, Connection
from sluiceway.runtime.cluster.resource_manager import ResourceManager
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.processes import InspectProcess, ProcessInspected, RegisterInspector
from sluiceway.runtime.taskmanager.process_meter import figures_of_other

__all__ = ["ProcessQueries", "Read"]

# Seconds that an inspector has for its answer; one thread of the worker may hold the interpreter's lock.
_LATE_S: Final = 5.0

Read = Callable[[ProcessReadings], None]
"""Called once with the answers of processes, and the errors of those that gave none."""


@dataclass(slots=True)
class _Query:
    done: Read
    threads: bool
    within_s: float
    deadline: Scheduled
    waiting: set[str]
    figures: list[ProcessFigures] = field(default_factory=list)
    dumps: list[ThreadDump] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ProcessQueries(Handlers):
    """Open queries, and the connected inspectors. From the job manager's loop only.

    Args:
        loop: loop of the job manager.
        clock: clock of the machine.
        resources: knows the workers.
    """

    def __init__(self, loop: TaskletLoop, clock: Clock, resources: ResourceManager) -> None:
        self._loop = loop
        self._clock = clock
        self._resources = resources
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}
        self._inspectors: dict[str, Connection] = {}

    def ask(self, worker: str, threads: bool, done: Read, within_s: float = _LATE_S) -> None:
        """Request figures, or with ``threads`` thread dumps.

        Args:
            worker: name of a worker; empty: all registered ones.
            threads: True for thread dumps.
            done: called with the answers.
            within_s: seconds after which it is called at the latest.
        """
        known = sorted(self._resources.names())
        workers = [name for name in known if worker in ("", name)]
        if not workers:
            problems = [f"there is no worker {worker!r}"] if worker else []
            done(ProcessReadings(problems=problems))
            return
        number = next(self._numbers)
        deadline = self._loop.post(lambda: self._end(number), within_s)
        self._open[number] = _Query(done, threads, within_s, deadline, set(workers))
        for name in workers:
            if name in self._inspectors:
                self._inspectors[name].send(InspectProcess(number, threads))
            else:
                # It connects by itself, and is sent the open queries when it registers.
                self._resources.call_inspector(name)

    def take(self, connection: Connection, message: Message) -> None:
        """Process a message of an inspector."""
        if not self.dispatch(message, connection):
            raise BrokenProtocolError(f"an inspector sent {type(message).__name__}")

    def closed(self, connection: Connection) -> None:
        """Remove an inspector that has ended; if it left a query open, call its worker again."""
        for name, known in list(self._inspectors.items()):
            if known is connection:
                del self._inspectors[name]
                if any(name in query.waiting for query in self._open.values()):
                    self._resources.call_inspector(name)

    def lost(self, worker: str) -> None:
        """Stop waiting for a lost worker."""
        for number, query in list(self._open.items()):
            if worker in query.waiting:
                query.waiting.discard(worker)
                query.problems.append(f"{worker} is gone")
                self._end_if_complete(number, query)

    @handles(RegisterInspector)
    def _register(self, message: RegisterInspector, connection: Connection) -> None:
        # A name may be that of another process by now.
        if self._resources.pid_of(message.worker) != message.pid:
            connection.close()  # it belongs to a worker that counts as lost
            return
        before = self._inspectors.get(message.worker)
        self._inspectors[message.worker] = connection
        if before is not None:
            before.close()
        for number, query in self._open.items():
            if message.worker in query.waiting:
                connection.send(InspectProcess(number, query.threads))

    @handles(ProcessInspected)
    def _answered(self, message: ProcessInspected, connection: Connection) -> None:
        query = self._open.get(message.number)
        name = next((name for name, known in self._inspectors.items() if known is connection), "")
        if query is None or name not in query.waiting:
            return
        query.waiting.discard(name)
        if message.figures is not None:
            query.figures.append(message.figures)
        if message.dump is not None:
            query.dumps.append(message.dump)
        self._end_if_complete(message.number, query)

    def _end_if_complete(self, number: int, query: _Query) -> None:
        if not query.waiting:
            self._end(number)

    def _end(self, number: int) -> None:
        query = self._open.pop(number, None)
        if query is None:
            return
        query.deadline.cancel()
        for worker in sorted(query.waiting):
            problem = (
                f"{worker} has not answered within {query.within_s:g} s: it is stopped, or in one long call that "
                "keeps Python's lock"
            )
            # The operating system has figures of a process that does not answer.
            pid = self._resources.local_pid_of(worker)
            if pid and not query.threads:
                query.figures.append(figures_of_other(worker, pid, self._clock.now_ms(), problem))
            query.problems.append(problem)
        query.figures.sort(key=lambda figures: figures.process)
        query.done(ProcessReadings(query.figures, query.dumps, query.problems))
