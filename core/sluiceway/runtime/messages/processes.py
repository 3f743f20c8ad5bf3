"""Messages about processes: clients to the job manager, the job manager to the inspectors of workers, and back."""

from __future__ import annotations

from typing import ClassVar

from sluiceway.monitoring.processes import ProcessFigures, ProcessReadings, ThreadDump
from sluiceway.runtime.messages.base import Answer, Message, Request

__all__ = [
    "AskProcesses",
    "InspectProcess",
    "OpenInspector",
    "ProcessInspected",
    "Processes",
    "RegisterInspector",
]


class OpenInspector(Message, frozen=True):
    """Job manager to worker: connect an inspector. Sent where there is no line to the process."""


class RegisterInspector(Message, frozen=True):
    """An inspector has come: a thread of a worker that answers while the loop of the worker is busy."""

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
