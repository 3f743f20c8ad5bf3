"""Carrier over shared memory between workers of one machine: segments are written once and read in place."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sluiceway.transport.accept_loop import AcceptLoop
from sluiceway.transport.carrier import Carrier, CarrierContext, Link
from sluiceway.util.overriding import override
from sluiceway_shm._link import CHUNK_BYTES, ShmLink, greeting
from sluiceway_shm._memory import Memory

__all__ = ["ShmCarrier"]

_BACKLOG: Final = 128


class ShmCarrier(Carrier):
    """Carrier of frames over Unix sockets, with payloads in memory that both ends have mapped.

    Each worker has one anonymous file in memory (``memfd``) with all its segments. It has no name: its descriptor
    is sent to the peer over the socket, and the memory is freed when the last process with it has ended, in any
    way. The peer maps it for reading only. The socket carries small data: headers, the places of payloads, and
    the numbers of the segments that have been read. It also wakes the peer: once per turn of the loop.

    A peer must run as the same user and must know the cluster's secret.
    """

    def __init__(self) -> None:
        self._context: CarrierContext | None = None
        self._listener: socket.socket | None = None
        self._accepting: AcceptLoop | None = None
        self._path = ""
        self._memfd = -1
        self._memory: Memory | None = None
        self._count = 0
        self._size = 0
        self._links: set[ShmLink] = set()
        self._chunk = memoryview(bytearray(CHUNK_BYTES))

    def start(self, context: CarrierContext) -> str:
        """Listen on a socket in the cluster's directory."""
        self._context = context
        self._path = os.path.join(context.directory, f"{context.worker}.shm")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = listener
        listener.setblocking(False)
        listener.bind(self._path)
        os.chmod(self._path, 0o600)
        listener.listen(_BACKLOG)
        self._accepting = AcceptLoop(
            listener,
            self._accept,
            watch=context.watch,
            unwatch=context.unwatch,
            later=context.later,
            warn=context.warn,
            what="the transport 'shm'",
        )
        return self._path

    def segments(self, count: int, size: int) -> list[memoryview]:
        """Make the anonymous file and map it."""
        self._memfd = os.memfd_create("sluiceway", os.MFD_CLOEXEC)
        os.fchmod(self._memfd, 0o600)
        os.ftruncate(self._memfd, count * size)
        self._count, self._size = count, size
        self._memory = Memory(self._memfd, count, size, writable=True)
        return [self._memory.segment(i, size) for i in range(count)]

    @override
    def connect(self, peer: str, address: str) -> Link:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        link = ShmLink(sock, self._started(), self._hello(), self._chunk, self._links.discard)
        link.peer = peer
        self._links.add(link)
        link.connect(address)
        return link

    def close(self) -> None:
        """Close links and listener, remove the socket's name, let go of the memory."""
        for link in list(self._links):
            link.abandon()
        self._links.clear()
        if self._listener is not None:
            assert self._accepting is not None
            self._accepting.close()
            self._listener.close()
            self._listener = None
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._memfd >= 0:
            os.close(self._memfd)
            self._memfd = -1
        # Last: links that end release the buffers that peers had not yet read. A peer has the memory mapped, and
        # nothing is written into it from here on.
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _accept(self, sock: socket.socket) -> ShmLink | None:
        assert self._accepting is not None
        sock.setblocking(False)
        # The kernel's answer, before a byte of the peer is read.
        uid = _uid_of_peer(sock)
        if uid != os.getuid():
            sock.close()
            self._accepting.refused(f"its peer runs as user {uid}")
            return None
        link = ShmLink(
            sock,
            # The accept loop bounds the handshake in time, and ends that only when the peer has proved itself.
            replace(self._started(), accepted=self._proved),
            self._hello(),
            self._chunk,
            self._forget,
            accepted=True,
            refused=self._accepting.refused,
        )
        self._links.add(link)
        link.watch()
        return link

    def _proved(self, link: Link) -> None:
        assert self._accepting is not None
        assert isinstance(link, ShmLink)
        self._accepting.forget(link)
        self._started().accepted(link)

    def _forget(self, link: ShmLink) -> None:
        assert self._accepting is not None
        self._accepting.forget(link)
        self._links.discard(link)

    def _hello(self) -> tuple[bytes, int]:
        """Return the first message, and the descriptor that goes with it."""
        return greeting(self._started(), self._count, self._size), self._memfd

    def _started(self) -> CarrierContext:
        if self._context is None:
            raise RuntimeError("call start() first")
        return self._context


def _uid_of_peer(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
