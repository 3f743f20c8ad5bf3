"""A worker process. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from sluiceway.errors import ConfigurationError
from sluiceway.runtime.cluster.cluster_directory import remove_if_dead, stay
from sluiceway.runtime.cluster.epoch_fence import hold
from sluiceway.runtime.cluster.heartbeat_thread import HeartbeatThread
from sluiceway.runtime.cluster.interpreter_pool import AHEAD, WAITS_S
from sluiceway.runtime.cluster.reconnect import Patience, find_job_manager
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway.util.garbage_collector import freeze_at_exit, freeze_imports, seldom

if TYPE_CHECKING:
    from sluiceway.runtime.cluster.log_files import WorkerLog
    from sluiceway.runtime.cluster.worker_process import WorkerProcess

__all__ = ["main"]

_NEEDED: Final = (
    "cloudpickle",
    "sluiceway.plugins",
    "sluiceway.plugins.services",
    "sluiceway.runtime.cluster.worker_host",
    "sluiceway.runtime.cluster.log_files",
    "sluiceway.runtime.cluster.worker_process",
    "sluiceway.runtime.taskmanager.task_manager",
    "sluiceway.runtime.logging.task_logs",
)


def main() -> None:
    """Connect to the job manager, and run its tasks until it stops this worker, or is lost."""
    # Whoever has started this process decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _refuse_breakpoint
    if AHEAD in sys.argv[1:]:
        del sys.argv[1:]  # users' functions see the same as in any other worker
        _import_needed()
        if not select.select([0], [], [], WAITS_S)[0]:
            return
    told = sys.stdin.readline()
    if not told:
        return  # whoever has started this process wants no worker, or is gone
    config = WorkerConfig(**json.loads(told))
    service = _Service(config)
    locks = [hold(config.lock), stay(Path(config.directory))] if config.lock else []
    try:
        service.run()
    finally:
        service.close()
        _flush_output()
        if locks:
            _leave_directory(config, locks)


class _Service:
    """Work of this process for one job manager after the other.

    Args:
        config: configuration of the worker.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        # Before the imports, which may take long: from here on the process ends with the one that has started it.
        self._guard = HeartbeatThread(config, _take_line())

    def run(self) -> None:
        """Run tasks until the job manager stops this worker, or is lost and no other one is found."""
        config = self._config
        sys.path[:] = config.path
        from sluiceway.plugins import PluginManager
        from sluiceway.runtime.cluster.worker_host import connect
        from sluiceway.runtime.cluster.worker_process import WorkerProcess

        services = PluginManager().services()
        worker = WorkerProcess(config, connect(config.manager), services)
        self._guard.up(worker.mail, worker.inspector.open)
        # After that: what keeps a worker from coming up is told on the line.
        worker.log = _log_of(worker, config)
        freeze_imports()
        patience = Patience()
        with seldom():  # a user's module that sets other thresholds comes later, and has its way
            while True:
                began = time.monotonic()
                worker.run()
                if not (worker.left and config.rejoin_s):
                    return
                found = self._next_manager(patience, began)
                if found is None:
                    return
                sock, line = found
                log, line_path = worker.log, line.getsockname()
                self._guard = HeartbeatThread(config, line, own=False)
                worker = WorkerProcess(config, sock, services, line=line_path)
                worker.log = log
                self._guard.up(worker.mail, worker.inspector.open)

    def _next_manager(self, patience: Patience, began: float) -> tuple[socket.socket, socket.socket] | None:
        """Return the sockets of another job manager and of its line; None: there is none, or it is given up."""
        # The line belongs to the job manager that is gone; the next one opens its own.
        self._guard.part()
        pause_s = patience.pause_s(time.monotonic() - began)
        if pause_s is None:
            return None
        time.sleep(pause_s)
        return find_job_manager(self._config)

    def close(self) -> None:
        """End the guard of the last job manager."""
        self._guard.close()


def _log_of(worker: WorkerProcess, config: WorkerConfig) -> WorkerLog | None:
    """Return the log that the configuration asks for; None: that of the process, to standard error."""
    from sluiceway.entrypoint.terminal_output import erase_before_output
    from sluiceway.runtime.cluster.log_files import log_to_file
    from sluiceway.runtime.logging.task_logs import log_to_stderr

    if config.logs:
        return log_to_file(config.logs, config.name, config.log_level)
    if config.tells:
        return worker.tell_lines()
    erase_before_output()
    log_to_stderr(config.name, config.log_level, config.log_format)
    return None


def _leave_directory(config: WorkerConfig, locks: Sequence[FileIO]) -> None:
    """Give up the locks; the cluster's directory goes with the last process in it."""
    with suppress(OSError):
        # Unlinked while it is locked, so that nobody sees it unlocked.
        os.unlink(config.lock)
    for lock in locks:
        lock.close()
    remove_if_dead(Path(config.directory))


def _refuse_breakpoint(*args: object, **keywords: object) -> NoReturn:
    raise ConfigurationError(
        "breakpoint() was called in a worker process, which has no terminal: run the job without workers, or name "
        "a debugger that is reached from elsewhere in the environment variable PYTHONBREAKPOINT"
    )


def _import_needed() -> None:
    """Import the modules that every worker needs, before the configuration of this one is known."""
    for module in _NEEDED:
        with suppress(
            ImportError
        ):  # the path that comes with the configuration has it, or it is missing there, too
            import_module(module)


def _flush_output() -> None:
    """Flush what functions have printed. If its reader is gone, drop it, or the interpreter complains at exit."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)


def _take_line() -> socket.socket:
    """Return the line, which only its owner may read: users' functions get an empty standard input."""
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


if __name__ == "__main__":
    main()
    freeze_at_exit()
