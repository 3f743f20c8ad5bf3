"""Workers elsewhere: what starts them where there is room, and reaches them over TCP."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from sluiceway.runtime.cluster.os_platform import Listener, Platform
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle

__all__ = ["HostedPlatform", "WorkerHost", "connect"]

_SCHEME: Final = "tcp://"
_BACKLOG: Final = 128


class WorkerHost(ABC):
    """Places the workers of one job. Called in the job manager's loop, except :meth:`open`.

    Call order: :meth:`open`, then :meth:`start` as often as workers are wanted, :meth:`close` once at the end.

    Attributes:
        transport: the transport between workers that cannot count on one machine.
        listens_at: after :meth:`open`, address of the interface at which the job manager listens; empty: the one
            that workers are told.
        doing: what it is at until the workers are there, in its own words; written in any thread.
    """

    transport: str
    listens_at: str = ""
    doing: str = ""

    @abstractmethod
    def open(self) -> str:
        """Get ready, which may take seconds; the address of the interface at which workers reach this process."""

    @abstractmethod
    def start(self, config: WorkerConfig) -> WorkerHandle:
        """Have a worker started somewhere, soon. Does not wait for it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is left of them."""


class HostedPlatform(Platform):
    """A platform whose job manager listens on TCP.

    Peers prove that they know the cluster's secret before anything that they say is listened to.

    Args:
        host: what peers are told, a name or an address.
        listens_at: address of the network interface; empty: ``host``.
    """

    def __init__(self, host: str, listens_at: str = "") -> None:
        self._host = host
        self._listens_at = listens_at or host
        self._port = 0

    def listen(self, directory: Path) -> Listener:
        """Listen on a free port."""
        listener = socket.create_server((self._listens_at, 0), backlog=_BACKLOG)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        return listener

    def temporary_storage(self, directory: Path) -> None:
        """Return None: workers on other machines see nothing of this one's disk."""

    def address(self, directory: Path, listener: Listener) -> str:
        """Host and port."""
        return f"{_SCHEME}{self._host}:{self._port}"


def connect(address: str) -> socket.socket:
    """Connect to a job manager, by the address that its workers are told."""
    if not address.startswith(_SCHEME):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(address)
        return sock
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
