"""Log lines with the fields of their task, and their destinations.

Nothing is done per record for it: the worker's loop notes the tasklet whose step it makes, and who logs asks.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from sluiceway.record_errors import step_around
from sluiceway.runtime.logging.context import LogOrigin, TaskFields, stepping
from sluiceway.util.overriding import override
from sluiceway.util.surrogates import json_bytes
from sluiceway.util.visible_text import visible_on

__all__ = [
    "JsonFormatter",
    "LogLine",
    "TaskFields",
    "TaskLogFilter",
    "TextFormatter",
    "as_json",
    "as_text",
    "line_of",
    "log_to_stderr",
    "logging_to_stderr",
    "task_fields",
]

_FIELDS: Final = "_sluiceway_task"


def task_fields(level: int = 1) -> TaskFields | None:
    """Return the fields of the task in whose step, coroutine or thread this is called; None: no task.

    Args:
        level: number of frames above the caller's at which the search for the step begins.
    """
    origin = stepping.get()
    return origin.log_fields(step_around(sys._getframe(level))) if isinstance(origin, LogOrigin) else None


class TaskLogFilter(logging.Filter):
    """Filter that gives log records the attributes ``job``, ``operator``, ``subtask``, ``attempt`` and ``worker``.

    For handlers of a program's own, whose formats want them: ``handler.addFilter(TaskLogFilter())``. They are
    empty texts where a record was not logged by a task. Attributes that a record has already stay as they are.

    Args:
        worker: name of the worker process.
    """

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes; return True."""
        fields = fields_of(record)
        known = record.__dict__
        known.setdefault("job", "" if fields is None else fields.job)
        known.setdefault("operator", "" if fields is None else fields.operator)
        known.setdefault("subtask", "" if fields is None else fields.subtask)
        known.setdefault("attempt", "" if fields is None else fields.attempt)
        known.setdefault("worker", self._worker)
        return True


def fields_of(record: logging.LogRecord) -> TaskFields | None:
    """Return the fields of a record, looked up once, in the thread that logs it."""
    # A handler may format the record in another thread, where another task or none is running.
    if _FIELDS not in record.__dict__:
        record.__dict__[_FIELDS] = task_fields(2)
    fields: TaskFields | None = record.__dict__[_FIELDS]
    return fields


# ---- lines --------------------------------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of a log file.

    ``time`` is UTC, as ISO 8601 with microseconds, so that texts sort as times do. ``level`` is one of Python's
    names, or ``STDOUT`` or ``STDERR`` for what was printed.
    """

    time: str
    level: str
    process: str
    logger: str
    message: str
    job: str | None = None
    operator: str | None = None
    subtask: int | None = None
    parallelism: int | None = None
    attempt: int | None = None
    traceback: str | None = None


_PLAIN: Final = logging.Formatter()


def line_of(record: logging.LogRecord, process: str) -> LogLine:
    """Return the line of a record."""
    fields = fields_of(record)
    traceback = None
    if record.exc_info:
        traceback = _PLAIN.formatException(record.exc_info)
    if record.stack_info:
        traceback = "\n".join(filter(None, [traceback, record.stack_info]))
    try:
        message = record.getMessage()
    except Exception as error:
        message = f"{record.msg!r} cannot be formatted with {record.args!r}: {error!r}"
    return make_line(
        record.created,
        record.levelname,
        process,
        record.name,
        message,
        fields,
        job=_job_of(record),
        trace=traceback,
    )


def _job_of(record: logging.LogRecord) -> str | None:
    """Return the job of a line of the engine itself, which no task logs: its ``extra`` has ``"job"``."""
    job = record.__dict__.get("job") if record.name.startswith("sluiceway.") else None
    return job if isinstance(job, str) and job else None


def make_line(
    created: float,
    level: str,
    process: str,
    logger: str,
    message: str,
    fields: TaskFields | None,
    *,
    job: str | None = None,
    trace: str | None = None,
) -> LogLine:
    """Put a line together; ``created`` is in seconds since the epoch."""
    time = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if fields is None:
        return LogLine(time, level, process, logger, message, job=job, traceback=trace)
    return LogLine(
        time,
        level,
        process,
        logger,
        message,
        fields.job,
        fields.operator,
        fields.subtask,
        fields.parallelism,
        fields.attempt,
        trace,
    )


def as_json(line: LogLine) -> str:
    """Return a line as a JSON object."""
    return json_bytes(line).decode()


def as_text(line: LogLine) -> str:
    """Return a line for people, in local time: time, level, place, and text."""
    when = datetime.fromisoformat(line.time).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    where = [line.process] if line.process else []
    if line.operator is not None:
        attempt = f" attempt {line.attempt}" if line.attempt else ""
        where.append(f"{line.job} {line.operator!r} {(line.subtask or 0) + 1}/{line.parallelism}{attempt}")
    elif line.job:
        where.append(line.job)
    said = f"{line.logger}: {line.message}" if line.logger else line.message
    text = f"{when} {line.level:7} [{', '.join(where)}] {said}" if where else f"{when} {line.level:7} {said}"
    return f"{text}\n{line.traceback}" if line.traceback else text


class TextFormatter(logging.Formatter):
    """Formatter of records as text lines. ``process`` is the worker's name, or empty."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return as_text(line_of(record, self._process))


class JsonFormatter(TextFormatter):
    """Formatter of records as JSON objects."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return as_json(line_of(record, self._process))


def log_to_stderr(process: str, level: str, style: str) -> None:
    """Log to standard error, for the rest of this process."""
    logging.getLogger().addHandler(_stderr_handler(process, style))
    logging.getLogger().setLevel(level.upper())


def _stderr_handler(process: str, style: str) -> logging.Handler:
    handler = _Stderr()
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    handler.addFilter(TaskLogFilter(process))
    return handler


# ---- in one process -----------------------------------------------------------------------------------------


class _Stderr(logging.StreamHandler[Any]):
    """Handler of the current standard error."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @override
    def format(self, record: logging.LogRecord) -> str:
        return visible_on(self.stream, super().format(record))

    # Looked up for each record: programs and notebooks replace sys.stderr.
    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, stream: Any) -> None:
        raise AttributeError("it is standard error")


_lock: Final = threading.Lock()
_users = 0
_undo: list[Any] = []


@contextmanager
def logging_to_stderr(level: str | None, style: str) -> Iterator[None]:
    """Within this context log records have the fields of their tasks.

    A program that has set up logging keeps its handlers, which are given a :class:`TaskLogFilter`, and an explicit
    ``level`` is that of the root logger. For one that has not, warnings and worse, or what ``level`` says, go to
    standard error. Contexts in several threads share what the first one has set up.

    Args:
        level: the lowest level that is logged, in small letters; None: the program's.
        style: ``text`` or ``json``.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _set_up(level, style)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                while _undo:
                    _undo.pop()()


def _set_up(level: str | None, style: str) -> None:
    root = logging.getLogger()
    if root.handlers:
        fields = TaskLogFilter()
        for handler in root.handlers:
            handler.addFilter(fields)
            _undo.append(lambda handler=handler: handler.removeFilter(fields))
    else:
        own = _stderr_handler("", style)
        own.setLevel(logging.WARNING if level is None else level.upper())
        root.addHandler(own)
        _undo.append(lambda: root.removeHandler(own))
    if level is not None:
        before = root.level
        root.setLevel(level.upper())
        _undo.append(lambda: root.setLevel(before))
