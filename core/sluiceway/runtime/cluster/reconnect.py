"""Reconnection of a worker that has lost its job manager, after closing its tasks."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from typing import Final

from sluiceway.runtime.cluster.worker_launcher import WorkerConfig

__all__ = ["Patience", "find_job_manager"]

_LOOK_S: Final = 0.05
# A job manager that keeps a worker for less counts as one that cannot take it.
_SHORT_S: Final = 5.0
_MOST_SHORT: Final = 10


class Patience:
    """Limit on the reconnections of a worker to a job manager that does not keep it.

    A job manager that cannot adopt a worker, because it has no descriptors left, closes the connection.
    Without a pause the worker would only reconnect.
    """

    def __init__(self) -> None:
        self._short = 0

    def pause_s(self, lasted_s: float) -> float | None:
        """Return the pause before the next attempt in seconds; None: no further attempt.

        Args:
            lasted_s: seconds that the last job manager has kept the worker.
        """
        # Doubles from 0.05 s; the tenth pause in a row is 51 s.
        self._short = self._short + 1 if lasted_s < _SHORT_S else 0
        return None if self._short > _MOST_SHORT else _LOOK_S * (2**self._short - 1)


def find_job_manager(config: WorkerConfig) -> tuple[socket.socket, socket.socket] | None:
    """Wait for another job manager at the address of the previous one, within a time.

    Args:
        config: configuration of the worker.

    Returns:
        a connection to it, and a socket that listens for the line from it; None: none started in time, or none
        can start any more, since the directory of the cluster is gone.
    """
    until = time.monotonic() + config.rejoin_s
    while time.monotonic() < until and os.path.isdir(config.directory):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(config.manager)
            return sock, _listening(os.path.join(config.directory, f"{config.name}.line"))
        except OSError:  # nobody listens, or the directory goes at this moment
            sock.close()
            select.select([], [], [], _LOOK_S)
    return None


def _listening(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.bind(path)
        os.chmod(path, 0o600)
        line.listen(1)
    except BaseException:
        line.close()
        raise
    return line
