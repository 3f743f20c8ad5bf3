"""Logs and standard output of remote workers, forwarded to the job manager, which writes them like its own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluiceway.connector import Wait
from sluiceway.runtime.cluster.log_files import WorkerLog, lines_of
from sluiceway.runtime.logging.task_logs import LogLine, as_json, as_text, make_line
from sluiceway.util.visible_text import visible_on

__all__ = ["RemoteLogHandler", "show_lines"]

_ROOM: Final = 1 << 18
"""Backlog in bytes at which writers that can wait do so."""
_MOST: Final = 1 << 22
"""Backlog in bytes at which lines are dropped: a function that prints cannot wait."""
_LOOK_S: Final = 0.01


class RemoteLogHandler(WorkerLog):
    """Log handler that sends lines to the job manager.

    Args:
        process: name of the worker.
        level: lowest level that is sent, unless a job sets its own.
        send: sends bytes; called in the worker's loop.
        mail: calls an action in that loop. From any thread.
        backlog: returns the bytes queued for sending. From any thread.
    """

    def __init__(
        self,
        process: str,
        level: str,
        send: Callable[[bytes], None],
        mail: Callable[[Callable[[], None]], None],
        backlog: Callable[[], int],
    ) -> None:
        super().__init__(process, level)
        self._send = send
        self._mail = mail
        self._backlog = backlog
        # Bytes that are mailed to the loop, and not in the backlog of the connection yet.
        self._mailed = 0
        self._left_out = 0
        self._count = threading.Lock()

    def room(self) -> Wait | None:
        """Return None if there is room for more, else a wait for it."""
        if self._under_way() < _ROOM:
            return None
        return Wait(until=time.monotonic() + _LOOK_S)

    def write(self, lines: Iterable[LogLine]) -> None:
        """Send lines in one message, or count them as dropped while the backlog is too large."""
        given = list(lines)
        with self._count:
            if self._under_way() > _MOST:
                self._left_out += len(given)
                return
            left_out, self._left_out = self._left_out, 0
            if left_out:
                text = f"{left_out} lines were left out: they came faster than the job manager takes them"
                given.insert(0, make_line(time.time(), "WARNING", self._process, "sluiceway.workers", text, None))
            data = "".join(f"{as_json(line)}\n" for line in given).encode()
            self._mailed += len(data)
        self._mail(lambda: self._tell(data))

    def _tell(self, data: bytes) -> None:
        with self._count:
            self._mailed -= len(data)
        self._send(data)

    def _under_way(self) -> int:
        return self._mailed + self._backlog()


def show_lines(lines: bytes, style: str) -> None:
    """Print lines that workers have printed, and log lines that they have logged; in the job manager.

    Args:
        lines: lines of one worker.
        style: format of log lines, ``text`` or ``json``.
    """
    shown = as_json if style == "json" else as_text
    out: list[str] = []
    err: list[str] = []
    for line in lines_of(lines):
        if line.level == "STDOUT":
            out.append(f"{line.message}\n")
        else:
            # What functions print is the program's own, as it is in its process.
            text = line.message if line.level == "STDERR" else visible_on(sys.stderr, shown(line))
            err.append(f"{text}\n")
    for stream, texts in ((sys.stdout, out), (sys.stderr, err)):
        if texts and stream is not None:  # a program may have no console
            stream.write("".join(texts))
            stream.flush()
