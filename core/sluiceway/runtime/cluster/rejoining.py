"""A worker whose job manager is gone: it has let go of its tasks, and looks for the next job manager."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from typing import Final

from sluiceway.runtime.cluster.processes import WorkerConfig

__all__ = ["find_job_manager"]

_LOOK_S: Final = 0.05


def find_job_manager(config: WorkerConfig) -> tuple[socket.socket, socket.socket] | None:
    """Wait until a job manager is where the one before it was, or until that takes too long.

    Args:
        config: what the worker was told.

    Returns:
        a connection to it, and a socket that listens for the line from it; None: none has come in time, or nobody
        may come any more, since the directory of the cluster is gone.
    """
    until = time.monotonic() + config.rejoin_s
    while time.monotonic() < until and os.path.isdir(config.directory):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(config.manager)
        except OSError:
            sock.close()
            select.select([], [], [], _LOOK_S)
        else:
            return sock, _listening(os.path.join(config.directory, f"{config.name}.line"))
    return None


def _listening(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.bind(path)
    os.chmod(path, 0o600)
    line.listen(1)
    return line
