"""A worker process. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from sluiceway.garbage import freeze_imports, seldom
from sluiceway.runtime.cluster.directories import remove_if_dead, stay
from sluiceway.runtime.cluster.fence import hold
from sluiceway.runtime.cluster.guard import Guard
from sluiceway.runtime.cluster.processes import WorkerConfig
from sluiceway.runtime.cluster.rejoining import Patience, find_job_manager

__all__ = ["main"]


def main() -> None:
    """Connect to the job manager, and work until it says that it is enough, or is gone."""
    # Whoever has started this process decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = WorkerConfig(**json.loads(sys.stdin.readline()))
    guard = Guard(config, _take_line())
    locks = [hold(config.lock), stay(Path(config.directory))] if config.lock else []
    try:
        sys.path[:] = config.path
        from sluiceway.plugins import PluginManager
        from sluiceway.runtime.cluster.hosting import connect
        from sluiceway.runtime.cluster.logfiles import log_to_file
        from sluiceway.runtime.cluster.worker import WorkerProcess
        from sluiceway.runtime.tasklogs import log_to_stderr

        services = PluginManager().services()
        worker = WorkerProcess(config, connect(config.manager), services)
        guard.up(worker.mail)
        # After that: what keeps a worker from coming up is told on the line.
        if config.logs:
            worker.log = log_to_file(config.logs, config.name, config.log_level)
        elif config.tells:
            worker.log = worker.tell_lines()
        else:
            log_to_stderr(config.name, config.log_level, config.log_format)
        freeze_imports()
        with seldom():  # a user's module that sets other thresholds comes later, and has its way
            patience, began = Patience(), time.monotonic()
            worker.run()
            while worker.left and config.rejoin_s:
                guard.part()
                pause_s = patience.pause_s(time.monotonic() - began)
                if pause_s is None:
                    break
                time.sleep(pause_s)
                found = find_job_manager(config)
                if found is None:
                    break
                sock, line = found
                log, line_path = worker.log, line.getsockname()
                guard = Guard(config, line, own=False)
                worker = WorkerProcess(config, sock, services, line=line_path)
                worker.log = log
                guard.up(worker.mail)
                began = time.monotonic()
                worker.run()
    finally:
        guard.close()
        if locks:
            with suppress(OSError):
                os.unlink(config.lock)
            for lock in locks:
                lock.close()
            remove_if_dead(Path(config.directory))


def _take_line() -> socket.socket:
    """The line, which nobody else may read: users' functions have an empty standard input."""
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


if __name__ == "__main__":
    main()
