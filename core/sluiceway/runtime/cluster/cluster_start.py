"""Start of a cluster: in the background, or as the job manager that this process becomes."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Final, NoReturn

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import (
    is_awaited,
    make_directory,
    place_of_directories,
    remove_dead,
    stay,
)
from sluiceway.runtime.cluster.home import (
    check_home,
    cluster_file,
    is_starting,
    job_store_directory,
    logs_directory,
    next_epoch,
    put_logs_aside,
    read_cluster_file,
    start_lock,
)
from sluiceway.util.engine_processes import engine_command
from sluiceway.util.private_files import make_private_directory, private_opener

__all__ = ["run_cluster", "start_cluster", "wait_for_start"]

_START_S: Final = 30.0
_OTHER_START_S: Final = 60.0
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def start_cluster(wanted: ClusterConfig) -> int:
    """Start a cluster in the background; return the process id of its job manager once it answers.

    It recovers the jobs in the job store.

    Args:
        wanted: what was chosen. Directory, secret, logs, epoch and a job store that is not named are set here.

    Raises:
        ConfigurationError: there is one already.
        ConnectorError: it did not start in time.
    """
    check_home()
    file = cluster_file()
    with ExitStack() as kept:
        starting = kept.enter_context(start_lock(_OTHER_START_S))
        _make_room(file)
        before = _awaited(kept)
        config = _config(wanted, before)
        own_log = file.parent / "cluster.log"
        started = None
        try:
            with open(own_log, "wb", opener=private_opener) as log:
                started = _started(config, starting.fileno(), log)
        finally:
            if started is None and before is None:
                shutil.rmtree(config.directory, ignore_errors=True)
        if started is None:
            said = own_log.read_text(errors="replace").strip()
            raise ConnectorError(f"the cluster did not start; its output is in {own_log}: {said[-2000:]}")
        return started


def _started(config: ClusterConfig, starting: int, log: IO[bytes]) -> int | None:
    """Start a job manager; return the process id that it reports once it is ready.

    Args:
        config: its configuration.
        starting: descriptor of the lock of the start.
        log: file of its output.

    Returns:
        None: it has ended, or was not ready in time. Then, and after an exception, no process of it is left.
    """
    ready, says_ready = os.pipe()
    with open(ready, "rb", buffering=0) as line:
        try:
            process = subprocess.Popen(
                engine_command("sluiceway.entrypoint.jobmanager"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # The job manager holds the lock of the start, too, until clients can find it.
                pass_fds=(says_ready, starting),
                start_new_session=True,
            )
        finally:
            os.close(says_ready)
        assert process.stdin is not None
        said_ready = b""
        try:
            # If it has ended already, the line shows it.
            with suppress(BrokenPipeError), process.stdin as told:
                inherited = {"ready": says_ready, "starting": starting}
                told.write(json.dumps({**asdict(config), **inherited}).encode() + b"\n")
            process.wait()  # it leaves its work to an orphaned process
            # Readable also at its end: then the process has ended without being ready, and nothing is read.
            if select.select([line], [], [], _START_S)[0]:
                said_ready = line.read(100)
        finally:
            if not said_ready:
                # One that started later would hold the job store, and no client would know it.
                _end_session(process)
    return int(said_ready) if said_ready else None


def run_cluster(wanted: ClusterConfig, log_format: str, told: str) -> NoReturn:
    """Replace this process by the job manager of a cluster.

    The program is replaced, so that the process that a service manager has started is the one that it watches.

    Args:
        wanted: as for :func:`start_cluster`.
        log_format: of the lines on standard error, ``text`` or ``json``.
        told: what the cluster offers, for the log.

    Raises:
        ConfigurationError: there is one already.
    """
    check_home()
    with ExitStack() as kept:
        starting = kept.enter_context(start_lock(_OTHER_START_S))
        _make_room(cluster_file())
        before = _awaited(kept)
        # The job manager unblocks them: one that came until then would leave the directory.
        kept.callback(
            signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        )
        config = _config(wanted, before)
        # The lock of the start survives the replacement, until clients can find the job manager.
        os.set_inheritable(starting.fileno(), True)
        foreground = {
            "log_format": log_format,
            "told": told,
            "is_new": before is None,
            "starting": starting.fileno(),
        }
        with tempfile.TemporaryFile() as line:  # not readable by others: it holds the secret
            line.write(json.dumps({**asdict(config), "foreground": foreground}).encode() + b"\n")
            line.seek(0)
            # Standard input survives the replacement of the program.
            os.dup2(line.fileno(), 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, engine_command("sluiceway.entrypoint.jobmanager"))


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a job manager that has not started, and the child that it has left its work to, if any."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _make_room(file: Path) -> None:
    """Raise ConfigurationError if a cluster runs already, and remove the directories of dead ones."""
    try:
        with ClusterClient() as running:
            pid = running.status().pid
    except ConnectorError:
        pass
    else:
        raise ConfigurationError(
            f"a cluster is running already (process {pid}): stop it with sluiceway cluster stop"
        )
    make_private_directory(file.parent)
    remove_dead(place_of_directories())


def _config(wanted: ClusterConfig, before: tuple[Path, str] | None) -> ClusterConfig:
    """Return the configuration of the next job manager.

    Args:
        wanted: what was chosen.
        before: directory and secret of the previous cluster, if its workers wait for a job manager.
    """
    # First, as the full disk that prevents it leaves the logs of the previous cluster where they are then.
    epoch = next_epoch()
    if before is None:
        directory, secret, logs = make_directory(), secrets.token_hex(32), put_logs_aside()
    else:
        # The waiting workers know the address and the secret of the previous job manager only.
        (directory, secret), logs = before, logs_directory()
        make_private_directory(logs)
    return replace(
        wanted,
        directory=str(directory),
        secret=secret,
        logs=str(logs),
        epoch=epoch,
        job_store=wanted.job_store or str(job_store_directory()),
    )


def _awaited(kept: ExitStack) -> tuple[Path, str] | None:
    """Return directory and secret of the previous cluster if its workers wait for another job manager."""
    try:
        known = read_cluster_file()
        directory = Path(known.directory)
        if not is_awaited(directory):
            return None
        # Nobody removes the directory until the new job manager has locked it.
        kept.enter_context(stay(directory))
    except (OSError, ConnectorError):
        return None
    return directory, known.secret


def wait_for_start() -> None:
    """Wait until no cluster of this user is being started. Raises ConnectorError if that takes too long."""
    if is_starting():
        start_lock(_OTHER_START_S).close()
