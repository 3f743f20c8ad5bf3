"""A job manager in the foreground: logs on standard error, signals, and the service manager's socket."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from sluiceway.runtime.cluster.log_files import LogFollower
from sluiceway.runtime.logging.task_logs import as_json, as_text
from sluiceway.util.visible_text import visible

__all__ = ["EndingSignals", "LogRelay", "ending_signals", "notify_service_manager"]

_LOOK_S: Final = 0.2


class LogRelay:
    """Thread that copies the lines of a cluster's log files to standard error, in a thread, until it is closed.

    The files stay what they are, for ``sluiceway logs``. A line appears up to 0.2 s after it was logged.

    Args:
        directory: of the logs.
        style: ``text`` or ``json``.
    """

    def __init__(self, directory: Path, style: str) -> None:
        self._follower = LogFollower(directory)
        self._follower.read()  # a job manager that takes over finds the lines of the one before it
        self._shown = as_json if style == "json" else as_text
        # The log takes sys.stderr over, whose lines would come back here.
        self._descriptor = os.dup(2)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluiceway-log-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the lines that are left, and end the thread."""
        self._closing.set()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._closing.wait(_LOOK_S)
            with suppress(OSError):  # nobody reads standard error any more, or a log cannot be read just now
                text = "".join(f"{self._shown(line)}\n" for line in self._follower.read())
                data = (visible(text) if os.isatty(self._descriptor) else text).encode()
                while data:
                    data = data[os.write(self._descriptor, data) :]


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a job manager: SIGTERM, and SIGINT unless this process began with it ignored.

    A shell without job control has SIGINT ignored for ``command &``: Ctrl-C is for the command in front.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]


class EndingSignals:
    """Handlers of the signals that end a job manager, set before it is made; the second ends this process.

    The start blocks these signals until there is something to handle them: see :func:`.run_cluster`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._stop: Callable[[], None] | None = None
        for number in ending_signals():
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def call(self, stop: Callable[[], None]) -> None:
        """Have the first signal call ``stop`` in its handler; call it now if that signal has come.

        Args:
            stop: ends the job manager in order; may be called twice.
        """
        self._stop = stop
        if self._count:
            stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        # Impatient: whatever the first signal has begun is not waited for.
        if self._count > 1:
            os._exit(128 + number)
        notify_service_manager("STOPPING=1")
        if self._stop is not None:
            self._stop()


def notify_service_manager(state: str) -> None:
    """Send a state to the service manager that started this process, if it asked for that (``$NOTIFY_SOCKET``)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect(address)
        sock.send(state.encode())
