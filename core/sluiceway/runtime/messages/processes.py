"""Messages about processes: clients to the job manager, the job manager to the inspectors of workers, and back."""

from __future__ import annotations

from typing import ClassVar

from sluiceway.monitoring.configuration import ConfiguredOption, ProcessEnvironment
from sluiceway.monitoring.processes import LogFile, LogPart, ProcessFigures, ProcessReadings, ThreadDump
from sluiceway.runtime.messages.base import Answer, Message, Request

__all__ = [
    "AskConfiguration",
    "AskLogs",
    "AskProcesses",
    "Configuration",
    "InspectProcess",
    "LogRead",
    "Logs",
    "OpenInspector",
    "ProcessInspected",
    "Processes",
    "ReadLog",
    "RegisterInspector",
]


class OpenInspector(Message, frozen=True):
    """Job manager to worker: connect an inspector. Sent where there is no line to the process."""


class RegisterInspector(Message, frozen=True):
    """Inspector to job manager: first message of a worker's thread that answers while its loop is busy."""

    worker: str
    pid: int


class InspectProcess(Message, frozen=True):
    """Job manager to inspector: take the figures of the process, or with ``threads`` its thread dump."""

    number: int
    threads: bool = False


class ProcessInspected(Message, frozen=True):
    """Inspector to job manager: the answer to :class:`InspectProcess`."""

    large: ClassVar[bool] = True
    number: int
    figures: ProcessFigures | None = None
    dump: ThreadDump | None = None


class AskProcesses(Request, frozen=True):
    """Client to job manager: take the figures of a process, or with ``threads`` its thread dump. Empty: of all."""

    process: str = ""
    threads: bool = False


class Processes(Answer, frozen=True):
    """Job manager to client: the answer to :class:`AskProcesses`."""

    large: ClassVar[bool] = True
    readings: ProcessReadings


class AskLogs(Request, frozen=True):
    """Client to job manager: list the log files."""


class Logs(Answer, frozen=True):
    """Job manager to client: the answer to :class:`AskLogs`."""

    files: list[LogFile]


class ReadLog(Request, frozen=True):
    """Client to job manager: read a part of a log file; without ``offset`` its last ``size`` bytes."""

    name: str
    offset: int | None
    size: int


class LogRead(Answer, frozen=True):
    """Job manager to client: the answer to :class:`ReadLog`."""

    part: LogPart


class AskConfiguration(Request, frozen=True):
    """Client to job manager: request the options and the environment."""


class Configuration(Answer, frozen=True):
    """Job manager to client: the answer to :class:`AskConfiguration`."""

    options: list[ConfiguredOption]
    environment: ProcessEnvironment
