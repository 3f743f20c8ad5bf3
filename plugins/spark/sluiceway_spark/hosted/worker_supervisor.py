"""Supervisor of one worker process, run in a task of Spark."""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Final, Never, TypeAlias

from sluiceway.runtime.cluster.worker_host import own_address
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, start_worker
from sluiceway_spark.hosted.shared_storage import unseen
from sluiceway_spark.hosted.worker_end import MARK, WorkerEnd

__all__ = ["Told", "WorkerEndedError", "supervise", "task_of"]

_LOOK_S: Final = 0.2
_MISSING: Final = re.compile(r"No module named (\S+)")

Told: TypeAlias = tuple[dict[str, Any], list[str], float]
"""A worker's configuration, the places that it must see, and for how long it may be silent, in s."""


class WorkerEndedError(RuntimeError):
    """A worker was killed or failed to start. The message holds a :class:`WorkerEnd`, which the driver decodes."""


def task_of(path: list[str]) -> Callable[[Iterable[Told]], Iterator[str]]:
    """Return the function that each task of a barrier stage runs.

    Args:
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
    """

    def task(told: Iterable[tuple[Any, ...]]) -> Iterator[str]:
        import base64
        import json
        import platform
        import sys

        sys.path += [entry for entry in path if entry not in sys.path]
        for config, places, silent_s in told:
            try:
                from sluiceway_spark.hosted.worker_supervisor import supervise
            except ImportError as error:
                how = (
                    f"cannot start: {sys.executable}, the Python {platform.python_version()} of the executor on "
                    f"{platform.node()}, cannot import what it needs ({error}): install Sluiceway there, and have "
                    "PYSPARK_PYTHON name that Python"
                )
                # As WorkerEnd encodes itself, which cannot be imported here.
                what = {"worker": config["name"], "how": how, "hopeless": True}
                raise RuntimeError(f"{MARK} {base64.b64encode(json.dumps(what).encode()).decode()}.") from None
            supervise(config, places, silent_s)
            yield config["name"]

    return task


def supervise(told: dict[str, Any], places: Sequence[str], may_be_silent_s: float) -> None:
    """Run a worker until it ends.

    If Spark ends the task or its executor, this process goes, and the worker with it. The worker imports from
    where the driver and this process do, Spark's ``--py-files`` included.

    Args:
        told: the worker's configuration.
        places: paths that must be here as they are for the job manager.
        may_be_silent_s: a worker that sends no heartbeat for longer, and does nothing, is killed.

    Raises:
        WorkerEndedError: it was killed, or could not start, or was ended as it sent no heartbeat.
    """
    missing = unseen(places)
    if missing is not None:
        raise _ended(
            told["name"],
            f"cannot work on {socket.gethostname()}: {missing} is not there what it is for the job manager, and "
            "checkpoints need a place that all executors see: a directory on shared storage, or a URL as of S3 or "
            "HDFS",
            hopeless=True,
        )
    # The worker inherits it: others reach it where this machine reaches the job manager from.
    os.environ["SLUICEWAY_ZMQ_BIND"] = f"tcp://{own_address(told['manager'])}:*"
    path = _search_path(told["path"])
    with _private_directory() as directory:
        config = replace(WorkerConfig(**told), directory=directory, path=path)
        worker = start_worker(config, path)  # Sluiceway itself may have been shipped, too
        silent_since = time.monotonic()
        stuck = False
        while not worker.ended(_LOOK_S):
            if worker.heard() or worker.is_at_work():
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > may_be_silent_s:
                stuck = True
                worker.kill()
        how, said = worker.how_it_ended(), worker.what_it_said()
        if stuck:
            how = f"sent no heartbeat for {may_be_silent_s:g} s and was killed"
        killed = stuck or worker.was_killed()
        if not killed and (missing_module := _MISSING.search(said)):
            how = (
                f"cannot start: {sys.executable}, the Python {platform.python_version()} of the executor on "
                f"{socket.gethostname()}, has no module {missing_module[1]}: install it there, or ship it with "
                "--py-files"
            )
            raise _ended(config.name, how, hopeless=True)
        if killed or "exit code 0" not in how:
            raise _ended(config.name, how, said, killed=killed)


@contextmanager
def _private_directory() -> Iterator[str]:
    """Make a temporary directory, and remove it at the end, also when Spark's daemon ends with its executor.

    The daemon sends SIGHUP to its Python workers, which by default ends them without any cleanup. A worker that
    has ended by itself a moment before would leave its directory for good.
    """

    def hang_up(signum: int, frame: FrameType | None) -> Never:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGHUP, hang_up)
    try:
        with tempfile.TemporaryDirectory(prefix="sluiceway-worker-", ignore_cleanup_errors=True) as directory:
            yield directory
    finally:
        signal.signal(signal.SIGHUP, before)


def _search_path(drivers: Sequence[str]) -> list[str]:
    """Return where a worker imports from: its interpreter's library, what the driver sees, the executor's path.

    Where the driver's directories are seen, its versions of packages go before those that the executor's
    interpreter happens to have: functions are pickled by the one and unpickled by the other.

    Args:
        drivers: the driver's ``sys.path``.
    """
    own = [os.path.abspath(entry) for entry in sys.path]  # '' is the working directory
    library = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    of_library = {*library, *(os.path.join(each, "lib-dynload") for each in library)}
    first = [entry for entry in own if entry in of_library]
    return list(dict.fromkeys([*first, *(entry for entry in drivers if os.path.exists(entry)), *own]))


def _ended(
    worker: str, how: str, said: str = "", *, killed: bool = False, hopeless: bool = False
) -> WorkerEndedError:
    return WorkerEndedError(WorkerEnd(worker, how, said, killed, hopeless).encoded())
