"""A worker process. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import signal
import socket
import sys

from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.processes import WorkerConfig
from sluiceway.runtime.cluster.worker import WorkerProcess

__all__ = ["main"]


def main() -> None:
    """Connect to the job manager, and work until it says that it is enough, or is gone."""
    # Ctrl-C goes to the whole group of processes; the job manager decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = WorkerConfig(**json.loads(sys.stdin.readline()))
    sys.path[:] = config.path
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(config.manager)
    WorkerProcess(config, sock, PluginManager().services()).run()


if __name__ == "__main__":
    main()
