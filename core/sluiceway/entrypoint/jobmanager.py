"""The job manager of a cluster that stays. Its configuration comes as one line of JSON on standard input."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

from sluiceway import exit_codes
from sluiceway.entrypoint.foreground import EndingSignals, LogRelay, ending_signals, notify_service_manager
from sluiceway.errors import SluicewayError
from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import lock_directory, stand_by
from sluiceway.runtime.cluster.dispatcher import Dispatcher
from sluiceway.runtime.cluster.election import FileLeaderElection
from sluiceway.runtime.cluster.home import announce, cluster_file
from sluiceway.runtime.cluster.job_store import prepare_store
from sluiceway.runtime.cluster.log_files import log_to_file
from sluiceway.runtime.cluster.standby_supervisor import wait_until_elected
from sluiceway.runtime.logging.engine_log import ERROR, INFO, WARNING, log

__all__ = ["main"]

_LET_GO_S: Final = 10.0
_LOOK_S: Final = 0.02


def main() -> None:
    """Serve clients until one of them, or a signal, ends the cluster."""
    told = json.loads(sys.stdin.readline())
    foreground = told.pop("foreground", None)
    if foreground is not None:
        sys.exit(_serve_in_foreground(ClusterConfig(**told), foreground))
    if told.pop("stands_by", False):
        _stand_by(ClusterConfig(**told))
        return
    ready = told.pop("ready", None)
    starting = told.pop("starting", None)
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
    try:
        # Here and not by whoever has started this, who may be gone: nobody would find the cluster.
        announce(config, os.getpid(), str(cluster_file().with_name("cluster.log")))
    except OSError as error:
        dispatcher.abandon()
        os.write(2, f"{cluster_file()} cannot be written: {error}\n".encode())
        sys.exit(1)
    # Clients find the cluster now, and so does another start, which is refused.
    if starting is not None:
        os.close(starting)
    if ready is not None:
        with suppress(OSError):
            os.write(ready, f"{os.getpid()}\n".encode())
        os.close(ready)
    dispatcher.serve()
    lock.close()


def _stand_by(config: ClusterConfig) -> None:
    """Wait until this process leads, and serve from then on."""
    directory = Path(config.directory)
    try:
        held = stand_by(directory)
        election = FileLeaderElection(prepare_store(config.job_store), config.epoch)
    except (OSError, SluicewayError) as error:
        os.write(2, f"a standby cannot be started: {error}\n".encode())
        sys.exit(1)
    services = PluginManager().services()
    if not wait_until_elected(config, election):
        return
    lock = _lock_when_free(directory)
    with suppress(OSError):  # a job manager that cannot log still leads
        log_to_file(config.logs, "jobmanager", config.log_level)
    log(WARNING, "jobs", f"process {os.getpid()} leads from now on, with epoch {election.epoch}")
    try:
        dispatcher = Dispatcher(config, services, election)
    except SluicewayError as error:
        log(ERROR, "jobs", "cannot lead", error=error)
        os.write(2, f"{error}\n".encode())
        sys.exit(1)
    for number in ending_signals():
        signal.signal(number, lambda *_: dispatcher.stop())
    try:
        announce(config, os.getpid(), str(cluster_file().with_name("cluster.log")), election.epoch)
    except OSError as error:  # clients find this one all the same: it is where the one before it was
        log(WARNING, "jobs", f"{cluster_file()} cannot be written, and has the last leader's process id: {error}")
    # Held until the new leader listens: clients wait for one as long as there is a standby.
    for file in held:
        file.close()
    dispatcher.serve()
    lock.close()


def _lock_when_free(directory: Path) -> FileIO:
    """Lock a cluster's directory; the leader before may be about to end."""
    until = time.monotonic() + _LET_GO_S
    while True:
        try:
            return lock_directory(directory)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            select.select([], [], [], _LOOK_S)


def _serve_in_foreground(config: ClusterConfig, foreground: dict[str, Any]) -> int:
    """Serve as the process that was started. Returns the exit code: 0 if it ended in order."""
    signals = EndingSignals()
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
            return exit_codes.OUTSIDE
        signals.call(dispatcher.stop)
        try:
            announce(config, os.getpid(), str(Path(config.logs) / "jobmanager.jsonl"))
        except OSError as error:
            dispatcher.abandon()
            os.write(2, f"error: {cluster_file()} cannot be written: {error.strerror or error}\n".encode())
            return exit_codes.OUTSIDE
        os.close(foreground["starting"])
        log(INFO, "jobs", f"cluster started (process {os.getpid()}), with {foreground['told']}")
        notify_service_manager("READY=1")
        try:
            dispatcher.serve()
        except Exception as error:
            log(ERROR, "jobs", "the job manager failed", error=error)
            return exit_codes.FAILED
        log(INFO, "jobs", "cluster stopped")
        return exit_codes.OK
    finally:
        relay.close()
        lock.close()


if __name__ == "__main__":
    main()
