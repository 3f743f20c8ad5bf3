"""Requests of clients about processes, answered by a job manager or by a job that runs by itself."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.clock import Clock
from sluiceway.monitoring.processes import JOB_MANAGER, ProcessFigures, ProcessReadings
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.process_probe import ProcessProbe
from sluiceway.runtime.cluster.process_queries import Read
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.clients import Refused
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.processes import AskProcesses, Processes

__all__ = ["ProcessRequests"]


class ProcessRequests(Handlers):
    """Handlers of the requests. In the loop's thread.

    Args:
        loop: in which clients are answered.
        clock: the machine's.
        ask_workers: asks the worker of a name, or all, for figures or thread dumps; may call back in any thread.
    """

    def __init__(self, loop: TaskletLoop, clock: Clock, ask_workers: Callable[[str, bool, Read], None]) -> None:
        self._loop = loop
        self._ask_workers = ask_workers
        self._probe = ProcessProbe(JOB_MANAGER, loop, clock)

    def close(self) -> None:
        """Stop measuring this process."""
        self._probe.close()

    @handles(AskProcesses)
    def _tell_processes(self, message: AskProcesses, client: Connection) -> None:
        def answer(readings: ProcessReadings) -> None:
            if message.process and not (readings.figures or readings.dumps):
                client.send(Refused(message.request, "; ".join(readings.problems)))
            else:
                client.send(Processes(message.request, readings))

        def with_own(readings: ProcessReadings) -> None:
            if message.threads:
                dumps = [self._probe.threads(), *readings.dumps]
                answer(ProcessReadings(dumps=dumps, problems=readings.problems))
                return

            def done(own: ProcessFigures) -> None:
                answer(ProcessReadings([own, *readings.figures], problems=readings.problems))

            self._probe.figures(done)

        if message.process == JOB_MANAGER:
            with_own(ProcessReadings())
        elif message.process:
            self._ask_workers(message.process, message.threads, lambda got: self._loop.mail(lambda: answer(got)))
        else:
            self._ask_workers("", message.threads, lambda got: self._loop.mail(lambda: with_own(got)))
