"""What workers on other machines log and print, told to the job manager, who writes it where its own goes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluiceway.connector import Wait
from sluiceway.runtime.cluster.log_files import WorkerLog, lines_of
from sluiceway.runtime.logging.task_logs import LogLine, as_json, as_text, make_line

__all__ = ["RemoteLogHandler", "show_lines"]

_ROOM: Final = 1 << 18
"""With so many bytes under way, what can wait does."""
_MOST: Final = 1 << 22
"""With so many, lines are left out: a function that prints cannot wait."""
_LOOK_S: Final = 0.01


class RemoteLogHandler(WorkerLog):
    """Tells lines to the job manager.

    Args:
        process: name of the worker.
        level: the lowest level that is told, where a job has none of its own.
        send: sends bytes; called in the worker's loop.
        mail: has something called in that. From any thread.
        backlog: how many bytes wait to be sent. From any thread.
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
        self._mailed = 0
        self._left_out = 0
        self._count = threading.Lock()

    def room(self) -> Wait | None:
        """None if there is room for more, else what to wait for."""
        if self._under_way() < _ROOM:
            return None
        return Wait(until=time.monotonic() + _LOOK_S)

    def write(self, lines: Iterable[LogLine]) -> None:
        """Tell lines, all at once, or count them if nobody takes any for long."""
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
    """In the job manager: print what workers have printed, and log what they have logged.

    Args:
        lines: what one of them has told.
        style: of log lines, ``text`` or ``json``.
    """
    shown = as_json if style == "json" else as_text
    out: list[str] = []
    err: list[str] = []
    for line in lines_of(lines):
        if line.level == "STDOUT":
            out.append(f"{line.message}\n")
        else:
            err.append(f"{line.message if line.level == 'STDERR' else shown(line)}\n")
    for stream, texts in ((sys.stdout, out), (sys.stderr, err)):
        if texts and stream is not None:  # a program may have no console
            stream.write("".join(texts))
            stream.flush()
