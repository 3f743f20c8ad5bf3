"""Home of this user's cluster: the file by which clients find it, its logs, and the last epoch."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import time
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.election import epoch_of
from sluiceway.runtime.cluster.private_places import check_private
from sluiceway.util.private_files import make_private_directory, private_opener

__all__ = [
    "Known",
    "announce",
    "check_home",
    "cluster_file",
    "is_starting",
    "job_store_directory",
    "logs_directory",
    "next_epoch",
    "put_logs_aside",
    "read_cluster_file",
    "start_lock",
]

_LOOK_S: Final = 0.05


def cluster_file() -> Path:
    """Return the path of the cluster file of this user: in ``$SLUICEWAY_HOME``, else ``~/.sluiceway``.

    Raises:
        ConfigurationError: the user has no home directory, and ``SLUICEWAY_HOME`` names none.
    """
    if home := os.environ.get("SLUICEWAY_HOME"):
        return Path(home) / "cluster.json"
    try:
        return Path.home() / ".sluiceway" / "cluster.json"
    except RuntimeError:
        # A container may run under a user id that has no entry in /etc/passwd, and without HOME.
        raise ConfigurationError(
            f"user {os.getuid()} has no home directory for the file of the cluster: "
            "set SLUICEWAY_HOME to a directory that this user may write"
        ) from None


def start_lock(within_s: float) -> FileIO:
    """Wait for the lock of cluster starts of this user; closing the returned file releases it.

    Raises:
        ConnectorError: another start takes longer than ``within_s``.
        ConfigurationError: the lock cannot be made.
    """
    try:
        make_private_directory(cluster_file().parent)
        file = FileIO(cluster_file().with_name("starting"), "w", opener=private_opener)
    except OSError as error:
        raise _unwritable(error) from error
    until = time.monotonic() + within_s
    while True:
        try:
            # Polled, as flock has no timeout.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                file.close()
                raise ConnectorError(
                    f"another sluiceway cluster start is under way, for more than {within_s:g} s: see "
                    f"{cluster_file().with_name('cluster.log')}"
                ) from None
            select.select([], [], [], _LOOK_S)
        except BaseException:
            file.close()
            raise
        else:
            return file


def _unwritable(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the home of the cluster, {cluster_file().parent}, cannot be written: {error.strerror or error}. "
        "Set SLUICEWAY_HOME to a directory that this user may write"
    )


def is_starting() -> bool:
    """Return whether a process of this user is starting a cluster."""
    try:
        with FileIO(cluster_file().with_name("starting"), "r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_home() -> None:
    """Raise an error for a home that others may write to, as clients trust the file in it.

    Raises:
        ConfigurationError: others may write to it.
    """
    file, why = cluster_file(), "what is written there says to which process secrets and programs are sent"
    check_private(file.parent, "the home of the cluster (SLUICEWAY_HOME)", why)
    check_private(file, "the file of the cluster", why)


def logs_directory() -> Path:
    """Return the log directory of this user's cluster; ``logs.1`` beside it has the previous cluster's logs."""
    return cluster_file().parent / "logs"


def job_store_directory() -> Path:
    """Return the default job store directory of this user's cluster."""
    return cluster_file().parent / "jobs"


class Known(msgspec.Struct, frozen=True):
    """Content of the cluster file."""

    directory: str
    secret: str
    pid: int
    log: str


def read_cluster_file() -> Known:
    """Return the content of this user's cluster file.

    Raises:
        OSError: the file does not exist or cannot be read.
        ConnectorError: the file is damaged.
    """
    file = cluster_file()
    try:
        known = msgspec.json.decode(file.read_bytes(), type=Known)
        bytes.fromhex(known.secret)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConnectorError(
            f"{file} is damaged, and without it the cluster cannot be reached: {error}. End the processes of "
            "sluiceway.entrypoint.jobmanager, if there are any, and run sluiceway cluster start: jobs in the job "
            "store go on"
        ) from error
    return known


def next_epoch() -> int:
    """Return the epoch of a new job manager: higher than those of all earlier ones.

    Raises:
        ConfigurationError: it cannot be written.
    """
    last = _last_epoch()
    try:
        _write_privately(_epoch_file(), f"{last + 1}\n")
    except OSError as error:
        raise _unwritable(error) from error
    return last + 1


def _last_epoch() -> int:
    try:
        return epoch_of(_epoch_file())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):  # damaged: seconds since 1970 exceed any earlier epoch
        return int(time.time())


def _epoch_file() -> Path:
    return cluster_file().with_name("epoch")


def put_logs_aside() -> Path:
    """Move the logs of the previous cluster aside."""
    logs = logs_directory()
    before = logs.with_name("logs.1")
    if logs.exists():
        shutil.rmtree(before, ignore_errors=True)
        logs.rename(before)
    make_private_directory(logs)
    return logs


def _write_privately(file: Path, text: str) -> None:
    # Replaced as a whole, and private from the beginning.
    part = file.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as stream:
        stream.write(text)
    part.replace(file)


def announce(config: ClusterConfig, pid: int, log: str, epoch: int = 0) -> None:
    """Write the cluster file of this user.

    Args:
        config: of the cluster.
        pid: process id of its job manager.
        log: path of its log file.
        epoch: of its leadership; the next cluster that is started gets a higher one.

    Raises:
        OSError: it cannot be written.
    """
    # A standby counts epochs in the job store; the next start must not fall behind.
    if epoch > _last_epoch():
        _write_privately(_epoch_file(), f"{epoch}\n")
    known = {"directory": config.directory, "secret": config.secret, "pid": pid, "log": log}
    _write_privately(cluster_file(), json.dumps(known))
