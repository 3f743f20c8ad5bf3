"""Workers on other machines: interface of what places them, and a platform that listens on TCP."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from sluiceway.runtime.cluster.os_platform import Listener, Platform
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle

__all__ = ["HostedPlatform", "WorkerHost", "connect", "own_address"]

_SCHEME: Final = "tcp://"
_BACKLOG: Final = 128


class WorkerHost(ABC):
    """Interface that places the workers of one job. Called in the job manager's loop, except :meth:`open`.

    Call order: :meth:`open`, then :meth:`start` once per worker, :meth:`close` once at the end.

    Attributes:
        transport: name of a transport that works between machines.
        listens_at: after :meth:`open`, address of the interface that the job manager listens on; empty: the
            address returned by :meth:`open`.
        doing: progress until the workers have registered, for display; may be written by any thread.
        pages: after :meth:`open`, URL of the host's own web pages; empty: it has none.
    """

    transport: str
    listens_at: str = ""
    doing: str = ""
    pages: str = ""

    @abstractmethod
    def open(self) -> str:
        """Prepare, and return the address at which workers reach this process. May block for seconds."""

    @abstractmethod
    def start(self, config: WorkerConfig) -> WorkerHandle:
        """Request a worker. Does not wait for it to start."""

    @abstractmethod
    def close(self) -> None:
        """Release the workers that are left."""


class HostedPlatform(Platform):
    """Platform whose job manager listens on TCP, and whose workers a host places.

    Peers are authenticated by the cluster's secret before any of their messages is read.

    Args:
        host: the host, which is open.
        address: name or address that peers connect to, as its :meth:`~WorkerHost.open` has returned it.
    """

    shares_files = False

    def __init__(self, host: WorkerHost, address: str) -> None:
        self._host = host
        self._address = address
        self._port = 0

    def start_worker(self, config: WorkerConfig) -> WorkerHandle:
        """Request a worker of the host."""
        return self._host.start(config)

    def listen(self, directory: Path) -> Listener:
        """Listen on a free port."""
        family, place = _resolved(self._host.listens_at or self._address, 0)
        # Of `::`, every interface, those with IPv4 are a part.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(place[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        return listener

    def address(self, directory: Path, listener: Listener) -> str:
        """Return the address with host and port."""
        return f"{_SCHEME}{self._address}:{self._port}"


def connect(address: str) -> socket.socket:
    """Connect to a job manager at a ``tcp://host:port`` address or the path of a socket."""
    if not address.startswith(_SCHEME):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    sock = socket.create_connection((_bare(host), int(port)))
    # Control messages are small and must not wait for more to send.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def own_address(manager: str) -> str:
    """Return the address of the interface by which this machine reaches a job manager; of IPv6 in brackets.

    Args:
        manager: ``tcp://host:port`` of the job manager.

    Raises:
        OSError: the host has no address, or this machine has no way to it.
    """
    host, _, port = manager.removeprefix(_SCHEME).rpartition(":")
    family, place = _resolved(host, int(port))
    with socket.socket(family, socket.SOCK_DGRAM) as sock:  # connecting sends nothing
        sock.connect(place)
        own = str(sock.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return family and address of a host: of IPv4 if it has one, as both ends have to choose alike."""
    found = socket.getaddrinfo(_bare(host), port, type=socket.SOCK_STREAM)
    family, _, _, _, place = next((f for f in found if f[0] == socket.AF_INET), found[0])
    return family, place


def _bare(host: str) -> str:
    """Return a host without the brackets that Spark and URLs have around addresses of IPv6."""
    return host.removeprefix("[").removesuffix("]")
