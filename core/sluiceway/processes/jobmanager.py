"""The job manager of a cluster that stays. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import signal
import sys

from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.dispatcher import ClusterConfig, Dispatcher

__all__ = ["main"]


def main() -> None:
    """Serve clients until one says that it is enough, or a signal does."""
    config = ClusterConfig(**json.loads(sys.stdin.readline()))
    dispatcher = Dispatcher(config, PluginManager().services())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    dispatcher.serve()


if __name__ == "__main__":
    main()
