"""The job manager of a cluster that stays. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from sluiceway.cli import exitcodes
from sluiceway.errors import SluicewayError
from sluiceway.plugins import PluginManager
from sluiceway.processes.foreground import LogRelay, end_on_signals, ending_signals, notify_service_manager
from sluiceway.runtime.cluster.client import announce
from sluiceway.runtime.cluster.directories import lock_directory
from sluiceway.runtime.cluster.dispatcher import ClusterConfig, Dispatcher
from sluiceway.runtime.cluster.logfiles import log_to_file
from sluiceway.runtime.enginelog import ERROR, INFO, log

__all__ = ["main"]


def main() -> None:
    """Serve clients until one says that it is enough, or a signal does."""
    told = json.loads(sys.stdin.readline())
    foreground = told.pop("foreground", None)
    if foreground is not None:
        sys.exit(_serve_in_foreground(ClusterConfig(**told), foreground))
    ready = told.pop("ready", None)
    if ready is not None and os.fork():
        os._exit(0)  # whoever has started this is nobody's parent, and waits for what is said on the line
    config = ClusterConfig(**told)
    lock = lock_directory(Path(config.directory))
    if config.logs:
        log_to_file(config.logs, "jobmanager", config.log_level)
    try:
        dispatcher = Dispatcher(config, PluginManager().services())
    except SluicewayError as error:
        os.write(2, f"{error}\n".encode())  # a traceback would tell nobody more
        sys.exit(1)
    for number in ending_signals():
        signal.signal(number, lambda *_: dispatcher.stop())
    if ready is not None:
        os.write(ready, f"{os.getpid()}\n".encode())
        os.close(ready)
    dispatcher.serve()
    lock.close()


def _serve_in_foreground(config: ClusterConfig, foreground: dict[str, Any]) -> int:
    """Serve as the process that was started. Returns the exit code: 0 if it ended in order."""
    lock = lock_directory(Path(config.directory))
    relay = LogRelay(Path(config.logs), foreground["log_format"])
    try:
        log_to_file(config.logs, "jobmanager", config.log_level)
        try:
            dispatcher = Dispatcher(config, PluginManager().services())
        except SluicewayError as error:
            os.write(2, f"error: {error}\n".encode())
            if foreground["is_new"]:  # else workers of the cluster before wait in it
                shutil.rmtree(config.directory, ignore_errors=True)
            return exitcodes.OUTSIDE
        end_on_signals(dispatcher.stop)
        announce(config, os.getpid(), str(Path(config.logs) / "jobmanager.jsonl"))
        log(INFO, "jobs", f"cluster started (process {os.getpid()}), with {foreground['told']}")
        notify_service_manager("READY=1")
        try:
            dispatcher.serve()
        except Exception as error:
            log(ERROR, "jobs", "the job manager failed", error=error)
            return exitcodes.FAILED
        log(INFO, "jobs", "cluster stopped")
        return exitcodes.OK
    finally:
        relay.close()
        lock.close()


if __name__ == "__main__":
    main()
