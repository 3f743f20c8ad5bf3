"""Access to processes over separate connections: an answer may take seconds."""

from __future__ import annotations

from sluiceway.errors import SluicewayError
from sluiceway.monitoring.configuration import ConfiguredOption, ProcessEnvironment
from sluiceway.monitoring.processes import LogFile, LogPart, ProcessMonitor, ProcessReadings, ThreadDump
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.home import Known
from sluiceway.runtime.messages.clients import ShutDown
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
from sluiceway.util.overriding import override

__all__ = ["ClientProcesses", "dump_of", "dumps_of", "figures_of"]


def figures_of(client: ClusterClient) -> ProcessReadings:
    """Return the figures of all processes. Raises SluicewayError."""
    answer = client.request(AskProcesses)
    assert isinstance(answer, Processes)
    return answer.readings


def dumps_of(client: ClusterClient) -> ProcessReadings:
    """Return the thread dumps of all processes. Raises SluicewayError."""
    answer = client.request(lambda number: AskProcesses(number, threads=True))
    assert isinstance(answer, Processes)
    return answer.readings


def dump_of(client: ClusterClient, process: str) -> ThreadDump:
    """Return the thread dump of a process. Raises SluicewayError."""
    answer = client.request(lambda number: AskProcesses(number, process, True))
    assert isinstance(answer, Processes)
    if not answer.readings.dumps:
        raise SluicewayError("; ".join(answer.readings.problems))
    return answer.readings.dumps[0]


class ClientProcesses(ProcessMonitor):
    """Process monitor that opens a connection to the job manager for each request.

    Args:
        known: address and secret of the job manager; None: those of this user's cluster.
    """

    def __init__(self, known: Known | None = None) -> None:
        self._known = known

    @override
    def figures(self) -> ProcessReadings:
        with ClusterClient(self._known) as client:
            return figures_of(client)

    @override
    def thread_dump(self, process: str) -> ThreadDump:
        with ClusterClient(self._known) as client:
            return dump_of(client, process)

    @override
    def logs(self) -> list[LogFile]:
        with ClusterClient(self._known) as client:
            answer = client.request(AskLogs)
        assert isinstance(answer, Logs)
        return answer.files

    @override
    def read_log(self, name: str, offset: int | None, size: int) -> LogPart:
        with ClusterClient(self._known) as client:
            answer = client.request(lambda number: ReadLog(number, name, offset, size))
        assert isinstance(answer, LogRead)
        return answer.part

    @override
    def configuration(self) -> list[ConfiguredOption]:
        return self._configuration().options

    @override
    def environment(self) -> ProcessEnvironment:
        return self._configuration().environment

    def _configuration(self) -> Configuration:
        with ClusterClient(self._known) as client:
            answer = client.request(AskConfiguration)
        assert isinstance(answer, Configuration)
        return answer

    @override
    def shut_down(self) -> None:
        with ClusterClient(self._known) as client:
            client.request(ShutDown)
