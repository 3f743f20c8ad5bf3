"""Requests of clients about processes and logs, answered by a job manager or by a job that runs by itself."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sluiceway.clock import Clock
from sluiceway.errors import SluicewayError
from sluiceway.monitoring.configuration import ConfiguredOption, ProcessEnvironment, shown_variables
from sluiceway.monitoring.processes import JOB_MANAGER, ProcessFigures, ProcessReadings
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.log_parts import log_files_in, read_log_part
from sluiceway.runtime.cluster.process_probe import ProcessProbe
from sluiceway.runtime.cluster.process_queries import Read
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.clients import Refused
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.processes import (
    AskConfiguration,
    AskLogs,
    AskProcesses,
    Configuration,
    LogRead,
    Logs,
    Processes,
    ReadLog,
)

__all__ = ["ProcessRequests"]


class ProcessRequests(Handlers):
    """Handlers of the requests. From the loop's thread only.

    Args:
        loop: loop in which clients are answered.
        clock: clock of the machine.
        ask_workers: queries one worker or all for figures or thread dumps; may call back in any thread.
        options: options of the cluster or the job.
        logs: directory of the log files; None: there are none.
    """

    def __init__(
        self,
        loop: TaskletLoop,
        clock: Clock,
        ask_workers: Callable[[str, bool, Read], None],
        options: Sequence[ConfiguredOption] = (),
        logs: Path | None = None,
    ) -> None:
        self._options = list(options)
        self._logs = logs
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

    @handles(AskLogs)
    def _tell_logs(self, message: AskLogs, client: Connection) -> None:
        client.send(Logs(message.request, [] if self._logs is None else log_files_in(self._logs)))

    @handles(ReadLog)
    def _read_log(self, message: ReadLog, client: Connection) -> None:
        try:
            if self._logs is None:
                raise SluicewayError(
                    f"there is no log file {message.name!r:.120}: processes log to standard error"
                )
            part = read_log_part(self._logs, message.name, message.offset, message.size)
        except SluicewayError as error:
            client.send(Refused.by(message.request, error))
        else:
            client.send(LogRead(message.request, part))

    @handles(AskConfiguration)
    def _tell_configuration(self, message: AskConfiguration, client: Connection) -> None:
        environment = ProcessEnvironment(
            python=f"{platform.python_implementation()} {platform.python_version()}",
            machine=f"{platform.system()} {platform.machine()}",
            executable=sys.executable,
            path=list(map(str, sys.path))[:200],
            variables=shown_variables(os.environ),
        )
        client.send(Configuration(message.request, self._options, environment))
