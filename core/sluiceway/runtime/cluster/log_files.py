"""Log files of a cluster's processes: bounded, one JSON object per line, read together by time."""

from __future__ import annotations

import fcntl
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
from sluiceway.util.overriding import override
from sluiceway.util.private_files import make_private_directory

__all__ = ["LogFile", "LogFollower", "PrintedLines", "WorkerLog", "lines_of", "log_to_file", "read_logs"]

SUFFIX: Final = ".jsonl"
OLDER: Final = ".1"
MOST_BYTES: Final = 8 << 20
"""Size in bytes at which a file is rotated; one rotated file is kept."""
MOST_FILES: Final = 64
"""Number of processes whose files are kept, by last write; those of processes that are alive are kept, too."""
_LONGEST_LINE: Final = 1 << 20


class WorkerLog(logging.Handler, ABC):
    """Log handler for the records of a process and its printed lines, with a level for each job.

    Args:
        process: name of the process.
        level: lowest level that is written, unless a job sets its own.
    """

    def __init__(self, process: str, level: str) -> None:
        super().__init__()
        self.levels: dict[str, int] = {}
        self._base = _number(level)
        self._process = process

    def use_level(self, job: str, level: str | None) -> None:
        """Set the lowest level of a job's records; None: the log's own."""
        if level is None:
            self.levels.pop(job, None)
        else:
            self.levels[job] = _number(level)

    @property
    def lowest(self) -> int:
        """Lowest level at which any record is written."""
        return min([self._base, *self.levels.values()])

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, if its level is high enough for its job."""
        try:
            line = line_of(record, self._process)
            if record.levelno >= self.levels.get(line.job or "", self._base):
                self.write([line])
        except Exception:
            self.handleError(record)

    def printed(self, level: str, texts: Iterable[str]) -> None:
        """Write printed lines, with the task that has printed them."""
        now, fields = time.time(), task_fields(2)
        self.write(make_line(now, level, self._process, "", text, fields) for text in texts)

    def room(self) -> Wait | None:
        """Return None if there is room for more, else a wait for it. From any thread."""
        return None

    @abstractmethod
    def write(self, lines: Iterable[LogLine]) -> None:
        """Write lines, atomically. From any thread."""

    def take_over(self) -> None:
        """Redirect all logging and printing of this process to this handler."""
        root = logging.getLogger()
        root.addHandler(self)
        root.setLevel(self.lowest)
        logging.captureWarnings(True)
        sys.stdout = PrintedLines(self, "STDOUT", 1)
        sys.stderr = PrintedLines(self, "STDERR", 2)


class LogFile(WorkerLog):
    """Log file of one process.

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
        # Held while the process lives; not every file system has locks.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def _rotate(self) -> None:
        full = self._descriptor
        with suppress(FileNotFoundError):  # somebody has removed it
            self._path.replace(self._path.with_suffix(SUFFIX + OLDER))
        # Before the other one is closed: if it cannot be opened, no closed descriptor is written to.
        self._open()
        os.close(full)

    @override
    def write(self, lines: Iterable[LogLine]) -> None:
        data = "".join(f"{as_json(line)}\n" for line in lines).encode()
        self.acquire()
        try:
            if self._descriptor < 0:
                return
            # A full disk must not end a job.
            with suppress(OSError):
                # A single write may be larger than the limit: it gets a file of its own.
                if self._size and self._size + len(data) > self._most_bytes:
                    self._rotate()
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
        if not _is_in_use(path):
            path.unlink(missing_ok=True)
            path.with_suffix(SUFFIX + OLDER).unlink(missing_ok=True)


def _is_in_use(path: Path) -> bool:
    """Return whether the process of a log file is alive: it holds a lock on the file."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # removed since, or in a file system without locks
        return False
    return False


class PrintedLines(io.TextIOBase):
    """Replacement of ``sys.stdout`` or ``sys.stderr`` that turns each printed line into a line of the log.

    Args:
        log: receives the lines.
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
        """Return None if there is room for more, else a wait for it."""
        return self._log.room()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the replaced stream."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write text; an incomplete line is buffered."""
        # By thread: print() writes the text and the end of the line in two calls.
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
    """Redirect logging and printing of this process to its file in the cluster's logs."""
    log = LogFile(Path(directory), process, level)
    log.take_over()
    return log


# ---- reading ------------------------------------------------------------------------------------------------

_DECODER: Final = msgspec.json.Decoder(LogLine)


def read_logs(directory: Path) -> Iterator[LogLine]:
    """Return all lines of a cluster's logs, ordered by time."""
    return _by_time([data for path in _files(directory) for data in [_bytes(path)]])


def _files(directory: Path) -> list[Path]:
    """Return the files of all processes, each before the rotated one, which may not exist.

    A file that is rotated before it is opened is then found under the other name.
    """
    rotated = (path.with_suffix("") for path in directory.glob("*" + SUFFIX + OLDER))
    paths = {*directory.glob("*" + SUFFIX), *rotated}
    return [file for path in sorted(paths) for file in (path, path.with_suffix(SUFFIX + OLDER))]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # removed or rotated since it was listed
        return b""


def _by_time(parts: Iterable[bytes]) -> Iterator[LogLine]:
    # Threads of one process may write slightly out of order.
    lines = [sorted(lines_of(part), key=lambda line: line.time) for part in parts]
    return merge(*lines, key=lambda line: line.time)


def lines_of(data: bytes) -> Iterator[LogLine]:
    """Return the lines in the data of a file."""
    for each in data.splitlines():
        # A killed process may have left half a line.
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            yield _DECODER.decode(each)


class LogFollower:
    """Reader of new lines in a cluster's logs. Each call returns the lines since the previous one.

    Args:
        directory: directory of the logs; it need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._at: dict[bytes, int] = {}

    def read(self) -> list[LogLine]:
        """Return the new lines, ordered by time."""
        parts = []
        there = set()
        for path in _files(self._directory):
            try:
                with open(path, "rb") as file:
                    # A file is identified by its first line: rotation gives it another name, and its inode number
                    # may be that of a deleted file.
                    which = file.readline()
                    at = self._at.get(which, 0)
                    file.seek(at)
                    data = file.read()
            except FileNotFoundError:
                continue
            # Half of the first line identifies no file.
            if not which.endswith(b"\n"):
                continue
            there.add(which)
            # The rest of a line that is being written belongs to the next call.
            whole = data[: data.rfind(b"\n") + 1]
            self._at[which] = at + len(whole)
            parts.append(whole)
        self._at = {which: at for which, at in self._at.items() if which in there}
        return list(_by_time(parts))
