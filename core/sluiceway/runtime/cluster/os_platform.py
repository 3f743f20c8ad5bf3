"""Services of the operating system for the processes of a cluster, in one place: simulations replace it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any, Final, Protocol

from sluiceway.clock import Clock
from sluiceway.runtime.cluster.cluster_directory import is_stood_by
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle, start_worker
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import Background, HelperThread
from sluiceway.runtime.loop.lazy_event_loop import LazyEventLoop
from sluiceway.runtime.loop.poller import Poller, SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage

__all__ = ["Listener", "Platform", "Stream"]

_BACKLOG: Final = 128


class Stream(Protocol):
    """End of a byte stream, like a socket. Never blocks: raises BlockingIOError instead."""

    def fileno(self) -> int:
        """Return the descriptor for pollers."""

    def setblocking(self, flag: bool, /) -> None:
        """Set the mode; called with False before anything else."""

    def recv(self, size: int, /) -> bytes:
        """Return received bytes, at most ``size``; empty: the other end is closed."""

    def send(self, data: memoryview, /) -> int:
        """Send; return the number of bytes accepted."""

    def close(self) -> None:
        """Close the stream."""


class Listener(Protocol):
    """Listening socket."""

    def fileno(self) -> int:
        """Return the descriptor for pollers; negative once closed."""

    def accept(self) -> tuple[Stream, Any]:
        """Return the next connection."""

    def close(self) -> None:
        """Stop listening."""


class Platform:
    """Platform of the operating system itself.

    Attributes:
        shares_files: whether workers read and write the files of the job manager.
    """

    shares_files: bool = True

    def loop(self, clock: Clock) -> tuple[TaskletLoop, Poller]:
        """Return a loop and its poller."""
        poller = SelectorPoller()
        return TaskletLoop(clock, poller), poller

    def event_loop(self) -> EventLoop:
        """Return the event loop for coroutines."""
        return LazyEventLoop()

    def background(self, loop: TaskletLoop) -> Background:
        """Return the executor for blocking calls."""
        return HelperThread(loop.mail)

    def start_worker(self, config: WorkerConfig) -> WorkerHandle:
        """Start a worker process; see :func:`.start_worker`. Raises OSError if there can be none now."""
        return start_worker(config)

    def listen(self, directory: Path) -> Listener:
        """Listen in a cluster's directory, at the path that its workers connect to."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (directory / "manager").unlink(missing_ok=True)  # left by a job manager that is gone
        listener.bind(str(directory / "manager"))
        (directory / "manager").chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def address(self, directory: Path, listener: Listener) -> str:
        """Return the address for workers: a path, or ``tcp://host:port``."""
        return str(directory / "manager")

    def temporary_storage(self, directory: Path) -> TemporaryStorage:
        """Return storage in a new directory."""
        return TemporaryStorage(str(directory))

    def remove(self, directory: Path, *, stopped: bool = False) -> None:
        """Remove a cluster's directory and its content, unless a standby leads the cluster from now on.

        Args:
            directory: the directory.
            stopped: none may lead: a standby that has not registered yet ends when it finds no directory.
        """
        if stopped or not is_stood_by(directory):
            shutil.rmtree(directory, ignore_errors=True)
