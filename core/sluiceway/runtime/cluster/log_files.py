"""The log files of a cluster's processes: bounded, one JSON object a line, and read together by time."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.connector import Wait
from sluiceway.runtime.logging.task_logs import LogLine, as_json, line_of, make_line, task_fields
from sluiceway.util.private_files import make_private_directory

__all__ = ["LogFile", "LogFollower", "PrintedLines", "WorkerLog", "lines_of", "log_to_file", "read_logs"]

SUFFIX: Final = ".jsonl"
OLDER: Final = ".1"
MOST_BYTES: Final = 8 << 20
"""A file that has become larger is put aside, in the place of the one that was put aside before it."""
MOST_FILES: Final = 64
"""Of so many processes the files are kept; those written to last."""
_LONGEST_LINE: Final = 1 << 20


class WorkerLog(logging.Handler, ABC):
    """Takes the log records of a process and what it prints, with a level for each job.

    Args:
        process: name of the process.
        level: the lowest level that is written, where a job has none of its own.
    """

    def __init__(self, process: str, level: str) -> None:
        super().__init__()
        self.levels: dict[str, int] = {}
        self._base = _number(level)
        self._process = process

    def use_level(self, job: str, level: str | None) -> None:
        """From now on a job's records are written from this level up; None: from the log's own."""
        if level is None:
            self.levels.pop(job, None)
        else:
            self.levels[job] = _number(level)

    @property
    def lowest(self) -> int:
        """The lowest level that any record may need in order to be written."""
        return min([self._base, *self.levels.values()])

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its job wants fewer."""
        try:
            line = line_of(record, self._process)
            if record.levelno >= self.levels.get(line.job or "", self._base):
                self.write([line])
        except Exception:
            self.handleError(record)

    def printed(self, level: str, texts: Iterable[str]) -> None:
        """Write lines that were printed, with the task that has printed them."""
        now, fields = time.time(), task_fields(2)
        self.write(make_line(now, level, self._process, "", text, fields) for text in texts)

    def room(self) -> Wait | None:
        """None if there is room for more, else what to wait for before asking again. From any thread."""
        return None

    @abstractmethod
    def write(self, lines: Iterable[LogLine]) -> None:
        """Write lines, all at once. From any thread."""

    def take_over(self) -> None:
        """Have everything that this process logs and prints from now on come here."""
        root = logging.getLogger()
        root.addHandler(self)
        root.setLevel(self.lowest)
        logging.captureWarnings(True)
        sys.stdout = PrintedLines(self, "STDOUT", 1)
        sys.stderr = PrintedLines(self, "STDERR", 2)


class LogFile(WorkerLog):
    """Writes into a file of the process's own.

    Args:
        directory: of the cluster's logs; it is made.
        process: name of the process, and of the file.
        level: the lowest level that is written, where a job has none of its own.
        most_bytes: bound of the file; as much again is kept in the one before it.
    """

    def __init__(self, directory: Path, process: str, level: str, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(process, level)
        self._most_bytes = most_bytes
        make_private_directory(directory)
        _remove_oldest(directory)
        self._path = directory / (process + SUFFIX)
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def write(self, lines: Iterable[LogLine]) -> None:
        """Write lines, all at once. From any thread."""
        data = "".join(f"{as_json(line)}\n" for line in lines).encode()
        self.acquire()
        try:
            if self._descriptor < 0:
                return
            if self._size and self._size + len(data) > self._most_bytes:
                os.close(self._descriptor)
                self._path.replace(self._path.with_suffix(SUFFIX + OLDER))
                self._open()
            # A full disk must not end a job.
            with suppress(OSError):
                self._size += os.write(self._descriptor, data)
        finally:
            self.release()

    def close(self) -> None:
        """Close the file. Harmless twice."""
        self.acquire()
        try:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
        finally:
            self.release()
        super().close()


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _remove_oldest(directory: Path) -> None:
    ages = []
    for path in directory.glob("*" + SUFFIX):
        with suppress(OSError):
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[: max(0, len(ages) - MOST_FILES + 1)]:
        path.unlink(missing_ok=True)
        path.with_suffix(SUFFIX + OLDER).unlink(missing_ok=True)


class PrintedLines(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``: each line that is printed becomes a line of the log.

    Args:
        log: where they go.
        level: ``STDOUT`` or ``STDERR``.
        descriptor: of what it stands in for.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, log: WorkerLog, level: str, descriptor: int) -> None:
        super().__init__()
        self._log = log
        self._level = level
        self._descriptor = descriptor
        self._begun: dict[int, str] = {}

    def room(self) -> Wait | None:
        """None if there is room for more, else what to wait for."""
        return self._log.room()

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Of what it stands in for."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Take a text; what ends in no line break waits for the rest of its line."""
        me = threading.get_ident()
        begun = self._begun.pop(me, "") + text
        *lines, rest = begun.split("\n")
        if rest and len(rest) > _LONGEST_LINE:
            lines.append(rest)
        elif rest:
            self._begun[me] = rest
        if lines:
            self._log.printed(self._level, lines)
        return len(text)


def log_to_file(directory: str, process: str, level: str) -> LogFile:
    """Have this process log into its file of the cluster's logs, with everything that it prints."""
    log = LogFile(Path(directory), process, level)
    log.take_over()
    return log


# ---- reading ------------------------------------------------------------------------------------------------

_DECODER: Final = msgspec.json.Decoder(LogLine)


def read_logs(directory: Path) -> Iterator[LogLine]:
    """All lines of a cluster's logs, ordered by time."""
    return _by_time([data for path in _files(directory) for data in [_bytes(path)]])


def _files(directory: Path) -> list[Path]:
    return sorted([*directory.glob("*" + SUFFIX), *directory.glob("*" + SUFFIX + OLDER)])


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # removed, or put aside, since it was listed
        return b""


def _by_time(parts: Iterable[bytes]) -> Iterator[LogLine]:
    # Threads of one process may write a little out of turn.
    lines = [sorted(lines_of(part), key=lambda line: line.time) for part in parts]
    return merge(*lines, key=lambda line: line.time)


def lines_of(data: bytes) -> Iterator[LogLine]:
    """The lines in what was written."""
    for each in data.splitlines():
        # A process that was killed may have left half a line.
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            yield _DECODER.decode(each)


class LogFollower:
    """Reads what is added to a cluster's logs. Each call gives what has come since the one before it.

    Args:
        directory: of the logs; it need not be there yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._at: dict[bytes, int] = {}

    def read(self) -> list[LogLine]:
        """The new lines, ordered by time as far as they are there."""
        parts = []
        there = set()
        for path in _files(self._directory):
            try:
                with open(path, "rb") as file:
                    # Its first line is what a file is known by: when it is put aside it gets another name, and
                    # its number may be that of one that has gone.
                    which = file.readline()
                    at = self._at.get(which, 0)
                    file.seek(at)
                    data = file.read()
            except FileNotFoundError:
                continue
            if not which.endswith(b"\n"):
                continue
            there.add(which)
            whole = data[: data.rfind(b"\n") + 1]
            self._at[which] = at + len(whole)
            parts.append(whole)
        self._at = {which: at for which, at in self._at.items() if which in there}
        return list(_by_time(parts))
