"""What the processes of a cluster take from the operating system, in one place: simulations give another one."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any, Final, Protocol

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock
from sluiceway.runtime.cluster.cluster_directory import is_stood_by
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import Background, HelperThread
from sluiceway.runtime.loop.lazy_event_loop import LazyEventLoop
from sluiceway.runtime.loop.poller import Poller, SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage

__all__ = ["Listener", "Platform", "Stream"]

_BACKLOG: Final = 128


class Stream(Protocol):
    """One end of a connection of bytes, as a socket is one. Never blocks: BlockingIOError says to wait."""

    def fileno(self) -> int:
        """What pollers know it by."""

    def setblocking(self, flag: bool, /) -> None:
        """Called with False before anything else."""

    def recv(self, size: int, /) -> bytes:
        """What has come, at most that much; nothing: the other end is closed."""

    def send(self, data: memoryview, /) -> int:
        """Send; how much of it was taken."""

    def close(self) -> None:
        """Part."""


class Listener(Protocol):
    """Where connections come in."""

    def fileno(self) -> int:
        """What pollers know it by; negative once it is closed."""

    def accept(self) -> tuple[Stream, Any]:
        """The next connection."""

    def close(self) -> None:
        """Take no more."""


class Platform:
    """The operating system's own."""

    def loop(self, clock: Clock) -> tuple[TaskletLoop, Poller]:
        """A loop, and where it sleeps."""
        poller = SelectorPoller()
        return TaskletLoop(clock, poller), poller

    def event_loop(self) -> EventLoop:
        """Where coroutines run."""
        return LazyEventLoop()

    def background(self, loop: TaskletLoop) -> Background:
        """Where work is done that may block."""
        return HelperThread(loop.mail)

    def listen(self, directory: Path) -> Listener:
        """Listen in a cluster's directory, where its workers know to look."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (directory / "manager").unlink(missing_ok=True)  # that of a job manager that is gone
        listener.bind(str(directory / "manager"))
        (directory / "manager").chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def address(self, directory: Path, listener: Listener) -> str:
        """What workers are told to connect to: a path, or ``tcp://host:port``."""
        return str(directory / "manager")

    def temporary_storage(self, directory: Path) -> CheckpointStorage | None:
        """Storage in a directory that is not there yet, and which workers share; None: they share none."""
        return TemporaryStorage(str(directory))

    def remove(self, directory: Path) -> None:
        """Remove a cluster's directory with all that is in it, unless a standby leads the cluster from now on."""
        if not is_stood_by(directory):
            shutil.rmtree(directory, ignore_errors=True)
