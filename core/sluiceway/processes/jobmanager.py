"""The job manager of a cluster that stays. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sluiceway.errors import SluicewayError
from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.directories import lock_directory
from sluiceway.runtime.cluster.dispatcher import ClusterConfig, Dispatcher
from sluiceway.runtime.cluster.logfiles import log_to_file

__all__ = ["main"]


def main() -> None:
    """Serve clients until one says that it is enough, or a signal does."""
    told = json.loads(sys.stdin.readline())
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    if ready is not None:
        os.write(ready, f"{os.getpid()}\n".encode())
        os.close(ready)
    dispatcher.serve()
    lock.close()


if __name__ == "__main__":
    main()
