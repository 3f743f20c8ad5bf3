"""Figures, thread dumps and logs of the processes of a cluster, and the contract of access to them."""

from __future__ import annotations

from typing import Final

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.monitoring.configuration import ConfiguredOption, ProcessEnvironment

__all__ = [
    "JOB_MANAGER",
    "MOST_LOG_BYTES",
    "LogFile",
    "LogPart",
    "ProcessFigures",
    "ProcessMonitor",
    "ProcessReadings",
    "ThreadDump",
    "ThreadStack",
]

JOB_MANAGER: Final = "jobmanager"
"""Name of the process of the job manager; of a job in one process, the name of that."""
MOST_LOG_BYTES: Final = 1 << 20
"""Bytes of a log file that are read at a time."""


class ProcessFigures(msgspec.Struct, frozen=True):
    """Figures of one process at one moment. None: the platform does not tell, or it was not measured.

    Attributes:
        process: name of the worker, or JOB_MANAGER.
        pid: process id.
        at_ms: when they were taken, ms since the epoch.
        cpu_s: CPU time that the process has used, in seconds.
        cpu_share: CPUs that it used since the figures before, 1.0 for one whole CPU.
        cpus: CPUs that it may use.
        rss: resident memory in bytes.
        peak_rss: the largest it has been.
        memory: memory of the machine in bytes.
        threads: number of threads, those of libraries included.
        open_files: number of open file descriptors.
        most_open_files: the most that it may have.
        collections: passes of the garbage collector since the start, by generation, youngest first.
        pauses: passes that were timed: those since the first time that somebody asked for figures.
        pause_ms: how long they took together.
        longest_pause_ms: the longest of them.
        problem: why it did not answer itself; the figures are those of the operating system then.
    """

    process: str
    pid: int
    at_ms: int
    cpu_s: float | None = None
    cpu_share: float | None = None
    cpus: int | None = None
    rss: int | None = None
    peak_rss: int | None = None
    memory: int | None = None
    threads: int | None = None
    open_files: int | None = None
    most_open_files: int | None = None
    collections: list[int] | None = None
    pauses: int | None = None
    pause_ms: float | None = None
    longest_pause_ms: float | None = None
    problem: str = ""


class ThreadStack(msgspec.Struct, frozen=True):
    """Stack of one thread.

    Attributes:
        name: name of the thread.
        ident: its identity in Python.
        native_id: its id in the operating system; None: not known.
        daemon: True if it does not keep the process alive.
        task: task whose step runs in it, as ``map (1/2) of words-1``; empty: none.
        frames: innermost first, each ``module.function (file:line)``.
    """

    name: str
    ident: int
    native_id: int | None
    daemon: bool
    task: str
    frames: list[str]

    @property
    def headline(self) -> str:
        """Return name, ids and task, as the line over the frames."""
        native = "" if self.native_id is None else f" native id {self.native_id}"
        return f'"{self.name}"{" daemon" * self.daemon}{native}{f", runs {self.task}" if self.task else ""}'


class ThreadDump(msgspec.Struct, frozen=True):
    """Stacks of all Python threads of one process at one moment, that of the main thread first."""

    process: str
    pid: int
    at_ms: int
    threads: list[ThreadStack]


class ProcessReadings(msgspec.Struct, frozen=True):
    """Answers of processes. ``problems`` has a sentence for each one that did not give what was asked for."""

    figures: list[ProcessFigures] = []
    dumps: list[ThreadDump] = []
    problems: list[str] = []


class LogFile(msgspec.Struct, frozen=True):
    """One log file, of a process that runs or of one that has ended. Each line of it is a JSON object."""

    name: str
    process: str
    size: int
    modified_ms: int


class LogPart(msgspec.Struct, frozen=True):
    """Bytes of a log file from ``offset`` on; ``size`` is that of the whole file."""

    name: str
    offset: int
    size: int
    data: bytes


class ProcessMonitor:
    """Access to the processes of a cluster, or of one job. All methods block. May be called from any thread.

    Each method raises ConnectorError if the job manager is gone or does not answer, and SluicewayError with the
    reason if it refuses. This class is for records of ended jobs: they have no processes.
    """

    def figures(self) -> ProcessReadings:
        """Return the figures of all processes, none older than a second, the job manager's first."""
        return ProcessReadings()

    def thread_dump(self, process: str) -> ThreadDump:
        """Return the stacks of the threads of a process, also while a user's function keeps it busy."""
        raise SluicewayError(f"there is no process {process!r}: these are records of jobs that have ended")

    def logs(self) -> list[LogFile]:
        """Return the log files; none where processes log to standard error."""
        return []

    def read_log(self, name: str, offset: int | None, size: int) -> LogPart:
        """Return a part of a log file.

        Args:
            name: of a file that :meth:`logs` returns.
            offset: first byte; None: the last ``size`` bytes.
            size: most bytes to return, up to MOST_LOG_BYTES.
        """
        raise SluicewayError(f"there is no log file {name!r}")

    def configuration(self) -> list[ConfiguredOption]:
        """Return the options that the cluster or the job was started with."""
        return []

    def environment(self) -> ProcessEnvironment | None:
        """Return the interpreter and the environment of the job manager; None: there is none."""
        return None

    def shut_down(self) -> None:
        """Cancel all jobs and end the cluster; return when the job manager has agreed to that."""
        raise SluicewayError("there is no cluster: these are records of jobs that have ended")

    def close(self) -> None:
        """Release connections. Harmless twice."""
